"""Describes messages as data: an API is its key, its versions, and one line of text per field.

A line is `name type [versions] [=default] [tag<n>] [!]`; the fields of a struct follow it, indented by two more spaces:

    transactional_id string? =null    `?` may be null, `?7+` from version 7
    name string 3-12                  only in versions 3 to 12; `8` is one version, `10+` all from 10
    topics []                         an array of structs; `[]int32` of a primitive; `{}` one struct
    current_leader {} 10+ tag0        a tagged field (KIP-482): left out when it has its default value
    key_type int8 1+ !                must not be lost: a value that is not the default needs a version with this field

A field without versions is in all versions of its struct. Names are Kafka's, in snake case.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

Versions = tuple[int, int]
Direction = Literal["request", "response"]

NEWEST = 0x7FFF


@dataclass(frozen=True, eq=False)
class Api:
    """One request and its response, and their supported versions; there is one object per API."""

    key: int
    name: str
    versions: Versions
    # The first version with tagged fields and compact lengths; none for SaslHandshake, frozen before KIP-482.
    flexible: int | None = field(repr=False)
    request: str = field(repr=False)
    response: str = field(repr=False)

    def is_flexible(self, version: int) -> bool:
        return self.flexible is not None and version >= self.flexible


@dataclass(frozen=True)
class Field:
    """One field of a message; `kind` is a primitive type, or "struct" if it has `fields`."""

    name: str
    kind: str
    array: bool
    versions: Versions
    nullable: Versions | None
    default: Any
    tag: int | None
    ignorable: bool
    fields: tuple[Field, ...]

    def is_in(self, version: int) -> bool:
        return self.versions[0] <= version <= self.versions[1]

    def may_be_null(self, version: int) -> bool:
        return self.nullable is not None and self.nullable[0] <= version <= self.nullable[1]


@cache
def fields_of(api: Api, direction: Direction) -> tuple[Field, ...]:
    """The fields of a message of this API."""
    text = api.request if direction == "request" else api.response
    return tuple(_fields([line for line in text.splitlines() if line.strip()]))


def _fields(lines: list[str]) -> Iterator[Field]:
    """The fields at the lines' outermost depth, each with the deeper lines that follow it."""
    if not lines:
        return
    depth = _depth(lines[0])
    starts = [n for n, line in enumerate(lines) if _depth(line) == depth]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        yield _field(lines[start].split(), tuple(_fields(lines[start + 1 : end])))


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _field(words: list[str], below: tuple[Field, ...]) -> Field:
    name, kind, *rest = words
    kind, _, nulls = kind.partition("?")
    array, kind = kind.startswith("[]"), kind.removeprefix("[]")
    written = next((word[1:] for word in rest if word.startswith("=")), None)
    return Field(
        name=name,
        kind="struct" if below else kind,
        array=array,
        versions=_versions(next((word for word in rest if word[0].isdigit()), "0+")),
        nullable=_versions(nulls or "0+") if "?" in words[1] else None,
        default=() if array else {} if below else _default(kind, written),
        tag=next((int(word[3:]) for word in rest if word.startswith("tag")), None),
        ignorable="!" not in rest,
        fields=below,
    )


def _versions(text: str) -> Versions:
    first, dash, last = text.removesuffix("+").partition("-")
    return int(first), int(last) if dash else NEWEST if text.endswith("+") else int(first)


def _default(kind: str, written: str | None) -> Any:
    """The value of a field that is not set: the default in its line, otherwise zero or empty."""
    if written == "null" or kind == "records":
        return None
    if kind in ("string", "bytes", "uuid"):
        return {"string": "", "bytes": b"", "uuid": bytes(16)}[kind]
    if kind == "bool":
        return written == "true"
    return int(written or "0", 0)
