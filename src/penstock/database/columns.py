"""Decodes the cells of one CQL column to one Arrow array, with the loops of `cells`.

Compiled loops copy values from the protocol's bytes to Arrow's buffers. Only decimal, varint, duration and inet are
decoded one by one in Python, because their strings need arithmetic on numbers of any length.

A cell that is not a valid value of its type raises BadValue; `bad_values` finds the rows of these cells.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, Inexact

import numpy as np
import pyarrow as pa

from penstock.database import cells as loops
from penstock.database.cql_types import FIXED_WIDTHS, CqlType
from penstock.errors import PenstockError
from penstock.native import Array

IPV4_MAPPED = bytes(10) + b"\xff\xff"

DATE_EPOCH = 1 << 31
"""The CQL date of 1970-01-01; CQL dates count days (native protocol v4, section 6.4)."""

SPARK_TIMESTAMP_LIMIT = (1 << 63) // 1000
"""The most milliseconds, before or after 1970, that fit into Spark's microseconds."""

MOST_FIELDS = 1 << 21
"""The most fields that the tuples of a column may unpack to, or the number of the page's bytes if that is more: missing
fields at the end of a value are null and take no bytes."""


class BadValue(PenstockError):
    """A cell that is not a valid value of its type, or whose value Spark cannot hold."""


@dataclass(frozen=True)
class Cells:
    """The positions of a column's cells in a buffer; a length of -1 is null."""

    buffer: Array
    starts: Array
    lengths: Array

    def __len__(self) -> int:
        return len(self.starts)

    def without_empty_collections(self) -> Cells:
        """The same cells with null for empty collections: a non-frozen column does not distinguish the two."""
        lengths = self.lengths.copy()
        only_a_count = np.flatnonzero(lengths == 4)
        counts = self.buffer[self.starts[only_a_count, None] + np.arange(4)]
        lengths[only_a_count[~counts.any(axis=1)]] = -1
        return Cells(self.buffer, self.starts, lengths)

    def part(self, begin: int, end: int) -> Cells:
        return Cells(self.buffer, self.starts[begin:end], self.lengths[begin:end])

    def text(self, row: int) -> bytes:
        start = int(self.starts[row])
        return self.buffer[start : start + max(int(self.lengths[row]), 0)].tobytes()


def decode(kind: CqlType, cells: Cells, target: pa.DataType) -> pa.Array:
    """Decode the cells to an Arrow array of type `target`, the Arrow type of `spark_type(kind)`.

    Raises BadValue if a cell cannot be read.
    """
    return _DECODERS[kind.name](kind, cells, target)


def decode_list_in_log(kind: CqlType, cells: Cells, target: pa.DataType) -> pa.Array:
    """Decode a non-frozen list from its log form, a map by element id; ids are in the order of the list."""
    offsets, valid, (_, values) = _entries(cells, 2, "list")
    child = decode(kind.args[0], values, target.value_type)
    return pa.Array.from_buffers(target, len(cells), [_bitmap(valid), pa.py_buffer(offsets)], children=[child])


def _bitmap(valid: Array) -> pa.Buffer | None:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _check(bad_row: int, kind: CqlType | str, cells: Cells, why: str = "") -> None:
    if bad_row >= 0:
        reason = f" ({why})" if why else ""
        raise BadValue(f"a value of type {kind} cannot be read{reason}: 0x{cells.text(bad_row)[:40].hex()}")


