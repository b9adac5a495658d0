"""Converts the values of Connect's records to text, as PostgreSQL reads it for a column's type.

A value is taken if the column can hold it without loss, as in `column_values` for CQL. PostgreSQL's own check follows
when it reads the text: a number that is too large, or text that is not of the type, is refused there. What it would
take with a silent loss, such as a time zone for a column without one, is refused or converted here.
"""

from __future__ import annotations

import base64
import math
import re
import struct
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal
from json import dumps
from typing import Any
from uuid import UUID

from penstock.connect.sink.column_values import SHOWN, Unfit, iso_text, year_and_day
from penstock.connect.sink.connect_data import Date, TimeOfDay, Timestamp
from penstock.connect.sink.semantic_types import Bits, Counted, Duration, EnumSet
from penstock.postgres.postgres_columns import TargetColumn

EXACT = {"int2", "int4", "int8", "bool", "uuid", "bytea", "text", "varchar"}
"""Types whose values are equal exactly if the texts of them here are."""
LONGEST_NUMBER = 4000
MICROS_PER_DAY = 86_400_000_000
NANOS_PER_MICRO = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,9})?")
_NOT_FINITE = {"NaN", "Infinity", "-Infinity"}
_OFFSET = re.compile(r"(?<=\d)\s*(Z|[+-]\d{2}(?::?\d{2})?)$", re.ASCII | re.IGNORECASE)
Writer = Callable[[TargetColumn, Any, tzinfo], str]


def text_of(column: TargetColumn, value: Any, zone: tzinfo) -> str | None:
    """The text of a value for a column, None for null; raises Unfit. `zone` is that of timestamps without one."""
    if value is None:
        return None
    try:
        text = _writer(column.type)(column, value, zone)
        if not text.isascii():
            text.encode()
    except (ValueError, OverflowError, RecursionError, struct.error) as error:
        raise error if isinstance(error, Unfit) else _unfit(column, value) from None
    if "\x00" in text:
        raise _unfit(column, value, "as it has a zero character")
    return text


def _writer(kind: str) -> Writer:
    return _array if kind.startswith("_") else _WRITERS.get(kind, _text)


def _unfit(column: TargetColumn, value: Any, why: str = "") -> Unfit:
    shown = value.hex() if isinstance(value, bytes) else str(value)
    return Unfit(f"{shown[:SHOWN]!r} ({type(value).__name__}) does not fit {column.full}{why and ', '}{why}")


# Numbers.


def _number(value: Any) -> Any:
    """The value, with counts of time and bits as the numbers that they are."""
    if isinstance(value, int) and isinstance(value, Counted):
        return int(value)
    return int.from_bytes(value, "little") if type(value) is Bits else value


def _integer(column: TargetColumn, value: Any, zone: tzinfo) -> str:
    value = _number(value)
    if type(value) is str and len(value) <= LONGEST_NUMBER and re.fullmatch(r"[+-]?[0-9]+", value):
        return str(int(value))
    if type(value) is int:
        return str(value)
    if type(value) in (float, Decimal) and math.isfinite(value) and abs(value) < 1 << 64 and int(value) == value:
        return str(int(value))
    raise _unfit(column, value)


def _decimal(column: TargetColumn, value: Any, zone: tzinfo) -> str:
    value = _number(value)
    if type(value) is int or type(value) in (float, Decimal):
        return _digits(value)
    if type(value) is str and (_NUMBER.fullmatch(value) or value in _NOT_FINITE):
        return value
    raise _unfit(column, value)


def _digits(value: float | Decimal) -> str:
    if math.isfinite(value):
        # The shortest digits of a double, as Java's BigDecimal.valueOf has them.
        return str(value)
    return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"


def _real(column: TargetColumn, value: Any, zone: tzinfo) -> str:
    value = _number(value)
    if type(value) is int:
        form = ">f" if column.type == "float4" else ">d"
        if struct.unpack(form, struct.pack(form, value))[0] != value:
            raise _unfit(column, value, "which would round it")
    return _decimal(column, value, zone)


def _boolean(column: TargetColumn, value: Any, zone: tzinfo) -> str:
    if type(value) is str and value.lower() in ("true", "false"):
        return value.lower()
    found = _number(value)
    if type(found) is bool or (type(found) is int and found in (0, 1)):
        return "true" if found else "false"
    raise _unfit(column, value)


# Bytes and bits.


def _bytes(column: TargetColumn, value: Any, zone: tzinfo) -> str:
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    raise _unfit(column, value, "which takes only bytes")


def _bits(column: TargetColumn, value: Any, zone: tzinfo) -> str:
    if type(value) is bool:
        return str(int(value))
    if type(value) is str:
        return value
    if type(value) is not Bits:
        raise _unfit(column, value)
    length = re.search(r"\d+", column.full)
    width = int(length[0]) if column.type == "bit" and length else 8 * len(value)
    digits = f"{int.from_bytes(value, 'little'):0{width}b}"
    if len(digits) > width:
        raise _unfit(column, value)
    return digits


# Times.


def _day(days: int) -> tuple[str, str]:
    """The day, and what PostgreSQL writes after years before Christ."""
    year, rest = year_and_day(days)
    return (f"{year:04}{rest}", "") if year > 0 else (f"{1 - year:04}{rest}", " BC")


