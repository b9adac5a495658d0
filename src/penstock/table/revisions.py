"""A table's rows as additions and subtractions: the new row with the sign 1, the one that it replaces with -1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from penstock.keyed_state.arrow_keys import newest, numbers, positions
from penstock.keyed_state.buckets import BUCKET, Step, with_gone

SIGN, VERSION, DELETED = "_sign", "version", "deleted"
ROW_VERSION, ROW_DELETED = f"_{VERSION}", f"_{DELETED}"


@dataclass(frozen=True)
class LatestLogic:
    """What the logic of stages with tables shares (see `buckets`): the state is the newest row of each key."""

    columns: pa.Schema
    key: tuple[str, ...]

    @cached_property
    def state(self) -> pa.Schema:
        return pa.schema([*self.columns, pa.field(ROW_VERSION, pa.int64())])

    @property
    def state_key(self) -> tuple[str, ...]:
        return self.key

    @property
    def made(self) -> Mapping[str, Sequence[str]]:
        return {}

    def before(self, rows: pa.Table) -> pa.Table:
        return newest(rows, [BUCKET, *self.state_key], ROW_VERSION)

    def step(self, state: pa.Table, rows: pa.Table | None, watermark: int, number: int) -> Step:
        return Step() if rows is None else self.changed(state, rows, number)

    def changed(self, state: pa.Table, rows: pa.Table, number: int) -> Step:
        """What rows do; time alone changes no table."""
        raise NotImplementedError


@dataclass(frozen=True)
class Revisions(LatestLogic):
    """The rows of a table as revisions: `sent` are the columns of its output."""

    sent: tuple[str, ...]

    def changed(self, state: pa.Table, rows: pa.Table, number: int) -> Step:
        change = changes(state, rows, self.key)
        minus = self._signed(state.take(pa.array(change.places[change.places >= 0])), -1)
        plus = self._signed(change.rows.filter(pa.array(~change.gone)), 1)
        changed = with_gone(change.rows.select(self.state.names), change.gone)
        return Step(changed, pa.concat_tables([minus, plus]).combine_chunks())

    def _signed(self, rows: pa.Table, sign: int) -> pa.Table:
        return rows.select(list(self.sent)).append_column(SIGN, pa.array(np.full(len(rows), sign, np.int64)))


@dataclass(frozen=True)
class Change:
    """The rows that are newer than those of the state, where these stand (-1: nowhere), and which say deleted."""

    rows: pa.Table
    places: np.ndarray[tuple[int], np.dtype[np.int64]]
    gone: np.ndarray[tuple[int], np.dtype[np.bool_]]


def changes(state: pa.Table, rows: pa.Table, key: tuple[str, ...]) -> Change:
    """What rows with `_version` and `_deleted` change in a state that has `_version`.

    The version of a deleted row is forgotten with it: a row that is older than its deletion and comes after it, is new.
    """
    rows = newest(rows, key, ROW_VERSION)
    places = positions(state, rows, key)
    known = np.full(len(rows), np.iinfo(np.int64).min)
    known[places >= 0] = numbers(state[ROW_VERSION])[places[places >= 0]]
    gone = rows[ROW_DELETED].to_numpy().astype(bool)
    newer = (numbers(rows[ROW_VERSION]) >= known) & ~(gone & (places < 0))
    return Change(rows.filter(pa.array(newer)), places[newer], gone[newer])
