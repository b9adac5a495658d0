"""Converts the values of Connect's records to text, as PostgreSQL reads it for a column's type.

A value is taken if the column can hold it without loss, as in `sinks.cql.values`. PostgreSQL's own check follows
when it reads the text: a number that is too large, or text that is not of the type, is refused there. What it would
take with a silent loss, such as a number with more decimal places than the column, is refused or converted here.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal
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
    number_of,
    scaled,
    whole,
)
from penstock.connect.records.iso_times import iso_text, year_and_day
from penstock.connect.records.record import Date, TimeOfDay, TimeSpan, Timestamp, type_name
from penstock.connect.records.semantic_types import AlsoNumber, Bits, Duration, EnumSet, TimestampText
from penstock.connect.sinks.destination import SHOWN, Unfit
from penstock.postgres.postgres_columns import TargetColumn, scale_of
from penstock.process.digits import MOST_DIGITS

EXACT = {"int2", "int4", "int8", "bool", "uuid", "bytea", "text", "varchar"}
"""Types whose values are equal exactly if the texts of them here are."""
BYTES = {"name": 63, "char": 1}
"""Bytes of PostgreSQL's own types of text, which cut what is longer."""
SECOND_DIGITS = 6
MICROS_PER_DAY = 86_400_000_000
NANOS_PER_MICRO = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FRACTION = re.compile(r"\.(\d+)(?=\s*(?:s|Z|[+-]|AD|BC|AM|PM|$))", re.ASCII | re.IGNORECASE)
"""The digits of a second in the text of a time or an interval."""
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
    except LostDigits as error:
        raise _unfit(column, value, str(error)) from None
    except (ValueError, OverflowError, RecursionError) as error:
        raise error if isinstance(error, Unfit) else _unfit(column, value) from None
    if "\x00" in text:
        raise _unfit(column, value, "as it has a zero character")
    return text


def _writer(kind: str) -> Writer:
    return _array if kind.startswith("_") else _WRITERS.get(kind, _text)


def _unfit(column: TargetColumn, value: Any, why: str = "") -> Unfit:
    shown = value.hex() if isinstance(value, bytes) else str(value)
    return Unfit(f"{shown[:SHOWN]!r} ({type_name(value)}) does not fit {column.full}{why and ', '}{why}")


# Numbers.


def _number(value: Any) -> Any:
    """The value, with counts of time and bits as the numbers that they are."""
    if isinstance(value, int) and isinstance(value, AlsoNumber):
        return int(value)
    return int.from_bytes(value, "little") if type(value) is Bits else value


def _integer(column: TargetColumn, value: Any, zone: tzinfo) -> str:
    value = _number(value)
    if type(value) is str and isinstance(number := number_of(value), int):
        return str(number)
    if type(value) in NUMBERS:
        return str(whole(value))
    raise _unfit(column, value)


def _decimal(column: TargetColumn, value: Any, zone: tzinfo) -> str:
    number = exact(_exact(column, value))
    scale = scale_of(column.cast)
    return _digits(number if scale is None else scaled(number, scale))


def _exact(column: TargetColumn, value: Any) -> int | float | Decimal:
    """The number that a value is, with all its digits."""
    value = _number(value)
    if type(value) is str:
        value = Decimal(value) if value in NOT_FINITE else number_of(value)
    if type(value) not in NUMBERS:
        raise _unfit(column, value)
    return value  # type: ignore[no-any-return]


def _digits(value: Decimal) -> str:
    if value.is_finite():
        return str(value)
    return "NaN" if value.is_nan() else f"{'-' if value < 0 else ''}Infinity"


def _real(column: TargetColumn, value: Any, zone: tzinfo) -> str:
    number = _exact(column, value)
    binary(number, FLOAT if column.type == "float4" else DOUBLE)
    return _digits(exact(number))


def _money(column: TargetColumn, value: Any, zone: tzinfo) -> str:
    """A number, or text as PostgreSQL writes money in the database's locale, such as "$1,234.50"."""
    places = 2 if column.most is None else column.most
    if type(value) is not str or number_of(value) is not None:
        return _digits(scaled(exact(_exact(column, value)), places))
    end = re.search(r"([.,]\d+)\D*$", value)
    if end and len(end[1]) > places + 1 and not re.fullmatch(r",\d{3}", end[1]):
        raise _unfit(column, value, "which would round it")
    return value


def _boolean(column: TargetColumn, value: Any, zone: tzinfo) -> str:
    if type(value) is str and value.lower() in ("true", "false"):
        return value.lower()
    flag = _number(value)
    if type(flag) is bool or (type(flag) is int and flag in (0, 1)):
        return "true" if flag else "false"
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
#
# What a value has in smaller parts than microseconds, which PostgreSQL's times have, is rounded down. A column that is
# declared with fewer digits of a second takes only times without others: PostgreSQL would round them.


def _day(days: int) -> tuple[str, str]:
    """The day, and what PostgreSQL writes after years before Christ."""
    year, rest = year_and_day(days)
    return (f"{year:04}{rest}", "") if year > 0 else (f"{1 - year:04}{rest}", " BC")


