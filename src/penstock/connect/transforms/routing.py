"""Transforms that choose topics or drop records: RegexRouter, TimestampRouter, Filter, ByLogicalTableRouter."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from penstock.codec.connect_schema import Schema, avro_name
from penstock.connect.java import regex as java_regex, simple_date_format
from penstock.connect.java.regex_check import regex_check
from penstock.connect.java.simple_date_format import DateFormat
from penstock.connect.records.record import ConnectRecord, NoValue, Part
from penstock.connect.transforms.plugin import DEBEZIUM, KAFKA, one_of_any_case, plugin
from penstock.connect.transforms.steps import (
    PerSchema,
    Step,
    Values,
    fields_of,
    is_optional,
    object_of,
    struct_schema,
)
from penstock.wire.topic_names import is_topic_name


def routed(record: ConnectRecord, topic: str) -> ConnectRecord:
    """The record with another topic, which may come from its values; raises NoValue if that cannot be one."""
    if not is_topic_name(topic):
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


def _wrong_template(regex: str, replacement: str) -> Callable[[Values], str | None]:
    """The error of a replacement, in the options with these names."""
    return lambda values: java_regex.template_problem(values[regex], values[replacement] or "")


def _wrong_tables(values: Values) -> str | None:
    if wrong := _wrong_template("topic.regex", "topic.replacement")(values):
        return wrong
    if not values["key.field.regex"]:
        return None
    if not values["key.field.replacement"]:
        return "key.field.replacement must be non-empty if key.field.regex is set."
    return _wrong_template("key.field.regex", "key.field.replacement")(values)


CLASSES = (
    plugin(f"{KAFKA}RegexRouter", regex_router, {"regex": regex_check}, _wrong_template("regex", "replacement")),
    plugin(f"{KAFKA}TimestampRouter", timestamp_router, {"timestamp.format": simple_date_format.problem}),
    plugin(f"{KAFKA}Filter", drop),
    plugin(
        f"{DEBEZIUM}ByLogicalTableRouter",
        by_logical_table_router,
        {
            "topic.regex": regex_check,
            "key.field.regex": regex_check,
            "schema.name.adjustment.mode": one_of_any_case("none", "avro"),
        },
        _wrong_tables,
    ),
)
