"""Predicates on columns: they select the records of a step on columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pyspark.sql import Column, functions as F

from penstock.connect.transforms.fast.routing import matches
from penstock.connect.transforms.fast.state import ColumnTest, State, Step, joined
from penstock.connect.transforms.predicates import PREFIX
from penstock.connect.transforms.steps import Values


def where(test: ColumnTest, negate: bool, step: Step) -> Step:
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


def _topic_name_matches(values: Values) -> ColumnTest:
    return ColumnTest(lambda state: matches(state, values["pattern"]))


def _has_header_key(values: Values) -> ColumnTest:
    def holds(state: State) -> Column | bool:
        if state.headers is None:
            return False
        return F.exists(state.headers, lambda header: header.getField("key") == values["name"])

    return ColumnTest(holds)


def _record_is_tombstone(values: Values) -> ColumnTest:
    def holds(state: State) -> Column | bool:
        if not state.tombstones or not state.values:
            return state.tombstones
        return state.valueless

    def narrowed(state: State, tombstones: bool) -> State:
        return replace(state, values=()) if tombstones else replace(state, tombstones=False)

    return ColumnTest(holds, narrowed)


TESTS: dict[str, Callable[[Values], ColumnTest]] = {
    f"{PREFIX}TopicNameMatches": _topic_name_matches,
    f"{PREFIX}HasHeaderKey": _has_header_key,
    f"{PREFIX}RecordIsTombstone": _record_is_tombstone,
}
