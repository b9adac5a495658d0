"""Joins of tables by their keys and by a foreign key: both sides are state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, functions as F

from penstock.keyed_state.arrow_keys import Numbers, codes, incomplete, numbers, partners, positions, taken
from penstock.keyed_state.buckets import Step, upserted, with_gone
from penstock.table.revisions import DELETED, ROW_DELETED, ROW_VERSION, VERSION, LatestLogic, changes

SIDE = "_side"
LEFT, RIGHT = 0, 1
MOVED = "_moved"
"""True for a row that is removed from one foreign key because it now has another."""
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class TwoSided(LatestLogic):
    """The state has the rows of both sides."""

    @cached_property
    def state(self) -> pa.Schema:
        return pa.schema([*self.columns, pa.field(SIDE, pa.int32()), pa.field(ROW_VERSION, pa.int64())])

    @property
    def state_key(self) -> tuple[str, ...]:
        return (*self.key, SIDE)


@dataclass(frozen=True)
class Pairs(TwoSided):
    """A join of two tables by the same key."""

    left: tuple[str, ...]
    right: tuple[str, ...]
    how: str

    def changed(self, state: pa.Table, rows: pa.Table, number: int) -> Step:
        change = changes(state, rows, self.state_key)
        changed = with_gone(change.rows.select(self.state.names), change.gone)
        if not len(changed):
            return Step()
        (key,) = codes([changed], self.key)
        touched = changed.take(pa.array(np.unique(key, return_index=True)[1]))
        existed = self._exists(*self._places(state, touched))
        state = upserted(state, changed, self.state_key)
        places = self._places(state, touched)
        exists = self._exists(*places)
        left, right = (taken(side(state, one), at) for one, at in zip((LEFT, RIGHT), places, strict=True))
        told = {VERSION: pa.array(np.full(len(touched), number, np.int64)), DELETED: pa.array(~exists)}
        joined = _columns(touched, self.key) | _columns(left, self.left) | _columns(right, self.right) | told
        return Step(changed, pa.table(joined).filter(pa.array(exists | existed)), state=state)

    def _places(self, state: pa.Table, touched: pa.Table) -> tuple[Numbers, Numbers]:
        left, right = (positions(side(state, one), touched, self.key) for one in (LEFT, RIGHT))
        # Null equals nothing. A full join has one row for a key with nulls: left's, or right's if left has none.
        right[incomplete(touched, self.key) & (left >= 0)] = -1
        return left, right

    def _exists(self, left: Numbers, right: Numbers) -> Mask:
        if self.how == "inner":
            return (left >= 0) & (right >= 0)
        return left >= 0 if self.how == "left" else (left >= 0) | (right >= 0)


@dataclass(frozen=True)
class Links(LatestLogic):
    """The first stage of a join by a foreign key: a row that now points elsewhere is removed from its former key."""

    on: str

    def changed(self, state: pa.Table, rows: pa.Table, number: int) -> Step:
        change = changes(state, rows, self.key)
        known = change.places >= 0
        old = state.take(pa.array(change.places[known]))
        was, now = codes([old, change.rows.filter(pa.array(known))], [self.on])
        moved = (was != now) & ~change.gone[known]
        away = self._told(old.filter(pa.array(moved | change.gone[known])), number, True)
        away = away.append_column(MOVED, pa.array(moved[moved | change.gone[known]]))
        here = self._told(change.rows.filter(pa.array(~change.gone)), number, False)
        here = here.append_column(MOVED, pa.array(np.zeros(len(here), bool)))
        changed = with_gone(change.rows.select(self.state.names), change.gone)
        return Step(changed, pa.concat_tables([away, here]).combine_chunks())

    def _told(self, rows: pa.Table, number: int, gone: bool) -> pa.Table:
        told = {ROW_VERSION: pa.array(np.full(len(rows), number)), ROW_DELETED: pa.array(np.full(len(rows), gone))}
        return pa.table(_columns(rows, self.columns.names) | told)


@dataclass(frozen=True)
class Linked(TwoSided):
    """The second stage, in buckets of the foreign key: a row of right and all rows of left that point to it."""

    on: str
    left: tuple[str, ...]
    right: tuple[str, ...]
    how: str

    @property
    def state_key(self) -> tuple[str, ...]:
        return (*self.key, self.on, SIDE)

    def changed(self, state: pa.Table, rows: pa.Table, number: int) -> Step:
        change = changes(state, rows, self.state_key)
        changed = with_gone(change.rows.select(self.state.names), change.gone)
        if not len(changed):
            return Step()
        state = upserted(state, changed, self.state_key)
        of_left = pc.equal(change.rows[SIDE], LEFT)
        deleted = change.rows.filter(pc.and_(of_left, pc.and_(pa.array(change.gone), pc.invert(change.rows[MOVED]))))
        left = self._touched(side(state, LEFT), changed)
        right = side(state, RIGHT)
        places = partners(right, left, [self.on])
        gone = places < 0 if self.how == "inner" else np.zeros(len(left), bool)
        output = [
            self._joined(left, taken(right, places), gone, number),
            self._joined(deleted, taken(right, np.full(len(deleted), -1)), np.ones(len(deleted), bool), number),
        ]
        return Step(changed, pa.concat_tables(output).combine_chunks(), state=state)

    def _touched(self, left: pa.Table, changed: pa.Table) -> pa.Table:
        """The rows of left that changed, or whose row of right did."""
        itself = positions(changed, left, self.state_key) >= 0
        there, here = codes([side(changed, RIGHT), left], [self.on])
        return left.filter(pa.array(itself | np.isin(here, there)))

    def _joined(self, left: pa.Table, right: pa.Table, gone: Mask, number: int) -> pa.Table:
        # A row that points elsewhere gets a higher first part, so that results of its former bucket are older.
        version = (numbers(left[ROW_VERSION]) << 31) + number
        told = {VERSION: pa.array(version), DELETED: pa.array(gone)}
        return pa.table(_columns(left, (*self.key, *self.left)) | _columns(right, self.right) | told)


def side(rows: pa.Table, number: int) -> pa.Table:
    return rows.filter(pc.equal(rows[SIDE], number))


def _columns(rows: pa.Table, names: tuple[str, ...] | list[str]) -> dict[str, pa.ChunkedArray]:
    return {name: rows[name] for name in names}


# Two tables as one stream of rows with the number of the side; the columns of the other side are null.


def both(left: DataFrame, right: DataFrame, columns: Sequence[str]) -> DataFrame:
    """The rows of both frames, with these columns and `_side`."""
    rows = left.withColumn(SIDE, F.lit(LEFT)).unionByName(
        right.withColumn(SIDE, F.lit(RIGHT)), allowMissingColumns=True
    )
    return rows.select(*columns, SIDE)


# Joins a stream's rows with a table, whose rows are state.


@dataclass(frozen=True)
class StreamTableLogic(LatestLogic):
    """The logic of a join of a stream (left) with a table (right)."""

    stream: tuple[str, ...]
    values: tuple[str, ...]
    how: str

    def before(self, rows: pa.Table) -> pa.Table:
        of_table = pc.equal(rows[SIDE], RIGHT)
        return pa.concat_tables([super().before(rows.filter(of_table)), rows.filter(pc.invert(of_table))])

    def changed(self, state: pa.Table, rows: pa.Table, number: int) -> Step:
        of_table = pc.equal(rows[SIDE], RIGHT)
        change = changes(state, rows.filter(of_table), self.key)
        changed = with_gone(change.rows.select(self.state.names), change.gone)
        if len(changed):
            state = upserted(state, changed, self.key)
        return Step(changed, self._joined(rows.filter(pc.invert(of_table)), state), state=state)

    def _joined(self, rows: pa.Table, state: pa.Table) -> pa.Table:
        places = partners(state, rows, self.key)
        if self.how == "inner":
            found = places >= 0
            rows, places = rows.filter(pa.array(found)), places[found]
        values = taken(state.select(list(self.values)), places)
        return pa.table({name: rows[name] for name in self.stream} | {name: values[name] for name in self.values})
