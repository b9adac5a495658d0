"""Joins of tables with tables, streams with tables, and streams with streams.

A table's side of a join is state, in buckets of its key (see `buckets`). The result of a table join is a table whose
`version` grows with each change of a row on either side.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, functions as F, types as st

from penstock.config import duration, duration_text
from penstock.errors import PenstockError
from penstock.join.table_join import MOVED, Linked, Links, Pairs, StreamTableLogic, both
from penstock.keyed_state.arrow_keys import arrow_schema
from penstock.keyed_state.buckets import Logic, stateful
from penstock.table.revisions import DELETED, ROW_DELETED, ROW_VERSION, VERSION
from penstock.table.table import Table, versioned

HOWS = ("inner", "left", "full")


def tables(left: Table, right: Table, *, name: str, how: str = "inner") -> Table:
    """Joins two tables with the same key to a table; columns of a missing side are null.

    `how` is "inner", "left" or "full". The columns are the key, those of left, those of right, `version` (long) and
    `deleted` (boolean). `name` names the state in the checkpoint. Raises PenstockError if the keys differ or both sides
    have a column with the same name.
    """
    _require_how(how, HOWS, name)
    if left.key != right.key or _kinds(left.df, left.key) != _kinds(right.df, right.key):
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


def foreign_key(left: Table, right: Table, *, on: str, name: str, how: str = "inner") -> Table:
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
    linked = _kinds(left.df, ours).add(ROW_VERSION, st.LongType()).add(ROW_DELETED, st.BooleanType())
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


def stream_table(stream: DataFrame, table: Table, *, name: str, how: str = "inner") -> DataFrame:
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
    output = st.StructType([*stream.schema, *_kinds(table.df, table.values)])
    logic = StreamTableLogic(_arrow(table.df, columns), table.key, tuple(stream.columns), tuple(table.values), how)
    return stateful(rows, logic, name=name, key=table.key, output=output, timed=False)


class Enriching(Protocol):
    """A table for lookups, such as `GlobalTable`."""

    def enrich(self, frame: DataFrame, *, on: str, how: str, name: str) -> DataFrame:
        """The frame's rows with the table's columns."""


def enrich(stream: DataFrame, table: Table | Enriching, *, on: str, name: str, how: str = "left") -> DataFrame:
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


def streams(
    left: DataFrame,
    right: DataFrame,
    *,
    on: str | Sequence[str],
    at: tuple[str, str],
    within: timedelta | str,
    how: str = "inner",
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
    output = _kinds(rows, columns).add(VERSION, st.LongType()).add(DELETED, st.BooleanType())
    return Table(stateful(rows, logic, name=name, key=by, output=output, timed=False), key, VERSION, DELETED)


def _kinds(frame: DataFrame, columns: Sequence[str]) -> st.StructType:
    return st.StructType([st.StructField(name, frame.schema[name].dataType) for name in columns])


def _arrow(frame: DataFrame, columns: Sequence[str]) -> pa.Schema:
    return arrow_schema(_kinds(frame, columns))


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
