"""Records of some partitions as record batches of the source, with the members of their JSON values."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as st

from penstock.codec.decode_json import FIRST, LAST, MICROS
from penstock.kafka.json_kernel import (
    DATE,
    DECIMAL,
    ESCAPED,
    FLOAT,
    TEXT,
    TIME,
    TRUTH,
    WHOLE,
    plain_rows,
    take,
    texts,
)
from penstock.kafka.kafka_settings import Good, KafkaSettings
from penstock.kafka.source_format import READ, UNREADABLE, schema
from penstock.kafka.topic_reader import topic
from penstock.native import Array
from penstock.native.jit import read_only
from penstock.spark_runtime.arrow_types import to_arrow_schema
from penstock.wire.fetcher import Unreadable
from penstock.wire.records.record_encoder import cells

TIMES = -62_135_424_000_000, 253_402_128_000_000
"""Milliseconds from 1970 to the limits of the years 1 to 9999, less two days, so that Python has them in all zones."""
YEAR_3000 = 32_503_680_000_000_000
"""In microseconds from 1970."""
MOST_ROWS = 20_000
"""Most rows of a batch, which a task holds besides the records from the broker."""


def batches(settings: KafkaSettings, start: dict[int, int], end: dict[int, int]) -> Iterator[pa.RecordBatch]:
    """All records, in order within each partition; one row for a batch that is skipped."""
    wanted = None if settings.members is None else members(settings.members, MICROS[settings.epoch])
    arrow = to_arrow_schema(schema(settings.members, tolerant=settings.tolerant), timezone="UTC")
    for batch in topic(settings).read(start, end):
        if isinstance(batch, Unreadable):
            yield _unreadable(batch, arrow)
            continue
        partition, records = batch
        for first in range(0, len(records), MOST_ROWS):
            yield _batch(partition, records.slice(first, MOST_ROWS).combine_chunks(), wanted, arrow, settings.good)


def _batch(
    partition: int, records: pa.Table, wanted: Members | None, arrow: pa.Schema, rule: Good | None
) -> pa.RecordBatch:
    plain = records.to_batches()[0]
    columns_by_name = {name: plain.column(name) for name in plain.schema.names}
    columns_by_name["partition"] = pa.repeat(pa.scalar(partition, pa.int32()), plain.num_rows)
    if UNREADABLE in arrow.names:
        columns_by_name[UNREADABLE] = pa.nulls(plain.num_rows, pa.string())
    values = [_fitting(columns_by_name[field.name], field.type) for field in arrow if field.name in columns_by_name]
    if wanted is not None:
        read, cells = columns(columns_by_name["value"], wanted)
        if rule is not None:
            # Spark reads the others, and finds what is wrong with them.
            read = pc.and_(read, _good(cells, wanted, rule, values[arrow.names.index("timestamp")]))
            for name in ("value", "headers"):
                number = arrow.names.index(name)
                values[number] = _without(values[number], read)
        values += [read, *cells]
    return pa.RecordBatch.from_arrays(values, schema=arrow)


def _good(cells: list[pa.Array], wanted: Members, rule: Good, arrived: pa.Array) -> pa.BooleanArray:
    """Which rows have no problem, if their members were read."""
    good = pa.array(np.ones(len(arrived), np.bool_))
    for cell in itertools.compress(cells, wanted.required):
        if cell.null_count:
            good = pc.and_(good, cell.is_valid())
    if rule.time >= 0:
        # Times before 1970 or after 3000 are few, and far from now Spark has limits of its own.
        numbers = cells[rule.time].cast(pa.int64()).fill_null(-1).to_numpy()
        most = np.minimum(arrived.cast(pa.int64()).to_numpy() + rule.ahead, YEAR_3000) // rule.micros
        good = pc.and_(good, pa.array((numbers >= 0) & (numbers <= most)))
    return good


def _without(column: pa.Array, read: pa.BooleanArray) -> pa.Array:
    """The column, null where the members were read."""
    if column.null_count == len(column):
        return column
    nothing = pa.nulls(len(column), column.type)
    return nothing if read.true_count == len(read) else pc.if_else(read, nothing, column)


def _unreadable(batch: Unreadable, arrow: pa.Schema) -> pa.RecordBatch:
    time = pa.array([batch.timestamp]).cast(pa.timestamp("ms", "UTC"))
    columns_by_name: dict[str, pa.Array] = {
        "partition": pa.array([batch.partition], pa.int32()),
        "offset": pa.array([batch.offset]),
        "timestamp": _fitting(time, arrow.field("timestamp").type),
        UNREADABLE: pa.array([str(batch.error)]),
        READ: pa.array([False]),
    }
    return pa.RecordBatch.from_arrays(
        [columns_by_name.get(field.name, pa.nulls(1, field.type)) for field in arrow], schema=arrow
    )


def _fitting(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column in Spark's type; headers are null if there are none, as in Spark's source.

    A producer may write any time: a time outside the years 1 to 9999 becomes the nearest one inside.
    """
    if pa.types.is_list(kind):
        if not len(column.values):
            return pa.nulls(len(column), kind)
        column = pc.if_else(pc.greater(pc.list_value_length(column), 0), column, pa.nulls(len(column), column.type))
    if pa.types.is_timestamp(kind):
        column = pa.array(np.clip(column.cast(pa.int64()).to_numpy(), *TIMES)).cast(column.type)
    return column.cast(kind)


# Members of JSON objects as Arrow columns, for the objects that the loop of `json_kernel` reads.

