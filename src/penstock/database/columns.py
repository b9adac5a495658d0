"""Cells of one CQL column to one Arrow array: the types on top of the loops of `cells`.

Values go from the protocol's bytes to Arrow's buffers in compiled loops. Only decimal, varint, duration and inet
are made one by one in Python, since their text needs arithmetic on numbers of any length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pyarrow as pa

from penstock.database import cells as loops
from penstock.database.cells import Array
from penstock.errors import PenstockError
from penstock.schema import FIXED_WIDTHS, CqlType

IPV4_MAPPED = bytes(10) + b"\xff\xff"

DATE_EPOCH = 1 << 31
"""CQL dates count days from this number, which stands for 1970-01-01 (native protocol v4, section 6.4)."""

SPARK_TIMESTAMP_LIMIT = (1 << 63) // 1000
"""The most milliseconds, before 1970 and after, that fit Spark's microseconds."""


@dataclass(frozen=True)
class Cells:
    """Where the cells of a column stand in a buffer; a length of -1 is null."""

    buffer: Array
    starts: Array
    lengths: Array

    def __len__(self) -> int:
        return len(self.starts)

    def without_empty_collections(self) -> Cells:
        """The same cells with null for collections of no element: a non-frozen column cannot tell the two apart."""
        only_a_count = np.int32(4)
        return Cells(self.buffer, self.starts, np.where(self.lengths == only_a_count, np.int32(-1), self.lengths))

    def text(self, row: int) -> bytes:
        start = int(self.starts[row])
        return self.buffer[start : start + max(int(self.lengths[row]), 0)].tobytes()


def decode(kind: CqlType, cells: Cells, target: pa.DataType) -> pa.Array:
    """The cells as an Arrow array of type `target`, which is the Arrow form of `spark_type(kind)`."""
    return _DECODERS[kind.name](kind, cells, target)


def decode_list_in_log(kind: CqlType, cells: Cells, target: pa.DataType) -> pa.Array:
    """A non-frozen list from its log form, a map by element id: the values in the order of their ids (list order)."""
    offsets, valid, (_, values) = _entries(cells, 2, "list")
    child = decode(kind.args[0], values, target.value_type)
    return pa.Array.from_buffers(target, len(cells), [_bitmap(valid), pa.py_buffer(offsets)], children=[child])


def _bitmap(valid: Array) -> pa.Buffer | None:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _check(bad_row: int, kind: CqlType | str, cells: Cells) -> None:
    if bad_row >= 0:
        raise PenstockError(
            f"a value of type {kind} cannot be read: 0x{cells.text(bad_row).hex()[:80]}",
            where=f"row {bad_row} of a result page",
            next="report the value with the table's definition; nothing was skipped, the batch is repeated",
        )


def _ints(cells: Cells, kind: CqlType, dtype: type, width: int) -> tuple[Array, Array]:
    out: Array = np.empty(len(cells), dtype)
    valid = np.empty(len(cells), np.bool_)
    _check(loops.integers(cells.buffer, cells.starts, cells.lengths, width, out, valid), kind, cells)
    return out, valid


def _flat(target: pa.DataType, values: Array, valid: Array) -> pa.Array:
    return pa.Array.from_buffers(target, len(values), [_bitmap(valid), pa.py_buffer(values)])


def _integer(width: int, dtype: type, view: type | None = None) -> Callable[[CqlType, Cells, pa.DataType], pa.Array]:
    def decoder(kind: CqlType, cells: Cells, target: pa.DataType) -> pa.Array:
        values, valid = _ints(cells, kind, dtype, width)
        return _flat(target, values.view(view) if view else values, valid)

    return decoder


def _boolean(kind: CqlType, cells: Cells, target: pa.DataType) -> pa.Array:
    values, valid = _ints(cells, kind, np.int8, 1)
    bits = pa.py_buffer(np.packbits(values != 0, bitorder="little"))
    return pa.Array.from_buffers(target, len(cells), [_bitmap(valid), bits])


def _date(kind: CqlType, cells: Cells, target: pa.DataType) -> pa.Array:
    values, valid = _ints(cells, kind, np.int64, 4)
    # The loop reads signed numbers; adding 2^32 to the negative ones gives the unsigned ones back.
    days = np.where(values < 0, values + (1 << 32), values) - DATE_EPOCH
    return _flat(target, days.astype(np.int32), valid)


