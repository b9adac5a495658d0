"""ExtractNewRecordState (Debezium, ScyllaDB): replaces an event by the row after the change; ScyllaFlattenColumns.

Events are those of any of Debezium's connectors: structs whose schema is an envelope, or objects without a schema that
have its fields. The handling mode decides about deletes, which have no row after them. A delete is what `op` says is
one, also without its row before, unlike in Debezium, which takes it for a truncated table and drops it; it has at least
the columns of the key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

from penstock.codec.connect_schema import Schema
from penstock.connect.records.record import NOTHING, ConnectRecord, NoValue, Part, type_name
from penstock.connect.transforms.dropped_fields import Dropping, dropping
from penstock.connect.transforms.plugin import DEBEZIUM, SCYLLA, one_of_any_case, plugin
from penstock.connect.transforms.routing import is_envelope, routed
from penstock.connect.transforms.steps import (
    HEADERS,
    KEY,
    TOPIC,
    VALUE,
    Misfit,
    PerSchema,
    Shapes,
    Step,
    Values,
    distinct,
    fields_of,
    is_optional,
    struct_schema,
)

Path = tuple[str, ...]
_TRANSACTION = ("id", "data_collection_order", "total_order")
_ENVELOPE = ("op", "ts_ms", "ts_us", "ts_ns")
DELETED = "__deleted"
MODES = ("drop", "tombstone", "rewrite", "rewrite-with-tombstone")
OLD_MODES = ("drop", "rewrite", "none")


@dataclass(frozen=True)
class UnwrapSettings:
    """Deletes become rows with `__deleted` (`rewrite`), records without a value (`empty`), or are dropped."""

    rewrite: bool
    empty: bool
    keep_tombstones: bool
    fields: list[FieldReference]
    headers: list[FieldReference]
    route: str


def settings(values: Values) -> UnwrapSettings:
    mode = values["delete.tombstone.handling.mode"]
    if mode:
        chosen = mode.lower()
        rewrite, empty = chosen.startswith("rewrite"), chosen == "tombstone"
        tombstones = chosen == "rewrite-with-tombstone"
    else:
        old = values["delete.handling.mode"].lower()
        rewrite, empty, tombstones = old == "rewrite", old == "none", not values["drop.tombstones"]
    return UnwrapSettings(
        rewrite,
        empty,
        tombstones,
        references(values["add.fields.prefix"], values["add.fields"]),
        references(values["add.headers.prefix"], values["add.headers"]),
        values["route.by.field"],
    )


def extract_new_record_state(values: Values) -> ExtractNewRecordState:
    return ExtractNewRecordState(settings(values), dropping(values))


@dataclass(frozen=True)
class ExtractNewRecordState:
    """The step; `dropping` leaves out the fields that a header names."""

    chosen: UnwrapSettings
    dropping: Dropping | None
    reads: ClassVar[frozenset[str]] = frozenset((KEY, VALUE, HEADERS))

    @property
    def writes(self) -> frozenset[str]:
        from_key = self.dropping is not None and self.dropping.from_key
        parts = {VALUE: True, KEY: from_key, HEADERS: bool(self.chosen.headers), TOPIC: bool(self.chosen.route)}
        return frozenset(part for part, changes in parts.items() if changes)

    @cached_property
    def _shapes(self) -> PerSchema[_Shape]:
        return PerSchema(lambda schema: _of_schema(schema, self.chosen))

    def __call__(self, record: ConnectRecord) -> ConnectRecord | None:
        schema, event = record.value
        if event is None:
            return _tombstone(record, self.chosen)
        if not is_event(record.value):
            return record
        shape = _of_object(event, self.chosen) if schema is None else self._shapes(schema)
        unwrapped = _unwrapped(record, event, shape, self.chosen)
        return unwrapped if unwrapped is None or self.dropping is None else self.dropping(unwrapped)

    def planned(self, shapes: Shapes) -> Shapes:
        others = [schema for schema in shapes.values if not is_envelope(schema)]
        # A deleted range has no row.
        events = [
            schema for schema in shapes.values if is_envelope(schema) and "range" not in fields_of(schema).schemas
        ]
        for schema in events:
            require_fits(schema, self.chosen)
        known, rows = shapes.known_headers, [row for schema in events for row in self._rows(schema)]
        keys = list(shapes.keys)
        if self.dropping is not None and events:
            known = known.of_fields(name for schema in events for name in self._lists(schema))
            names = self.dropping.planned(known)
            rows = [self.dropping.left(row, some) for row in rows for some in names]
            if self.dropping.from_key:
                kept = shapes.keys if others or self.chosen.keep_tombstones else ()
                keys = [*kept, *(self.dropping.left(key, some) for key in keys for some in names)]
        return replace(
            shapes.with_side(VALUE, [*others, *rows]).with_side(KEY, keys),
            topic=None if self.chosen.route and events else shapes.topic,
            tombstones=self.chosen.empty or (self.chosen.keep_tombstones and shapes.tombstones),
            headers=shapes.headers or bool(self.chosen.headers),
            known_headers=known,
        )

    def _rows(self, schema: Schema) -> Iterator[Schema]:
        """The schemas of the rows of an event."""
        shape = self._shapes(schema)
        for image in ("after", "before") if self.chosen.rewrite else ("after",):
            yield shape.rows.get(image) or (shape.images or {})[image]

    def _lists(self, schema: Schema) -> Iterator[str]:
        """The headers that are made of lists of an event."""
        return (name for name, (_, own) in self._shapes(schema).headers.items() if own and own["type"] == "array")


def require_fits(schema: Schema, chosen: UnwrapSettings) -> None:
    """Raise NoValue for a field to add, or a column to route by, that the events of a source do not have."""
    envelope = fields_of(schema).schemas
    for wanted in (*chosen.fields, *chosen.headers):
        if wanted.struct and wanted.struct not in envelope:
            raise Misfit(
                f"an event has no field {wanted.struct!r}",
                place=f"add.fields or add.headers: {wanted.struct}.{wanted.field}",
                next=f"use one of: {', '.join(envelope)}",
            )
    column = fields_of(envelope["before"]).schemas.get(chosen.route, {}) if chosen.route else {}
    if chosen.route and column.get("type") != "string":
        raise Misfit(
            f"rows have no string column {chosen.route!r} to route by",
            place="route.by.field",
            next="set it to a column of type text",
        )


def is_event(part: Part) -> bool:
    """Whether a value that is not null is an event of Debezium."""
    if part.schema is not None:
        return is_envelope(part.schema)
    event = part.value
    has_members = isinstance(event, dict) and isinstance(event.get("op"), str) and isinstance(event.get("source"), dict)
    return has_members and ("before" in event or "after" in event)


@dataclass(frozen=True)
class _Shape:
    """What is known of events: the places of fields and headers to add, and with schemas those of rows."""

    fields: Mapping[str, Path]
    headers: Mapping[str, tuple[Path, Schema | None]]
    images: Mapping[str, Schema] | None = None
    """The schemas of `before` and `after`."""
    keys: Mapping[str, Schema] = field(default_factory=dict)
    """The schemas of the event's members that are its key."""
    rows: Mapping[str, Schema] = field(default_factory=dict)
    """The schemas of the new values that are made of `before` and `after`."""


