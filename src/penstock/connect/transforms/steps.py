"""What the transforms of records have in common: steps, plans that need each schema only once, and fields of structs.

A sink knows the schemas of its records when it reads them; a source registers its own before it has one. So a step that
runs in both is an object: called with a record it changes it, and `planned` says what it makes of all schemas that
records can have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from penstock.codec.connect_schema import Schema
from penstock.codec.typed_records import Side
from penstock.connect.records.json_data import default_of
from penstock.connect.records.record import ConnectRecord, NoValue, Part, type_name

Values = Mapping[str, Any]
"""The values of a class's options, by name without a prefix."""
Step = Callable[[ConnectRecord], ConnectRecord | None]
"""A transform; returns None if it drops the record, and raises NoValue if the record does not fit."""
Change = Callable[[Any, ConnectRecord], Any]
"""Makes the new value of the old one; the record is the one that has it."""
Plan = Callable[[Schema], tuple[Schema, Change]]
"""What becomes of a schema and of its values; raises NoValue if a transform does not fit it."""
T = TypeVar("T")
MOST_SCHEMAS = 100
BASICS = ("name", "version", "doc", "parameters")
"""The properties of a schema besides its type, fields, optional flag and default."""
KEY: Side = "key"
VALUE: Side = "value"
HEADERS, TOPIC = "headers", "topic"


class Misfit(NoValue):
    """A schema that a transform does not fit: which part of it, and what to do next."""

    def __init__(self, what: str, *, place: str = "", next: str = "") -> None:
        super().__init__(what)
        self.place, self.next = place, next


class PerSchema(Generic[T]):
    """Makes something of a schema once: records of the same writer have the same object as their schema."""

    def __init__(self, make: Callable[[Schema], T]) -> None:
        self._make = make
        # The schema is stored, too: otherwise another one could get its id.
        self._entries: dict[int, tuple[Schema, T]] = {}

    def __call__(self, schema: Schema) -> T:
        entry = self._entries.get(id(schema))
        if entry is None:
            if len(self._entries) >= MOST_SCHEMAS:
                self._entries.clear()
            entry = self._entries[id(schema)] = schema, self._make(schema)
        return entry[1]


@dataclass(frozen=True)
class KnownHeaders:
    """What a source knows of its records' headers before the first one; of headers with one name the first counts."""

    literals: Mapping[str, frozenset[str | None]] = field(default_factory=dict)
    """By name, the texts that transforms inserted; None for records that have no such header."""
    own: frozenset[str] = frozenset()
    """Names of headers that are made of fields, so that each record has its own."""

    def texts(self, name: str) -> frozenset[str | None]:
        return self.literals.get(name, frozenset((None,)))

    def inserted(self, name: str, literal: str) -> KnownHeaders:
        texts = frozenset(literal if text is None else text for text in self.texts(name))
        return replace(self, literals={**self.literals, name: texts})

    def of_fields(self, names: Iterable[str]) -> KnownHeaders:
        return replace(self, own=self.own.union(name for name in names if None in self.texts(name)))

    def without(self, names: Collection[str]) -> KnownHeaders:
        left = {name: texts for name, texts in self.literals.items() if name not in names}
        return KnownHeaders(left, self.own.difference(names))

    def or_else(self, other: KnownHeaders) -> KnownHeaders:
        names = self.literals.keys() | other.literals.keys()
        return KnownHeaders({name: self.texts(name) | other.texts(name) for name in names}, self.own | other.own)


@dataclass(frozen=True)
class Shapes:
    """What a source knows of its records before the first one: the schemas of keys and values, and their topic.

    `topic` is None if each record has its own. `tombstones` and `headers` say whether records without a value and with
    headers are possible.
    """

    topic: str | None
    keys: tuple[Schema, ...]
    values: tuple[Schema, ...]
    tombstones: bool = True
    headers: bool = False
    known_headers: KnownHeaders = field(default_factory=KnownHeaders)

    def of(self, side: Side) -> tuple[Schema, ...]:
        return self.keys if side == KEY else self.values

    def with_side(self, side: Side, schemas: Iterable[Schema]) -> Shapes:
        alternatives = distinct(schemas)
        if side == KEY:
            return replace(self, keys=alternatives)
        # A value that may be null is as good as none.
        return replace(self, values=alternatives, tombstones=self.tombstones or any(map(is_optional, alternatives)))

    def or_else(self, other: Shapes) -> Shapes:
        """Those of records of which some have these shapes, and the rest has others."""
        return replace(
            self,
            keys=distinct((*self.keys, *other.keys)),
            values=distinct((*self.values, *other.values)),
            tombstones=self.tombstones or other.tombstones,
            headers=self.headers or other.headers,
            known_headers=self.known_headers.or_else(other.known_headers),
        )


def distinct(schemas: Iterable[Schema]) -> tuple[Schema, ...]:
    unique: list[Schema] = []
    for schema in schemas:
        if schema not in unique:
            unique.append(schema)
    return tuple(unique)