def _timestamp(kind: CqlType, cells: Cells, target: pa.DataType) -> pa.Array:
    values, valid = _ints(cells, kind, np.int64, 8)
    beyond = np.flatnonzero(valid & ((values > SPARK_TIMESTAMP_LIMIT) | (values < -SPARK_TIMESTAMP_LIMIT)))
    if len(beyond):
        raise PenstockError(
            f"the timestamp {values[beyond[0]]} ms is outside what Spark can hold",
            where=f"row {beyond[0]} of a result page",
            next="correct the row; of a change log's, start the query with a time behind the change",
        )
    return _flat(target, values * 1000, valid)


def _binary(kind: CqlType, cells: Cells, target: pa.DataType) -> pa.Array:
    offsets, valid = np.empty(len(cells) + 1, np.int32), np.empty(len(cells), np.bool_)
    loops.bytes_offsets(cells.lengths, offsets, valid)
    data = np.empty(int(offsets[-1]), np.uint8)
    loops.gather_bytes(cells.buffer, cells.starts, cells.lengths, data)
    return pa.Array.from_buffers(target, len(cells), [_bitmap(valid), pa.py_buffer(offsets), pa.py_buffer(data)])


def _uuid(kind: CqlType, cells: Cells, target: pa.DataType) -> pa.Array:
    offsets = np.empty(len(cells) + 1, np.int32)
    data = np.empty(len(cells) * loops.UUID_TEXT_WIDTH, np.uint8)
    size = loops.uuid_text(cells.buffer, cells.starts, cells.lengths, loops.HEX, offsets, data)
    if size < 0:
        bad = np.flatnonzero((cells.lengths > 0) & (cells.lengths != 16))
        _check(int(bad[0]), kind, cells)
    valid = pa.py_buffer(offsets), pa.py_buffer(data)
    return pa.Array.from_buffers(target, len(cells), [_bitmap(cells.lengths > 0), *valid])


def _text_of(write: Callable[[bytes], str]) -> Callable[[CqlType, Cells, pa.DataType], pa.Array]:
    def decoder(kind: CqlType, cells: Cells, target: pa.DataType) -> pa.Array:
        present = np.flatnonzero(cells.lengths > 0)
        texts: list[str | None] = [None] * len(cells)
        for row in map(int, present):
            texts[row] = write(cells.text(row))
        return pa.array(texts, target)

    return decoder


def varint_text(data: bytes) -> str:
    # Not by str of an int, which refuses more than 4300 digits.
    return str(Decimal(int.from_bytes(data, "big", signed=True)))


def decimal_text(data: bytes) -> str:
    """As Java's BigDecimal.toString: plain digits, or scientific where the scale is negative or the value tiny."""
    scale = int.from_bytes(data[:4], "big", signed=True)
    unscaled = int.from_bytes(data[4:], "big", signed=True)
    return str(Decimal((int(unscaled < 0), Decimal(abs(unscaled)).as_tuple().digits, -scale)))


def inet_text(data: bytes) -> str:
    """As Java's InetAddress.getHostAddress: IPv6 groups without leading zeros and without "::".

    An IPv6 address that stands for an IPv4 one (RFC 4291, section 2.5.5.2) is that one.
    """
    if data[:12] == IPV4_MAPPED:
        data = data[12:]
    if len(data) == 4:
        return ".".join(map(str, data))
    return ":".join(f"{int.from_bytes(data[i : i + 2], 'big'):x}" for i in range(0, 16, 2))


def _vint(data: bytes, at: int) -> tuple[int, int]:
    """A zig-zag varint whose first byte's leading ones count the bytes that follow (native protocol v5, section 3)."""
    extra = 8 - (~data[at] & 0xFF).bit_length()
    value = data[at] & (0xFF >> extra) if extra < 8 else 0
    for byte in data[at + 1 : at + 1 + extra]:
        value = value << 8 | byte
    return (value >> 1) ^ -(value & 1), at + 1 + extra