def _check_size(size: int, kind: CqlType | str) -> None:
    if size > loops.MOST_OFFSET:
        raise BadValue(
            f"values of type {kind} with {size} bytes or entries in total do not fit one Arrow array",
            next="read with a smaller page_size",
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
    # The loop reads signed numbers; adding 2^32 to negative numbers restores the unsigned ones.
    days = np.where(values < 0, values + (1 << 32), values) - DATE_EPOCH
    return _flat(target, days.astype(np.int32), valid)


def _timestamp(kind: CqlType, cells: Cells, target: pa.DataType) -> pa.Array:
    values, valid = _ints(cells, kind, np.int64, 8)
    beyond = np.flatnonzero(valid & ((values > SPARK_TIMESTAMP_LIMIT) | (values < -SPARK_TIMESTAMP_LIMIT)))
    if len(beyond):
        raise BadValue(f"the timestamp {values[beyond[0]]} ms is outside the range of Spark's timestamps")
    return _flat(target, values * 1000, valid)


def _binary(kind: CqlType, cells: Cells, target: pa.DataType) -> pa.Array:
    return _bytes(kind, cells, target)[0]


def _bytes(kind: CqlType, cells: Cells, target: pa.DataType) -> tuple[pa.Array, bool]:
    """The unchanged bytes of the cells, and whether a byte is above 127."""
    offsets, valid = np.empty(len(cells) + 1, np.int32), np.empty(len(cells), np.bool_)
    size = loops.bytes_offsets(cells.lengths, offsets, valid)
    _check_size(size, kind)
    data = np.empty(size, np.uint8)
    bad, together = loops.gather_bytes(cells.buffer, cells.starts, cells.lengths, data)
    _check(bad, kind, cells)
    buffers = [_bitmap(valid), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(target, len(cells), buffers), together > 127


def _text(kind: CqlType, cells: Cells, target: pa.DataType) -> pa.Array:
    array, beyond_ascii = _bytes(kind, cells, target)
    if beyond_ascii:
        bad = _first(cells, bytes.isascii) if kind.name == "ascii" else -1
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            bad = _first(cells, _is_utf8)
        _check(bad, kind, cells, "the bytes are not ASCII" if kind.name == "ascii" else "the bytes are not UTF-8")
    return array


def _first(cells: Cells, fits: Callable[[bytes], bool]) -> int:
    """The first row whose bytes do not fit, or -1."""
    return next((row for row in range(len(cells)) if not fits(cells.text(row))), -1)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _uuid(kind: CqlType, cells: Cells, target: pa.DataType) -> pa.Array:
    present = cells.lengths > 0
    size = int(np.count_nonzero(present)) * loops.UUID_TEXT_WIDTH
    _check_size(size, kind)
    offsets, data = np.empty(len(cells) + 1, np.int32), np.empty(size, np.uint8)
    _check(loops.uuid_text(cells.buffer, cells.starts, cells.lengths, loops.HEX, offsets, data), kind, cells)
    return pa.Array.from_buffers(target, len(cells), [_bitmap(present), pa.py_buffer(offsets), pa.py_buffer(data)])


def _text_of(write: Callable[[bytes], str]) -> Callable[[CqlType, Cells, pa.DataType], pa.Array]:
    def decoder(kind: CqlType, cells: Cells, target: pa.DataType) -> pa.Array:
        _check(loops.outside(cells.buffer, cells.starts, cells.lengths), kind, cells)
        texts: list[str | None] = [None] * len(cells)
        for row in map(int, np.flatnonzero(cells.lengths > 0)):
            try:
                texts[row] = write(cells.text(row))
            except ValueError as error:
                _check(row, kind, cells, str(error))
        return pa.array(texts, target)

    return decoder


_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[Inexact])
_WORD = 2000
"""Bits that are converted to a Decimal directly; for more bits Python's conversion takes quadratic time."""


def _decimal(number: int) -> Decimal:
    """Convert a number to a Decimal by halves: 100 000 bytes take 60 ms, not 900."""
    powers: dict[int, Decimal] = {}

    def power(bits: int) -> Decimal:
        if bits not in powers:
            half = bits // 2
            powers[bits] = Decimal(1 << bits) if bits <= _WORD else _EXACT.multiply(power(half), power(bits - half))
        return powers[bits]

    def digits(rest: int, bits: int) -> Decimal:
        if bits <= _WORD:
            return Decimal(rest)
        half = bits // 2
        high = rest >> half
        return _EXACT.fma(digits(high, bits - half), power(half), digits(rest - (high << half), half))

    size = number.bit_length()
    return Decimal(number) if size <= _WORD else digits(abs(number), size).copy_sign(Decimal(1 if number > 0 else -1))


def varint_text(data: bytes) -> str:
    # Not str of an int, which refuses more than 4300 digits.
    return str(_decimal(int.from_bytes(data, "big", signed=True)))


def decimal_text(data: bytes) -> str:
    """Like Java's BigDecimal.toString: plain digits, or scientific if the scale is negative or the value is tiny."""
    if len(data) < 4:
        raise ValueError("a decimal begins with four bytes of scale")
    scale = int.from_bytes(data[:4], "big", signed=True)
    return str(_EXACT.scaleb(_decimal(int.from_bytes(data[4:], "big", signed=True)), -scale))


def inet_text(data: bytes) -> str:
    """Like Java's InetAddress.getHostAddress: IPv6 groups without leading zeros and without "::".

    An IPv4-mapped IPv6 address (RFC 4291, section 2.5.5.2) is written as the IPv4 address.
    """
    if len(data) == 16 and data[:12] == IPV4_MAPPED:
        data = data[12:]
    if len(data) == 4:
        return ".".join(map(str, data))
    if len(data) != 16:
        raise ValueError("an address has 4 or 16 bytes")
    return ":".join(f"{int.from_bytes(data[i : i + 2], 'big'):x}" for i in range(0, 16, 2))


def _vint(data: bytes, at: int) -> tuple[int, int]:
    """Read a zigzag vint, whose first byte's leading ones count the bytes that follow (native protocol v5, section 3).

    Return the number and the position after it.
    """
    extra = 8 - (~data[at] & 0xFF).bit_length() if at < len(data) else 0
    if at + extra >= len(data):
        raise ValueError("a duration has three numbers")
    value = data[at] & (0xFF >> extra) if extra < 8 else 0
    for byte in data[at + 1 : at + 1 + extra]:
        value = value << 8 | byte
    return (value >> 1) ^ -(value & 1), at + 1 + extra


TIME_UNITS = (("h", 3_600_000_000_000), ("m", 60_000_000_000), ("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000))


def duration_text(data: bytes) -> str:
    """The duration as CQL writes it, such as "1y2mo3d4h5m6s7ms8us9ns": without zero units, with one sign in front."""
    months, at = _vint(data, 0)
    days, at = _vint(data, at)
    nanos, at = _vint(data, at)
    if at != len(data):
        raise ValueError("a duration has three numbers")
    if min(months, days, nanos) < 0 < max(months, days, nanos):
        raise ValueError("a duration has one sign")
    sign = "-" if min(months, days, nanos) < 0 else ""
    months, days, nanos = abs(months), abs(days), abs(nanos)
    parts = [(months // 12, "y"), (months % 12, "mo"), (days, "d")]
    for unit, length in TIME_UNITS:
        parts.append((nanos // length, unit))
        nanos %= length
    parts.append((nanos, "ns"))
    return sign + "".join(f"{count}{unit}" for count, unit in parts if count)


def _entries(cells: Cells, per_entry: int, kind: CqlType | str) -> tuple[Array, Array, list[Cells]]:
    """Offsets and validity of collections, and their cells: one `Cells` for each position in an entry."""
    offsets, valid = np.empty(len(cells) + 1, np.int32), np.empty(len(cells), np.bool_)
    bad, entries = loops.collection_offsets(cells.buffer, cells.starts, cells.lengths, per_entry, offsets, valid)
    _check(bad, kind, cells, "the number of its elements does not fit its length")
    _check_size(entries * per_entry, kind)
    starts, lengths = np.empty(entries * per_entry, np.int64), np.empty(entries * per_entry, np.int32)
    bad = loops.collection_elements(cells.buffer, cells.starts, cells.lengths, per_entry, starts, lengths)
    _check(bad, kind, cells, "its elements do not match its length")
    places = [Cells(cells.buffer, starts[i::per_entry], lengths[i::per_entry]) for i in range(per_entry)]
    return offsets, valid, places


def _array(kind: CqlType, cells: Cells, target: pa.DataType) -> pa.Array:
    offsets, valid, (elements,) = _entries(cells, 1, kind)
    child = decode(kind.args[0], elements, target.value_type)
    return pa.Array.from_buffers(target, len(cells), [_bitmap(valid), pa.py_buffer(offsets)], children=[child])


def _map(kind: CqlType, cells: Cells, target: pa.DataType) -> pa.Array:
    offsets, valid, (keys, values) = _entries(cells, 2, kind)
    children = [decode(kind.args[0], keys, target.key_type), decode(kind.args[1], values, target.item_type)]
    # Arrow ends the process at a null key. An empty CQL value (such as an empty int) is a valid key, but null in Spark.
    if children[0].null_count:
        raise BadValue(f"a {kind} has a key that is null or empty, which Spark's maps cannot hold")
    entry_type = pa.struct([target.key_field, target.item_field])
    entries = pa.Array.from_buffers(entry_type, len(keys), [None], children=children)
    return pa.Array.from_buffers(target, len(cells), [_bitmap(valid), pa.py_buffer(offsets)], children=[entries])


def _struct(kind: CqlType, cells: Cells, target: pa.DataType) -> pa.Array:
    count = len(kind.args)
    if count * len(cells) > max(MOST_FIELDS, len(cells.buffer)):
        raise BadValue(
            f"values of type {kind} unpack to {count * len(cells)} fields, most of them without a byte",
            next="read with a smaller page_size",
        )
    starts, lengths = np.empty((count, len(cells)), np.int64), np.empty((count, len(cells)), np.int32)
    valid = np.empty(len(cells), np.bool_)
    bad = loops.fields(cells.buffer, cells.starts, cells.lengths, starts, lengths, valid)
    _check(bad, kind, cells, "its fields do not match its length")
    children = [
        decode(arg, Cells(cells.buffer, starts[i], lengths[i]), target.field(i).type) for i, arg in enumerate(kind.args)
    ]
    return pa.Array.from_buffers(target, len(cells), [_bitmap(valid)], children=children)


def _vector(kind: CqlType, cells: Cells, target: pa.DataType) -> pa.Array:
    width = FIXED_WIDTHS[kind.args[0].name]
    present = cells.lengths > 0
    wrong = np.flatnonzero(present & (cells.lengths != width * kind.size))
    _check(int(wrong[0]) if len(wrong) else -1, kind, cells)
    count = int(np.count_nonzero(present)) * kind.size
    _check_size(count, kind)
    offsets, starts, lengths = np.empty(len(cells) + 1, np.int32), np.empty(count, np.int64), np.empty(count, np.int32)
    bad = loops.vector_elements(cells.buffer, cells.starts, cells.lengths, width, starts, lengths, offsets)
    _check(bad, kind, cells)
    child = decode(kind.args[0], Cells(cells.buffer, starts, lengths), target.value_type)
    buffers = [_bitmap(present), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(target, len(cells), buffers, children=[child])


_LONG = _integer(8, np.int64)

_DECODERS: dict[str, Callable[[CqlType, Cells, pa.DataType], pa.Array]] = {
    "ascii": _text,
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
    "text": _text,
    "time": _LONG,
    "timestamp": _timestamp,
    "timeuuid": _uuid,
    "tinyint": _integer(1, np.int8),
    "tuple": _struct,
    "udt": _struct,
    "uuid": _uuid,
    "varchar": _text,
    "varint": _text_of(varint_text),
    "vector": _vector,
}
