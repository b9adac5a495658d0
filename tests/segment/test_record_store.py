"""The records of a bucket: saved and loaded, compacted, listed, moved to other rules; and membership events as rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta as td
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from segment_events import RULES, modelled, rows, touches
from segment_model import Event

from penstock import segment
from penstock.segment import processor
from penstock.segment.record_store import SMALLEST, MembershipChanges, RecordStore, migrated
from penstock.segment.rule_definitions import Rule
from penstock.segment.rule_plan import ENTER, EXPIRE, LEAVE, MARKED, PROLONG, plan

FAR = 1 << 60
KINDS = ["", "enter", "prolong", "leave", "expire"]
Told = tuple[str, str, str, int]


def told(found: MembershipChanges) -> list[Told]:
    """Person, segment, kind and time of each membership event."""
    return [
        (person.decode(), found.source[rule].name, KINDS[kind], at)
        for person, (_, rule, kind, at, _) in zip(found.ids, found.rows.tolist(), strict=True)
    ]


def took(store: RecordStore, *events: Event, latest: int = FAR) -> list[Told]:
    return told(store.take(touches(store.plan, list(events)), latest=latest))


def seen(person: str, time: int, *true: str) -> Event:
    return Event(time, person, frozenset(true))


def simple(name: str, when: str | segment.Condition = "a", ttl: int = 100, **options: Any) -> Rule:
    times = {"ttl": td(milliseconds=ttl), "prolong": td(milliseconds=1)}
    return segment.rule(name, when=when, to="t", **times | options)


def listing(store: RecordStore) -> dict[tuple[str, str], tuple[int, int, int]]:
    """Until, last time and due by person and segment."""
    ids, found = store.records()
    names = [rule.name for rule in store.plan.source]
    return {
        (person.decode(), names[rule]): (until, last, due)
        for person, (_, rule, until, last, due) in zip(ids, found.tolist(), strict=True)
    }


def test_an_event_from_the_future_counts_as_of_now() -> None:
    store = RecordStore(plan([simple("r")]))
    assert took(store, seen("ann", 5000, "a"), seen("bob", 7, "a"), latest=10) == [
        ("bob", "r", "enter", 7),
        ("ann", "r", "enter", 10),
    ]
    assert listing(store) == {("ann", "r"): (110, 10, 110), ("bob", "r"): (107, 7, 107)}


@pytest.mark.parametrize("time", [0, -1, -(10**15)])
def test_an_event_before_1970_counts_as_of_the_first_millisecond(time: int) -> None:
    store = RecordStore(plan([simple("r")]))
    assert took(store, seen("ann", time, "a")) == [("ann", "r", "enter", 1)]


@pytest.mark.parametrize("person", ["", "a", "1234567", "12345678", "123456789", "é", "x" * 4096, "\0"])
def test_a_person_of_any_length_is_kept_as_it_is(person: str) -> None:
    store = RecordStore(plan([simple("r"), simple("s", "b")]))
    took(store, seen("before", 1, "a"), seen(person, 2, "a"), seen("after", 3, "a"))
    again = RecordStore(store.plan)
    again.load(store.save())
    again.compact(4)
    assert listing(again).keys() == {("before", "r"), (person, "r"), ("after", "r")}
    assert took(again, seen(person, 5, "b")) == [(person, "s", "enter", 5)]


def test_what_is_due_is_applied_once_and_at_its_time() -> None:
    store = RecordStore(plan([simple("r", ttl=50)]))
    assert store.due is None and told(store.tick(10**6)) == []
    took(store, seen("ann", 10, "a"), seen("bob", 20, "a"), seen("ann", 30, "a"))
    assert store.due is not None and store.due <= 70
    assert told(store.tick(69)) == []
    assert told(store.tick(70)) == [("bob", "r", "expire", 70)]
    assert told(store.tick(70)) == []
    assert told(store.tick(500)) == [("ann", "r", "expire", 80)]
    assert store.due is None


def test_an_empty_store_can_be_saved_compacted_and_listed() -> None:
    store = RecordStore(plan(RULES))
    store.compact(5)
    again = RecordStore(plan(RULES))
    again.load(store.save())
    assert listing(again) == {} and again.due is None and again.nbytes == 8
    assert told(again.tick(9)) == [] and told(again.changes(np.empty((0, 5), np.int64))) == []


EVENTS = st.lists(st.integers(0, 159), max_size=60, unique=True).map(sorted)


@settings(max_examples=40)
@given(EVENTS, EVENTS, st.integers(0, 250))
def test_a_store_that_was_saved_or_compacted_goes_on_as_if_it_was_not(
    first: list[int], second: list[int], clock: int
) -> None:
    made, early, late = plan(RULES), rows(0), rows(0)
    before, after = ([modelled(some[number]) for number in chosen] for some, chosen in ((early, first), (late, second)))
    stores = [RecordStore(made) for _ in range(3)]
    plain, saved, compacted = stores
    for store in stores:
        took(store, *before)
        store.tick(clock)
    again = RecordStore(made)
    again.load(saved.save())
    assert listing(again) == listing(saved)
    compacted.compact(clock)
    kept = listing(compacted)
    assert kept.items() <= listing(plain).items() and compacted.nbytes <= plain.nbytes
    assert all(until == due == 0 for key, (until, _, due) in listing(plain).items() if key not in kept)
    compacted.compact(clock)
    assert listing(compacted) == kept
    # Later events come after the clock, as they do in a stream.
    later = [event._replace(time=event.time + clock) for event in after]
    found = [[sorted(took(store, *later)), sorted(told(store.tick(2000)))] for store in (plain, again, compacted)]
    assert found[0] == found[1] == found[2]


def test_a_record_is_dropped_when_its_events_no_longer_count_and_not_before() -> None:
    twice = simple("r", segment.count("a", at_least=2, within=td(milliseconds=100)))
    for clock, kept in ((109, True), (110, False)):
        store = RecordStore(plan([twice]))
        took(store, seen("ann", 10, "a"))
        store.compact(clock)
        assert bool(listing(store)) is kept
        assert took(store, seen("ann", clock, "a")) == ([("ann", "r", "enter", clock)] if kept else [])


def test_rules_beyond_the_first_word_of_marks_are_found_again() -> None:
    count = 2 * MARKED + 5
    made = plan([simple(f"r{number}", f"p{number}", ttl=10_000) for number in range(count)])
    store = RecordStore(made)
    numbers = [0, 1, MARKED - 1, MARKED, 2 * MARKED - 1, 2 * MARKED, count - 1]
    texts = [f"p{number}" for number in numbers]
    assert {name for _, name, _, _ in took(store, seen("ann", 1, *texts))} == {f"r{number}" for number in numbers}
    assert {kind for _, _, kind, _ in took(store, seen("ann", 2, *texts))} == {"prolong"}
    store.compact(3)
    again = RecordStore(made)
    again.load(store.save())
    assert {kind for _, _, kind, _ in took(again, seen("ann", 4, *texts))} == {"prolong"}
    assert len(listing(again)) == len(numbers)


def test_records_go_over_to_other_rules_by_name_and_digest() -> None:
    counted = segment.count("a", at_least=3, within=td(milliseconds=500))
    old = plan([simple("same", counted), simple("changed", counted), simple("gone", "a"), simple("idle", counted)])
    store = RecordStore(old)
    took(store, *(seen("ann", time, "a") for time in (10, 20, 30)), seen("bob", 15, "a"), seen("bob", 35, "a"))
    assert {key for key, (until, *_) in listing(store).items() if until} == {
        *((person, "gone") for person in ("ann", "bob")),
        *(("ann", name) for name in ("same", "changed", "idle")),
    }
    # The new rules are in another order, with one more; `same` has another time to live, which is not counted.
    other = segment.count("a", at_least=2, within=td(milliseconds=500))
    new = plan([simple("new", "a"), simple("changed", other), simple("same", counted, ttl=300)])
    moved, left = migrated(store, new, 40)
    assert sorted(told(left)) == [
        ("ann", "gone", "leave", 40),
        ("ann", "idle", "leave", 40),
        ("bob", "gone", "leave", 40),
    ]
    assert listing(moved) == {
        ("ann", "same"): (130, 30, 130),
        ("ann", "changed"): (130, 30, 130),
        ("bob", "same"): (0, 35, 0),
    }
    # `same` still has bob's two events: the third makes a member. `changed` begins with zero: one is not enough.
    found = took(moved, seen("bob", 50, "a"))
    assert sorted(found) == [("bob", "new", "enter", 50), ("bob", "same", "enter", 50)]
    # A member of a changed rule stays until its time is over.
    assert ("ann", "changed", "expire", 130) in told(moved.tick(130))
    # Going back and forth keeps what the rules have in common.
    back, _ = migrated(moved, old, 140)
    assert ("bob", "same") in listing(back) and not {name for _, name in listing(back)} & {"new", "gone", "idle"}


def test_members_of_a_removed_rule_leave_at_their_last_time_if_the_clock_is_behind() -> None:
    store = RecordStore(plan([simple("gone"), simple("kept", "b")]))
    took(store, seen("ann", 500, "a"))
    moved, left = migrated(store, plan([simple("kept", "b")]), 40)
    assert told(left) == [("ann", "gone", "leave", 500)]
    assert listing(moved) == {} and moved.nbytes == 8


def test_records_go_over_to_more_rules_than_a_word_of_marks_has() -> None:
    old = plan([simple("r0", ttl=10_000)])
    new = plan([*(simple(f"x{number}", "b") for number in range(MARKED)), simple("r0", ttl=10_000)])
    store = RecordStore(old)
    people = [f"person-{number}" for number in range(SMALLEST)]
    took(store, *(seen(person, 1, "a") for person in people))
    moved, left = migrated(store, new, 2)
    assert told(left) == [] and listing(moved).keys() == {(person, "r0") for person in people}
    assert {kind for _, _, kind, _ in took(moved, *(seen(person, 3, "a") for person in people))} == {"prolong"}
    back, _ = migrated(moved, old, 4)
    assert listing(back) == listing(moved)


def test_one_event_may_cause_more_membership_events_than_there_was_room_for() -> None:
    count = 3 * SMALLEST
    store = RecordStore(plan([simple(f"r{number}", ttl=10) for number in range(count)]))
    assert len(took(store, seen("ann", 1, "a"))) == count
    # All expire, and then the person enters again: twice as many.
    found = took(store, seen("ann", 100, "a"))
    assert [kind for _, _, kind, _ in found].count("expire") == [kind for *_, kind, _ in found].count("enter") == count
    assert len(told(store.tick(1000))) == count


def changes(*found: tuple[str, int, int, int, int]) -> MembershipChanges:
    """Of each: person, rule, kind, at, until."""
    people = [person.encode() for person, *_ in found]
    return MembershipChanges(people, np.array([(0, *row) for _, *row in found], np.int64).reshape(-1, 5), tuple(RULES))


def unpacked(data: bytes | None) -> list[dict[str, Any]]:
    batch = pa.record_batch({"changes": pa.array([data], pa.binary())})
    return list(pa.Table.from_batches(list(processor.rows(iter([batch])))).to_pylist())


def test_membership_events_are_rows_with_the_time_that_is_left() -> None:
    first = changes(("ann", 0, ENTER, 1000, 61_000), ("bé", 1, PROLONG, 1500, 3501), ("ann", 2, LEAVE, 2000, 9000))
    second = changes(("cid", 3, EXPIRE, 5000, 5000), ("dan", 0, ENTER, 5000, 5001))
    found = unpacked(processor.as_bytes([first, changes(), second], None))
    assert [tuple(row[name] for name in ("person", "segment", "event", "ttl", "to")) for row in found] == [
        ("ann", "twice", "enter", 60, "a"),
        ("bé", "big", "prolong", 3, "b"),
        ("ann", "lost", "leave", 0, "c"),
        ("cid", "german", "expire", 0, "d"),
        ("dan", "twice", "enter", 1, "a"),
    ]
    assert found[0]["at"] == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert found[0]["until"] == datetime(1970, 1, 1, 0, 1, 1, tzinfo=UTC)


def test_the_time_that_is_left_counts_from_now_and_is_at_least_a_second() -> None:
    found = changes(("ann", 0, ENTER, 1000, 61_000), ("bob", 0, ENTER, 1000, 30_000), ("cid", 0, PROLONG, 1, 40_001))
    assert [row["ttl"] for row in unpacked(processor.as_bytes([found], 40_000))] == [21, 1, 1]
    assert processor.as_bytes([], None) is None and processor.as_bytes([changes()], 7) is None
