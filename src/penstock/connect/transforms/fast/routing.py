"""Steps on columns that choose the topic of records or drop them: RegexRouter, TimestampRouter, Filter,
ByLogicalTableRouter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import Column, functions as F, types as st
from pyspark.sql.pandas.functions import arrow_udf

from penstock.codec.connect_schema import avro_name
from penstock.codec.typed_records import RecordPart
from penstock.connect.java import regex as java_regex
from penstock.connect.java.bounded_regex import Overrun
from penstock.connect.java.regex_check import CORRECT
from penstock.connect.transforms.fast.state import State, Step, fields, is_event, rebuilt, topic_column
from penstock.connect.transforms.fast.times import formatted
from penstock.connect.transforms.plugin import DEBEZIUM, KAFKA
from penstock.connect.transforms.steps import Values
from penstock.errors import PenstockError

T = TypeVar("T")
BY_TABLE = "the transform ByLogicalTableRouter"


def matches(state: State, pattern: str) -> Column | bool:
    """Whether the pattern matches the whole topic; a bool if all records have the same topic."""
    if isinstance(state.topic, str):
        return _of_topic(state.topic, lambda: java_regex.matching(pattern)(str(state.topic)))
    return F.coalesce(_in_python(state, lambda: java_regex.matching(pattern), st.BooleanType()), F.lit(False))


def replaced(state: State, pattern: str, replacement: str) -> str | Column:
    """The topic after Java's replacement (with `$1`) if the pattern matches the whole topic; else the topic itself."""
    topic = state.topic
    if isinstance(topic, str):
        new = _of_topic(topic, lambda: java_regex.replacing(pattern, replacement)(str(topic)))
        return topic if new is None else new
    return F.coalesce(_in_python(state, lambda: java_regex.replacing(pattern, replacement), st.StringType()), topic)


def _of_topic(topic: str | Column, ask: Callable[[], T]) -> T:
    """The answer of a valid expression; raises PenstockError for one that takes too long."""
    try:
        return ask()
    except Overrun as error:
        raise PenstockError(str(error), where=_shown(topic), next=CORRECT) from None


def _shown(topic: str | Column) -> str:
    return f"topic {topic}" if isinstance(topic, str) else "topics of records"


def _in_python(state: State, make: Callable[[], Callable[[str], Any]], kind: st.DataType) -> Column:
    """What an expression says of the topics of the step's records; a topic that takes too long ends the query.

    Spark's own functions of expressions are Java's.
    """

    def asked(topics: pa.Array) -> pa.Array:
        ask = make()
        try:
            return pa.array([None if text is None else ask(text) for text in topics.to_pylist()], arrow)
        except Overrun as error:
            raise PenstockError(str(error), where="the topic of a record", next=CORRECT) from None

    arrow = pa.bool_() if isinstance(kind, st.BooleanType) else pa.string()
    topic = topic_column(state.topic)
    udf: Any = arrow_udf(asked, kind)  # type: ignore[call-overload]
    answer: Column = udf(topic if state.applies is None else F.when(state.applies, topic))
    return answer


def _regex_router(values: Values) -> Step:
    return lambda state: replace(state, topic=replaced(state, values["regex"], values["replacement"]))


def _timestamp_router(values: Values) -> Step:
    def apply(state: State) -> State:
        # A source's records have no timestamp yet; the time of the write is the same if a batch runs again.
        if "ts" not in state.frame.columns:
            raise PenstockError(
                "these records have no time of the write",
                where="the transform TimestampRouter",
                next="keep the column ts of the change frame",
            )
        time = formatted(F.unix_millis("ts"), values["timestamp.format"])
        named = F.replace(F.lit(values["topic.format"]), F.lit("${topic}"), topic_column(state.topic))
        return replace(state, topic=F.replace(named, F.lit("${timestamp}"), time))

    return apply


def _filter(values: Values) -> Step:
    return lambda state: None


# Debezium's ByLogicalTableRouter: several tables in one topic, with another key field for the table.


def _by_logical_table(values: Values) -> Step:
    def apply(state: State) -> State:
        if not isinstance(state.topic, str):
            raise PenstockError(
                "schemas are named after the topic, and the topic differs from record to record",
                where=BY_TABLE,
                next="put it before the transform that routes by a field or a time",
            )
        if not matches(state, values["topic.regex"]):
            return state
        topic = replaced(state, values["topic.regex"], values["topic.replacement"])
        if not topic:
            return state
        return _moved(state, str(topic), values)

    return apply


def _moved(state: State, topic: str, values: Values) -> State:
    identifier = state.topic
    if values["key.field.regex"]:
        identifier = replaced(state, values["key.field.regex"], values["key.field.replacement"])

    def name(suffix: str) -> str:
        full = f"{topic}.{suffix}"
        return avro_name(full) if values["schema.name.adjustment.mode"].lower() == "avro" else full

    def key(part: RecordPart) -> RecordPart:
        members = fields(part, BY_TABLE)
        listed = list(members.items())
        if values["key.enforce.uniqueness"]:
            field = RecordPart(F.lit(identifier), {"type": "string", "optional": False})
            listed.append((values["key.field.name"], field))
        return _renamed(rebuilt(part, listed, optional=part.schema["optional"]), name("Key"))

    def value(part: RecordPart) -> RecordPart:
        if not is_event(part):
            return part
        members = fields(part, BY_TABLE)
        for image in {"before", "after"} & members.keys():
            members[image] = _renamed(members[image], name("Value"))
        return _renamed(rebuilt(part, members.items(), optional=part.schema["optional"]), name("Envelope"))

    return replace(state.each("key", key).each("value", value), topic=topic)


def _renamed(part: RecordPart, name: str) -> RecordPart:
    """The same part with another schema name, which comes before the version."""
    schema = {key: value for key, value in part.schema.items() if key not in ("name", "version", "parameters")}
    rest = {key: part.schema[key] for key in ("version", "parameters") if key in part.schema}
    return RecordPart(part.payload, schema | {"name": name} | rest)


STEPS: dict[str, Callable[[Values], Step]] = {
    f"{KAFKA}RegexRouter": _regex_router,
    f"{KAFKA}TimestampRouter": _timestamp_router,
    f"{KAFKA}Filter": _filter,
    f"{DEBEZIUM}ByLogicalTableRouter": _by_logical_table,
}
