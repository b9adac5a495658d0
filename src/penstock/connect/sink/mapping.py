"""Mappings of records to columns: `id = key.id, name = value."full.name", at = header.at, seen = now()`.

Columns and fields may be in double quotes, and fields nested (`value.address.city`). `key` and `value` alone are the
whole key or value. `__ttl` and `__timestamp` are the time to live and the write time of a record.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from penstock.connect.sink.connect_data import ConnectRecord, Part

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
class Source:
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

    def _inside(self, value: Any) -> Any:
        for number, name in enumerate(self.path):
            if value is None and number:
                return None
            if not isinstance(value, dict) or name not in value:
                raise NoField(f"the record has no {self}")
            value = value[name]
        return value

    def _header(self, record: ConnectRecord) -> Any:
        found = [part.value for name, part in record.headers if name == self.path[0]]
        if not found:
            raise NoField(f"the record has no header {self.path[0]}")
        if isinstance(found[-1], dict | list):
            raise NoField(f"the header {self.path[0]} is no primitive value")
        return found[-1]


def mapping(text: str) -> dict[str, Source]:
    """The sources of columns by name; raises WrongMapping."""
    found: dict[str, Source] = {}
    at = 0
    while at < len(text):
        entry = _ENTRY.match(text, at)
        if entry is None:
            raise WrongMapping(f"it cannot be read from {text[at : at + 40]!r} on; write column = value.field, ...")
        column, source = _plain(entry[1]), _source(entry[2])
        if column in found:
            raise WrongMapping(f"column {column} occurs twice")
        found[column] = source
        at = entry.end()
    if not found:
        raise WrongMapping("it has no columns")
    return found


def _plain(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def _source(text: str) -> Source:
    first, *path = _STEP.findall(text)
    if text == "now()":
        return Source("now")
    if first in ("key", "value") or (first == "header" and len(path) == 1):
        return Source(first, tuple(map(_plain, path)))
    raise WrongMapping(f"{text} is none of key, value, key.<field>, value.<field>, header.<name> and now()")


def columns(sources: Mapping[str, Source]) -> Iterator[tuple[str, Source]]:
    """The columns of the table, without the time to live and the write time."""
    return ((name, source) for name, source in sources.items() if name not in SPECIAL)