def _of_schema(schema: Schema, chosen: UnwrapSettings) -> _Shape:
    envelope = fields_of(schema).schemas
    fields, headers = (
        {each.name: place for each in wanted if (place := _place(envelope, each)) is not None}
        for wanted in (chosen.fields, chosen.headers)
    )
    mark = [(DELETED, {"type": "string", "optional": True})] if chosen.rewrite else []
    added = [(name, own) for name, (_, own) in fields.items()]
    images = {name: envelope[name] for name in ("before", "after") if name in envelope}
    columns = {name: fields_of(image).schemas for name, image in images.items() if image["type"] == "struct"}
    return _Shape(
        {name: path for name, (path, _) in fields.items()},
        headers,
        images,
        {name: own for name, own in envelope.items() if str(own.get("name")).endswith(".Key")},
        {name: struct_schema([*own.items(), *mark, *added], images[name]) for name, own in columns.items()},
    )


def _place(envelope: Mapping[str, Schema], wanted: FieldReference) -> tuple[Path, Schema] | None:
    """Where a field is in events, and its schema, which is optional; a field that its struct lacks may be outside."""
    inner = envelope.get(wanted.struct, {})
    columns = fields_of(inner).schemas if inner.get("type") == "struct" else {}
    path: Path = (wanted.struct, wanted.field) if wanted.field in columns else (wanted.field,)
    schema = columns.get(wanted.field) or envelope.get(wanted.field)
    if schema is None:
        return None
    return path, {**{name: value for name, value in schema.items() if name != "default"}, "optional": True}


