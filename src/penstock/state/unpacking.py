"""Unpacks the state of Penstock's windows, tables, joins and segments into rows, in Arrow tables and without Spark.

A row has a struct `key` and a struct `value`, as the rows of Spark's operators have. Keys are in buckets by their hash,
and a bucket is a log of pieces: to read one key, only its bucket is unpacked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import types as st

from penstock.errors import PenstockError
from penstock.join.joins import SIDE
from penstock.keyed_state.aggregates import OF, result
from penstock.keyed_state.arrow_keys import unpacked
from penstock.keyed_state.buckets import BUCKETS, GONE, upserted
from penstock.keyed_state.description import TABLES, About, about
from penstock.spark_runtime.arrow_types import from_arrow_schema, to_arrow_schema
from penstock.state.store_rows import Rows
from penstock.state.unsafe_rows import SEED, decoder, hashed
from penstock.table.revisions import ROW_VERSION, ROWS
from penstock.window.windows import END, START, TIME

SIDES = pa.array(["left", "right"])
HASH, XXHASH = "hash", "xxhash64"
"""Spark's functions whose results are the buckets."""
_MS = pa.timestamp("ms", "UTC")
SEGMENT_ROWS = pa.schema(
    {
        "key": pa.struct({"person": pa.string(), "segment": pa.string()}),
        "value": pa.struct({"until": TIME, "last": TIME, "due": TIME}),
    }
)


@dataclass(frozen=True)
class Unpacking:
    """How the pieces of a bucket become rows of `schema`.

    The bucket of a key is the function `hash` of its columns `by`, modulo `buckets`.
    """

    schema: st.StructType
    by: tuple[str, ...]
    hash: str
    buckets: int
    unpack: Callable[[pa.Table], pa.Table]

    @property
    def key(self) -> st.StructType:
        kind = self.schema["key"].dataType
        assert isinstance(kind, st.StructType)
        return kind

    def bucket(self, values: Sequence[Any]) -> int | None:
        """The bucket of a key, from its values of the columns `by`; None if the package that finds it is missing."""
        if self.hash == HASH:
            return hashed(values, [self.key[name].dataType for name in self.by]) % self.buckets
        try:
            import xxhash
        except ImportError:
            return None
        number = SEED if values[0] is None else xxhash.xxh64_intdigest(str(values[0]).encode(), SEED)
        # With a sign, as Spark's number of 64 bits has it.
        return (number - (number >> 63 << 64)) % self.buckets


def of_tables(piece: Any) -> Unpacking:
    """How to unpack the buckets of a table, from the bytes of any piece."""
    empty = unpacked(piece).slice(0, 0)
    description = about(empty.schema)
    if description is None:
        raise PenstockError(
            "this state is of an earlier build, which did not describe it",
            next="read it with that build, or start over",
        )
    schema = from_arrow_schema(shown(empty.drop_columns([GONE]), description).schema)
    return Unpacking(schema, tuple(description.by), HASH, BUCKETS, partial(unpack_tables, description=description))


def of_segments(entry: Sequence[Any]) -> Unpacking:
    """How to unpack the buckets of a segment, from the snapshot of any bucket."""
    # Loads compiled loops, which nothing else needs.
    from penstock.segment import processor

    _, buckets = processor.described(processor.Entry(*entry))
    return Unpacking(from_arrow_schema(SEGMENT_ROWS), ("person",), XXHASH, buckets, unpack_segments)


# Without Spark: pieces and rows as lists of values of `unsafe_rows`.


def of_rows(rows: Rows, kind: str) -> Unpacking | None:
    """How to unpack a state, from its rows in the store; None if it is empty."""
    if kind == TABLES:
        place = _names(rows).index("change")
        first = next((row[2][place] for row in rows.all()), None)
        unpacking = None if first is None else of_tables(first)
    else:
        from penstock.segment import processor

        first = next((row[2] for row in rows.all() if row[1][0] == processor.SNAPSHOT), None)
        unpacking = None if first is None else of_segments(first)
    if unpacking is not None:
        # Refuses types that are not known here.
        decoder(unpacking.schema)
    return unpacking


def _names(rows: Rows) -> list[str]:
    kind = rows.columns["user_map_value"].dataType
    assert isinstance(kind, st.StructType)
    return list(kind.names)


