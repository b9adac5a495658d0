"""Converts the values of Connect's records to cells of CQL columns.

A value is taken if the column can hold it without loss, else it is refused: no number wraps, is cut or loses digits, by
the rule of `column_numbers`. Text is read in the notations of CQL and ISO 8601, or as JSON for collections and user
types.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

from penstock.codec import exact_json
from penstock.connect.records.column_numbers import (
    DOUBLE,
    FLOAT,
    NOT_FINITE,
    NUMBERS,
    LostDigits,
    binary,
    exact,
    is_finite,
    number_of,
    whole,
)
from penstock.connect.records.iso_times import day_number, iso_text
from penstock.connect.records.record import Date, TimeOfDay, TimeSpan, Timestamp, type_name
from penstock.connect.records.semantic_types import AlsoNumber, Bits, Duration, EnumSet, Geometry, TimestampText, Year
from penstock.connect.sinks.destination import SHOWN, Unfit
from penstock.database.columns import DATE_EPOCH
from penstock.database.cql_types import FIXED_WIDTHS, CqlType
from penstock.database.encode_cells import (
    decimal_bytes,
    duration_bytes,
    inet_bytes,
    list_bytes,
    varint_bytes,
)
from penstock.durations import NANOS_PER_DAY

WIDTHS = {"tinyint": 1, "smallint": 2, "int": 4, "bigint": 8, "counter": 8}
NANOS_PER_MILLI, MILLIS_PER_DAY = 1_000_000, 86_400_000
Encoder = Callable[[CqlType, Any], bytes]


def cell(kind: CqlType, value: Any) -> bytes | None:
    """The cell of a value, None for null; raises Unfit."""
    if value is None:
        return None
    if quick := _QUICK.get((kind.name, type(value))):
        try:
            return quick(value)
        except (struct.error, UnicodeError):
            pass  # The long way says what does not fit.
    try:
        return _ENCODERS[kind.name](kind, value)
    except Unfit:
        raise
    except LostDigits as error:
        raise _unfit(kind, value, str(error)) from None
    except (ValueError, OverflowError, InvalidOperation, struct.error, RecursionError):
        raise _unfit(kind, value) from None


def _unfit(kind: CqlType, value: Any, why: str = "") -> Unfit:
    shown = value.hex() if isinstance(value, bytes) else str(value)
    return Unfit(f"{shown[:SHOWN]!r} ({type_name(value)}) is no {kind}{why and ', '}{why}")


def _numeric(encode: Encoder) -> Encoder:
    """An encoder that takes counts of time and bits as numbers."""

    def encoded(kind: CqlType, value: Any) -> bytes:
        if isinstance(value, int) and isinstance(value, AlsoNumber):
            return encode(kind, int(value))
        return encode(kind, int.from_bytes(value, "little") if type(value) is Bits else value)

    return encoded


def _whole(kind: CqlType, value: Any) -> int:
    """The integer that a value is."""
    if type(value) is str and isinstance(number := number_of(value), int):
        return number
    if type(value) in NUMBERS:
        return whole(value)
    raise _unfit(kind, value)


def _integer(kind: CqlType, value: Any) -> bytes:
    number = _whole(kind, value)
    width = WIDTHS[kind.name]
    if not -(1 << 8 * width - 1) <= number < 1 << 8 * width - 1:
        raise _unfit(kind, number, f"which has {8 * width} bits")
    return number.to_bytes(width, "big", signed=True)


def _varint(kind: CqlType, value: Any) -> bytes:
    if type(value) is str:
        return varint_bytes(value.removeprefix("+"))
    return varint_bytes(str(_whole(kind, value)))


def _decimal(kind: CqlType, value: Any) -> bytes:
    number: Any = number_of(value) if type(value) is str else value
    if type(number) in NUMBERS and is_finite(number):
        return decimal_bytes(str(exact(number)))
    raise _unfit(kind, value)


def _real(bits: int, form: str) -> Encoder:
    pack = struct.Struct(form).pack

    def encode(kind: CqlType, value: Any) -> bytes:
        number = value
        if type(value) is str:
            number = float(value) if value in NOT_FINITE else number_of(value)
        if type(number) not in NUMBERS:
            raise _unfit(kind, value)
        return pack(binary(number, bits))

    return encode


def _boolean(kind: CqlType, value: Any) -> bytes:
    if type(value) is str and value.lower() in ("true", "false"):
        value = value.lower() == "true"
    if type(value) is Bits and int.from_bytes(value, "little") < 2:
        value = any(value)
    if type(value) is not bool:
        raise _unfit(kind, value)
    return bytes([value])


def _text(kind: CqlType, value: Any) -> bytes:
    if isinstance(value, Date | TimeSpan):
        value = iso_text(value)
    elif type(value) in (Decimal, Year):
        value = str(value)
    elif type(value) is Geometry:
        value = _blob(kind, value).hex()
    return _str(kind, value).encode("ascii" if kind.name == "ascii" else "utf-8")


def _str(kind: CqlType, value: Any) -> str:
    if not isinstance(value, str):
        raise _unfit(kind, value)
    return value


def _blob(kind: CqlType, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if type(value) is Geometry and isinstance(wkb := value.get("wkb"), bytes):
        return wkb
    text = _str(kind, value)
    if text[:2].lower() == "0x":
        return bytes.fromhex(text[2:])
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise _unfit(kind, value, "neither base64 nor 0x with hexadecimal digits") from None


_UUID = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def _uuid(kind: CqlType, value: Any) -> bytes:
    text = _str(kind, value)
    if not _UUID.fullmatch(text):
        raise _unfit(kind, value)
    uuid = UUID(text)
    if kind.name == "timeuuid" and uuid.version != 1:
        raise _unfit(kind, value, "whose version is 1")
    return uuid.bytes


def _unquoted(kind: CqlType, value: Any) -> str:
    """The text of a literal, with or without CQL's quotes."""
    text = _str(kind, value)
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == "'" else text