def _clock(column: TargetColumn, micros: int) -> str:
    """A time of day within the column's digits."""
    seconds, part = divmod(_within_digits(column, micros), 1_000_000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{part:06}"


def _within_digits(column: TargetColumn, micros: int) -> int:
    digits = _digits_of_second(column)
    if micros % 10 ** (SECOND_DIGITS - digits):
        raise LostDigits(f"which has {digits} digits of a second")
    return micros


def _digits_of_second(column: TargetColumn) -> int:
    declared = re.search(r"\((\d)\)", column.cast)
    return int(declared[1]) if declared else SECOND_DIGITS


def _time_text(column: TargetColumn, value: Any) -> str:
    """Text of a time within the column's digits."""
    text = _string(column, value)
    fraction = _FRACTION.search(text)
    if fraction and type(value) is TimestampText:
        text = text[: fraction.start(1) + SECOND_DIGITS] + text[fraction.end(1) :]
        fraction = _FRACTION.search(text)
    digits = _digits_of_second(column)
    if fraction and len(fraction[1].rstrip("0")) > digits:
        raise LostDigits(f"which has {digits} digits of a second")
    return text


def _date(column: TargetColumn, value: Any, zone: tzinfo) -> str:
    if isinstance(value, Date):
        return "".join(_day(int(value)))
    if isinstance(value, Timestamp):
        days, rest = divmod(_local(value.count_of(NANOS_PER_MICRO), zone), MICROS_PER_DAY)
        if rest == 0:
            return "".join(_day(days))
        raise _unfit(column, value, "as it is not midnight")
    if type(value) is str and re.search(r"\d:\d", value):
        raise _unfit(column, value, "as it has a time of day")
    return _string(column, value)


def _time(column: TargetColumn, value: Any, zone: tzinfo) -> str:
    if isinstance(value, TimeOfDay):
        micros = value.count_of(NANOS_PER_MICRO)
        if not 0 <= micros < MICROS_PER_DAY:
            raise _unfit(column, value, "as it is not within a day")
        return _clock(column, micros) + ("+00" if column.type == "timetz" else "")
    text = _time_text(column, value)
    offset = _OFFSET.search(text)
    if column.type == "time" and offset and re.search("[1-9]", offset[1]):
        raise _unfit(column, value, "which has no time zone")
    return text


def _timestamp(column: TargetColumn, value: Any, zone: tzinfo) -> str:
    if isinstance(value, Date):
        return _instant(column, int(value) * MICROS_PER_DAY, UTC)
    if isinstance(value, Timestamp):
        return _instant(column, value.count_of(NANOS_PER_MICRO), zone)
    text = _time_text(column, value)
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
    return f"{day} {_clock(column, rest)}{'+00' if with_zone else ''}{era}"


def _local(micros: int, zone: tzinfo) -> int:
    """The same as clocks show it in a zone; raises OverflowError for years that have no rules."""
    if zone is UTC:
        return micros
    offset = (_EPOCH + timedelta(microseconds=micros)).astimezone(zone).utcoffset() or timedelta()
    return micros + offset // timedelta(microseconds=1)


def _interval(column: TargetColumn, value: Any, zone: tzinfo) -> str:
    if isinstance(value, Duration | TimeOfDay):
        micros = value.count_of(NANOS_PER_MICRO)
        return f"{_within_digits(column, micros)} microseconds"
    return _time_text(column, value)


# Text and what has parts.


def _string(column: TargetColumn, value: Any) -> str:
    if isinstance(value, str):
        return str(value)
    raise _unfit(column, value)


def _varchar(column: TargetColumn, value: Any, zone: tzinfo) -> str:
    text = _text(column, value, zone)
    if column.most is not None and len(text.rstrip(" ")) <= column.most < len(text):
        raise _unfit(column, value, "which would lose spaces at its end")
    return text


def _short_name(column: TargetColumn, value: Any, zone: tzinfo) -> str:
    text = _text(column, value, zone)
    if len(text.encode()) > BYTES[column.type]:
        raise _unfit(column, value, f"which has {BYTES[column.type]} bytes")
    return text


def _text(column: TargetColumn, value: Any, zone: tzinfo) -> str:
    if isinstance(value, Date | TimeSpan):
        return iso_text(value)
    if type(value) is Decimal and abs(value.adjusted()) < MOST_DIGITS:
        return f"{value:f}"
    if type(value) is float:
        return _digits(exact(value))
    if isinstance(value, bytes):
        raise _unfit(column, value)
    return _json(column, value, zone)


def _json(column: TargetColumn, value: Any, zone: tzinfo) -> str:
    """Text is JSON already."""
    return str(value) if isinstance(value, str) else exact_json.dumps(value, other=lambda part: _part(column, part))


def _part(column: TargetColumn, value: Any) -> str:
    """The JSON of what JSON does not have."""
    if isinstance(value, Date | TimeSpan):
        return exact_json.dumps(iso_text(value))
    if isinstance(value, bytes):
        return exact_json.dumps(base64.b64encode(value).decode())
    if isinstance(value, str | int):
        return exact_json.dumps(str(value) if isinstance(value, str) else int(value))
    if isinstance(value, dict):  # of a class of its own
        return _json(column, dict(value), UTC)
    raise _unfit(column, value)


def _array(column: TargetColumn, value: Any, zone: tzinfo) -> str:
    if type(value) is EnumSet:
        value = value.split(",") if value else []
    if not isinstance(value, list):
        return _string(column, value)
    inside = replace(column, type=column.type[1:], full=column.full.removesuffix("[]"))
    return f"{{{','.join(_element(inside, element, zone) for element in value)}}}"


def _element(column: TargetColumn, value: Any, zone: tzinfo) -> str:
    if isinstance(value, list):
        return f"{{{','.join(_element(column, element, zone) for element in value)}}}"
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
    "money": _money,
    "varchar": _varchar,
    **dict.fromkeys(BYTES, _short_name),
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
