"""The model of `penstock demo adtech`: each rule on an example, persons, counts; and compared with the engine."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from segment_events import touches
from segment_model import Event

from penstock.segment.record_store import MembershipChanges, RecordStore
from penstock.segment.rule_plan import plan
from penstock_demo.adtech import model
from penstock_demo.adtech.model import Act, Change, Persons, names_of
from penstock_demo.adtech.rules import RULES
from penstock_demo.adtech.site import ACTIONS

BASE = 1_770_000_000_000
"""A whole minute, so that the ends of memberships are easily read."""
LONG = 60_000
KINDS = ("", "enter", "prolong", "leave", "expire")
COUNTED = settings(max_examples=30)


def act(at: int, event: str, person: str = "ann", price: int = 0) -> Act:
    return Act(f"{person}-{at}", BASE + at, person, frozenset(), event, "spring", price)


def told(changes: list[Change], segment: str) -> list[tuple[str, int, int]]:
    return [(c.event, c.at - BASE, c.until - BASE) for c in changes if c.segment == segment]


@pytest.mark.parametrize(
    ("segment", "acts", "expected"),
    [
        # The third click makes a member for 6 s, up to a whole second; the clicks of ten seconds count.
        ("interested", "0 click, 9000 click, 10000 click", []),
        ("interested", "0 click, 9000 click, 9999 click", [("enter", 9999, 16000), ("expire", 16000, 16000)]),
        (
            "interested",
            "0 click, 1 click, 2 click, 500 click, 1500 click, 1600 optout, 1700 click",
            [("enter", 2, 7000), ("prolong", 1500, 8000), ("leave", 1600, 8000)],
        ),
        # Leaves when the first of the two views is four seconds old.
        ("browsing", "0 view, 3999 view", [("enter", 3999, 35000), ("leave", 4000, 35000)]),
        (
            "browsing",
            "0 view, 100 view, 4050 view",
            [("enter", 100, 35000), ("leave", 4000, 35000), ("enter", 4050, 35000), ("leave", 4100, 35000)],
        ),
        ("browsing", "0 view, 100 view, 3900 view", [("enter", 100, 35000), ("leave", 4100, 35000)]),
        # A buy at exactly that time is too late.
        ("abandoned", "0 cart, 2999 buy", []),
        ("abandoned", "0 cart, 3000 buy", [("enter", 3000, 8000), ("expire", 8000, 8000)]),
        (
            "abandoned",
            "0 cart, 500 cart, 2500 cart, 9000 buy",
            [("enter", 3000, 8000), ("prolong", 5500, 11000), ("expire", 11000, 11000)],
        ),
        ("returning", "0 click, 15000 buy", []),
        ("returning", "0 click, 1 click, 15000 buy", [("enter", 15000, 23000), ("expire", 23000, 23000)]),
        ("spenders", "0 buy 10000, 15999 buy 10000", [("enter", 15999, 24000), ("expire", 24000, 24000)]),
        ("spenders", "0 buy 10000, 16000 buy 10000", []),
        (
            "buyers",
            "0 buy 1, 5000 optout, 6000 buy 1",
            [("enter", 0, 3600000), ("leave", 5000, 3600000), ("enter", 6000, 3610000)],
        ),
    ],
)
def test_a_rule(segment: str, acts: str, expected: list[tuple[str, int, int]]) -> None:
    words = [text.split() for text in acts.split(", ")]
    made = [act(int(at), event, price=int(*price or (0,))) for at, event, *price in words]
    assert told(model.changes_of(made, BASE + LONG), segment) == expected


steps = st.lists(
    st.tuples(st.integers(1, 4000), st.sampled_from(ACTIONS), st.sampled_from(["ann", "bob"]), st.integers(1, 15000)),
    max_size=60,
)


@COUNTED
@given(steps, st.sets(st.integers(0, 60)))
def test_the_engine_agrees_whatever_the_batches(drawn: list[tuple[int, str, str, int]], cuts: set[int]) -> None:
    acts, now = [], 0
    for pause, event, person, price in drawn:
        now += pause
        acts.append(act(now, event, person, price if event == "buy" else 0))
    expected = sorted(model.changes_of(acts, BASE + now + LONG))
    assert sorted(engine(acts, cuts, BASE + now + LONG)) == expected


def engine(acts: list[Act], cuts: set[int], until: int) -> list[Change]:
    made = plan(RULES)
    store = RecordStore(made)
    found: list[Change] = []

    def say(changes: MembershipChanges) -> None:
        for person, (_, rule, kind, at, end) in zip(changes.ids, changes.rows.tolist(), strict=True):
            found.append(Change(person.decode(), made.source[rule].name, KINDS[kind], at, end))

    events = [Event(a.at, a.person, frozenset({f"event = '{a.event}'"}), frozenset(), float(a.price)) for a in acts]
    places = [0, *sorted(cut for cut in cuts if 0 < cut < len(events)), len(events)]
    for start, stop in pairwise(places):
        if some := events[start:stop]:
            say(store.take(touches(made, some), latest=until))
            say(store.tick(some[-1].time))
    say(store.tick(until))
    return found


def test_persons_are_named_by_the_smallest_of_what_is_linked_so_far() -> None:
    persons = Persons()
    seen: list[dict[str, Any]] = [{"cookie": "a"}, {"device": "b"}, {"cookie": "c"}]
    for event in seen:
        persons.link(event)
    alone = [persons.of(event) for event in seen]
    assert alone == [next(iter(names_of(event))) for event in seen]
    persons.link({"cookie": "a", "device": "b"})
    assert [persons.of(event) for event in seen] == [min(alone[:2]), min(alone[:2]), alone[2]]
    assert set(persons.all_of(min(alone[:2])).values()) == {("cookie", "a"), ("device", "b")}


def test_the_name_is_the_one_of_the_documents() -> None:
    # SHA-256 of "cookie", a zero byte, "a", computed with another program.
    assert list(names_of({"cookie": "a", "device": None})) == ["47b58ac0-6ddf-cd2e-f5e7-bc77f51f460d"]


def test_an_act_has_the_person_of_its_time() -> None:
    identities = [{"cookie": "a"}, {"device": "b"}, {"cookie": "a", "device": "b"}, {"device": "b"}]
    events = [
        {"id": str(i), "ts": i, "event": "identify" if len(ids) == 2 else "view", "campaign": "hats", **ids}
        for i, ids in enumerate(identities)
    ]
    acts = list(model.acts_of(events, Persons()))
    a, b = (next(iter(names_of(event))) for event in identities[:2])
    assert [act.person for act in acts] == [a, b, min(a, b)]
    assert [len(act.identities) for act in acts] == [1, 1, 2]


def test_minutes_and_members_and_reach() -> None:
    acts = [act(0, "click"), act(59_999, "buy", price=70), act(60_000, "buy", "bob", 5)]
    assert model.minutes_of(acts) == {("spring", BASE): (2, 1, 70), ("spring", BASE + 60_000): (1, 0, 5)}
    changes = model.changes_of(acts, BASE + 61_000)
    assert model.members_at(changes, BASE + 60_500) == {
        ("buyers", "ann"): BASE + 3_660_000,
        ("buyers", "bob"): BASE + 3_660_000,
    }
    assert model.members_at(changes, BASE + 60_000 + 3_600_000) == {}
    assert model.entered(changes) == {"buyers": 2}
