"""Transforms that choose the topic of records or drop them: RegexRouter, TimestampRouter, Filter, ByLogicalTableRouter.

Regular expressions are Java's, which Spark has.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import IllegalArgumentException
from pyspark.sql import Column, DataFrame, functions as F

from penstock.codec.connect_schema import avro_name
from penstock.codec.typed_records import RecordPart
from penstock.connect.transforms.conversions import formatted, pattern_problem
from penstock.connect.transforms.state import (
    DEBEZIUM,
    KAFKA,
    State,
    Step,
    Values,
    fields,
    is_event,
    one_of_any_case,
    plugin,
    rebuilt,
    topic_column,
)
from penstock.errors import PenstockError

# PySpark raises Java's IllegalArgumentException as its own.
JAVA_ERRORS = (Py4JJavaError, IllegalArgumentException)
BY_TABLE = "the transform ByLogicalTableRouter"


def regex_problem(pattern: str) -> str | None:
    """What Java says against a regular expression, or None.

    Without a Spark session nobody can ask Java, and the error comes with the first topic.
    """
    context = SparkContext._active_spark_context
    try:
        if context is not None:
            _compiled(context, pattern)
    except JAVA_ERRORS as error:
        return _reason(error)
    return None


def regex_check(pattern: str) -> str | None:
    """The check of a property that is a Java regular expression, in Kafka's words."""
    problem = regex_problem(pattern)
    return f"Invalid regex: {problem}" if problem else None


def fits_whole(pattern: str, text: str) -> bool:
    """Whether a Java regular expression, which is valid, matches the whole text; needs a Spark session."""
    return bool(fitting(pattern, [text]))


def fitting(pattern: str, texts: Iterable[str]) -> list[str]:
    """The texts that a Java regular expression, which is valid, matches as a whole; needs a Spark session."""
    context = SparkContext._active_spark_context
    assert context is not None
    compiled = _compiled(context, pattern)
    return [text for text in texts if compiled.matcher(text).matches()]


def matches(state: State, pattern: str) -> Column | bool:
    """Whether the pattern matches the whole topic; a bool if all records have the same topic."""
    if isinstance(state.topic, str):
        return bool(_matcher(state.frame, pattern, state.topic).matches())
    return F.coalesce(state.topic.rlike(_whole(pattern)), F.lit(False))


def replaced(state: State, pattern: str, replacement: str) -> str | Column:
    """The topic after Java's replacement (with `$1`) if the pattern matches the whole topic; else the topic itself."""
    if not isinstance(state.topic, str):
        return F.regexp_replace(state.topic, _whole(pattern), replacement)
    matcher = _matcher(state.frame, pattern, state.topic)
    if not matcher.matches():
        return state.topic
    try:
        return str(matcher.replaceFirst(replacement))
    except JAVA_ERRORS as error:
        raise PenstockError(
            f"the replacement {replacement!r} does not fit the regular expression {pattern!r}: {_reason(error)}",
            where=f"topic {state.topic}",
            next="use $1 to $9 for groups of the expression, and \\$ for a dollar sign",
        ) from None


def _matcher(frame: DataFrame, pattern: str, text: str) -> Any:
    try:
        return _compiled(frame.sparkSession.sparkContext, pattern).matcher(text)
    except JAVA_ERRORS as error:
        raise PenstockError(
            f"{pattern!r} is not a Java regular expression: {_reason(error)}",
            where=f"topic {text}",
            next="correct the expression of this transform or predicate",
        ) from None


def _compiled(context: SparkContext, pattern: str) -> Any:
    jvm: Any = context._jvm
    return jvm.java.util.regex.Pattern.compile(pattern)


def _reason(error: Exception) -> str:
    return str(getattr(error, "java_exception", error)).partition("\n")[0]


def _whole(pattern: str) -> str:
    return rf"\A(?:{pattern})\z"


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


def _no_replacement(values: Values) -> str | None:
    if values["key.field.regex"] and not values["key.field.replacement"]:
        return "key.field.replacement must be non-empty if key.field.regex is set."
    return None


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


CLASSES = (
    plugin(f"{KAFKA}RegexRouter", _regex_router, {"regex": regex_check}),
    plugin(f"{KAFKA}TimestampRouter", _timestamp_router, {"timestamp.format": pattern_problem}),
    plugin(f"{KAFKA}Filter", _filter),
    plugin(
        f"{DEBEZIUM}ByLogicalTableRouter",
        _by_logical_table,
        {
            "topic.regex": regex_check,
            "key.field.regex": regex_check,
            "schema.name.adjustment.mode": one_of_any_case("none", "avro"),
        },
        _no_replacement,
    ),
)