def unpacked_rows(rows: Rows, stored: Sequence[list[Any]], kind: str, unpacking: Unpacking) -> Iterator[list[Any]]:
    """The rows of a bucket, from its rows in the store."""
    value = rows.columns["user_map_value"].dataType
    assert isinstance(value, st.StructType)
    number = st.StructField("number", st.LongType())
    kinds = to_arrow_schema(st.StructType([st.StructField("bucket", st.LongType()), number, *value.fields]))
    pieces = pa.Table.from_pylist(
        [dict(zip(kinds.names, (*key, *at, *of), strict=True)) for key, at, of in stored], kinds
    )
    if kind == TABLES:
        pieces = pieces.select(["bucket", "number", "change"]).rename_columns(["bucket", "number", "data"])
    table = unpacking.unpack(pieces)
    numbers = pa.schema([pa.field(field.name, _numbers(field.type)) for field in table.schema])
    exact = pa.schema([pa.field(field.name, _microseconds(field.type)) for field in table.schema])
    for row in table.cast(exact).cast(numbers).to_pylist():
        yield [_listed(of, field.dataType) for of, field in zip(row.values(), unpacking.schema.fields, strict=True)]


def _listed(value: Any, kind: st.DataType) -> Any:
    """Arrow's value as `unsafe_rows` has it: structs are lists."""
    if value is None:
        return None
    if isinstance(kind, st.StructType):
        return [_listed(value[field.name], field.dataType) for field in kind.fields]
    if isinstance(kind, st.ArrayType):
        return [_listed(element, kind.elementType) for element in value]
    if isinstance(kind, st.MapType):
        return [(_listed(key, kind.keyType), _listed(of, kind.valueType)) for key, of in value]
    return value


def _changed(kind: pa.DataType, single: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """The type with `single` for each type that is not made of others."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _changed(field.type, single)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_changed(kind.key_type, single), _changed(kind.item_type, single))
    if pa.types.is_list(kind):
        return pa.list_(_changed(kind.value_type, single))
    return single(kind)


def _microseconds(kind: pa.DataType) -> pa.DataType:
    """The type with times in Spark's unit."""
    return _changed(kind, lambda leaf: pa.timestamp("us", leaf.tz) if pa.types.is_timestamp(leaf) else leaf)


def _numbers(kind: pa.DataType) -> pa.DataType:
    """The type with the numbers of times and dates."""

    def number(leaf: pa.DataType) -> pa.DataType:
        if pa.types.is_timestamp(leaf):
            return pa.int64()
        return pa.int32() if pa.types.is_date32(leaf) else leaf

    return _changed(kind, number)


# The logs of buckets.


def unpack_tables(pieces: pa.Table, description: About) -> pa.Table:
    """The rows of a bucket's log, which has the whole table first, then changes."""
    changes = [unpacked(data.as_buffer()) for data in pieces.sort_by("number")["data"]]
    table = changes[0].drop_columns([GONE])
    for change in changes[1:]:
        table = upserted(table, change, description.key)
    return shown(table, description)


def shown(state: pa.Table, description: About) -> pa.Table:
    """Rows of a state as readers see them: `key` with a struct `window`, as Spark's own windows have, and `value`."""
    key = {name: state[name] for name in description.key if name not in (START, SIDE)}
    if START in description.key:
        bounds = {"start": state[START].cast(TIME), "end": state[END].cast(TIME)}
        key["window"] = _struct(bounds)
    if SIDE in description.key:
        key["side"] = SIDES.take(state[SIDE].combine_chunks())
    parts = {part for some in description.made.values() for part in some}
    value = {name: result(state, some, name) for name, some in description.made.items()}
    for name in state.column_names:
        if name not in (*description.key, *parts, END):
            value[_plain(name, state.column_names)] = state[name]
    return pa.table({"key": _struct(key), "value": _struct(value)})


def _plain(name: str, others: Sequence[str]) -> str:
    """The name without the mark of internal columns: versions, row counts, and arguments of totals."""
    plain = name[1:] if name in (ROW_VERSION, ROWS) or name.startswith(OF) else name
    return name if plain in others else plain


def _struct(columns: Mapping[str, Any]) -> pa.StructArray:
    arrays = [column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column for column in columns.values()]
    return pa.StructArray.from_arrays(arrays, list(columns))


def unpack_segments(pieces: pa.Table) -> pa.Table:
    """The records of a bucket's log."""
    # Loads compiled loops, which nothing else needs.
    from penstock.segment import processor

    log = pieces.sort_by("number").drop_columns(["bucket", "number"])
    store = processor.replayed(processor.Entry(*row.values()) for row in log.to_pylist())
    ids, rows = store.records()
    return _records(ids, rows, store.plan.source)


def _records(ids: list[bytes], rows: Any, rules: Sequence[Any]) -> pa.Table:
    _, rule, *times = rows.T
    names = pa.array([segment_rule.name for segment_rule in rules])
    persons = pa.array(ids, pa.binary()).cast(pa.string())
    key = _struct({"person": persons, "segment": names.take(pa.array(rule))})
    # Zero means no time.
    until, last, due = (pa.array(time, _MS, mask=time == 0).cast(TIME) for time in times)
    value = _struct({"until": until, "last": last, "due": due})
    return pa.table({"key": key, "value": value}, SEGMENT_ROWS)
