"""Mappings of records to columns: `id = key.id, name = value."full.name", at = header.at, seen = now()`.

Columns and fields may be in double quotes, alone or with their side (`"value.full name"`), and fields nested
(`value.address.city`); a field with just this name comes first. `key` and `value` alone are the whole key or value.
Text that is a JSON object has its fields. `__ttl` and `__timestamp` are the time to live and the write time.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from penstock.connect.records.json_data import of_json
from penstock.connect.records.record import ConnectRecord, Part

TTL, TIMESTAMP = "__ttl", "__timestamp"
SPECIAL = (TTL, TIMESTAMP)
_NAME = r'"(?:[^"]|"")+"|[^\s",=.]+'
_ENTRY = re.compile(rf"\s*({_NAME})\s*=\s*((?:{_NAME})(?:\.(?:{_NAME}))*)\s*(?:,|$)")
_STEP = re.compile(_NAME)
Side = Literal["key", "value", "header", "now"]


class WrongMapping(ValueError):
    """A mapping that cannot be read."""


class NoField(ValueError):
    """A record that lacks a mapped field."""


@dataclass(frozen=True)
class ColumnSource:
    """Where a column's value comes from: a side of the record, and the path of a field in it."""

    side: Side
    path: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "now()" if self.side == "now" else ".".join((self.side, *self.path))

    def of(self, record: ConnectRecord) -> Any:
        """The value in a record; raises NoField."""
        if self.side == "now":
            return str(uuid.uuid1())
        if self.side == "header":
            return self._header(record)
        part: Part = getattr(record, self.side)
        if part.value is None and self.side == "value":
            return None
        return self._inside(part.value)

    def is_missing(self, record: ConnectRecord) -> bool:
        """Whether it is a header that the record does not have: then a column stays as it is."""
        return self.side == "header" and all(name != self.path[0] for name, _ in record.headers)

    def is_typed(self, record: ConnectRecord) -> bool:
        """Whether the value has a schema."""
        return self.side in ("key", "value") and getattr(record, self.side).schema is not None

    def _inside(self, value: Any) -> Any:
        if self.path and type(value) is str:
            value = _object(value)
        if len(self.path) > 1 and isinstance(value, dict) and (whole := ".".join(self.path)) in value:
            return value[whole]
        for number, name in enumerate(self.path):
            if value is None and number:
                return None
            if not isinstance(value, dict) or name not in value:
                raise NoField(f"the record has no {self}")
            value = value[name]
        return value

    def _header(self, record: ConnectRecord) -> Any:
        values = [part.value for name, part in record.headers if name == self.path[0]]
        if not values:
            raise NoField(f"the record has no header {self.path[0]}")
        if isinstance(values[-1], dict | list):
            raise NoField(f"the header {self.path[0]} is no primitive value")
        return values[-1]


@lru_cache(maxsize=4)
def _object(text: str) -> Any:
    """The JSON that a text is, once for all columns of a record; None if it is none."""
    try:
        return of_json(text.encode(), enveloped=False).value
    except ValueError:
        return None


def mapping(text: str) -> dict[str, ColumnSource]:
    """The sources of columns by name; raises WrongMapping."""
    sources: dict[str, ColumnSource] = {}
    at = 0
    while at < len(text):
        entry = _ENTRY.match(text, at)
        if entry is None:
            raise WrongMapping(f"it cannot be read from {text[at : at + 40]!r} on; write column = value.field, ...")
        column, source = plain(entry[1]), _source(entry[2])
        if column in sources:
            raise WrongMapping(f"column {column} occurs twice")
        sources[column] = source
        at = entry.end()
    if not sources:
        raise WrongMapping("it has no columns")
    return sources


def plain(name: str) -> str:
    """A name without its quotes, if it has them."""
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def _source(text: str) -> ColumnSource:
    if text == "now()":
        return ColumnSource("now")
    parts: list[Any] = [plain(part) for part in _STEP.findall(text)]
    # DataStax's sink has the quotes around the side, too.
    first, *path = parts[0].split(".", 1) if len(parts) == 1 else parts
    if first == "header" and path:
        return ColumnSource("header", (".".join(path),))
    if first in ("key", "value"):
        return ColumnSource(first, tuple(path))
    raise WrongMapping(f"{text} is none of key, value, key.<field>, value.<field>, header.<name> and now()")


def columns(sources: Mapping[str, ColumnSource]) -> Iterator[tuple[str, ColumnSource]]:
    """The columns of the table, without the time to live and the write time."""
    return ((name, source) for name, source in sources.items() if name not in SPECIAL)