@runtime_checkable
class PlannedStep(Protocol):
    """A step that also runs in a source; it needs the parts `reads` of records, and changes only `writes`."""

    @property
    def reads(self) -> frozenset[str]: ...

    @property
    def writes(self) -> frozenset[str]: ...

    def __call__(self, record: ConnectRecord) -> ConnectRecord | None: ...

    def planned(self, shapes: Shapes) -> Shapes:
        """The shapes of what it makes; raises NoValue for a schema that it does not fit."""
        ...


@dataclass(frozen=True)
class PartStep:
    """Changes keys or values: by `plain` without a schema, else by what `plan` makes of the schema.

    Without `nulls`, a key or a value that is null stays as it is. `check` raises NoValue for a schema of which no value
    but null can be changed: a source stops with it, a sink with the first such value, as Kafka does.
    """

    side: Side
    plain: Change
    plan: Plan
    nulls: bool = False
    check: Callable[[Schema], None] = lambda schema: None

    @cached_property
    def _plans(self) -> PerSchema[tuple[Schema, Change]]:
        return PerSchema(self.plan)

    @property
    def reads(self) -> frozenset[str]:
        return frozenset((self.side,))

    writes = reads

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        schema, value = record.key if self.side == KEY else record.value
        if value is None and not self.nulls:
            return record
        if schema is None:
            part = Part(None, self.plain(value, record))
        else:
            new, change = self._plans(schema)
            part = Part(new, change(value, record))
        return with_part(record, self.side, part)

    def planned(self, shapes: Shapes) -> Shapes:
        for schema in shapes.of(self.side):
            self.check(schema)
        return shapes.with_side(self.side, (self.plan(schema)[0] for schema in shapes.of(self.side)))


class Test(Protocol):
    """A predicate: whether it selects a record. `known` and `narrowed` say what a source knows before the first one."""

    @property
    def reads(self) -> frozenset[str]: ...

    def __call__(self, record: ConnectRecord) -> bool: ...

    def known(self, shapes: Shapes) -> bool | None:
        """The answer that is the same for all records of these shapes; None if it is not."""
        ...

    def narrowed(self, shapes: Shapes, holds: bool) -> Shapes:
        """What is known of the records that it selects, or does not select."""
        ...


def part_of(record: ConnectRecord, side: Side) -> Part:
    return record.key if side == KEY else record.value


def with_part(record: ConnectRecord, side: Side, part: Part) -> ConnectRecord:
    return record._replace(key=part) if side == KEY else record._replace(value=part)


# Structs and objects.


@dataclass(frozen=True)
class Fields:
    """The fields of a struct: their schemas, and the defaults of those that have one."""

    schemas: Mapping[str, Schema]
    defaults: Mapping[str, Any]

    def row(self, value: Mapping[str, Any], defaults: bool) -> Mapping[str, Any]:
        """A struct's values by field; with `defaults` a null is replaced by the field's default."""
        if not (defaults and self.defaults):
            return value
        return {name: self.get(value, name) for name in self.schemas}

    def get(self, value: Mapping[str, Any], name: str, defaults: bool = True) -> Any:
        own = value.get(name)
        return self.defaults.get(name) if own is None and defaults else own


def fields_of(schema: Schema) -> Fields:
    """Raises NoValue if it is not the schema of a struct."""
    if schema["type"] != "struct":
        raise Misfit(
            f"only a struct has fields, and this is a single value of type {schema['type']}",
            next="put this transform before the transform that replaces the struct",
        )
    schemas = {
        own["field"]: {name: value for name, value in own.items() if name != "field"} for own in schema["fields"]
    }
    return Fields(schemas, {name: default_of(own) for name, own in schemas.items() if own.get("default") is not None})


def require_fields(fields: Fields, names: Iterable[str], what: str) -> None:
    """Raise NoValue unless the struct, which is `what` of a record, has all these fields."""
    if missing := [name for name in names if name not in fields.schemas]:
        has = ", ".join(fields.schemas)[:300]
        raise Misfit(f"{what} has no field {', '.join(missing)}; it has {has}", next=f"use fields that it has: {has}")


def object_of(value: Any) -> dict[str, Any]:
    """The object or the struct that a value is; raises NoValue."""
    if not isinstance(value, dict):
        raise NoValue(f"it must be an object or a struct, and is {type_name(value)}")
    return value


def struct_schema(members: Iterable[tuple[str, Schema]], like: Schema | None = None) -> Schema:
    """The schema of a required struct; name, version and documentation are those of `like`."""
    fields = [{**schema, "field": name} for name, schema in members]
    if twins := [name for name, count in Counter(own["field"] for own in fields).items() if count > 1]:
        raise Misfit(f"a struct cannot have two fields {', '.join(twins)}", next="rename one of them")
    return {"type": "struct", "fields": fields, "optional": False, **basics(like or {})}


def basics(schema: Schema) -> dict[str, Any]:
    return {name: schema[name] for name in BASICS if name in schema}


def is_optional(schema: Schema) -> bool:
    return bool(schema.get("optional"))
