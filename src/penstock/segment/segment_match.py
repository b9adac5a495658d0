"""`segment.match`: turns a stream of events into a stream of membership events."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, TypeAlias, get_args

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, functions as F

from penstock.border.public import public
from penstock.border.spark_refusals import refusal
from penstock.durations import Duration, duration
from penstock.errors import PenstockError, SchemaChanged
from penstock.keyed_state.buckets import REUSE, require_name, require_no_window
from penstock.segment import event_packing, processor
from penstock.segment.bounded_predicates import bounded
from penstock.segment.predicate_index import index
from penstock.segment.rule_definitions import MILLISECOND, Rule, Total, predicates, spec, terms
from penstock.segment.rule_files import RuleFile, parse
from penstock.segment.rule_plan import RulePlan, plan
from penstock.spark_runtime.expressions import require_expressions
from penstock.spark_runtime.logical_plan import WATERMARK

Stage = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
Clock: TypeAlias = Literal["now", "events"]
CLOCKS = get_args(Clock)
STATE = {
    # Timers and several state variables need RocksDB.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # A batch uploads its changes, not the files of the store.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    REUSE: "false",
}


# The name of a file has an advice of its own.
@public("segment.match", rules=Sequence[Rule] | RuleFile | str)
def match(
    frame: DataFrame,
    rules: Sequence[Rule] | RuleFile,
    *,
    key: str,
    name: str,
    at: str | None = None,
    late: Duration = "0 seconds",
    clock: Clock = "now",
    buckets: int = 64,
) -> DataFrame:
    """The membership events of a stream: who enters a segment, stays longer, leaves, or expires.

    `key` is the column of the person, `at` the timestamp column of the event time (default: the watermark column).
    The result has the columns person, segment, event (strings; event is "enter", "prolong", "leave" or "expire"), at,
    until (timestamps), ttl (int: seconds until `until`; 0 for events that end a membership) and to (string: the topic).

    With clock "now", time is the wall clock, and events from the future count as of now. With "events", time is the
    watermark; use it for past data. Expirations and absences wait `late` for late events. `buckets` limits parallelism.
    `name` and `buckets` belong to the state: do not change them while a checkpoint is in use.

    Raises PenstockError for an unknown column, a column of a wrong type, and rules that Spark refuses.
    """
    if clock not in CLOCKS:
        raise PenstockError(f"unknown clock {clock!r}", where=name, next=f"use {' or '.join(map(repr, CLOCKS))}")
    require_name(name)
    delay = duration(late, name="late")
    if not isinstance(buckets, int) or buckets < 1:
        raise PenstockError(f"buckets is {buckets}", where=f"segment.match {name!r}", next="set it to 1 or more")
    time = at or _time_of(frame, name)
    for column in (key, time):
        if column not in frame.columns:
            raise PenstockError(
                f"no column {column!r}", where=f"segment.match {name!r}", next=f"use one of {', '.join(frame.columns)}"
            )
    _check_time(frame, time, name)
    rules, checked = _planned(frame, rules, key, name)
    frame, rule_plan = checked.frame, checked.plan
    for option, value in STATE.items():
        frame.sparkSession.conf.set(option, value)
    predicates = index(rule_plan.predicates, frame.schema)
    packing = watching(rules, event_packing.packer(rule_plan, predicates, buckets))
    # Imported here: workers load this module for rules from a file, and need no CQL client.
    from penstock.cql.matching.id_match import identity

    person = identity(F.col(key).cast("string"))
    events = event_packing.projected(frame, rule_plan, predicates, person, time, checked.names)
    packed = events.mapInArrow(packing, event_packing.SCHEMA)
    by_events = clock == "events"
    if by_events:
        require_no_window(frame, f"segment.match {name!r}")
        packed = packed.withWatermark("newest", f"{delay // MILLISECOND} milliseconds")
    # With "events", the watermark already lags by `late`.
    stage = processor.Segments(rule_plan, name, buckets, 0 if by_events else delay // MILLISECOND, by_events)
    mode = "EventTime" if by_events else "ProcessingTime"
    changed = packed.groupBy("bucket").transformWithState(stage, processor.SCHEMA, "Append", mode)
    return changed.mapInArrow(processor.rows, processor.MEMBERSHIP)


def _time_of(frame: DataFrame, name: str) -> str:
    marked = [field.name for field in frame.schema if WATERMARK in (field.metadata or {})]
    if len(marked) != 1:
        raise PenstockError(
            "the column of the event time is not known",
            where=f"segment.match {name!r}",
            next='set at=, such as at="ts"',
        )
    return marked[0]


class CheckedPlan(NamedTuple):
    """A plan that Spark accepts; the frame with the predicates that are columns, and their names by their text."""

    plan: RulePlan
    frame: DataFrame
    names: dict[str, str]


_LAST: dict[tuple[str, str], RuleFile] = {}
"""The last rules of each stream of this process, by its name and their file."""


def _planned(
    frame: DataFrame, rules: Sequence[Rule] | RuleFile, key: str, name: str
) -> tuple[Sequence[Rule] | RuleFile, CheckedPlan]:
    """The rules and their plan; the last valid rules if a file now has rules that Spark refuses."""
    if isinstance(rules, str):
        raise PenstockError(
            f"{rules!r} is not a list of rules", where=f"segment.match {name!r}", next="pass segment.rules(file)"
        )
    if not isinstance(rules, RuleFile):
        return rules, _checked(frame, rules, key)
    place = name, str(rules.path.resolve())
    try:
        checked = _checked(frame, rules.rules, key)
    except PenstockError as error:
        if place not in _LAST:
            raise
        stay(error)
        # With the new text, so that the query does not restart until the file changes again.
        rules = replace(_LAST[place], text=rules.text)
        checked = _checked(frame, rules.rules, key)
    _LAST[place] = rules
    return rules, checked


def _checked(frame: DataFrame, rules: Sequence[Rule], key: str) -> CheckedPlan:
    rule_plan = plan(tuple(rules))
    _check(frame, rule_plan, key)
    return CheckedPlan(
        rule_plan,
        *bounded(frame, [*rule_plan.predicates, *rule_plan.values], lambda text: _rule_of(text, rule_plan.source)),
    )


def _rule_of(text: str, rules: Sequence[Rule]) -> str:
    return next((rule.where for rule in rules if any(text == part for part, _ in _texts(rule))), "")


def _check_time(frame: DataFrame, time: str, name: str) -> None:
    try:
        frame.select(F.unix_millis(F.col(time)))
    except AnalysisException:
        raise PenstockError(
            f"the time column {time} has type {frame.schema[time].dataType.simpleString()}",
            where=f"segment.match {name!r}",
            next="convert it to a timestamp, for example with F.timestamp_millis",
        ) from None


def _check(frame: DataFrame, rule_plan: RulePlan, key: str) -> None:
    """Let Spark analyze all predicates and values together; the error names the rule."""
    texts = [*map(event_packing.flag, rule_plan.predicates), *map(event_packing.amount, rule_plan.values)]
    try:
        require_expressions(frame, [*rule_plan.predicates, *rule_plan.values])
        frame.select(key, *map(F.expr, texts))
    except (AnalysisException, ParseException) as error:
        for rule in rule_plan.source:
            _check_rule(frame, rule, key)
        reason = refusal(error, frame.columns)
        next = f"{reason.hint}fix their predicates"
        raise PenstockError(f"Spark refuses the rules: {reason.what}", next=next) from None


def _texts(rule: Rule) -> list[tuple[str, str]]:
    """The predicates and values of a rule, and the SQL that Spark evaluates for each."""
    every = list(terms(rule.condition))
    texts = [(text, event_packing.flag(text)) for term in every for text in predicates(term)]
    texts += [(term.of, event_packing.amount(term.of)) for term in every if isinstance(term, Total)]
    return [*texts, *([(rule.leave, event_packing.flag(rule.leave))] if rule.leave else [])]


def _check_rule(frame: DataFrame, rule: Rule, key: str) -> None:
    for text, written in _texts(rule):
        try:
            require_expressions(frame, [text])
            frame.select(key, F.expr(written))
        except (AnalysisException, ParseException) as error:
            reason = refusal(error, frame.columns)
            raise PenstockError(
                f"Spark refuses {text!r}: {reason.what}",
                where=rule.where,
                next=f"{reason.hint}fix it; the columns are {', '.join(frame.columns)}",
            ) from None


# Rules that change while a stream runs: a batch that finds a changed file ends the query, which restarts with it.
#
# `penstock run` restarts such a query at once from its checkpoint: the batch is repeated under the new rules and no
# event is lost. A file that cannot be read or has an error is ignored until it is valid again.


class RulesChanged(SchemaChanged):
    """The rules in a stream's file differ from those it was built with."""


def watching(rules: Sequence[Rule] | RuleFile, stage: Stage) -> Stage:
    """The stage; if the rules come from a file, it checks the file for changes before each run."""
    if not isinstance(rules, RuleFile):
        return stage
    file, known = rules, rules.text

    def watched(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        require_same(file, known)
        yield from stage(batches)

    return watched


def stay(error: Exception) -> None:
    """Report that the current rules stay in use."""
    print(f"the rules stay as they are: {error}", file=sys.stderr, flush=True)


def require_same(file: RuleFile, known: str) -> None:
    """Raise RulesChanged if the file now has other rules and all of them are valid."""
    try:
        text = file.path.read_bytes().decode()
        if text == known:
            return
        rules = parse(text, str(file.path))
        plan(rules)
    except OSError:
        return
    except (PenstockError, UnicodeDecodeError) as error:
        stay(error)
        return
    if [spec(rule) for rule in rules] != [spec(rule) for rule in file.rules]:
        raise RulesChanged(f"the rules in {file.path} changed", where=str(file.path), next="restart the query")
