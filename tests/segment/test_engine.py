"""The loops of segmentation against an independent model, with random rules and events; and the state they keep."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta as td

import pytest
import segment_model
from hypothesis import HealthCheck, given, settings, strategies as st
from pyspark import cloudpickle
from pyspark.sql.types import StructType
from segment_events import touches
from segment_model import Change, Event

from penstock import segment
from penstock.segment.event_packing import joined, packer, unpack
from penstock.segment.predicate_index import index
from penstock.segment.record_store import MembershipChanges, RecordStore
from penstock.segment.rule_definitions import Condition, Rule
from penstock.segment.rule_plan import RulePlan, plan

FAR = 1 << 60
PERSONS = ["ann", "bob"]
KINDS = ["", "enter", "prolong", "leave", "expire"]


def said(made: RulePlan, found: MembershipChanges) -> list[Change]:
    return [
        Change(person.decode(), made.source[rule].name, KINDS[kind], at, until)
        for person, (_, rule, kind, at, until) in zip(found.ids, found.rows.tolist(), strict=True)
    ]


def engine(
    rules: list[Rule], batches: list[tuple[list[Event], int]], reload: bool
) -> dict[tuple[str, str], list[Change]]:
    made = plan(rules)
    store = RecordStore(made)
    found: dict[tuple[str, str], list[Change]] = defaultdict(list)
    for events, clock in batches:
        changes = said(made, store.take(touches(made, events), latest=FAR)) if events else []
        for change in changes + said(made, store.tick(clock)):
            found[change.person, change.segment].append(change)
        if reload:
            store.compact(clock)
            again = RecordStore(made)
            again.load(store.save())
            store = again
    return found


spans = st.sampled_from([3, 10, 64, 100]).map(lambda n: td(milliseconds=n))
names = st.sampled_from("abc")
counts = st.builds(lambda w, n, t: segment.count(w, at_least=n, within=t), names, st.sampled_from([1, 2, 3, 66]), spans)
totals = st.builds(lambda w, n, t: segment.total("v", when=w, at_least=n, within=t), names, st.integers(1, 9), spans)
latests = names.map(segment.latest)
chains = st.builds(lambda s, t: segment.sequence(*s, within=t), st.lists(names, min_size=2, max_size=3), spans)
absences = st.builds(lambda s, t: segment.absence(s[0], after=s[1], within=t), st.permutations("abc"), spans)


def trees(leaves: st.SearchStrategy[Condition]) -> st.SearchStrategy[Condition]:
    def join(parts: st.SearchStrategy[Condition]) -> st.SearchStrategy[Condition]:
        some = st.lists(parts, min_size=2, max_size=3)
        return some.map(lambda found: segment.all_of(*found)) | some.map(lambda found: segment.any_of(*found))

    return st.recursive(leaves, join, max_leaves=4)


def rules_of(
    leaves: st.SearchStrategy[Condition], until_false: st.SearchStrategy[bool]
) -> st.SearchStrategy[list[Rule]]:
    one = st.builds(
        lambda when, ttl, leave, off, step: segment.rule(
            "r", when=when, ttl=ttl, to="t", leave=leave, until_false=off, prolong=step
        ),
        trees(leaves),
        spans,
        st.sampled_from([None, "c"]),
        until_false,
        st.sampled_from([td(0), td(milliseconds=5)]),
    )
    return st.lists(one, min_size=1, max_size=2).map(named)


def named(rules: list[Rule]) -> list[Rule]:
    return [
        segment.rule(
            f"r{i}", when=r.condition, ttl=r.ttl, to="t", leave=r.leave, until_false=r.until_false, prolong=r.prolong
        )
        for i, r in enumerate(rules)
    ]


events = st.builds(
    lambda t, p, true, false, v: Event(t, p, frozenset(true), frozenset(false - true), float(v)),
    st.integers(1, 40),
    st.sampled_from(PERSONS),
    st.frozensets(names, min_size=1, max_size=2),
    st.frozensets(names, max_size=1),
    st.integers(0, 4),
)
batch = st.tuples(st.lists(events, max_size=8), st.integers(0, 60))
relaxed = settings(max_examples=150, suppress_health_check=list(HealthCheck))


def in_order(batches: list[tuple[list[Event], int]]) -> list[tuple[list[Event], int]]:
    """Each batch begins where the previous batch ended, on one clock."""
    made, start = [], 0
    for some, pause in batches:
        moved = [event._replace(time=event.time + start) for event in some]
        start = max([start, *(event.time for event in moved)])
        made.append((moved, start := start + pause))
    return made


@pytest.mark.slow
@relaxed
@given(
    rules_of(counts | totals | latests | chains | absences, st.booleans()),
    st.lists(batch, min_size=1, max_size=4),
    st.booleans(),
)
def test_in_order_all_is_as_the_model_says(
    rules: list[Rule], batches: list[tuple[list[Event], int]], reload: bool
) -> None:
    ordered = in_order(batches)
    assert engine(rules, ordered, reload) == segment_model.changes(rules, ordered)


@relaxed
@given(rules_of(counts | totals | latests, st.just(False)), st.lists(batch, min_size=2, max_size=4))
def test_late_events_count_when_they_were(rules: list[Rule], batches: list[tuple[list[Event], int]]) -> None:
    assert engine(rules, batches, reload=False) == segment_model.changes(rules, batches)


def test_what_a_sum_still_covers_is_not_dropped() -> None:
    rules = [
        segment.rule(
            "r", when=segment.total("v", when="a", at_least=5, within=td(milliseconds=100)), ttl="1 day", to="t"
        )
    ]
    # Each of the 64 parts has two milliseconds.
    told = [
        ([Event(time, "ann", frozenset("a"), value=value)], clock)
        for time, value, clock in ((1, 4.0, 105), (110, 1.0, 110))
    ]
    assert [one.at for one in engine(rules, told, reload=True)["ann", "r"]] == [110]
    assert engine(rules, told, reload=True) == segment_model.changes(rules, told)


def test_growing_keeps_every_record() -> None:
    rules = [
        segment.rule("once", when="a", ttl="1 second", to="t"),
        segment.rule("thrice", when="a", at_least=3, within="1 second", ttl="1 second", to="t"),
    ]
    made = plan(rules)
    store, people = RecordStore(made), [f"person-{i}" for i in range(20_000)]
    entered: list[Change] = []
    for time in (1000, 1001, 1002):
        packed = joined(
            [touches(made, [Event(time, p, frozenset("a")) for p in some]) for some in (people[::2], people[1::2])]
        )
        entered += said(made, store.take(unpack(packed.pack()), latest=FAR))
    assert {(c.person, c.segment) for c in entered if c.event == "enter"} == {
        (p, r.name) for p in people for r in rules
    }
    assert [c.at for c in entered if (c.person, c.segment, c.event) == ("person-7", "thrice", "enter")] == [1002]
    expired = said(made, store.tick(5000))
    assert len(expired) == 40_000 and {c.event for c in expired} == {"expire"}
    store.compact(5000)
    assert store.nbytes == 8 and store.due is None


def test_workers_get_the_packing_without_its_compiled_loops() -> None:
    # Each worker compiles a pickled loop again, for seconds, instead of reading it from disk.
    wanted = plan([segment.rule("r", when="a", ttl=td(1), to="t")])
    made = packer(wanted, index(wanted.predicates, StructType()), 4)
    assert b"numba" not in cloudpickle.dumps(made)  # type: ignore[no-untyped-call]