def _of_object(event: dict[str, Any], chosen: UnwrapSettings) -> _Shape:
    def places(wanted: Sequence[FieldReference]) -> Iterator[tuple[str, Path]]:
        for each in wanted:
            inner = event.get(each.struct)
            if isinstance(inner, dict) and each.field in inner:
                yield each.name, (each.struct, each.field)
            elif each.field in event:
                yield each.name, (each.field,)

    return _Shape(dict(places(chosen.fields)), {name: (path, None) for name, path in places(chosen.headers)})


def _at(event: Any, path: Path) -> Any:
    for name in path:
        event = event.get(name) if isinstance(event, dict) else None
    return event


def _tombstone(record: ConnectRecord, chosen: UnwrapSettings) -> ConnectRecord | None:
    if not chosen.keep_tombstones:
        return None
    deleted = Part({"type": "string", "optional": False}, "d")
    added = ((each.name, deleted) for each in chosen.headers if each.field == "op")
    return record._replace(headers=(*record.headers, *added))


def _unwrapped(
    record: ConnectRecord, event: dict[str, Any], shape: _Shape, chosen: UnwrapSettings
) -> ConnectRecord | None:
    deleted = event.get("op") == "d"
    # A deleted range of ScyllaDB's events has no row.
    if event.get("range") is not None or (deleted and not (chosen.rewrite or chosen.empty)):
        return None
    row = _before(record, event, shape) if deleted else event.get("after")
    if row is None:
        return None
    if shape.headers:
        added = ((name, Part(schema, _at(event, path))) for name, (path, schema) in shape.headers.items())
        record = record._replace(headers=(*record.headers, *added))
    if chosen.route:
        record = _routed(record, row, chosen.route)
    if deleted and chosen.empty:
        return record._replace(value=NOTHING)
    return record._replace(value=_row(event, row, "before" if deleted else "after", shape, chosen))


def _before(record: ConnectRecord, event: dict[str, Any], shape: _Shape) -> dict[str, Any]:
    """The row before a delete; what it lacks is taken from the key."""
    before = event.get("before")
    row = before if isinstance(before, dict) else {}
    if shape.images is None:
        key = record.key.value if isinstance(record.key.value, dict) else {}
        return {**key, **{name: value for name, value in row.items() if value is not None or name not in key}}
    image = shape.images.get("before", {})
    columns = fields_of(image).schemas if image.get("type") == "struct" else {}
    keys = [record.key, *(Part(schema, event.get(name)) for name, schema in shape.keys.items())]
    return {name: _of_keys(keys, name, own) if row.get(name) is None else row[name] for name, own in columns.items()}


def _of_keys(keys: Sequence[Part], name: str, wanted: Schema) -> Any:
    """The value of a column of the same type in one of the keys; None if none has it."""
    for schema, key in keys:
        if isinstance(key, dict) and schema is not None and schema["type"] == "struct":
            own = fields_of(schema).schemas.get(name)
            if own and (own["type"], own.get("name")) == (wanted["type"], wanted.get("name")):
                return key.get(name)
    return None


def _routed(record: ConnectRecord, row: Any, column: str) -> ConnectRecord:
    topic = row.get(column) if isinstance(row, dict) else None
    if topic is not None and not isinstance(topic, str):
        raise NoValue(f"its column {column}, to choose a topic by, is of type {type_name(topic)}")
    return routed(record, topic) if topic and topic.strip() else record


def _row(event: dict[str, Any], row: Any, image: str, shape: _Shape, chosen: UnwrapSettings) -> Part:
    schema = None if shape.images is None else shape.rows.get(image)
    if not isinstance(row, dict) or (shape.images and schema is None):
        # Some databases have no rows but documents, as text.
        if shape.fields:
            raise NoValue(f"no fields can be added to its {image}, which is no row")
        return Part((shape.images or {}).get(image), row)
    mark = {DELETED: "true" if image == "before" else "false"} if chosen.rewrite else {}
    return Part(schema, {**row, **mark, **{name: _at(event, path) for name, path in shape.fields.items()}})


# ScyllaDB's transforms of cells, which are structs with `value` as their only field.


def scylla_extract_new_record_state(values: Values) -> Step:
    extract = extract_new_record_state(values)
    return extract if values["cdc.output.format"].lower() == "advanced" else ExtractCells(extract)


