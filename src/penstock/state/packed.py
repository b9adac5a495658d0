"""Unpacks the state of Penstock's windows, tables, joins and segments into rows.

A row has a struct `key` and a struct `value`, as the rows of Spark's operators have. Keys are in buckets by their hash:
to read one key, only its bucket is unpacked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, functions as F, types as st
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from penstock.errors import PenstockError
from penstock.join.joins import SIDE
from penstock.keyed_state.aggregates import OF, result
from penstock.keyed_state.arrow_keys import unpacked
from penstock.keyed_state.buckets import BUCKETS, GONE, upserted
from penstock.keyed_state.description import TABLES, About, about
from penstock.segment import processor
from penstock.segment.rule_definitions import Rule
from penstock.table.revisions import ROW_VERSION, ROWS
from penstock.window.windows import END, START, TIME

SIDES = pa.array(["left", "right"])
_MS = pa.timestamp("ms", "UTC")
SEGMENT_ROWS = pa.schema(
    {
        "key": pa.struct({"person": pa.string(), "segment": pa.string()}),
        "value": pa.struct({"until": TIME, "last": TIME, "due": TIME}),
    }
)


@dataclass(frozen=True)
class Packed:
    """A state that can be unpacked; `by` are the key columns whose hash is the bucket."""

    pieces: DataFrame
    schema: st.StructType
    by: tuple[str, ...]
    bucket: Callable[[Sequence[Column]], Column]
    unpack: Callable[[pa.Table], pa.Table]

    def place(self, wanted: Mapping[str, Any]) -> Column | None:
        """The bucket of a key that has these columns; None if they do not determine it."""
        if not all(name in wanted for name in self.by):
            return None
        kinds = self.schema["key"].dataType
        assert isinstance(kinds, st.StructType)
        values = [F.lit(wanted[name]).try_cast(kinds[name].dataType) for name in self.by]
        return self.bucket(values).cast(self.pieces.schema["bucket"].dataType)

    def within(self, bucket: Column) -> DataFrame:
        """The pieces of a bucket."""
        return self.pieces.where(F.col("bucket") == bucket)

    def rows(self, bucket: Column | None = None) -> DataFrame:
        """All rows, or the rows of one bucket."""
        pieces = self.pieces if bucket is None else self.within(bucket)
        return pieces.groupBy("bucket").applyInArrow(self.unpack, self.schema)

    def table(self, pieces: Sequence[Row]) -> pa.Table:
        """The rows of a bucket, from all of its pieces."""
        kinds = to_arrow_schema(self.pieces.schema)
        return self.unpack(pa.Table.from_pylist([piece.asDict() for piece in pieces], kinds))


def opened(frame: DataFrame, kind: str) -> Packed | None:
    """The packed state in the frame of Spark's reader; None if it is empty."""
    if kind == TABLES:
        return _tables(
            frame.selectExpr("key._bucket bucket", "user_map_key.version number", "user_map_value.change data")
        )
    return _segments(frame.selectExpr("key.bucket", "user_map_key.number", "user_map_value.*"))


def _tables(pieces: DataFrame) -> Packed | None:
    first = pieces.select("data").head()
    if first is None:
        return None
    empty = unpacked(first.data).slice(0, 0)
    told = about(empty.schema)
    if told is None:
        raise PenstockError(
            "this state is of an earlier build, which did not describe it",
            next="read it with that build, or start over",
        )
    schema = from_arrow_schema(shown(empty.drop_columns([GONE]), told).schema)
    return Packed(pieces, schema, tuple(told.by), lambda by: F.pmod(F.hash(*by), F.lit(BUCKETS)), _unpacker(told))


def _unpacker(told: About) -> Callable[[pa.Table], pa.Table]:
    # Takes one argument only: Spark counts the arguments, also those that a partial has bound.
    def unpack(pieces: pa.Table) -> pa.Table:
        return unpack_tables(pieces, told)

    return unpack


def unpack_tables(pieces: pa.Table, told: About) -> pa.Table:
    """The rows of a bucket's log, which has the whole table first, then changes."""
    changes = [unpacked(data.as_buffer()) for data in pieces.sort_by("number")["data"]]
    table = changes[0].drop_columns([GONE])
    for change in changes[1:]:
        table = upserted(table, change, told.key)
    return shown(table, told)


def shown(state: pa.Table, told: About) -> pa.Table:
    """Rows of a state as readers see them: `key` with a struct `window`, as Spark's own windows have, and `value`."""
    key = {name: state[name] for name in told.key if name not in (START, SIDE)}
    if START in told.key:
        bounds = {"start": state[START].cast(TIME), "end": state[END].cast(TIME)}
        key["window"] = _struct(bounds)
    if SIDE in told.key:
        key["side"] = SIDES.take(state[SIDE].combine_chunks())
    parts = {part for some in told.made.values() for part in some}
    value = {name: result(state, some) for name, some in told.made.items()}
    for name in state.column_names:
        if name not in (*told.key, *parts, END):
            value[_plain(name, state.column_names)] = state[name]
    return pa.table({"key": _struct(key), "value": _struct(value)})


def _plain(name: str, others: Sequence[str]) -> str:
    """The name without the mark of internal columns: versions, row counts, and arguments of totals."""
    plain = name[1:] if name in (ROW_VERSION, ROWS) or name.startswith(OF) else name
    return name if plain in others else plain


def _struct(columns: Mapping[str, Any]) -> pa.StructArray:
    arrays = [one.combine_chunks() if isinstance(one, pa.ChunkedArray) else one for one in columns.values()]
    return pa.StructArray.from_arrays(arrays, list(columns))


def _segments(pieces: DataFrame) -> Packed | None:
    first = pieces.where(F.col("number") == processor.SNAPSHOT).select(*_entry(pieces)).head()
    if first is None:
        return None
    _, buckets = processor.described(processor.Entry(*first))
    return Packed(
        pieces,
        from_arrow_schema(SEGMENT_ROWS),
        ("person",),
        lambda by: F.pmod(F.xxhash64(*by), F.lit(buckets)),
        unpack_segments,
    )


def _entry(pieces: DataFrame) -> list[str]:
    return [name for name in pieces.columns if name not in ("bucket", "number")]


def unpack_segments(pieces: pa.Table) -> pa.Table:
    """The records of a bucket's log."""
    log = pieces.sort_by("number").drop_columns(["bucket", "number"])
    store = processor.replayed(processor.Entry(*row.values()) for row in log.to_pylist())
    ids, rows = store.records()
    return _records(ids, rows, store.plan.source)


def _records(ids: list[bytes], rows: Any, rules: Sequence[Rule]) -> pa.Table:
    _, rule, *times = rows.T
    names = pa.array([one.name for one in rules])
    persons = pa.array(ids, pa.binary()).cast(pa.string())
    key = _struct({"person": persons, "segment": names.take(pa.array(rule))})
    # Zero means no time.
    until, last, due = (pa.array(time, _MS, mask=time == 0).cast(TIME) for time in times)
    value = _struct({"until": until, "last": last, "due": due})
    return pa.table({"key": key, "value": value}, SEGMENT_ROWS)
