"""Takes structs apart into fields, and makes structs of fields, with their schemas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from pyspark.sql import functions as F

from penstock.codec.connect_schema import Schema
from penstock.codec.typed_records import RecordPart, Side
from penstock.connect.transforms.state import State
from penstock.errors import PenstockError

BASICS = ("name", "version", "parameters")
"""The properties of a schema besides its type, fields and default."""


def plain(schema: Schema) -> Schema:
    """The schema of a field without the field's name."""
    return {name: value for name, value in schema.items() if name != "field"}


def optional_text(optional: bool = True) -> Schema:
    return {"type": "string", "optional": optional}


def basics(schema: Schema) -> dict[str, Any]:
    return {name: schema[name] for name in BASICS if name in schema}


def require_struct(part: RecordPart, purpose: str) -> None:
    if part.schema["type"] != "struct":
        raise PenstockError(
            f"only a struct has fields, and this is a single value of type {part.schema['type']}",
            where=purpose,
            next="put this transform before the transform that replaces the struct",
        )


def fields(part: RecordPart, purpose: str) -> dict[str, RecordPart]:
    """The fields of a struct by name, in order."""
    require_struct(part, purpose)
    return {
        field["field"]: RecordPart(part.payload.getField(field["field"]), plain(field))
        for field in part.schema["fields"]
    }


def all_fields(state: State, side: Side) -> dict[str, RecordPart]:
    """The fields of all alternatives that are structs; of fields with the same name the first."""
    found: dict[str, RecordPart] = {}
    for part in state.parts(side):
        if part.schema["type"] == "struct":
            found = fields(part, "") | found
    return found


def rebuilt(part: RecordPart, members: Iterable[tuple[str, RecordPart]], *, optional: bool = False) -> RecordPart:
    """A struct of these fields that replaces `part`, with its name and version; null where `part` is null."""
    listed = list(members)
    _refuse_twins([name for name, _ in listed], part)
    schema = struct_schema(((name, member.schema) for name, member in listed), optional=optional)
    payload = F.struct(*(member.payload.alias(name) for name, member in listed))
    return RecordPart(F.when(part.payload.isNotNull(), payload), schema | basics(part.schema))


def struct_schema(members: Iterable[tuple[str, Schema]], *, optional: bool = False) -> Schema:
    """The schema of a struct without a name."""
    listed = [{**schema, "field": name} for name, schema in members]
    return {"type": "struct", "fields": listed, "optional": optional}


def _refuse_twins(names: list[str], part: RecordPart) -> None:
    twins = [name for name, count in Counter(names).items() if count > 1]
    if twins:
        raise PenstockError(
            f"a struct cannot have two fields {', '.join(twins)}",
            where=f"the transforms of {part.schema.get('name', 'a record')}",
            next="rename one of them",
        )
