"""A table's rows as additions and subtractions: the new row with sign 1, the replaced row with sign -1."""

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
    """Base of the logic of stages with tables (see `buckets`): the state is the newest row of each key."""

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
        """Apply rows; time alone changes no table."""
        raise NotImplementedError


@dataclass(frozen=True)
class Revisions(LatestLogic):
    """The rows of a table as revisions; `sent` are the output columns."""

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
    """The rows that are newer than those of the state, their positions in the state (-1: none), and a mask of those
    that are deleted."""

    rows: pa.Table
    places: np.ndarray[tuple[int], np.dtype[np.int64]]
    gone: np.ndarray[tuple[int], np.dtype[np.bool_]]


def changes(state: pa.Table, rows: pa.Table, key: tuple[str, ...]) -> Change:
    """What rows with `_version` and `_deleted` change in a state with `_version`.

    A deletion also removes the version: a row older than its deletion that comes later counts as new.
    """
    rows = newest(rows, key, ROW_VERSION)
    places = positions(state, rows, key)
    known = np.full(len(rows), np.iinfo(np.int64).min)
    known[places >= 0] = numbers(state[ROW_VERSION])[places[places >= 0]]
    gone = rows[ROW_DELETED].to_numpy().astype(bool)
    newer = (numbers(rows[ROW_VERSION]) >= known) & ~(gone & (places < 0))
    return Change(rows.filter(pa.array(newer)), places[newer], gone[newer])
