"""`drop.fields.header.name` of ExtractNewRecordState: a header of the record lists fields to leave out.

As in Debezium, the header's value is a list, and of several headers with the name the first counts. Records have such a
header only from an earlier transform, or from who wrote them to the topic of a sink. A source registers its schemas
before it has records, so it must know the lists from the configuration (`steps.KnownHeaders`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from penstock.codec.connect_schema import Schema
from penstock.connect.records.deserializers import HEADER
from penstock.connect.records.record import ConnectRecord, Part
from penstock.connect.transforms.steps import (
    MOST_SCHEMAS,
    KnownHeaders,
    Misfit,
    PerSchema,
    Values,
    fields_of,
    is_optional,
    struct_schema,
)

Names = frozenset[str]


def drops_by_header(values: Values) -> bool:
    """Whether options of a transform name a header with fields to drop."""
    return bool(values.get("drop.fields.header.name"))


def dropping(values: Values) -> Dropping | None:
    """What these options of ExtractNewRecordState drop; None if they name no header."""
    if not drops_by_header(values):
        return None
    return Dropping(
        values["drop.fields.header.name"],
        values["drop.fields.from.key"],
        values["drop.fields.keep.schema.compatible"],
    )


@dataclass(frozen=True)
class Dropping:
    """Leaves out fields that a header names; with `compatible` only optional ones."""

    header: str
    from_key: bool
    compatible: bool

    @cached_property
    def _left(self) -> dict[Names, PerSchema[Schema]]:
        return {}

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        names = _listed(next((part.value for name, part in record.headers if name == self.header), None))
        if not names:
            return record
        key = self._part(record.key, names) if self.from_key else record.key
        return record._replace(key=key, value=self._part(record.value, names))

    def planned(self, known: KnownHeaders) -> list[Names]:
        """The names that records of a source can have; raises NoValue if each record can have its own."""
        if self.header in known.own:
            raise Misfit(
                f"the header {self.header!r} is made of a field, so that each record would lose other fields, and a "
                "source registers schemas before it has records",
                place="drop.fields.header.name",
                next="insert the header with InsertHeader, or drop the fields in a sink",
            )
        texts = known.texts(self.header)
        return sorted({_listed(None if text is None else HEADER(text.encode()).value) for text in texts}, key=sorted)

    def left(self, schema: Schema, names: Names) -> Schema:
        """The schema without these fields; the same one if it has none of them, or is not a struct's."""
        if schema["type"] != "struct":
            return schema
        fields = fields_of(schema).schemas
        left = {
            name: own for name, own in fields.items() if name not in names or (self.compatible and not is_optional(own))
        }
        return schema if len(left) == len(fields) else struct_schema(left.items(), schema)

    def _part(self, part: Part, names: Names) -> Part:
        schema, row = part
        if not isinstance(row, dict):
            return part
        if schema is None:
            return Part(None, {name: value for name, value in row.items() if name not in names})
        if names not in self._left:
            if len(self._left) >= MOST_SCHEMAS:
                self._left.clear()
            self._left[names] = PerSchema(lambda whole: self.left(whole, names))
        left = self._left[names](schema)
        return part if left is schema else Part(left, {own["field"]: row.get(own["field"]) for own in left["fields"]})


def _listed(value: Any) -> Names:
    """The names in a header's list; none if it is not a list."""
    return frozenset(name for name in value if isinstance(name, str)) if isinstance(value, list) else frozenset()
