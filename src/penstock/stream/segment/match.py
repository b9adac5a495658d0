"""`segment.match`: a stream of events and rules become a stream of membership events."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.config import duration
from penstock.errors import PenstockError
from penstock.stream.buckets import require_name
from penstock.stream.segment import changes, pack, stage
from penstock.stream.segment.plan import Plan, plan
from penstock.stream.segment.reload import watching
from penstock.stream.segment.rules import MILLISECOND, Rule, predicates, terms
from penstock.stream.segment.texts import index
from penstock.stream.segment.yaml import RuleFile

WATERMARK = "spark.watermarkDelayMs"
CLOCKS = ("now", "events")
STATE = {
    # The state store that has timers and several variables.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # A batch uploads what it changed, and not the files of the store.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


def match(
    frame: DataFrame,
    rules: Sequence[Rule] | RuleFile,
    *,
    key: str,
    name: str,
    at: str | None = None,
    late: timedelta | str = "0 seconds",
    clock: str = "now",
    buckets: int = 64,
) -> DataFrame:
    """Who enters which segment, stays longer, leaves, or is a member no more because the time is over.

    `key` is the column with the person, `at` the one with the time of the event (that of the watermark, if the frame
    has one). The columns of the result: person, segment, event ("enter", "prolong", "leave", "expire"), at, until
    (timestamps), ttl (seconds until then; zero for events that end a membership) and `to`. With clock "now" time passes
    by itself and events from the future count as of now; with "events" it is the watermark's, for data of the past.
    What is due waits `late` for events that are under way. `buckets` bounds parallelism; it and `name` belong to the
    state, and stay as they are while a checkpoint is used.
    """
    if clock not in CLOCKS:
        raise PenstockError(f"unknown clock {clock!r}", where=name, next=f"use {' or '.join(map(repr, CLOCKS))}")
    require_name(name)
    made, delay = plan(tuple(rules)), duration(late, name="late")
    time = at or _time_of(frame, name)
    for column in (key, time):
        if column not in frame.columns:
            raise PenstockError(
                f"no column {column!r}", where=f"segment.match {name!r}", next=f"choose of {', '.join(frame.columns)}"
            )
    _check(frame, made)
    for option, value in STATE.items():
        frame.sparkSession.conf.set(option, value)
    found = index(made.predicates, frame.schema)
    packing = watching(rules, pack.packer(made, found, buckets))
    packed = pack.projected(frame, made, found, key, time).mapInArrow(packing, pack.SCHEMA)
    by_events = clock == "events"
    if by_events:
        packed = packed.withWatermark("newest", f"{delay // MILLISECOND} milliseconds")
    # The watermark lags already.
    processor = stage.Segments(made, name, buckets, 0 if by_events else delay // MILLISECOND, by_events)
    mode = "EventTime" if by_events else "ProcessingTime"
    changed = packed.groupBy("bucket").transformWithState(processor, stage.SCHEMA, "Append", mode)
    return changed.mapInArrow(changes.rows, changes.SCHEMA)


def _time_of(frame: DataFrame, name: str) -> str:
    marked = [field.name for field in frame.schema if WATERMARK in (field.metadata or {})]
    if len(marked) != 1:
        raise PenstockError(
            "which column is the time of an event?", where=f"segment.match {name!r}", next='give at=, such as at="ts"'
        )
    return marked[0]


def _check(frame: DataFrame, made: Plan) -> None:
    """Let Spark read all predicates and values; the error names the rule."""
    texts = [*(f"({text}) = true" for text in made.predicates), *(f"CAST({v} AS DOUBLE)" for v in made.values)]
    try:
        frame.select(*map(F.expr, texts))
    except (AnalysisException, ParseException):
        for rule in made.source:
            _check_rule(frame, rule)
        raise


def _check_rule(frame: DataFrame, rule: Rule) -> None:
    of_terms = [(text, "BOOLEAN") for term in terms(rule.condition) for text in predicates(term)]
    sums = [(term.of, "DOUBLE") for term in terms(rule.condition) if hasattr(term, "of") and hasattr(term, "at_least")]
    for text, kind in [*of_terms, *sums, *([(rule.leave, "BOOLEAN")] if rule.leave else [])]:
        try:
            frame.select(F.expr(f"({text}) = true" if kind == "BOOLEAN" else f"CAST({text} AS DOUBLE)"))
        except (AnalysisException, ParseException) as error:
            said = str(error).strip().splitlines()
            reason = next((line for line in said if line.strip()), "")
            raise PenstockError(
                f"Spark refuses {text!r}: {reason}",
                where=rule.where,
                next=f"correct it; the columns are {', '.join(frame.columns)}",
            ) from None