@dataclass(frozen=True)
class ExtractCells:
    """The step for the legacy format: the columns of rows are their cells' values."""

    extract: ExtractNewRecordState

    @property
    def reads(self) -> frozenset[str]:
        return self.extract.reads

    @property
    def writes(self) -> frozenset[str]:
        return self.extract.writes

    @cached_property
    def _rows(self) -> PerSchema[Opened]:
        return PerSchema(lambda schema: _opened(schema, ".Cell"))

    def __call__(self, record: ConnectRecord) -> ConnectRecord | None:
        extracted = self.extract(record)
        if extracted is None or not isinstance(extracted.value.value, dict) or is_event(extracted.value):
            return extracted
        return extracted._replace(value=_of_cells(extracted.value, self._rows))

    def planned(self, shapes: Shapes) -> Shapes:
        extracted = self.extract.planned(shapes)
        return replace(extracted, values=distinct(self._without_cells(schema) for schema in extracted.values))

    def _without_cells(self, schema: Schema) -> Schema:
        return schema if schema["type"] != "struct" or is_envelope(schema) else self._rows(schema)[0]


def scylla_flatten_columns(values: Values) -> Step:
    rows = PerSchema(lambda schema: _opened(schema, ""))
    events = PerSchema(lambda schema: _flat(schema, rows))

    def step(record: ConnectRecord) -> ConnectRecord:
        schema, event = record.value
        if not isinstance(event, dict) or (schema is not None and schema["type"] != "struct"):
            return record
        images = fields_of(schema).schemas if schema is not None else {}
        flat_images = {
            name: _of_cells(Part(images.get(name), event[name]), rows).value
            for name in ("before", "after")
            if isinstance(event.get(name), dict)
        }
        return record._replace(value=Part(None if schema is None else events(schema), {**event, **flat_images}))

    return step


Opened = tuple[Schema, frozenset[str]]
"""The schema of a row without cells, and the names of its columns that were cells."""


def _opened(schema: Schema, suffix: str) -> Opened:
    members, cells = {}, set()
    for name, own in fields_of(schema).schemas.items():
        inner = fields_of(own).schemas if own["type"] == "struct" else {}
        if list(inner) == ["value"] and str(own.get("name", "")).endswith(suffix):
            cells.add(name)
            own = inner["value"]
        members[name] = own
    return {**struct_schema(members.items(), schema), "optional": is_optional(schema)}, frozenset(cells)


def _of_cells(row: Part, rows: PerSchema[Opened]) -> Part:
    if row.schema is None:
        cells = {name for name, value in row.value.items() if isinstance(value, dict) and list(value) == ["value"]}
        return Part(None, {name: _inside(value, name in cells) for name, value in row.value.items()})
    schema, known = rows(row.schema)
    return Part(schema, {name: _inside(value, name in known) for name, value in row.value.items()})


def _inside(value: Any, is_cell: bool) -> Any:
    return value["value"] if is_cell and value is not None else value


def _flat(schema: Schema, rows: PerSchema[Opened]) -> Schema:
    members = {
        name: rows(own)[0] if name in ("before", "after") else own for name, own in fields_of(schema).schemas.items()
    }
    return {**struct_schema(members.items(), schema), "optional": is_optional(schema)}


# Fields of an event that ExtractNewRecordState adds to the row or to the headers: `op`, `source.ts_ms:written_at`.


@dataclass(frozen=True)
class FieldReference:
    """A field of an event; of the envelope itself if `struct` is empty."""

    struct: str
    field: str
    name: str


def references(prefix: str, items: list[str]) -> list[FieldReference]:
    return [_reference(prefix, item) for item in items if item]


def references_problem(items: list[str]) -> str | None:
    """The error of a list of references, or None."""
    wrong = [item for item in items if item.count(":") > 1 or item.startswith((":", ".")) or item.endswith((":", "."))]
    return f"Unexpected field name: {wrong[0]}" if wrong else None


def _reference(prefix: str, item: str) -> FieldReference:
    path, _, name = item.partition(":")
    struct, dot, field = path.partition(".")
    if dot:
        return FieldReference(struct, field, prefix + (name or f"{struct}_{field}"))
    place = "transaction" if path in _TRANSACTION else "" if path in _ENVELOPE else "source"
    return FieldReference(place, path, prefix + (name or path))


EXTRACT = plugin(
    f"{DEBEZIUM}ExtractNewRecordState",
    extract_new_record_state,
    {
        "delete.tombstone.handling.mode": one_of_any_case(*MODES),
        "delete.handling.mode": one_of_any_case(*OLD_MODES),
        "add.fields": references_problem,
        "add.headers": references_problem,
    },
)
_OF_SCYLLA = plugin(f"{SCYLLA}ScyllaExtractNewRecordState", scylla_extract_new_record_state)
CLASSES = (
    EXTRACT,
    replace(_OF_SCYLLA, options=(*EXTRACT.options, *_OF_SCYLLA.options)),
    plugin(f"{SCYLLA}ScyllaFlattenColumns", scylla_flatten_columns),
)
