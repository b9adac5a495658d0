"""The keys by which users ask for state: a string, or a JSON object of some of the key's columns and fields."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from pyspark.sql import types as st

from penstock.codec import exact_json
from penstock.errors import PenstockError
from penstock.state.stores import StateStore, of_columns
from penstock.state.unsafe_rows import OtherType

_TOLD = {st.StructType: dict, st.ArrayType: list}
"""The JSON types of key columns that are not single values."""
_INTEGERS: dict[type[st.DataType], int] = {st.ByteType: 8, st.ShortType: 16, st.IntegerType: 32, st.LongType: 64}
_DIGITS = re.compile(r"[+-]?[0-9]{1,19}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(_DATE.pattern + r"[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?")
_ZONE = re.compile(r"Z|[+-][0-9]{2}:[0-9]{2}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Condition:
    """A field of the key, by its names from the outside in, and the JSON value that it must have."""

    path: tuple[str, ...]
    kind: st.DataType
    value: Any


def wanted(kind: st.StructType, key: str, store: StateStore, by: Sequence[str] = ()) -> dict[str, Any]:
    """The wanted key by column; a string is the only column of `by`, or the only column that is not a window."""
    if (by_column := of_columns(key)) is not None:
        return by_column
    plain = by or [field.name for field in kind.fields if not isinstance(field.dataType, st.StructType)]
    if len(plain) != 1:
        raise _no_key(key, kind, store)
    return {plain[0]: key}


def conditions(
    kind: st.StructType, wanted: Mapping[str, Any], store: StateStore, path: tuple[str, ...] = ()
) -> Iterator[Condition]:
    """What the fields of the key must be; raises `PenstockError` if the key has no such field."""
    for name, value in wanted.items():
        if name not in kind.names:
            raise _no_key(exact_json.dumps(wanted), kind, store)
        inner = kind[name].dataType
        if isinstance(inner, st.StructType) and isinstance(value, dict):
            yield from conditions(inner, value, store, (*path, name))
        elif value is not None and not isinstance(value, _TOLD.get(type(inner), str | int | float | Decimal)):
            raise _no_key(exact_json.dumps(wanted), kind, store)
        else:
            yield Condition((*path, name), inner, value)


def _no_key(key: str, kind: st.StructType, store: StateStore) -> PenstockError:
    example = json.dumps({field.name: f"<{field.dataType.simpleString()}>" for field in kind.fields})
    return PenstockError(
        f"{key} is not a key of {store.name}", where=f"its key is {kind.simpleString()}", next=f"give {example}"
    )


def whole(kind: st.StructType, wanted: Mapping[str, Any]) -> bool:
    """Whether the key has all columns, each a single value: then its rows are in one partition."""
    return wanted.keys() == set(kind.names) and not any(
        isinstance(field.dataType, st.StructType) for field in kind.fields
    )


# Without Spark: JSON values as the values that Spark would make of them.


def matching(kind: st.StructType, wanted: Sequence[Condition]) -> Callable[[Any], bool]:
    """Whether a key, as `unsafe_rows` decodes it, fulfils the conditions; raises OtherType."""
    tests = [(_places(kind, condition.path), value_of(condition.value, condition.kind)) for condition in wanted]

    def matches(key: Any) -> bool:
        return all(_at(key, places) == value for places, value in tests)

    return matches


def _places(kind: st.DataType, path: Sequence[str]) -> list[int]:
    places = []
    for name in path:
        assert isinstance(kind, st.StructType)
        places.append(kind.names.index(name))
        kind = kind[name].dataType
    return places


def _at(value: Any, places: Sequence[int]) -> Any:
    for place in places:
        value = None if value is None else value[place]
    return value


def value_of(value: Any, kind: st.DataType) -> Any:
    """What Spark's `try_cast` makes of a JSON value, for the forms that are usual; raises OtherType for others."""
    if value is None:
        return None
    converted: Any = None
    if isinstance(kind, st.StringType):
        converted = _text(value)
    elif type(kind) in _INTEGERS:
        converted = _integer(value, _INTEGERS[type(kind)])
    elif isinstance(kind, st.BooleanType):
        converted = value if isinstance(value, bool) else {"true": True, "false": False}.get(value)
    elif isinstance(kind, st.DateType | st.TimestampType | st.TimestampNTZType) and isinstance(value, str):
        converted = _when(value, kind)
    if converted is None:
        raise OtherType(f"{exact_json.dumps(value)} as a key of the type {kind.simpleString()}")
    return converted


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, str | int) else None


def _integer(value: Any, bits: int) -> int | None:
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        value = int(value)
    # Spark makes null of a number that is too large, and a key may be null.
    return value if type(value) is int and -1 << bits - 1 <= value < 1 << bits - 1 else None


def _when(text: str, kind: st.DataType) -> int | None:
    try:
        if _DATE.fullmatch(text):
            days = (date.fromisoformat(text) - _EPOCH.date()).days
            return days if isinstance(kind, st.DateType) else days * 86_400_000_000
        match = _TIME.match(text)
        zone = text[match.end() :] if match else ""
        if not match or isinstance(kind, st.DateType) or (zone and isinstance(kind, st.TimestampNTZType)):
            return None
        if zone and not _ZONE.fullmatch(zone):
            return None
        return (datetime.fromisoformat(match[0] + (zone or "Z")) - _EPOCH) // timedelta(microseconds=1)
    except ValueError:
        return None
