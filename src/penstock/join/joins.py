"""Joins of tables with tables, streams with tables, and streams with streams.

A table's side of a join is state, in buckets of its key (see `buckets`). The result of a table join is a table whose
`version` grows with each change of a row on either side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, functions as F, types as st

from penstock.border.public import public
from penstock.durations import Duration, duration, duration_text
from penstock.errors import PenstockError
from penstock.keyed_state.arrow_keys import (
    Numbers,
    arrow_schema,
    codes,
    columns_of,
    incomplete,
    numbers,
    partners,
    positions,
    taken,
)
from penstock.keyed_state.buckets import BucketStep, Logic, stateful, upserted, with_gone
from penstock.table.revisions import DELETED, ROW_DELETED, ROW_VERSION, VERSION, LatestLogic, changes
from penstock.table.table import Table, versioned

if TYPE_CHECKING:
    from penstock.table.global_tables import GlobalTable
else:

    class GlobalTable(Protocol):
        """What `enrich` needs of it: its module loads compiled loops, which other joins do not need."""

        def enrich(self, frame: DataFrame, *, on: str, how: str, name: str) -> DataFrame: ...


InnerOrLeft: TypeAlias = Literal["inner", "left"]
HOWS = ("inner", "left", "full")
SIDE = "_side"
LEFT, RIGHT = 0, 1
MOVED = "_moved"
"""True for a row that is removed from one foreign key because it now has another."""
Mask = npt.NDArray[np.bool_]


@public("join.tables")
def tables(left: Table, right: Table, *, name: str, how: Literal["inner", "left", "full"] = "inner") -> Table:
    """Joins two tables with the same key to a table; columns of a missing side are null.

    `how` is "inner", "left" or "full". The columns are the key, those of left, those of right, `version` (long) and
    `deleted` (boolean). `name` names the state in the checkpoint. Raises PenstockError if the keys differ or both sides
    have a column with the same name.
    """
    _require_how(how, HOWS, name)
    if left.key != right.key or columns_of(left.df, left.key) != columns_of(right.df, right.key):
        raise PenstockError(
            f"the tables have the keys {', '.join(left.key)} and {', '.join(right.key)}",
            where=f"join {name}",
            next="use the same names and types for both keys, or join by a column with join.foreign_key",
        )
    _require_distinct(left.values, right.values, name)
    columns = [*left.key, *left.values, *right.values]
    rows = both(
        versioned(left, left.df, [*left.key, *left.values]),
        versioned(right, right.df, [*right.key, *right.values]),
        [*columns, ROW_VERSION, ROW_DELETED],
    )
    logic = Pairs(_arrow(rows, columns), left.key, tuple(left.values), tuple(right.values), how)
    return _table(rows, logic, left.key, columns, left.key, name)


@public("join.foreign_key")
def foreign_key(left: Table, right: Table, *, on: str, name: str, how: InnerOrLeft = "inner") -> Table:
    """Joins each row of `left` with the row of `right` whose key is in left's column `on`: a table with left's key.

    A change of a row of right changes all rows of left that point to it. `how` is "inner" or "left". The columns are as
    in `tables`, without right's key, which is in `on`. Versions order the results of a row of left, also after it
    points to another row. Raises PenstockError if `on` is not a column of left with the type of right's only key
    column, or if both sides have a column with the same name.
    """
    _require_how(how, ("inner", "left"), name)
    if on not in (*left.key, *left.values):
        raise PenstockError(
            f"the left table has no column {on}", where=f"join {name}", next="set on= to one of its columns"
        )
    if len(right.key) != 1 or left.df.schema[on].dataType != right.df.schema[right.key[0]].dataType:
        raise PenstockError(
            f"the column {on} does not fit the key of the right table, {', '.join(right.key)}",
            where=f"join {name}",
            next="use a right table with one key column, and a column of the same type",
        )
    _require_distinct([*left.key, *left.values], right.values, name)
    ours = list(dict.fromkeys([*left.key, *left.values]))
    linked = columns_of(left.df, ours).add(ROW_VERSION, st.LongType()).add(ROW_DELETED, st.BooleanType())
    links = stateful(
        versioned(left, left.df, ours),
        Links(_arrow(left.df, ours), left.key, on),
        name=f"{name}_links",
        key=left.key,
        output=linked.add(MOVED, st.BooleanType()),
        timed=False,
    )
    theirs = versioned(right, right.df, [*right.key, *right.values]).withColumnRenamed(right.key[0], on)
    columns = [*ours, *right.values]
    rows = both(links, theirs, [*columns, ROW_VERSION, ROW_DELETED, MOVED])
    logic = Linked(_arrow(rows, columns), left.key, on, tuple(left.values), tuple(right.values), how)
    return _table(rows, logic, (on,), columns, left.key, name)


@public("join.stream_table")
def stream_table(stream: DataFrame, table: Table, *, name: str, how: InnerOrLeft = "inner") -> DataFrame:
    """Joins each row of a stream with the table's row for its key: the stream's columns, then the table's values.

    The stream needs the table's key columns. A row sees the table after the changes of the same batch. Rows without a
    match are left out, or with `how="left"` have nulls. Raises PenstockError if key columns are missing or both sides
    have another column with the same name.
    """
    _require_how(how, ("inner", "left"), name)
    if missing := [column for column in table.key if column not in stream.columns]:
        raise PenstockError(f"the stream has no column {', '.join(missing)}", where=f"join {name}", next="add it")
    _require_distinct(stream.columns, table.values, name)
    columns = [*table.key, *table.values]
    rows = both(stream, versioned(table, table.df, columns), [*stream.columns, *table.values, ROW_VERSION, ROW_DELETED])
    output = st.StructType([*stream.schema, *columns_of(table.df, table.values)])
    logic = StreamTableLogic(_arrow(table.df, columns), table.key, tuple(stream.columns), tuple(table.values), how)
    return stateful(rows, logic, name=name, key=table.key, output=output, timed=False)


@public("join.enrich")
def enrich(
    stream: DataFrame, table: Table | GlobalTable, *, on: str, name: str, how: InnerOrLeft = "left"
) -> DataFrame:
    """Joins each row of a stream with the row of any kind of table whose key is in the stream's column `on`.

    Rows without a match have nulls, or with `how="inner"` are left out. docs/tables.md compares the kinds of tables.
    Raises PenstockError if the stream has no column `on`, the table has several key columns, or both sides have a
    column with the same name.
    """
    _require_how(how, ("inner", "left"), name)
    if on not in stream.columns:
        raise PenstockError(
            f"the stream has no column {on}", where=f"join {name}", next="set on= to one of its columns"
        )
    if not isinstance(table, Table):
        return table.enrich(stream, on=on, how=how, name=name)
    if len(table.key) != 1:
        raise PenstockError(
            f"the table has the key {', '.join(table.key)}", where=f"join {name}", next="use join.stream_table"
        )
    _require_distinct([on] if table.key != (on,) else [], table.df.columns, name)
    renamed = Table(table.df.withColumnRenamed(table.key[0], on), (on,), table.version, table.deleted)
    return stream_table(stream, renamed, name=name, how=how)


@public("join.streams")
def streams(
    left: DataFrame,
    right: DataFrame,
    *,
    on: str | Sequence[str],
    at: tuple[str, str],
    within: Duration,
    how: Literal["inner", "left", "right", "full"] = "inner",
) -> DataFrame:
    """Pairs of rows of two streams with equal columns `on` and at most `within` between their times: Spark's join.

    `at` names the time column of each stream; both need watermarks. `how` is "inner", "left", "right" or "full"; a row
    without a partner is emitted when the watermark excludes one. The columns are `on`, left's, right's. Raises
    PenstockError if both sides have another column with the same name.
    """
    keys = [on] if isinstance(on, str) else list(on)
    values = [[column for column in side.columns if column not in keys] for side in (left, right)]
    _require_distinct(values[0], values[1], "streams")
    span = F.expr(f"INTERVAL '{duration_text(duration(within, name='within'))}'")
    ours, theirs = left.alias("l"), right.alias("r")
    same = [F.col(f"l.{key}") == F.col(f"r.{key}") for key in keys]
    first, second = F.col(f"l.{at[0]}"), F.col(f"r.{at[1]}")
    joined = ours.join(theirs, [*same, second >= first - span, second <= first + span], how)
    of_keys = [F.coalesce(F.col(f"l.{key}"), F.col(f"r.{key}")).alias(key) for key in keys]
    sides = [F.col(f"{side}.{column}") for side, columns in zip("lr", values, strict=True) for column in columns]
    return joined.select(*of_keys, *sides)


def _table(
    rows: DataFrame, logic: Logic, by: Sequence[str], columns: list[str], key: tuple[str, ...], name: str
) -> Table:
    output = columns_of(rows, columns).add(VERSION, st.LongType()).add(DELETED, st.BooleanType())
    return Table(stateful(rows, logic, name=name, key=by, output=output, timed=False), key, VERSION, DELETED)


def _arrow(frame: DataFrame, columns: Sequence[str]) -> pa.Schema:
    return arrow_schema(columns_of(frame, columns))


def _require_how(how: str, known: Sequence[str], name: str) -> None:
    if how not in known:
        raise PenstockError(f"unknown how {how!r}", where=f"join {name}", next=f"use {' or '.join(map(repr, known))}")


def _require_distinct(ours: Sequence[str], theirs: Sequence[str], name: str) -> None:
    if twice := sorted(set(ours) & set(theirs)):
        raise PenstockError(
            f"both sides have a column {', '.join(twice)}",
            where=f"join {name}",
            next="rename or drop it on one side before the join",
        )


# Two tables as one stream of rows with the number of the side; the columns of the other side are null.


def both(left: DataFrame, right: DataFrame, columns: Sequence[str]) -> DataFrame:
    """The rows of both frames, with these columns and `_side`."""
    rows = left.withColumn(SIDE, F.lit(LEFT)).unionByName(
        right.withColumn(SIDE, F.lit(RIGHT)), allowMissingColumns=True
    )
    return rows.select(*columns, SIDE)


# The logic of joins, batch by batch of a bucket.


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

    def changed(self, state: pa.Table, rows: pa.Table, number: int) -> BucketStep:
        change = changes(state, rows, self.state_key)
        changed = with_gone(change.rows.select(self.state.names), change.gone)
        if not len(changed):
            return BucketStep()
        (key,) = codes([changed], self.key)
        touched = changed.take(pa.array(np.unique(key, return_index=True)[1]))
        existed = self._exists(*self._places(state, touched))
        state = upserted(state, changed, self.state_key)
        places = self._places(state, touched)
        exists = self._exists(*places)
        left, right = (taken(side(state, which), at) for which, at in zip((LEFT, RIGHT), places, strict=True))
        version_columns = {VERSION: pa.array(np.full(len(touched), number, np.int64)), DELETED: pa.array(~exists)}
        joined = _columns(touched, self.key) | _columns(left, self.left) | _columns(right, self.right) | version_columns
        return BucketStep(changed, pa.table(joined).filter(pa.array(exists | existed)), state=state)

    def _places(self, state: pa.Table, touched: pa.Table) -> tuple[Numbers, Numbers]:
        left, right = (positions(side(state, which), touched, self.key) for which in (LEFT, RIGHT))
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

    def changed(self, state: pa.Table, rows: pa.Table, number: int) -> BucketStep:
        change = changes(state, rows, self.key)
        known = change.places >= 0
        old = state.take(pa.array(change.places[known]))
        was, now = codes([old, change.rows.filter(pa.array(known))], [self.on])
        moved = (was != now) & ~change.gone[known]
        away = self._with_versions(old.filter(pa.array(moved | change.gone[known])), number, True)
        away = away.append_column(MOVED, pa.array(moved[moved | change.gone[known]]))
        here = self._with_versions(change.rows.filter(pa.array(~change.gone)), number, False)
        here = here.append_column(MOVED, pa.array(np.zeros(len(here), bool)))
        changed = with_gone(change.rows.select(self.state.names), change.gone)
        return BucketStep(changed, pa.concat_tables([away, here]).combine_chunks())

    def _with_versions(self, rows: pa.Table, number: int, gone: bool) -> pa.Table:
        version_columns = {
            ROW_VERSION: pa.array(np.full(len(rows), number)),
            ROW_DELETED: pa.array(np.full(len(rows), gone)),
        }
        return pa.table(_columns(rows, self.columns.names) | version_columns)


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

    def changed(self, state: pa.Table, rows: pa.Table, number: int) -> BucketStep:
        change = changes(state, rows, self.state_key)
        changed = with_gone(change.rows.select(self.state.names), change.gone)
        if not len(changed):
            return BucketStep()
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
        return BucketStep(changed, pa.concat_tables(output).combine_chunks(), state=state)

    def _touched(self, left: pa.Table, changed: pa.Table) -> pa.Table:
        """The rows of left that changed, or whose row of right did."""
        itself = positions(changed, left, self.state_key) >= 0
        there, here = codes([side(changed, RIGHT), left], [self.on])
        return left.filter(pa.array(itself | np.isin(here, there)))

    def _joined(self, left: pa.Table, right: pa.Table, gone: Mask, number: int) -> pa.Table:
        # A row that points elsewhere gets a higher first part, so that results of its former bucket are older.
        version = (numbers(left[ROW_VERSION]) << 31) + number
        version_columns = {VERSION: pa.array(version), DELETED: pa.array(gone)}
        return pa.table(_columns(left, (*self.key, *self.left)) | _columns(right, self.right) | version_columns)


def side(rows: pa.Table, number: int) -> pa.Table:
    return rows.filter(pc.equal(rows[SIDE], number))


def _columns(rows: pa.Table, names: tuple[str, ...] | list[str]) -> dict[str, pa.ChunkedArray]:
    return {name: rows[name] for name in names}


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

    def changed(self, state: pa.Table, rows: pa.Table, number: int) -> BucketStep:
        of_table = pc.equal(rows[SIDE], RIGHT)
        change = changes(state, rows.filter(of_table), self.key)
        changed = with_gone(change.rows.select(self.state.names), change.gone)
        if len(changed):
            state = upserted(state, changed, self.key)
        return BucketStep(changed, self._joined(rows.filter(pc.invert(of_table)), state), state=state)

    def _joined(self, rows: pa.Table, state: pa.Table) -> pa.Table:
        places = partners(state, rows, self.key)
        if self.how == "inner":
            has_partner = places >= 0
            rows, places = rows.filter(pa.array(has_partner)), places[has_partner]
        values = taken(state.select(list(self.values)), places)
        return pa.table({name: rows[name] for name in self.stream} | {name: values[name] for name in self.values})
