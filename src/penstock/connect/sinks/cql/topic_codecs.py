"""Text and numbers of a topic's records as the values of columns, by `topic.<topic>.codec.*` of DataStax's sink.

`values` reads the notations of CQL and ISO 8601; what is said here is read before it: dates and times by a
pattern in a time zone, numbers as times in a unit, numbers with the separators of a locale, words for booleans.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any

from penstock.codec import exact_json
from penstock.connect.definition import of_property
from penstock.connect.java.date_time_formatter import DatePattern, Moment, date_pattern, zone_of
from penstock.connect.records.column_numbers import number_of
from penstock.connect.records.record import Date, Timestamp, type_name
from penstock.connect.sinks.cql.values import WIDTHS
from penstock.connect.sinks.destination import SHOWN, Unfit
from penstock.database.cql_types import CqlType
from penstock.process.digits import MOST_DIGITS

UNITS_SINCE_EPOCH = "UNITS_SINCE_EPOCH"
"""A pattern for numbers, which are units of `unit`."""
SEPARATORS = {
    **dict.fromkeys(("en_US", "en_GB", "en_CA", "en_AU", "en", "ja_JP", "ko_KR", "zh_CN"), (",", ".")),
    **dict.fromkeys(("de_DE", "de", "es_ES", "it_IT", "nl_NL", "pt_BR"), (".", ",")),
    **dict.fromkeys(("fr_FR", "fr"), ("\u202f", ",")),
}
"""The separators of groups of three digits, and of the fraction, by locale: other locales are refused."""
_WORDS = {
    **dict.fromkeys(("1", "y", "t", "yes", "true"), True),
    **dict.fromkeys(("0", "n", "f", "no", "false"), False),
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBERS = (*WIDTHS, "varint", "decimal", "double", "float")
_TEXTS = ("text", "varchar", "ascii")


def is_english(locale: str) -> bool:
    """Whether names of months are written as `date_time_formatter` reads them."""
    return locale in ("en_US", "en")


@lru_cache(maxsize=100)
def _grouped(locale: str) -> re.Pattern[str]:
    group, point = map(re.escape, SEPARATORS[locale])
    return re.compile(rf"([+-]?)([0-9]{{1,3}}(?:{group}[0-9]{{3}})+|[0-9]+)(?:{point}([0-9]*))?")


@dataclass(frozen=True)
class TopicCodec:
    """How values of a topic are read; `unit` is in nanoseconds."""

    locale: str = field(metadata=of_property("codec.locale"))
    zone: str = field(metadata=of_property("codec.timeZone"))
    timestamp: str = field(metadata=of_property("codec.timestamp"))
    date: str = field(metadata=of_property("codec.date"))
    time: str = field(metadata=of_property("codec.time"))
    unit: int

    def value(self, kind: CqlType, value: Any, *, typed: bool) -> Any:
        """The value for `values.cell`; raises Unfit.

        `typed` says that it has a schema: then a number is never text in a pattern's digits.
        """
        if value is None or (value == "" and kind.name not in _TEXTS):
            return None
        if kind.args:
            return self._parts(kind, value, typed)
        read = _READERS.get(kind.name)
        try:
            return read(self, kind, value, typed) if read else value
        except (ValueError, OverflowError, RecursionError) as error:
            raise Unfit(f"{str(value)[:SHOWN]!r} ({type_name(value)}) is no {kind}: {error}") from None

    def _parts(self, kind: CqlType, value: Any, typed: bool) -> Any:
        """The elements or fields; a value that has none is left to `cell`, which says so."""
        if type(value) is str:
            try:
                value, typed = exact_json.loads(value), False
            except (ValueError, RecursionError):
                return value
        if isinstance(value, list):
            kinds = kind.args if kind.name == "tuple" else kind.args[:1] * len(value)
            return [self.value(*pair, typed=typed) for pair in zip(kinds, value, strict=False)] + value[len(kinds) :]
        if not isinstance(value, dict):
            return value
        if kind.name == "map":
            of_key, of_value = kind.args
            # The key that is text of a list or a map stays so: neither can be a key of Python's.
            keys = {name: name if of_key.args else self.value(of_key, name, typed=typed) for name in value}
            return {keys[name]: self.value(of_value, element, typed=typed) for name, element in value.items()}
        kinds_by_name = dict(zip(kind.fields or value, kind.args, strict=False))
        return {
            name: self.value(kinds_by_name[name], element, typed=typed) if name in kinds_by_name else element
            for name, element in value.items()
        }

    def _text(self, kind: CqlType, value: Any, typed: bool) -> Any:
        """Numbers, booleans, objects and arrays as JSON has them."""
        if type(value) is Decimal:
            return str(value)
        if type(value) in (bool, int, float, dict, list):
            return exact_json.dumps(value, compact=True)
        return value

    def _boolean(self, kind: CqlType, value: Any, typed: bool) -> Any:
        return _WORDS.get(str(value).lower(), value) if type(value) in (str, int) else value

    def _number(self, kind: CqlType, value: Any, typed: bool) -> Any:
        if type(value) is bool:
            return int(value)
        return value if type(value) is not str else self._parsed(value.strip())

    def _parsed(self, text: str) -> Decimal | str:
        """The number that a text is; a text that is none is left to `cell`, which says so."""
        if len(text) > MOST_DIGITS:
            return text
        if match := _grouped(self.locale).fullmatch(text):
            whole = re.sub("[^0-9]", "", match[2])
            return Decimal(f"{match[1]}{whole}.{match[3] or '0'}" if match[3] else f"{match[1]}{whole}")
        if SEPARATORS[self.locale][0] == "." and "." in text:
            raise ValueError(f"in {self.locale}, a point is before each three digits")
        plain = number_of(text)
        return text if plain is None else Decimal(plain)

    # Dates and times.

    def _timestamp(self, kind: CqlType, value: Any, typed: bool) -> Any:
        if type(value) is int and (typed or self.timestamp == UNITS_SINCE_EPOCH):
            return self._of_units(value)
        if type(value) not in (str, int):
            return value
        text = str(value).strip()
        try:
            return Timestamp(self._moment(self.timestamp, "timestamp", text).millis(zone_of(self.zone)))
        except ValueError:
            if re.fullmatch("-?[0-9]{1,30}", text):
                return self._of_units(int(text))
            raise

    def _date(self, kind: CqlType, value: Any, typed: bool) -> Any:
        if type(value) is not str and (typed or type(value) is not int):
            return value
        moment = self._moment(self.date, "date", str(value).strip())
        if moment.day is None:
            raise ValueError("it has no day")
        return Date((moment.day - date(1970, 1, 1)).days)

    def _time(self, kind: CqlType, value: Any, typed: bool) -> Any:
        if type(value) is not str and (typed or type(value) is not int):
            return value
        moment = self._moment(self.time, "time", str(value).strip())
        if moment.nanos is None:
            raise ValueError("it has no hour")
        seconds, nanos = divmod(moment.nanos, 1_000_000_000)
        return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{nanos:09}"

    def _of_units(self, number: int) -> Timestamp:
        return Timestamp(number * self.unit // 1_000_000)

    def _moment(self, pattern: str, option: str, text: str) -> Moment:
        if pattern == UNITS_SINCE_EPOCH:
            number = self._parsed(text)
            if isinstance(number, str) or number != number.to_integral_value():
                raise ValueError(f"it is not a whole number of units (codec.{option}={pattern})")
            seconds, nanos = divmod(int(number) * self.unit, 1_000_000_000)
            at = (_EPOCH + timedelta(seconds=seconds)).astimezone(zone_of(self.zone))
            return Moment(at.date(), ((at.hour * 60 + at.minute) * 60 + at.second) * 1_000_000_000 + nanos, at.tzinfo)
        try:
            return self._pattern(pattern).read(text)
        except ValueError as error:
            raise ValueError(f"{error} (codec.{option}={pattern})") from None

    def _pattern(self, text: str) -> DatePattern:
        return date_pattern(text, names=is_english(self.locale))


_READERS: dict[str, Callable[[TopicCodec, CqlType, Any, bool], Any]] = {
    **dict.fromkeys(_TEXTS, TopicCodec._text),
    **dict.fromkeys(_NUMBERS, TopicCodec._number),
    "boolean": TopicCodec._boolean,
    "timestamp": TopicCodec._timestamp,
    "date": TopicCodec._date,
    "time": TopicCodec._time,
}
