"""What the transforms of records have in common: steps, plans that are made once a schema, and fields of structs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

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
T = TypeVar("T")
MOST_SCHEMAS = 100
BASICS = ("name", "version", "doc", "parameters")
"""The properties of a schema besides its type, fields, optional flag and default."""


class PerSchema(Generic[T]):
    """Makes something of a schema once: records of the same writer have the same object as their schema."""

    def __init__(self, make: Callable[[Schema], T]) -> None:
        self._make = make
        # The schema is kept, too: otherwise another one could get its id.
        self._made: dict[int, tuple[Schema, T]] = {}

    def __call__(self, schema: Schema) -> T:
        found = self._made.get(id(schema))
        if found is None:
            if len(self._made) >= MOST_SCHEMAS:
                self._made.clear()
            found = self._made[id(schema)] = schema, self._make(schema)
        return found[1]


def part_of(record: ConnectRecord, side: Side) -> Part:
    return record.key if side == "key" else record.value


def with_part(record: ConnectRecord, side: Side, part: Part) -> ConnectRecord:
    return record._replace(key=part) if side == "key" else record._replace(value=part)


def on_part(side: Side, plain: Change, plan: Callable[[Schema], tuple[Schema, Change]], *, nulls: bool = False) -> Step:
    """A step that changes keys or values: by `plain` without a schema, else by what `plan` makes of the schema.

    Without `nulls`, a key or a value that is null stays as it is.
    """
    plans = PerSchema(plan)

    def step(record: ConnectRecord) -> ConnectRecord:
        part = part_of(record, side)
        if part.value is None and not nulls:
            return record
        if part.schema is None:
            return with_part(record, side, Part(None, plain(part.value, record)))
        schema, change = plans(part.schema)
        return with_part(record, side, Part(schema, change(part.value, record)))

    return step


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
        found = value.get(name)
        return self.defaults.get(name) if found is None and defaults else found


def fields_of(schema: Schema) -> Fields:
    """Raises NoValue if it is not the schema of a struct."""
    if schema["type"] != "struct":
        raise NoValue(f"only a struct has fields, and this is of type {schema['type']}")
    schemas = {
        field["field"]: {name: value for name, value in field.items() if name != "field"} for field in schema["fields"]
    }
    return Fields(schemas, {name: default_of(one) for name, one in schemas.items() if one.get("default") is not None})


def object_of(value: Any) -> dict[str, Any]:
    """The object or the struct that a value is; raises NoValue."""
    if not isinstance(value, dict):
        raise NoValue(f"it must be an object or a struct, and is {type_name(value)}")
    return value


def struct_schema(members: Iterable[tuple[str, Schema]], like: Schema | None = None) -> Schema:
    """The schema of a required struct; name, version and documentation are those of `like`."""
    fields = [{**schema, "field": name} for name, schema in members]
    if twins := [name for name, count in Counter(field["field"] for field in fields).items() if count > 1]:
        raise NoValue(f"a struct cannot have two fields {', '.join(twins)}")
    return {"type": "struct", "fields": fields, "optional": False, **basics(like or {})}


def basics(schema: Schema) -> dict[str, Any]:
    return {name: schema[name] for name in BASICS if name in schema}


def is_optional(schema: Schema) -> bool:
    return bool(schema.get("optional"))
