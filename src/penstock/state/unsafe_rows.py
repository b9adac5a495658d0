"""Values in Spark's UnsafeRow format: decoded, as JSON, and their Murmur3 hash, by which Spark spreads keys.

A row has a bit for each column that is null, in words of 64 bits, then eight bytes for each column: its value, or where
its value is in the row and how long. Arrays are alike, but their values are as long as they need; a map is an array of
keys and one of values.

Decoded values are those of Python, but times and dates are Spark's numbers: microseconds and days since 1970. A struct
is a list, a map is a list of pairs. The bytes may be damaged: values must lie in their row, and those of one row must
not have more bytes than the row, so that they cannot be the same bytes over and over.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Any

import numpy as np
from pyspark.sql import types as st

Decode = Callable[[memoryview], Any]
"""Decodes the bytes of one value."""

FIXED: dict[type[st.DataType], struct.Struct] = {
    st.BooleanType: struct.Struct("<?"),
    st.ByteType: struct.Struct("<b"),
    st.ShortType: struct.Struct("<h"),
    st.IntegerType: struct.Struct("<i"),
    st.DateType: struct.Struct("<i"),
    st.LongType: struct.Struct("<q"),
    st.TimestampType: struct.Struct("<q"),
    st.TimestampNTZType: struct.Struct("<q"),
    st.FloatType: struct.Struct("<f"),
    st.DoubleType: struct.Struct("<d"),
}
"""Types whose values have a fixed number of bytes."""
LONG_DECIMAL = 18
"""The most digits of a decimal that Spark keeps in 64 bits."""
_WORD = struct.Struct("<q")
_PLACE = struct.Struct("<II")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class DamagedRow(ValueError):
    """Bytes that are not a row of this type."""


class OtherType(TypeError):
    """A type whose values are not decoded here."""


def decoder(kind: st.DataType) -> Decode:
    """Decodes bytes to a value of this type; raises OtherType. The decoder raises DamagedRow."""
    decode_value = _decoder(kind)

    def decode(data: memoryview) -> Any:
        try:
            return decode_value(data)
        except (struct.error, UnicodeDecodeError, IndexError) as error:
            raise DamagedRow(str(error)) from error

    return decode


def _decoder(kind: st.DataType) -> Decode:
    if isinstance(kind, st.StructType):
        return _row([field.dataType for field in kind.fields])
    if isinstance(kind, st.ArrayType):
        return _array(kind.elementType)
    if isinstance(kind, st.MapType):
        return _map(kind)
    if isinstance(kind, st.DecimalType):
        return _long_decimal(kind) if kind.precision <= LONG_DECIMAL else _wide_decimal(kind)
    if isinstance(kind, st.NullType):
        return lambda data: None
    # Strings with a collation are equal by other rules than their bytes.
    if isinstance(kind, st.StringType) and kind.simpleString().split("(")[0] in ("string", "char", "varchar"):
        return lambda data: str(data, "utf-8", "replace")
    if isinstance(kind, st.BinaryType):
        return bytes
    if type(kind) in FIXED:
        layout = FIXED[type(kind)]
        return lambda data: layout.unpack_from(data)[0]
    raise OtherType(kind.simpleString())


def _size(kind: st.DataType) -> int:
    """The bytes of a value in an array; 0 if they vary, and the array has only their place."""
    if type(kind) in FIXED:
        return FIXED[type(kind)].size
    return 8 if isinstance(kind, st.DecimalType) and kind.precision <= LONG_DECIMAL else 0


def _nulls(data: memoryview, at: int, count: int) -> tuple[int, int]:
    """The bits of null values as a number, and where they end."""
    end = at + -(-count // 64) * 8
    if end > len(data):
        raise DamagedRow(f"{count} values need more than {len(data)} bytes")
    return int.from_bytes(data[at:end], "little"), end


def _part(data: memoryview, word: int) -> memoryview:
    """The bytes to which a word at this position points."""
    size, start = _PLACE.unpack_from(data, word)
    if start + size > len(data):
        raise DamagedRow(f"a value of {size} bytes at byte {start} of {len(data)}")
    return data[start : start + size]


def _row(kinds: Sequence[st.DataType]) -> Decode:
    fields = [(place, bool(_size(kind)), _decoder(kind)) for place, kind in enumerate(kinds)]

    def decode(data: memoryview) -> list[Any]:
        nulls, start = _nulls(data, 0, len(fields))
        values: list[Any] = []
        room = len(data)
        for place, fixed, decode_field in fields:
            word = start + 8 * place
            if nulls >> place & 1:
                values.append(None)
            elif fixed:
                values.append(decode_field(data[word : word + 8]))
            else:
                part = _part(data, word)
                room = _less(room, part)
                values.append(decode_field(part))
        return values

    return decode


def _array(kind: st.DataType) -> Decode:
    decode_element, size = _decoder(kind), _size(kind)

    def decode(data: memoryview) -> list[Any]:
        count = _WORD.unpack_from(data)[0]
        # The bits alone need an eighth of a byte for each value.
        if not 0 <= count <= 8 * len(data):
            raise DamagedRow(f"an array of {count} values in {len(data)} bytes")
        nulls, start = _nulls(data, 8, count)
        if start + count * (size or 8) > len(data):
            raise DamagedRow(f"an array of {count} values in {len(data)} bytes")
        values: list[Any] = []
        room = len(data)
        for place in range(count):
            if nulls >> place & 1:
                values.append(None)
            elif size:
                values.append(decode_element(data[start + place * size : start + (place + 1) * size]))
            else:
                part = _part(data, start + 8 * place)
                room = _less(room, part)
                values.append(decode_element(part))
        return values

    return decode


def _less(room: int, part: memoryview) -> int:
    if len(part) > room:
        raise DamagedRow("its values have more bytes than it has")
    return room - len(part)


def _map(kind: st.MapType) -> Decode:
    keys, values = _array(kind.keyType), _array(kind.valueType)

    def decode(data: memoryview) -> list[tuple[Any, Any]]:
        size = _WORD.unpack_from(data)[0]
        if not 0 <= size <= len(data) - 8:
            raise DamagedRow(f"a map with {size} bytes of keys in {len(data)} bytes")
        map_keys, there = keys(data[8 : 8 + size]), values(data[8 + size :])
        if len(map_keys) != len(there) or None in map_keys:
            raise DamagedRow(f"a map of {len(map_keys)} keys and {len(there)} values")
        return list(zip(map_keys, there, strict=True))

    return decode


def _long_decimal(kind: st.DecimalType) -> Decode:
    return lambda data: Decimal(_WORD.unpack_from(data)[0]).scaleb(-kind.scale)


def _wide_decimal(kind: st.DecimalType) -> Decode:
    def decode(data: memoryview) -> Decimal:
        # Spark keeps 16 bytes for each.
        if not 1 <= len(data) <= 16:
            raise DamagedRow(f"a decimal of {len(data)} bytes")
        number = int.from_bytes(data, "big", signed=True)
        return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -kind.scale))

    return decode


# JSON as Spark's `to_json` has it, in UTC.


def shown(value: Any, kind: st.DataType) -> Any:
    """The value as Python reads it from JSON; structs are without values that are null. Raises OtherType."""
    if value is None:
        return None
    if isinstance(kind, st.StructType):
        pairs = zip(kind.fields, value, strict=True)
        return {field.name: shown(of, field.dataType) for field, of in pairs if of is not None}
    if isinstance(kind, st.ArrayType):
        return [shown(of, kind.elementType) for of in value]
    if isinstance(kind, st.MapType):
        if not isinstance(kind.keyType, st.StringType | st.IntegralType):
            raise OtherType(kind.simpleString())
        return {str(key): shown(of, kind.valueType) for key, of in value}
    how = _SHOWN.get(type(kind))
    return how(value) if how else value


def _instant(microseconds: int) -> str:
    return _time(microseconds) + "Z"


def _time(microseconds: int) -> str:
    try:
        at = _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        raise OtherType("a time that is not in the years 1 to 9999") from None
    return at.replace(tzinfo=None).isoformat(timespec="milliseconds")


def _date(days: int) -> str:
    return _time(days * 86_400_000_000)[:10]


def _number(value: float) -> float | str:
    if value != value:
        return "NaN"
    return value if abs(value) != float("inf") else ("Infinity" if value > 0 else "-Infinity")


def _short_number(value: float) -> float | str:
    # The shortest digits that are this number in 32 bits.
    return _number(float(str(np.float32(value))))


def _exact(value: Decimal) -> Decimal | int:
    return value if value.as_tuple().exponent else int(value)


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


_SHOWN: dict[type[st.DataType], Callable[[Any], Any]] = {
    st.TimestampType: _instant,
    st.TimestampNTZType: _time,
    st.DateType: _date,
    st.DoubleType: _number,
    st.FloatType: _short_number,
    st.DecimalType: _exact,
    st.BinaryType: _base64,
}


# Murmur3, as Spark's function `hash` has it: whole words of four bytes, then each of the bytes that are left as a word.

SEED = 42
_MASK = 0xFFFFFFFF


def partition(values: Sequence[Any], kinds: Sequence[st.DataType], partitions: int) -> int:
    """The partition of Spark's shuffle for a key: `pmod(hash(values), partitions)`. Raises OtherType."""
    return hashed(values, kinds) % partitions


