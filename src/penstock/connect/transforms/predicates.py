"""Predicates: select the records of a transform."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from penstock.connect.java import regex as java_regex
from penstock.connect.java.regex_check import regex_check
from penstock.connect.records.record import ConnectRecord
from penstock.connect.transforms.plugin import KAFKA, not_empty, plugin
from penstock.connect.transforms.steps import HEADERS, VALUE, Shapes, Values

PREFIX = f"{KAFKA}predicates."


@dataclass(frozen=True)
class TopicNameMatches:
    pattern: str
    reads: ClassVar[frozenset[str]] = frozenset()

    @cached_property
    def _matches(self) -> Callable[[str], bool]:
        return java_regex.matching(self.pattern)

    def __call__(self, record: ConnectRecord) -> bool:
        return self._matches(record.topic)

    def known(self, shapes: Shapes) -> bool | None:
        return None if shapes.topic is None else self._matches(shapes.topic)

    def narrowed(self, shapes: Shapes, holds: bool) -> Shapes:
        return shapes


@dataclass(frozen=True)
class HasHeaderKey:
    name: str
    reads: ClassVar[frozenset[str]] = frozenset((HEADERS,))

    def __call__(self, record: ConnectRecord) -> bool:
        return any(name == self.name for name, _ in record.headers)

    def known(self, shapes: Shapes) -> bool | None:
        return None if shapes.headers else False

    def narrowed(self, shapes: Shapes, holds: bool) -> Shapes:
        return shapes


@dataclass(frozen=True)
class RecordIsTombstone:
    reads: ClassVar[frozenset[str]] = frozenset((VALUE,))

    def __call__(self, record: ConnectRecord) -> bool:
        return record.value.value is None

    def known(self, shapes: Shapes) -> bool | None:
        return None if shapes.tombstones and shapes.values else shapes.tombstones

    def narrowed(self, shapes: Shapes, holds: bool) -> Shapes:
        return replace(shapes, values=()) if holds else replace(shapes, tombstones=False)


def topic_name_matches(values: Values) -> TopicNameMatches:
    return TopicNameMatches(values["pattern"])


def has_header_key(values: Values) -> HasHeaderKey:
    return HasHeaderKey(values["name"])


def record_is_tombstone(values: Values) -> RecordIsTombstone:
    return RecordIsTombstone()


def _pattern(text: str) -> str | None:
    return not_empty(text) or regex_check(text)


CLASSES = (
    plugin(f"{PREFIX}TopicNameMatches", topic_name_matches, {"pattern": _pattern}),
    plugin(f"{PREFIX}HasHeaderKey", has_header_key, {"name": not_empty}),
    plugin(f"{PREFIX}RecordIsTombstone", record_is_tombstone),
)