def _clock(micros: int) -> str:
    seconds, part = divmod(micros, 1_000_000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{part:06}"


def _date(column: TargetColumn, value: Any, zone: tzinfo) -> str:
    if isinstance(value, Date):
        return "".join(_day(int(value)))
    if isinstance(value, Timestamp):
        days, rest = divmod(_local(int(value) * value.nanos // NANOS_PER_MICRO, zone), MICROS_PER_DAY)
        if rest == 0:
            return "".join(_day(days))
        raise _unfit(column, value, "as it is not midnight")
    if type(value) is str and re.search(r"\d:\d", value):
        raise _unfit(column, value, "as it has a time of day")
    return _string(column, value)


def _time(column: TargetColumn, value: Any, zone: tzinfo) -> str:
    if isinstance(value, TimeOfDay):
        micros = int(value) * value.nanos // NANOS_PER_MICRO
        if not 0 <= micros < MICROS_PER_DAY:
            raise _unfit(column, value, "as it is not within a day")
        return _clock(micros) + ("+00" if column.type == "timetz" else "")
    text = _string(column, value)
    offset = _OFFSET.search(text)
    if column.type == "time" and offset and re.search("[1-9]", offset[1]):
        raise _unfit(column, value, "which has no time zone")
    return text


def _timestamp(column: TargetColumn, value: Any, zone: tzinfo) -> str:
    if isinstance(value, Date):
        return _instant(column, int(value) * MICROS_PER_DAY, UTC)
    if isinstance(value, Timestamp):
        return _instant(column, int(value) * value.nanos // NANOS_PER_MICRO, zone)
    text = _string(column, value)
    if column.type == "timestamp" and _OFFSET.search(text) and ":" in text:
        # PostgreSQL would leave the offset away.
        at = datetime.fromisoformat(_OFFSET.sub(r"\1", text).upper().replace(" ", "T", 1))
        if at.tzinfo is not None:
            return _instant(column, (at - _EPOCH) // timedelta(microseconds=1), zone)
    return text


def _instant(column: TargetColumn, micros: int, zone: tzinfo) -> str:
    """A time in microseconds since 1970: with its zone, or as clocks show it in `zone`."""
    with_zone = column.type == "timestamptz"
    days, rest = divmod(micros if with_zone else _local(micros, zone), MICROS_PER_DAY)
    day, era = _day(days)
    return f"{day} {_clock(rest)}{'+00' if with_zone else ''}{era}"


def _local(micros: int, zone: tzinfo) -> int:
    """The same as clocks show it in a zone; raises OverflowError for years that have no rules."""
    if zone is UTC:
        return micros
    offset = (_EPOCH + timedelta(microseconds=micros)).astimezone(zone).utcoffset() or timedelta()
    return micros + offset // timedelta(microseconds=1)


def _interval(column: TargetColumn, value: Any, zone: tzinfo) -> str:
    if isinstance(value, Duration | TimeOfDay):
        return f"{int(value) * value.nanos // NANOS_PER_MICRO} microseconds"
    return _string(column, value)


# Text and what has parts.


def _string(column: TargetColumn, value: Any) -> str:
    if isinstance(value, str):
        return str(value)
    raise _unfit(column, value)


def _text(column: TargetColumn, value: Any, zone: tzinfo) -> str:
    if isinstance(value, Date | TimeOfDay | Timestamp | Duration):
        return iso_text(value)
    if type(value) is Decimal and abs(value.adjusted()) < LONGEST_NUMBER:
        return f"{value:f}"
    if type(value) is float:
        return _digits(value)
    if isinstance(value, bytes):
        raise _unfit(column, value)
    return _json(column, value, zone)


def _json(column: TargetColumn, value: Any, zone: tzinfo) -> str:
    """Text is JSON already."""
    return str(value) if isinstance(value, str) else _part(column, value)


def _part(column: TargetColumn, value: Any) -> str:
    if value is None or type(value) in (bool, str):
        return dumps(value, ensure_ascii=False)
    if isinstance(value, str | Date | TimeOfDay | Timestamp | Duration):
        return dumps(str(value) if isinstance(value, str) else iso_text(value), ensure_ascii=False)
    if isinstance(value, bytes):
        return dumps(base64.b64encode(value).decode())
    if isinstance(value, list):
        return f"[{', '.join(_part(column, one) for one in value)}]"
    if isinstance(value, dict):
        pairs = (f"{_name(column, name)}: {_part(column, one)}" for name, one in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, int | float | Decimal) and math.isfinite(value):
        return str(int(value)) if isinstance(value, int) else str(value)
    raise _unfit(column, value)


def _name(column: TargetColumn, name: Any) -> str:
    return dumps(name if isinstance(name, str) else _part(column, name), ensure_ascii=False)


def _array(column: TargetColumn, value: Any, zone: tzinfo) -> str:
    if type(value) is EnumSet:
        value = value.split(",") if value else []
    if not isinstance(value, list):
        return _string(column, value)
    inside = replace(column, type=column.type[1:], full=column.full.removesuffix("[]"))
    return f"{{{','.join(_element(inside, one, zone) for one in value)}}}"


def _element(column: TargetColumn, value: Any, zone: tzinfo) -> str:
    if isinstance(value, list):
        return f"{{{','.join(_element(column, one, zone) for one in value)}}}"
    text = text_of(column, value, zone)
    if text is None:
        return "NULL"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _uuid(column: TargetColumn, value: Any, zone: tzinfo) -> str:
    return str(UUID(_string(column, value)))


_WRITERS: dict[str, Writer] = {
    **dict.fromkeys(("int2", "int4", "int8", "oid"), _integer),
    "numeric": _decimal,
    **dict.fromkeys(("float4", "float8"), _real),
    "bool": _boolean,
    "bytea": _bytes,
    **dict.fromkeys(("bit", "varbit"), _bits),
    "date": _date,
    **dict.fromkeys(("time", "timetz"), _time),
    **dict.fromkeys(("timestamp", "timestamptz"), _timestamp),
    "interval": _interval,
    "uuid": _uuid,
    **dict.fromkeys(("json", "jsonb"), _json),
}
"""By PostgreSQL's name of the type; the values of others are text, or JSON."""