MOST_MEMBERS = 62
"""Each member has a bit in a 64-bit word."""
_WORD = (1 << 63) - 1
_KINDS: dict[type[st.DataType], tuple[int, int, pa.DataType]] = {
    st.StringType: (TEXT, 0, pa.string()),
    st.ByteType: (WHOLE, (1 << 7) - 1, pa.int8()),
    st.ShortType: (WHOLE, (1 << 15) - 1, pa.int16()),
    st.IntegerType: (WHOLE, (1 << 31) - 1, pa.int32()),
    st.LongType: (WHOLE, _WORD, pa.int64()),
    st.FloatType: (FLOAT, 0, pa.float32()),
    st.DoubleType: (DECIMAL, 0, pa.float64()),
    st.BooleanType: (TRUTH, 0, pa.bool_()),
    st.DateType: (DATE, 0, pa.date32()),
    st.TimestampType: (TIME, 0, pa.timestamp("us", "UTC")),
}
"""For each supported type: its kind, the largest number (of times, see `_bounds`), and the Arrow type."""


class Members(NamedTuple):
    """The members to read from each object, as arrays for the loop, and their Arrow types."""

    kinds: Array
    bounds: Array
    names: Array
    text: Array
    types: tuple[pa.DataType, ...]
    required: tuple[bool, ...]


def members(schema: st.StructType, unit: int = 1_000_000) -> Members | None:
    """The members of a schema; None if it has unsupported types, too many columns, or names beyond plain ASCII.

    `unit` is what a number for a time counts, in microseconds.
    """
    if not 0 < len(schema) <= MOST_MEMBERS or not all(_readable(field) for field in schema):
        return None
    kinds = [_KINDS[type(field.dataType)] for field in schema]
    text = "".join(schema.names).encode()
    lengths = [len(name) for name in schema.names]
    starts = np.cumsum([0, *lengths[:-1]])
    return Members(
        read_only(np.array([kind for kind, _, _ in kinds])),
        read_only(np.array([_bounds(kind, most, unit) for kind, most, _ in kinds])),
        read_only(np.stack([starts, lengths], axis=1)),
        read_only(np.frombuffer(text, np.uint8)),
        tuple(kind for _, _, kind in kinds),
        tuple(not field.nullable for field in schema),
    )


def _bounds(kind: int, most: int, unit: int) -> tuple[int, int, int]:
    """The least and the largest number of a member, and by what it is multiplied."""
    if kind == TIME:
        return -(-FIRST // unit), LAST // unit, unit
    return -most - (most < _WORD), most, 1


def columns(values: pa.BinaryArray, wanted: Members) -> tuple[pa.BooleanArray, list[pa.Array]]:
    """Which values are read, and the columns of members: null in values that are not read or lack the member."""
    offsets, data, _ = cells(values, "value")
    rows = len(values)
    spans = np.empty((len(wanted.kinds), 2, rows), np.int64)
    decimals = np.zeros((len(wanted.kinds), rows))
    good = np.zeros(rows, np.bool_)
    asked = wanted.kinds, wanted.bounds, wanted.names, wanted.text
    take(data, offsets.astype(np.int64), _usable(data, offsets), *asked, spans, decimals, good)
    arrays = []
    for member, kind in enumerate(wanted.types):
        starts, lengths = spans[member]
        there = good & (lengths >= 0)
        if wanted.kinds[member] == TEXT:
            arrays.append(_texts(data, starts, np.where(there, lengths, -1)))
        else:
            numbers = decimals[member] if wanted.kinds[member] >= DECIMAL else starts
            arrays.append(_numbers(numbers, there, kind))
    return pa.array(good), arrays


def _readable(field: st.StructField) -> bool:
    # A string with a collation is another type.
    plain = type(field.dataType) in _KINDS and field.dataType == type(field.dataType)()
    return plain and field.name.isascii() and field.name.isprintable() and not set(field.name) & set('"\\')


def _usable(data: Array, offsets: Array) -> Array:
    """Which rows the loop may read: all if all are UTF-8, otherwise only those that are ASCII."""
    rows = len(offsets) - 1
    if data[offsets[0] : offsets[-1]].max(initial=0) < 0x80 or _is_text(data, offsets):
        return np.ones(rows, np.bool_)
    usable = np.empty(rows, np.bool_)
    plain_rows(data, offsets, usable)
    return usable


def _is_text(data: Array, offsets: Array) -> bool:
    text = pa.Array.from_buffers(pa.string(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _texts(data: Array, starts: Array, lengths: Array) -> pa.StringArray:
    ends = np.zeros(len(starts) + 1, np.int32)
    # The unescaped string is never longer than its escaped form.
    out = np.empty(int(np.sum(np.where(lengths > 0, lengths & (ESCAPED - 1), 0))), np.uint8)
    texts(data, starts, lengths, ends, out)
    return pa.Array.from_buffers(
        pa.string(), len(starts), [_validity(lengths >= 0), pa.py_buffer(ends), pa.py_buffer(out)]
    )


def _numbers(numbers: Array, there: Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_boolean(kind):
        return pa.array(numbers == 1, mask=~there)
    width = kind.bit_width // 8
    plain = numbers if width == 8 else numbers.astype(f"f{width}" if pa.types.is_floating(kind) else f"i{width}")
    return pa.Array.from_buffers(kind, len(there), [_validity(there), pa.py_buffer(plain)])


def _validity(there: Array) -> pa.Buffer | None:
    return None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
