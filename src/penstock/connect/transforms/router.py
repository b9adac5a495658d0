"""Debezium's ByLogicalTableRouter: many tables in one topic, their keys told apart by one more field."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import functions as F

from penstock.codec.connect_schema import avro_name
from penstock.codec.typed_records import RecordPart
from penstock.connect.transforms import regex
from penstock.connect.transforms.kind import Values
from penstock.connect.transforms.state import State, Step
from penstock.connect.transforms.struct_edits import fields, rebuilt
from penstock.connect.transforms.unwrap import is_event
from penstock.errors import PenstockError

NAME = "the transform ByLogicalTableRouter"


def problem(values: Values) -> str | None:
    if values["key.field.regex"] and not values["key.field.replacement"]:
        return "key.field.replacement must be non-empty if key.field.regex is set."
    return None


def step(values: Values) -> Step:
    def apply(state: State) -> State:
        if not isinstance(state.topic, str):
            raise PenstockError(
                "schemas are named after the topic, which here differs from record to record",
                where=NAME,
                next="put it before the transform that routes by a field or a time",
            )
        if not regex.matches(state, values["topic.regex"]):
            return state
        topic = regex.replaced(state, values["topic.regex"], values["topic.replacement"])
        if not topic:
            return state
        return _moved(state, str(topic), values)

    return apply


def _moved(state: State, topic: str, values: Values) -> State:
    identifier = state.topic
    if values["key.field.regex"]:
        identifier = regex.replaced(state, values["key.field.regex"], values["key.field.replacement"])

    def name(suffix: str) -> str:
        full = f"{topic}.{suffix}"
        return avro_name(full) if values["schema.name.adjustment.mode"].lower() == "avro" else full

    def key(part: RecordPart) -> RecordPart:
        members = fields(part, NAME)
        listed = list(members.items())
        if values["key.enforce.uniqueness"]:
            field = RecordPart(F.lit(identifier), {"type": "string", "optional": False})
            listed.append((values["key.field.name"], field))
        return _renamed(rebuilt(part, listed, optional=part.schema["optional"]), name("Key"))

    def value(part: RecordPart) -> RecordPart:
        if not is_event(part):
            return part
        members = fields(part, NAME)
        for image in {"before", "after"} & members.keys():
            members[image] = _renamed(members[image], name("Value"))
        return _renamed(rebuilt(part, members.items(), optional=part.schema["optional"]), name("Envelope"))

    return replace(state.each("key", key).each("value", value), topic=topic)


def _renamed(part: RecordPart, name: str) -> RecordPart:
    """The same under another name, which has its place before the version."""
    schema = {key: value for key, value in part.schema.items() if key not in ("name", "version", "parameters")}
    rest = {key: part.schema[key] for key in ("version", "parameters") if key in part.schema}
    return RecordPart(part.payload, schema | {"name": name} | rest)