_TIME_UNITS = (("h", 3_600_000_000_000), ("m", 60_000_000_000), ("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000))


def duration_text(data: bytes) -> str:
    """As CQL writes it, e.g. "1y2mo3d4h5m6s7ms8us9ns": zero units left out, one sign in front."""
    months, at = _vint(data, 0)
    days, at = _vint(data, at)
    nanos, _ = _vint(data, at)
    sign = "-" if min(months, days, nanos) < 0 else ""
    months, days, nanos = abs(months), abs(days), abs(nanos)
    parts = [(months // 12, "y"), (months % 12, "mo"), (days, "d")]
    for unit, length in _TIME_UNITS:
        parts.append((nanos // length, unit))
        nanos %= length
    parts.append((nanos, "ns"))
    return sign + "".join(f"{count}{unit}" for count, unit in parts if count)


def _entries(cells: Cells, per_entry: int, kind: CqlType | str) -> tuple[Array, Array, list[Cells]]:
    """Offsets and validity of collections, and the cells in them: one `Cells` for each place in an entry."""
    offsets, valid = np.empty(len(cells) + 1, np.int32), np.empty(len(cells), np.bool_)
    loops.collection_offsets(cells.buffer, cells.starts, cells.lengths, offsets, valid)
    count = int(offsets[-1]) * per_entry
    starts, lengths = np.empty(count, np.int64), np.empty(count, np.int32)
    bad = loops.collection_elements(cells.buffer, cells.starts, cells.lengths, per_entry, starts, lengths)
    _check(bad, kind, cells)
    places = [Cells(cells.buffer, starts[i::per_entry], lengths[i::per_entry]) for i in range(per_entry)]
    return offsets, valid, places


def _array(kind: CqlType, cells: Cells, target: pa.DataType) -> pa.Array:
    offsets, valid, (elements,) = _entries(cells, 1, kind)
    child = decode(kind.args[0], elements, target.value_type)
    return pa.Array.from_buffers(target, len(cells), [_bitmap(valid), pa.py_buffer(offsets)], children=[child])


def _map(kind: CqlType, cells: Cells, target: pa.DataType) -> pa.Array:
    offsets, valid, (keys, values) = _entries(cells, 2, kind)
    children = [decode(kind.args[0], keys, target.key_type), decode(kind.args[1], values, target.item_type)]
    entry_type = pa.struct([target.key_field, target.item_field])
    entries = pa.Array.from_buffers(entry_type, len(keys), [None], children=children)
    return pa.Array.from_buffers(target, len(cells), [_bitmap(valid), pa.py_buffer(offsets)], children=[entries])


def _struct(kind: CqlType, cells: Cells, target: pa.DataType) -> pa.Array:
    count = len(kind.args)
    starts, lengths = np.empty((count, len(cells)), np.int64), np.empty((count, len(cells)), np.int32)
    valid = np.empty(len(cells), np.bool_)
    _check(loops.fields(cells.buffer, cells.starts, cells.lengths, count, starts, lengths, valid), kind, cells)
    children = [
        decode(arg, Cells(cells.buffer, starts[i], lengths[i]), target.field(i).type) for i, arg in enumerate(kind.args)
    ]
    return pa.Array.from_buffers(target, len(cells), [_bitmap(valid)], children=children)


def _vector(kind: CqlType, cells: Cells, target: pa.DataType) -> pa.Array:
    width = FIXED_WIDTHS[kind.args[0].name]
    count = int((cells.lengths > 0).sum()) * kind.size
    offsets, starts, lengths = np.empty(len(cells) + 1, np.int32), np.empty(count, np.int64), np.empty(count, np.int32)
    bad = loops.vector_elements(cells.starts, cells.lengths, width, kind.size, starts, lengths, offsets)
    _check(bad, kind, cells)
    child = decode(kind.args[0], Cells(cells.buffer, starts, lengths), target.value_type)
    valid = _bitmap(cells.lengths > 0)
    return pa.Array.from_buffers(target, len(cells), [valid, pa.py_buffer(offsets)], children=[child])


_LONG = _integer(8, np.int64)

_DECODERS: dict[str, Callable[[CqlType, Cells, pa.DataType], pa.Array]] = {
    "ascii": _binary,
    "bigint": _LONG,
    "blob": _binary,
    "boolean": _boolean,
    "counter": _LONG,
    "date": _date,
    "decimal": _text_of(decimal_text),
    "double": _integer(8, np.int64, np.float64),
    "duration": _text_of(duration_text),
    "float": _integer(4, np.int32, np.float32),
    "inet": _text_of(inet_text),
    "int": _integer(4, np.int32),
    "list": _array,
    "map": _map,
    "set": _array,
    "smallint": _integer(2, np.int16),
    "text": _binary,
    "time": _LONG,
    "timestamp": _timestamp,
    "timeuuid": _uuid,
    "tinyint": _integer(1, np.int8),
    "tuple": _struct,
    "udt": _struct,
    "uuid": _uuid,
    "varchar": _binary,
    "varint": _text_of(varint_text),
    "vector": _vector,
}