def hashed(values: Sequence[Any], kinds: Sequence[st.DataType]) -> int:
    """Spark's `hash` of the values, with a sign. Raises OtherType."""
    seed = SEED
    for value, kind in zip(values, kinds, strict=True):
        if value is not None:
            seed = _hash(_words(value, kind), seed)
    return seed - (1 << 32) if seed >> 31 else seed


def _words(value: Any, kind: st.DataType) -> tuple[list[int], int]:
    """The words of a value, and how many bytes they stand for."""
    if isinstance(kind, st.BooleanType | st.ByteType | st.ShortType | st.IntegerType | st.DateType):
        return [int(value) & _MASK], 4
    if isinstance(kind, st.LongType | st.TimestampType | st.TimestampNTZType):
        return [value & _MASK, value >> 32 & _MASK], 8
    if isinstance(kind, st.StringType | st.BinaryType):
        data = value.encode() if isinstance(value, str) else value
        whole = len(data) & ~3
        words = [word for (word,) in struct.iter_unpack("<I", data[:whole])]
        # The bytes that are left have signs.
        return words + [byte - 256 & _MASK if byte > 127 else byte for byte in data[whole:]], len(data)
    raise OtherType(kind.simpleString())


def _hash(words: tuple[list[int], int], seed: int) -> int:
    for word in words[0]:
        mixed = word * 0xCC9E2D51 & _MASK
        mixed = _turned(mixed, 15) * 0x1B873593 & _MASK
        seed = (_turned(seed ^ mixed, 13) * 5 + 0xE6546B64) & _MASK
    seed ^= words[1]
    seed = (seed ^ seed >> 16) * 0x85EBCA6B & _MASK
    seed = (seed ^ seed >> 13) * 0xC2B2AE35 & _MASK
    return seed ^ seed >> 16


def _turned(word: int, bits: int) -> int:
    return (word << bits | word >> 32 - bits) & _MASK


@cache
def schema(text: str) -> st.StructType:
    """A type from Spark's JSON; raises ValueError."""
    parsed = json.loads(text)
    if not isinstance(parsed, dict) or parsed.get("type") != "struct":
        raise ValueError(f"not a struct: {text:.80}")
    return st.StructType.fromJson(parsed)
