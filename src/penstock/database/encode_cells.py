"""Encodes an Arrow array to the cells of a CQL column, the inverse of `columns`: for keys to look up and rows to write.

Arrays have the Arrow type of `spark_type`. Strings of decimal, varint, duration and inet are converted one by one; all
other types as whole buffers.
"""

from __future__ import annotations

import ipaddress
import re
import struct
from binascii import unhexlify
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.database import cells as loops
from penstock.database.columns import DATE_EPOCH, TIME_UNITS, Cells
from penstock.database.cql_types import CqlType
from penstock.durations import NANOS_PER_DAY
from penstock.errors import PenstockError
from penstock.native import Array
from penstock.process.digits import MOST_DIGITS, integer

MICROS_PER_MILLI = 1000


def encode(kind: CqlType, values: pa.Array) -> Cells:
    """Encode the values as cells of this type.

    Raises PenstockError if a value is not valid for the type.
    """
    return _ENCODERS[kind.name](kind, values)


def as_bytes(cells: Cells) -> list[bytes | None]:
    """The cells as bound values for the driver."""
    data = cells.buffer.tobytes()
    pairs = zip(cells.starts.tolist(), cells.lengths.tolist(), strict=True)
    return [data[start : start + length] if length >= 0 else None for start, length in pairs]


def list_bytes(values: Sequence[bytes]) -> bytes:
    """A list of values of one type, for `IN ?`."""
    return struct.pack(">i", len(values)) + b"".join(struct.pack(">i", len(value)) + value for value in values)


def laid_out(columns: list[Cells]) -> Cells:
    """Join the cells of each row, each after its length: to a tuple, a user type, or an entry of a collection."""
    buffers = [cells.buffer for cells in columns]
    shifts = np.cumsum([0, *map(len, buffers[:-1])])
    starts = np.column_stack([cells.starts + shift for cells, shift in zip(columns, shifts, strict=True)])
    lengths = np.column_stack([cells.lengths for cells in columns]).astype(np.int32)
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum((np.maximum(lengths, 0) + 4).sum(axis=1), out=offsets[1:])
    out = np.empty(int(offsets[-1]), np.uint8)
    _whole(loops.lay_cells(np.concatenate(buffers), starts.astype(np.int64), lengths, out))
    return Cells(out, offsets[:-1], np.diff(offsets).astype(np.int32))


def gathered(cells: Cells, bounds: Array) -> Cells:
    """Build one collection from the cells between consecutive bounds; `cells` must be stored end to end."""
    ends = np.append(cells.starts, len(cells.buffer))[bounds]
    lengths = (np.diff(ends) + 4).astype(np.int32)
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    out = np.empty(int(lengths.sum()), np.uint8)
    _whole(loops.lay_collections(cells.buffer, ends.astype(np.int64), np.diff(bounds).astype(np.int32), out))
    return Cells(out, starts, lengths)


def _whole(bad_row: int) -> None:
    if bad_row >= 0:
        raise PenstockError(f"the cells of row {bad_row} are outside their buffer", next="report this with the query")


def _valid(values: pa.Array) -> Array:
    valid: Array = values.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _flat(numbers: Array, valid: Array) -> Cells:
    width = numbers.dtype.itemsize
    starts = np.arange(len(numbers), dtype=np.int64) * width
    return Cells(numbers.view(np.uint8), starts, np.where(valid, np.int32(width), np.int32(-1)))


def _number(dtype: str) -> Callable[[CqlType, pa.Array], Cells]:
    def encoder(kind: CqlType, values: pa.Array) -> Cells:
        filled = values.fill_null(False if pa.types.is_boolean(values.type) else 0)
        return _flat(filled.to_numpy(zero_copy_only=False).astype(dtype), _valid(values))

    return encoder


def _date(kind: CqlType, values: pa.Array) -> Cells:
    days = values.cast(pa.int32()).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return _flat((days + DATE_EPOCH).astype(">u4"), _valid(values))


