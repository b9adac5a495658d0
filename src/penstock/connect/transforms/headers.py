"""InsertHeader, HeaderFrom and DropHeaders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from penstock.codec.connect_schema import Schema
from penstock.codec.typed_records import Side
from penstock.connect.records.deserializers import HEADER
from penstock.connect.records.record import ConnectRecord, NoValue, Part
from penstock.connect.transforms.plugin import KAFKA, on_key_and_value, one_of, plugin, some_names
from penstock.connect.transforms.steps import (
    HEADERS,
    KnownHeaders,
    PerSchema,
    Shapes,
    Values,
    fields_of,
    object_of,
    part_of,
    require_fields,
    struct_schema,
    with_part,
)

Headers = tuple[tuple[str, Part], ...]
Taken = tuple[Any, list[tuple[str, Part]]]
"""What is left of a struct, and the headers that are made of its fields."""


@dataclass(frozen=True)
class HeaderStep:
    """Changes the headers of records, whatever else they have; `adds` says whether there can be more of them.

    `known` changes what a source knows of them.
    """

    change: Callable[[Headers], Headers]
    known: Callable[[KnownHeaders], KnownHeaders]
    adds: bool
    reads: ClassVar[frozenset[str]] = frozenset((HEADERS,))
    writes: ClassVar[frozenset[str]] = reads

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        return record._replace(headers=self.change(record.headers))

    def planned(self, shapes: Shapes) -> Shapes:
        return replace(shapes, headers=shapes.headers or self.adds, known_headers=self.known(shapes.known_headers))


def insert_header(values: Values) -> HeaderStep:
    name, literal = values["header"], values["value.literal"]
    added = ((name, HEADER(literal.encode())),)
    return HeaderStep(lambda headers: headers + added, lambda known: known.inserted(name, literal), True)


def drop_headers(values: Values) -> HeaderStep:
    names = values["headers"]
    return HeaderStep(
        lambda headers: tuple(header for header in headers if header[0] not in names),
        lambda known: known.without(names),
        False,
    )


@dataclass(frozen=True)
class HeaderFrom:
    """Makes headers of fields: `names` are the new names by the old ones, in their order."""

    side: Side
    names: tuple[tuple[str, str], ...]
    moves: bool
    defaults: bool

    @property
    def reads(self) -> frozenset[str]:
        return frozenset((self.side, HEADERS))

    @property
    def writes(self) -> frozenset[str]:
        return self.reads if self.moves else frozenset((HEADERS,))

    def plan(self, schema: Schema) -> tuple[Schema, Callable[[Any], Taken]]:
        fields, defaults = fields_of(schema), self.defaults
        require_fields(fields, (old for old, _ in self.names), f"its {self.side}")
        left = self._left(fields.schemas)

        def taken(row: Any) -> Taken:
            headers = [(new, Part(fields.schemas[old], fields.get(row, old, defaults))) for old, new in self.names]
            return ({name: fields.get(row, name, defaults) for name in left} if self.moves else row), headers

        return struct_schema(left.items(), schema) if self.moves else schema, taken

    @cached_property
    def _plans(self) -> PerSchema[tuple[Schema, Callable[[Any], Taken]]]:
        return PerSchema(self.plan)

    def _left(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        moved = {old for old, _ in self.names}
        return {name: field for name, field in fields.items() if name not in moved}

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        schema, value = part_of(record, self.side)
        if value is None:
            raise NoValue(f"it has no {self.side} to take headers from")
        if schema is None:
            row = object_of(value)
            added = [(new, Part(None, row.get(old))) for old, new in self.names]
            left = self._left(row) if self.moves else row
        else:
            schema, taken = self._plans(schema)
            left, added = taken(value)
        return with_part(record, self.side, Part(schema, left))._replace(headers=(*record.headers, *added))

    def planned(self, shapes: Shapes) -> Shapes:
        planned = shapes.with_side(self.side, (self.plan(schema)[0] for schema in shapes.of(self.side)))
        known = shapes.known_headers.of_fields(new for _, new in self.names)
        return replace(planned, headers=True, known_headers=known)


def header_from(side: Side, values: Values) -> HeaderFrom:
    names = tuple(zip(values["fields"], values["headers"], strict=True))
    return HeaderFrom(side, names, values["operation"] == "move", values["replace.null.with.default"])


def _unequal(values: Values) -> str | None:
    if len(values["fields"]) == len(values["headers"]):
        return None
    return "'fields' config must have the same number of elements as 'headers' config."


CLASSES = (
    plugin(f"{KAFKA}InsertHeader", insert_header),
    plugin(f"{KAFKA}DropHeaders", drop_headers, {"headers": some_names}),
    *on_key_and_value(
        "HeaderFrom",
        header_from,
        {"fields": some_names, "headers": some_names, "operation": one_of("move", "copy")},
        _unequal,
    ),
)
