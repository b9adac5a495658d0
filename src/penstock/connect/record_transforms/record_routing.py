"""Transforms of records that choose their topic, drop them, or change their headers; and predicates."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from penstock.codec.connect_schema import Schema, avro_name
from penstock.codec.typed_records import Side
from penstock.connect.java import regex as java_regex
from penstock.connect.java.simple_date_format import DateFormat
from penstock.connect.record_transforms.record_steps import (
    PerSchema,
    Step,
    Values,
    fields_of,
    is_optional,
    object_of,
    part_of,
    struct_schema,
    with_part,
)
from penstock.connect.records.deserializers import HEADER
from penstock.connect.records.record import ConnectRecord, NoValue, Part

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
Test = Callable[[ConnectRecord], bool]


def routed(record: ConnectRecord, topic: str) -> ConnectRecord:
    """The record with another topic, which may come from its values; raises NoValue if that cannot be one."""
    if not _TOPIC.fullmatch(topic):
        raise NoValue(f"{topic[:80]!r} is no name of a topic")
    return record._replace(topic=topic, origin=record.origin or record.topic)


def regex_router(values: Values) -> Step:
    new = java_regex.replacing(values["regex"], values["replacement"])

    def step(record: ConnectRecord) -> ConnectRecord:
        topic = new(record.topic)
        return record if topic is None else routed(record, topic)

    return step


def timestamp_router(values: Values) -> Step:
    form = DateFormat(values["timestamp.format"])

    def step(record: ConnectRecord) -> ConnectRecord:
        if record.millis is None:
            raise NoValue("it has no timestamp to choose its topic by")
        named = values["topic.format"].replace("${topic}", record.topic)
        return routed(record, named.replace("${timestamp}", form.format(record.millis)))

    return step


def drop(values: Values) -> Step:
    return lambda record: None


# Debezium's ByLogicalTableRouter.


def by_logical_table_router(values: Values) -> Step:
    new = java_regex.replacing(values["topic.regex"], values["topic.replacement"])
    # By default the table's identifier is the whole topic.
    of_table = java_regex.replacing(values["key.field.regex"] or ".*", values["key.field.replacement"] or "$0")
    added = values["key.field.name"] if values["key.enforce.uniqueness"] else ""
    is_avro = values["schema.name.adjustment.mode"].lower() == "avro"

    @lru_cache(maxsize=100)
    def renamed(topic: str) -> _Renaming:
        return _Renaming(avro_name(topic) if is_avro else topic, added)

    def step(record: ConnectRecord) -> ConnectRecord:
        topic = new(record.topic)
        if not topic:
            return record
        schemas, (key_schema, key), (value_schema, value) = renamed(topic), record.key, record.value
        if key is not None:
            key_schema = None if key_schema is None else schemas.key(key_schema)
            key = {**object_of(key), **({added: of_table(record.topic) or record.topic} if added else {})}
        if value is not None and value_schema is not None and is_envelope(value_schema):
            value_schema = schemas.value(value_schema)
        return routed(record._replace(key=Part(key_schema, key), value=Part(value_schema, value)), topic)

    return step


class _Renaming:
    """The schemas of the records of a topic, renamed after it."""

    def __init__(self, name: str, added: str) -> None:
        self._name, self._added = name, added
        self.key, self.value = PerSchema(self._key), PerSchema(self._value)

    def _key(self, schema: Schema) -> Schema:
        members = [*fields_of(schema).schemas.items()]
        if self._added:
            members.append((self._added, {"type": "string", "optional": False}))
        optional = is_optional(schema)
        return {**struct_schema(members, schema), "optional": optional, "name": f"{self._name}.Key"}

    def _value(self, schema: Schema) -> Schema:
        images = {"name": f"{self._name}.Value"}
        fields = [{**field, **images} if field["field"] in ("before", "after") else field for field in schema["fields"]]
        return {**schema, "fields": fields, "name": f"{self._name}.Envelope"}


def is_envelope(schema: Schema) -> bool:
    """Whether it is the schema of Debezium's events."""
    return schema["type"] == "struct" and str(schema.get("name")).endswith(".Envelope")


# Headers.


def insert_header(values: Values) -> Step:
    added = ((values["header"], HEADER(values["value.literal"].encode())),)
    return lambda record: record._replace(headers=record.headers + added)


def drop_headers(values: Values) -> Step:
    names = values["headers"]

    def step(record: ConnectRecord) -> ConnectRecord:
        return record._replace(headers=tuple(one for one in record.headers if one[0] not in names))

    return step


def header_from(side: Side, values: Values) -> Step:
    names, moves = list(zip(values["fields"], values["headers"], strict=True)), values["operation"] == "move"
    moved = set(values["fields"])

    def plan(schema: Schema) -> tuple[Schema, Callable[[Any], tuple[Any, list[tuple[str, Part]]]]]:
        fields, defaults = fields_of(schema), values["replace.null.with.default"]
        if missing := [name for name, _ in names if name not in fields.schemas]:
            raise NoValue(f"its {side} has no field {', '.join(missing)}; it has {', '.join(fields.schemas)}"[:300])
        kept = [(name, own) for name, own in fields.schemas.items() if name not in moved]

        def taken(row: Any) -> tuple[Any, list[tuple[str, Part]]]:
            found = [(new, Part(fields.schemas[old], fields.get(row, old, defaults))) for old, new in names]
            return ({name: fields.get(row, name, defaults) for name, _ in kept} if moves else row), found

        return struct_schema(kept, schema) if moves else schema, taken

    plans = PerSchema(plan)

    def step(record: ConnectRecord) -> ConnectRecord:
        schema, value = part_of(record, side)
        if value is None:
            raise NoValue(f"it has no {side} to take headers from")
        if schema is None:
            row = object_of(value)
            added = [(new, Part(None, row.get(old))) for old, new in names]
            left = {name: one for name, one in row.items() if name not in moved} if moves else row
        else:
            schema, taken = plans(schema)
            left, added = taken(value)
        return with_part(record, side, Part(schema, left))._replace(headers=(*record.headers, *added))

    return step


# Predicates.


def topic_name_matches(values: Values) -> Test:
    matches = java_regex.matching(values["pattern"])
    return lambda record: matches(record.topic)


def has_header_key(values: Values) -> Test:
    return lambda record: any(name == values["name"] for name, _ in record.headers)


def record_is_tombstone(values: Values) -> Test:
    return lambda record: record.value.value is None