def _timestamp(kind: CqlType, values: pa.Array) -> Cells:
    micros = values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return _flat((micros // MICROS_PER_MILLI).astype(">i8"), _valid(values))


def _binary(kind: CqlType, values: pa.Array) -> Cells:
    if len(values) == 0:
        return cells_of([])
    plain = values.cast(pa.large_binary())
    _, offsets, data = plain.buffers()
    bounds = np.frombuffer(offsets, np.int64, len(plain) + 1, plain.offset * 8)
    lengths = np.where(_valid(plain), np.diff(bounds), -1).astype(np.int32)
    return Cells(np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8), bounds[:-1], lengths)


_HYPHENS = (8, 13, 18, 23)
_UUID = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def _uuid(kind: CqlType, values: pa.Array) -> Cells:
    valid = _valid(values)
    texts = _binary(kind, values.drop_null())
    packed = np.empty(0, np.uint8)
    if len(texts):
        first = int(texts.starts[0])
        characters = texts.buffer[first : first + 36 * len(texts)]
        if not (texts.lengths == 36).all() or not (characters.reshape(-1, 36)[:, _HYPHENS] == ord("-")).all():
            raise _refused(kind, values, _UUID.fullmatch)
        try:
            packed = np.frombuffer(
                unhexlify(np.delete(characters.reshape(-1, 36), _HYPHENS, axis=1).tobytes()), np.uint8
            )
        except ValueError:
            raise _refused(kind, values, _UUID.fullmatch) from None
    starts = (np.cumsum(valid) - 1) * 16
    return Cells(packed, np.maximum(starts, 0).astype(np.int64), np.where(valid, np.int32(16), np.int32(-1)))


def _refused(kind: CqlType, values: pa.Array, fits: Callable[[str], object]) -> PenstockError:
    wrong = next((text for text in values.to_pylist() if text is not None and not fits(text)), "")
    return PenstockError(
        f"{wrong!r} is not a valid {kind}", next="make it null, or filter the row out, before it reaches the database"
    )


NO_VALUE = (ValueError, InvalidOperation, OverflowError)


def _text_by(read: Callable[[str], bytes]) -> Callable[[CqlType, pa.Array], Cells]:
    def fits(text: str) -> bool:
        try:
            read(text)
        except NO_VALUE:
            return False
        return True

    def encoder(kind: CqlType, values: pa.Array) -> Cells:
        try:
            return cells_of([None if text is None else read(text) for text in values.to_pylist()])
        except NO_VALUE:
            raise _refused(kind, values, fits) from None

    return encoder


def cells_of(values: Sequence[bytes | None]) -> Cells:
    """The cells with these bytes."""
    lengths = np.array([-1 if value is None else len(value) for value in values], np.int32)
    starts = np.zeros(len(values), np.int64)
    np.cumsum(np.maximum(lengths[:-1], 0), out=starts[1:])
    return Cells(np.frombuffer(b"".join(filter(None, values)), np.uint8), starts, lengths)


def varint_bytes(text: str) -> bytes:
    if len(text) <= MOST_DIGITS:
        return _signed(int(text))
    digits = text.removeprefix("-")
    if not digits.isdecimal():
        raise ValueError(text)
    return _signed(integer(digits) if digits == text else -integer(digits))


def _signed(number: int) -> bytes:
    """The shortest two's complement form: the bits of the number and a sign bit."""
    bits = (number if number >= 0 else ~number).bit_length() + 1
    return number.to_bytes((bits + 7) // 8, "big", signed=True)


def decimal_bytes(text: str) -> bytes:
    sign, digits, exponent = Decimal(text).as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(text)
    unscaled = integer("".join(map(str, digits)))
    return (-exponent).to_bytes(4, "big", signed=True) + _signed(-unscaled if sign else unscaled)


def inet_bytes(text: str) -> bytes:
    return ipaddress.ip_address(text).packed


# The notations that CQL reads (Cassandra's documentation of the type duration): its own, ISO 8601 with designators,
# weeks, and the alternative format.
_NUMBER = "([0-9]+)"
_UNITS = "(ms|us|µs|ns|mo|y|w|d|h|m|s)"
_OWN = re.compile(f"(?:[0-9]+{_UNITS})+", re.IGNORECASE)
_PARTS = re.compile(f"{_NUMBER}{_UNITS}", re.IGNORECASE)
_DATE = "".join(f"(?:{_NUMBER}{unit})?" for unit in "YMD")
_TIME = "".join(f"(?:{_NUMBER}{unit})?" for unit in "HMS")
_ISO = re.compile(f"P(?=.){_DATE}(?:T(?=.){_TIME})?")
_WEEKS = re.compile(f"P{_NUMBER}W")
_ALTERNATIVE = re.compile("P([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})")
_ISO_UNITS = ("y", "mo", "d", "h", "m", "s")
_MONTHS = {"y": 12, "mo": 1}
_DAYS = {"w": 7, "d": 1}
_NANOS = {**dict(TIME_UNITS), "µs": 1_000, "ns": 1}


def duration_bytes(text: str) -> bytes:
    """Encode a duration in a notation of CQL, such as "1y2mo3w4d5h6m7s8ms9us10ns" or "P1Y2M3DT4H"; "" is zero.

    Months and days have 32 bits, nanoseconds 64. Raises ValueError for other texts.
    """
    sign = -1 if text.startswith("-") else 1
    parts = _duration_parts(text[1:] if sign < 0 else text) if text else []
    numbers = [sign * sum(n * units[unit] for n, unit in parts if unit in units) for units in (_MONTHS, _DAYS, _NANOS)]
    if any(not -(1 << bits) <= number < 1 << bits for number, bits in zip(numbers, (31, 31, 63), strict=True)):
        raise ValueError(text)
    return b"".join(map(_vint, numbers))


def _duration_parts(text: str) -> list[tuple[int, str]]:
    """Numbers with their units, which are disjoint keys of `_MONTHS`, `_DAYS` and `_NANOS`."""
    if _OWN.fullmatch(text):
        return [(int(n), unit.lower()) for n, unit in _PARTS.findall(text)]
    if weeks := _WEEKS.fullmatch(text):
        return [(int(weeks[1]), "w")]
    if match := _ISO.fullmatch(text) or _ALTERNATIVE.fullmatch(text):
        return [(int(n), unit) for n, unit in zip(match.groups("0"), _ISO_UNITS, strict=True)]
    raise ValueError(text)


def _vint(number: int) -> bytes:
    """A zigzag vint, whose first byte's leading ones count the bytes that follow (native protocol v5, section 3)."""
    value = number << 1 if number >= 0 else (~number << 1) | 1
    extra = min(max(value.bit_length() - 1, 0) // 7, 8)
    head = (0xFF << (8 - extra)) & 0xFF
    return ((head << (8 * extra)) | value).to_bytes(extra + 1, "big")


def _time(kind: CqlType, values: pa.Array) -> Cells:
    bounds = pc.min_max(values).as_py()
    for nanos in filter(None, bounds.values()):
        if not 0 <= nanos < NANOS_PER_DAY:
            raise PenstockError(
                f"{nanos} is not a valid time",
                next="give nanoseconds of the day, from 0 to 86399999999999, or make it null",
            )
    return _LONG(kind, values)


def _children(values: pa.Array) -> tuple[Array, pa.Array]:
    """The bounds of each collection's elements, starting at zero, and the array of the elements."""
    offsets = values.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    inner = pa.StructArray.from_arrays([values.keys, values.items], ["k", "v"]) if _is_map(values) else values.values
    return offsets - first, inner.slice(first, last - first)


def _require_whole(kind: CqlType, parts: Sequence[pa.Array]) -> None:
    """Raise PenstockError for a null in a collection: servers store some of them, but cannot read them again."""
    if any(part.null_count for part in parts):
        raise PenstockError(
            f"a {kind} contains a null",
            next="remove it in the frame (array_compact, map_filter), or make the whole value null",
        )


def _is_map(values: pa.Array) -> bool:
    return bool(pa.types.is_map(values.type))


def _collection(kind: CqlType, values: pa.Array) -> Cells:
    bounds, inner = _children(values)
    parts = [inner.field(0), inner.field(1)] if _is_map(values) else [inner]
    _require_whole(kind, parts)
    entries = laid_out([encode(arg, part) for arg, part in zip(kind.args, parts, strict=True)])
    return _or_null(gathered(entries, bounds), values)


def _vector(kind: CqlType, values: pa.Array) -> Cells:
    bounds, inner = _children(values)
    if bad := [int(size) for size in np.diff(bounds)[_valid(values)] if size != kind.size]:
        raise PenstockError(
            f"a {kind} cannot have {bad[0]} elements", next=f"give each row a value with {kind.size} elements"
        )
    _require_whole(kind, [inner])
    elements = encode(kind.args[0], inner)
    width = int(elements.lengths[0]) if len(elements) else 0
    lengths = (np.diff(bounds) * width).astype(np.int32)
    return _or_null(Cells(elements.buffer, bounds[:-1] * width, lengths), values)


def _struct(kind: CqlType, values: pa.Array) -> Cells:
    # `flatten` makes the fields of a null value null, which may hold anything else.
    parts = [encode(arg, part) for arg, part in zip(kind.args, values.flatten(), strict=True)]
    return _or_null(laid_out(parts), values)


def _or_null(cells: Cells, values: pa.Array) -> Cells:
    return Cells(cells.buffer, cells.starts, np.where(_valid(values), cells.lengths, np.int32(-1)))


_LONG = _number(">i8")

_ENCODERS: dict[str, Callable[[CqlType, pa.Array], Cells]] = {
    "ascii": _binary,
    "bigint": _LONG,
    "blob": _binary,
    "boolean": _number("u1"),
    "date": _date,
    "decimal": _text_by(decimal_bytes),
    "double": _number(">f8"),
    "duration": _text_by(duration_bytes),
    "float": _number(">f4"),
    "inet": _text_by(inet_bytes),
    "int": _number(">i4"),
    "list": _collection,
    "map": _collection,
    "set": _collection,
    "smallint": _number(">i2"),
    "text": _binary,
    "time": _time,
    "timestamp": _timestamp,
    "timeuuid": _uuid,
    "tinyint": _number("i1"),
    "tuple": _struct,
    "udt": _struct,
    "uuid": _uuid,
    "varchar": _binary,
    "varint": _text_by(varint_bytes),
    "vector": _vector,
}