def _inet(kind: CqlType, value: Any) -> bytes:
    return inet_bytes(_unquoted(kind, value))


def _duration(kind: CqlType, value: Any) -> bytes:
    if isinstance(value, Duration | TimeOfDay):
        return duration_bytes(_own(kind, 0, 0, value.count_of(1)))
    text = _unquoted(kind, value).strip()
    if not text:
        raise _unfit(kind, value)
    if match := _ISO.fullmatch(text):
        # CQL's own notation has no fractions and no signs inside; nanoseconds hold them.
        return duration_bytes(_own(kind, *_parts(match)))
    return duration_bytes(text)


_ISO = re.compile(
    r"(-?)P(?=.)(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)D)?"
    r"(?:T(?=.)(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?)(\d+)(?:\.(\d{1,9}))?S)?)?",
    re.ASCII,
)


def _parts(match: re.Match[str]) -> tuple[int, int, int]:
    """Months, days and nanoseconds."""
    sign = -1 if match[1] else 1
    years, months, days, hours, minutes = (int(each or 0) for each in match.groups()[1:6])
    below = int(match[8] or 0) * 1_000_000_000 + int((match[9] or "").ljust(9, "0"))
    nanos = (hours * 3600 + minutes * 60) * 1_000_000_000 + (-below if match[7] else below)
    return sign * (years * 12 + months), sign * days, sign * nanos


def _own(kind: CqlType, months: int, days: int, nanos: int) -> str:
    """CQL's own notation."""
    if min(months, days, nanos) < 0 < max(months, days, nanos):
        raise Unfit(f"{months} months, {days} days and {nanos} ns are no {kind}, which has one sign")
    sign = "-" if min(months, days, nanos) < 0 else ""
    return f"{sign}{abs(months)}mo{abs(days)}d{abs(nanos)}ns"


_DAY = r"([+-]\d{4,9}|\d{4})-(\d\d)-(\d\d)"
_ZONE = r"(Z|[+-]\d{2}(?::?\d{2})?)?"
_UTC = "(?:Z|[+-]00:?00)?"
_TIMESTAMP = re.compile(rf"{_DAY}(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{{1,9}}))?)?)?\s*{_ZONE}", re.ASCII)


