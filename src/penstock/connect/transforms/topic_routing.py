"""RegexRouter, TimestampRouter and Filter: choose the topic of records, or drop them."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import functions as F

from penstock.connect.transforms import dates, regex
from penstock.connect.transforms.state import KAFKA, State, Step, Transformation, Values, needed, option, topic_column
from penstock.errors import PenstockError


def _regex_router(values: Values) -> Step:
    return lambda state: replace(state, topic=regex.replaced(state, values["regex"], values["replacement"]))


def _timestamp_router(values: Values) -> Step:
    def apply(state: State) -> State:
        # A source's records have no timestamp yet; the time of the write is the same if a batch runs again.
        if "ts" not in state.frame.columns:
            raise PenstockError(
                "these records have no time of the write",
                where="the transform TimestampRouter",
                next="keep the column ts of the change frame",
            )
        time = dates.formatted(F.unix_millis("ts"), values["timestamp.format"])
        named = F.replace(F.lit(values["topic.format"]), F.lit("${topic}"), topic_column(state.topic))
        return replace(state, topic=F.replace(named, F.lit("${timestamp}"), time))

    return apply


def _filter(values: Values) -> Step:
    return lambda state: None


CLASSES = (
    Transformation(
        f"{KAFKA}RegexRouter",
        (
            needed("regex", "STRING", "A Java regular expression that matches the whole topic.", regex.problem),
            needed("replacement", "STRING", "The new topic; $1 is the match of the first group."),
        ),
        _regex_router,
    ),
    Transformation(
        f"{KAFKA}TimestampRouter",
        (
            option(
                "topic.format",
                "STRING",
                "${topic}-${timestamp}",
                "The new topic, with ${topic} for the old one and ${timestamp} for the time of the write.",
                importance="HIGH",
            ),
            option(
                "timestamp.format",
                "STRING",
                "yyyyMMdd",
                "The format of the time, a pattern of Java's SimpleDateFormat, in UTC.",
                dates.problem,
                "HIGH",
            ),
        ),
        _timestamp_router,
    ),
    Transformation(f"{KAFKA}Filter", (), _filter),
)
