"""Tables over streams: a frame that means "the latest row of each key", and totals over its rows.

    users = Table(kafka_rows, key=("id",), version="offset")
    per_region = table.aggregate(users, by="region", name="regions", people="count(*)", total="sum(balance)")

A table is a stream of the revisions of its rows; its readers keep the row with the highest version of each key. The
table has no state; operations on it do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, functions as F, types as st

from penstock.border.public import public
from penstock.codec.decode_columns import struct_of
from penstock.errors import PenstockError
from penstock.keyed_state.aggregates import parse
from penstock.keyed_state.arrow_keys import arrow_schema, columns_of
from penstock.keyed_state.buckets import stateful
from penstock.table.revisions import DELETED, SIGN, VERSION, Fold, Revisions, Totals

Row = dict[str, Any]


# The annotation is that of the field; a string is one column.
@public("Table", key=str | Sequence[str])
@dataclass(frozen=True)
class Table:
    """The latest row by `key`: of each key the row with the highest `version` (integer or timestamp), else the last.

    `deleted` names a boolean column that is true for a row that deletes its key. Raises PenstockError if `df` lacks one
    of the columns or `version` has another type.
    """

    df: DataFrame
    key: tuple[str, ...]
    version: str
    deleted: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", (self.key,) if isinstance(self.key, str) else tuple(self.key))
        named = [*self.key, self.version, *([self.deleted] if self.deleted else [])]
        if missing := [name for name in named if name not in self.df.columns]:
            has = ", ".join(self.df.columns)
            raise PenstockError(
                f"the table has no column {', '.join(missing)}", where="Table", next=f"use one of {has}"
            )
        kind = self.df.schema[self.version].dataType
        if not isinstance(kind, st.IntegralType | st.TimestampType):
            raise PenstockError(
                f"the version {self.version} is {kind.simpleString()}",
                where="Table",
                next="use a column of integers or timestamps that grows with each change, such as Kafka's offset",
            )

    @property
    def values(self) -> list[str]:
        """The columns other than key, version and deleted."""
        about = {*self.key, self.version, self.deleted}
        return [name for name in self.df.columns if name not in about]


@public("table.to_stream")
def to_stream(table: Table) -> DataFrame:
    """The revisions of the rows, one per row: the table's frame."""
    return table.df


@public("table.count")
def count(table: Table, *, by: str | Sequence[str], name: str) -> Table:
    """The number of rows of the table for each value of the columns `by`: a table with the column `count` (long).

    The result is as in `aggregate`.
    """
    return aggregate(table, by=by, name=name, count="count(*)")


@public("table.aggregate")
def aggregate(table: Table, *, by: str | Sequence[str], name: str, **aggregates: str) -> Table:
    """Counts and sums over the current rows of a table: a new row is added, the row that it replaces is subtracted.

    `aggregates` are columns by name: `n="count(*)"`, `total="sum(price)"`; the functions are count, sum and avg. The
    result is a table with the key `by`, the aggregates, `version` (long) and `deleted` (boolean); a group without rows
    is deleted. `name` names the state in the checkpoint. For other functions use `fold`. Raises PenstockError for an
    invalid aggregate.
    """
    by = _columns(table, by, name)
    frame, parsed = parse(table.df, aggregates)
    for agg in parsed:
        if any(part.function not in ("count", "sum") for part in agg.parts):
            raise PenstockError(
                f"{agg.column} cannot be subtracted", where=f"table {name}", next="use count, sum or avg, or table.fold"
            )
    sources = list(dict.fromkeys(part.source for agg in parsed for part in agg.parts))
    signed = _revisions(table, frame, by, sources, name)
    logic = Totals(arrow_schema(columns_of(frame, by)), parsed)
    output = columns_of(frame, by)
    for agg in parsed:
        output.add(agg.column, agg.type)
    return _totals(signed, logic, by, output, name)


@public("table.fold")
def fold(
    table: Table,
    *,
    by: str | Sequence[str],
    name: str,
    initial: Row,
    add: Callable[[Row, Row], Row],
    subtract: Callable[[Row, Row], Row],
    returns: str,
) -> Table:
    """A custom total over the current rows: `add(total, row)` for each new row, `subtract(total, row)` for the row that
    it replaces.

    Totals are dicts with the columns that `returns` declares ("n long, names array<string>") and start as a copy of
    `initial`; rows are dicts of the table's key and values. The two functions run row by row in Python. The result is
    as in `aggregate`.
    """
    by = _columns(table, by, name)
    columns = list(dict.fromkeys([*by, *table.key, *table.values]))
    kinds = struct_of(returns, f"table.fold {name}")
    signed = _revisions(table, table.df, by, [column for column in columns if column not in by], name)
    logic = Fold(arrow_schema(columns_of(table.df, by)), arrow_schema(kinds), initial, add, subtract)
    output = st.StructType([*columns_of(table.df, by), *kinds])
    return _totals(signed, logic, by, output, name)


def _columns(table: Table, by: str | Sequence[str], name: str) -> list[str]:
    wanted = [by] if isinstance(by, str) else list(by)
    if missing := [column for column in wanted if column not in table.df.columns]:
        has = ", ".join(table.df.columns)
        raise PenstockError(
            f"the table has no column {', '.join(missing)}", where=f"table {name}", next=f"set by= to some of {has}"
        )
    return wanted


def _revisions(table: Table, frame: DataFrame, by: Sequence[str], values: Sequence[str], name: str) -> DataFrame:
    """Each new row with sign 1, and the row that it replaces with sign -1: `by`, values and sign."""
    sent = list(dict.fromkeys([*by, *values]))
    rows = versioned(table, frame, list(dict.fromkeys([*table.key, *sent])))
    kinds = arrow_schema(columns_of(frame, list(dict.fromkeys([*table.key, *sent]))))
    output = columns_of(frame, sent).add(SIGN, st.LongType())
    logic = Revisions(kinds, table.key, tuple(sent))
    return stateful(rows, logic, name=f"{name}_rows", key=table.key, output=output, timed=False)


def _totals(signed: DataFrame, logic: Any, by: list[str], output: st.StructType, name: str) -> Table:
    output.add(VERSION, st.LongType()).add(DELETED, st.BooleanType())
    df = stateful(signed, logic, name=name, key=by, output=output, timed=False)
    return Table(df, tuple(by), VERSION, DELETED)


def versioned(table: Table, frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Columns of a table's rows with `_version long` and `_deleted boolean`."""
    version = F.col(table.version)
    if isinstance(frame.schema[table.version].dataType, st.TimestampType):
        version = F.unix_micros(version)
    deleted = F.coalesce(F.col(table.deleted), F.lit(False)) if table.deleted else F.lit(False)
    return frame.select(*columns, version.cast("long").alias(f"_{VERSION}"), deleted.alias(f"_{DELETED}"))