def _timestamp(kind: CqlType, value: Any) -> bytes:
    """Milliseconds; a number counts milliseconds since 1970, as the text of one does.

    What other databases have in smaller parts is rounded down, and plain text of smaller parts refused.
    """
    if isinstance(value, Timestamp):
        return value.count_of(NANOS_PER_MILLI).to_bytes(8, "big", signed=True)
    if type(value) is int:
        return value.to_bytes(8, "big", signed=True)
    text = _unquoted(kind, value)
    if re.fullmatch(r"-?[0-9]{1,19}", text):
        return int(text).to_bytes(8, "big", signed=True)
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise _unfit(kind, value, "such as 2026-01-31T12:00:00Z or 2026-01-31 12:00:00+0000")
    *whole, fraction, zone = match.groups()
    year, month, day, hour, minute, second = (int(each or 0) for each in whole)
    at = timedelta(seconds=_seconds(hour, minute, second)) - _offset(zone)
    millis = day_number(year, month, day) * MILLIS_PER_DAY + at // timedelta(milliseconds=1)
    nanos = int((fraction or "").ljust(9, "0"))
    if nanos % NANOS_PER_MILLI and type(value) is not TimestampText:
        raise _unfit(kind, value, "which has milliseconds")
    return (millis + nanos // NANOS_PER_MILLI).to_bytes(8, "big", signed=True)


def _seconds(hour: int, minute: int, second: int) -> int:
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError
    return (hour * 60 + minute) * 60 + second


def _offset(text: str | None) -> timedelta:
    if text in (None, "", "Z"):
        return timedelta()
    sign, digits = text[0], text[1:].replace(":", "")
    offset = timedelta(seconds=_seconds(int(digits[:2]), int(digits[2:] or 0), 0))
    return -offset if sign == "-" else offset


_DATE = re.compile(f"{_DAY}{_UTC}", re.ASCII)


def _date(kind: CqlType, value: Any) -> bytes:
    if isinstance(value, Date):
        days = int(value)
    else:
        match = _DATE.fullmatch(_unquoted(kind, value))
        if match is None:
            raise _unfit(kind, value, "such as 2026-01-31")
        days = day_number(int(match[1]), int(match[2]), int(match[3]))
    return (days + DATE_EPOCH).to_bytes(4, "big")


_TIME = re.compile(rf"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{{1,9}}))?)?{_UTC}", re.ASCII)


def _time(kind: CqlType, value: Any) -> bytes:
    if isinstance(value, TimeOfDay):
        nanos = value.count_of(1)
    else:
        match = _TIME.fullmatch(_unquoted(kind, value))
        if match is None or int(match[2]) > 59 or int(match[3] or 0) > 59:
            raise _unfit(kind, value, "such as 12:00:00.5")
        seconds = int(match[1]) * 3600 + int(match[2]) * 60 + int(match[3] or 0)
        nanos = seconds * 1_000_000_000 + int((match[4] or "").ljust(9, "0"))
    if not 0 <= nanos < NANOS_PER_DAY:
        raise _unfit(kind, value)
    return nanos.to_bytes(8, "big")


# Collections, tuples and user types.


def _json(kind: CqlType, value: Any, *wanted: type) -> Any:
    """A value of these types; text is JSON of one."""
    if type(value) is str:
        value = exact_json.loads(value)
    if type(value) is EnumSet:
        value = value.split(",") if value else []
    if not isinstance(value, wanted):
        raise _unfit(kind, value)
    return value


def _inner(kind: CqlType, value: Any) -> bytes:
    inner = cell(kind, value)
    if inner is None:
        raise Unfit("a collection contains a null, which the database does not store")
    return inner


def _list(kind: CqlType, value: Any) -> bytes:
    return list_bytes([_inner(kind.args[0], element) for element in _json(kind, value, list)])


def _set(kind: CqlType, value: Any) -> bytes:
    return list_bytes(list(dict.fromkeys(_inner(kind.args[0], element) for element in _json(kind, value, list))))


def _map(kind: CqlType, value: Any) -> bytes:
    entries = {
        _inner(kind.args[0], key): _inner(kind.args[1], entry) for key, entry in _json(kind, value, dict).items()
    }
    flat = [each for entry in entries.items() for each in entry]
    return len(entries).to_bytes(4, "big") + list_bytes(flat)[4:]


def _vector(kind: CqlType, value: Any) -> bytes:
    elements = _json(kind, value, list)
    if len(elements) != kind.size:
        raise _unfit(kind, value, f"as it has {len(elements)} elements")
    cells = [_inner(kind.args[0], element) for element in elements]
    if kind.args[0].name in FIXED_WIDTHS:
        return b"".join(cells)
    raise _unfit(kind, value, "whose elements have no fixed size")


def _tuple(kind: CqlType, value: Any) -> bytes:
    fields = _json(kind, value, list, dict)
    parts = list(fields.values()) if isinstance(fields, dict) else fields
    if len(parts) != len(kind.args):
        raise _unfit(kind, value, f"as it has {len(parts)} fields")
    return _fields(kind, parts)


def _udt(kind: CqlType, value: Any) -> bytes:
    """Fields by name; missing ones are null."""
    fields = _json(kind, value, dict)
    if unknown := [str(name) for name in fields if name not in kind.fields]:
        raise _unfit(kind, value, f"which has no field {', '.join(unknown)[:SHOWN]}")
    return _fields(kind, [fields.get(name) for name in kind.fields])


def _fields(kind: CqlType, values: list[Any]) -> bytes:
    cells = [cell(arg, field) for arg, field in zip(kind.args, values, strict=True)]
    return b"".join(struct.pack(">i", -1 if field is None else len(field)) + (field or b"") for field in cells)


_ENCODERS: dict[str, Encoder] = {
    **dict.fromkeys(WIDTHS, _numeric(_integer)),
    **dict.fromkeys(("text", "varchar", "ascii"), _text),
    **dict.fromkeys(("uuid", "timeuuid"), _uuid),
    "varint": _numeric(_varint),
    "decimal": _numeric(_decimal),
    "double": _numeric(_real(DOUBLE, ">d")),
    "float": _numeric(_real(FLOAT, ">f")),
    "boolean": _boolean,
    "blob": _blob,
    "inet": _inet,
    "duration": _duration,
    "timestamp": _timestamp,
    "date": _date,
    "time": _time,
    "list": _list,
    "set": _set,
    "map": _map,
    "vector": _vector,
    "tuple": _tuple,
    "udt": _udt,
}
_BOOLEANS = (b"\x00", b"\x01")
_QUICK: dict[tuple[str, type], Callable[[Any], bytes]] = {
    **{(name, int): struct.Struct(f">{code}").pack for name, code in zip(WIDTHS, "bhiqq", strict=True)},
    ("timestamp", int): struct.Struct(">q").pack,
    ("double", float): struct.Struct(">d").pack,
    ("boolean", bool): _BOOLEANS.__getitem__,
    ("text", str): str.encode,
    ("varchar", str): str.encode,
}
"""What most values are: the same cells, in one call."""
