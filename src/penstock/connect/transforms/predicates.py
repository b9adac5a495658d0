"""Predicates: select the records of a transform."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import Column, functions as F

from penstock.connect.transforms.state import KAFKA, State, Step, Test, Values, joined, not_empty, plugin
from penstock.connect.transforms.topic_routing import matches, regex_check

PREFIX = f"{KAFKA}predicates."


def where(test: Test, negate: bool, step: Step) -> Step:
    """Apply the step only to records for which the predicate holds, or with `negate` to the others."""

    def apply(state: State) -> State | None:
        holds = test.holds(state)
        if isinstance(holds, bool):
            return step(state) if holds is not negate else state
        name = f"penstock_holds_{len(state.frame.columns)}"
        held = replace(state, frame=state.frame.withColumn(name, ~holds if negate else holds))
        changed = step(replace(test.narrowed(held, not negate), applies=F.col(name)))
        return joined(F.col(name), changed, test.narrowed(held, negate))

    return apply


def _topic_name_matches(values: Values) -> Test:
    return Test(lambda state: matches(state, values["pattern"]))


def _has_header_key(values: Values) -> Test:
    def holds(state: State) -> Column | bool:
        if state.headers is None:
            return False
        return F.exists(state.headers, lambda header: header.getField("key") == values["name"])

    return Test(holds)


def _record_is_tombstone(values: Values) -> Test:
    def holds(state: State) -> Column | bool:
        if not state.tombstones or not state.values:
            return state.tombstones
        return state.valueless

    def narrowed(state: State, tombstones: bool) -> State:
        return replace(state, values=()) if tombstones else replace(state, tombstones=False)

    return Test(holds, narrowed)


def _pattern(text: str) -> str | None:
    return not_empty(text) or regex_check(text)


CLASSES = (
    plugin(f"{PREFIX}TopicNameMatches", _topic_name_matches, {"pattern": _pattern}),
    plugin(f"{PREFIX}HasHeaderKey", _has_header_key, {"name": not_empty}),
    plugin(f"{PREFIX}RecordIsTombstone", _record_is_tombstone),
)
