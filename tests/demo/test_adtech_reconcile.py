"""The proof of `penstock demo adtech`: a good run is good, and every kind of damage is found, where it is."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from penstock_demo.adtech import model, reconcile, site
from penstock_demo.adtech.model import Change
from penstock_demo.adtech.reconcile import Expected, Posted, Report, Stored, Visit
from penstock_demo.adtech.traffic import PAUSE, Traffic

BASE = 1_770_000_000_000
ROUNDS, TURN = 150, 200


@dataclass
class Run:
    """All that a demo reads, of a run without errors."""

    journal: dict[str, Posted]
    stored: list[Stored]
    wanted: Expected
    now: int
    taken: list[Stored] = field(default_factory=list)
    """What the first hop read; damages of `stored` are not its."""
    checked: list[Stored] = field(default_factory=list)
    visits: list[Visit] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    members: dict[tuple[str, str], int] = field(default_factory=dict)
    reach: dict[str, int] = field(default_factory=dict)
    minutes: dict[tuple[str, int], tuple[int, int, int]] = field(default_factory=dict)
    receipts: list[dict[str, Any]] = field(default_factory=list)
    delivered: list[bytes] = field(default_factory=list)

    def report(self) -> Report:
        found = Report()
        reconcile.check_stored(found, self.journal, self.stored)
        reconcile.check_checked(found, self.taken, self.checked)
        reconcile.check_persons(found, self.wanted, self.visits)
        reconcile.check_changes(found, self.wanted, self.changes)
        reconcile.check_table(found, "members", model.members_at(self.wanted.changes, self.now), self.members)
        reconcile.check_table(found, "reach", model.entered(self.wanted.changes), self.reach)
        reconcile.check_table(found, "minutes", model.minutes_of(self.wanted.acts), self.minutes)
        reconcile.check_deliveries(found, "buyers", self.wanted, self.now, self.receipts, self.delivered)
        return found


def posted() -> tuple[dict[str, Posted], list[Stored]]:
    """What some visitors do in half a minute; every tenth request is sent twice and stored twice."""
    traffic = Traffic("t0", seed=3, size=40)
    journal: dict[str, Posted] = {}
    stored: list[Stored] = []
    for number in range(ROUNDS):
        now, stamp = number * TURN / 1000, BASE + number * TURN
        events = traffic.next(25, now, acts=25, passed=1 << 62)
        stamps = [stamp, stamp + 50] if number % 10 == 5 else [stamp]
        for event in events:
            journal[event["id"]] = Posted(event, stamps)
            traffic.known(event["id"], now - PAUSE)
        for at in stamps:
            texts = [orjson.dumps({**event, "ts": at}) for event in events]
            stored += [Stored(0, len(stored) + i, at + 5, text) for i, text in enumerate(texts)]
    return journal, stored


def record(told: dict[str, Any]) -> bytes:
    return orjson.dumps({"segment": "buyers", **told})


def receipt(values: list[bytes]) -> dict[str, Any]:
    digest = sum(int.from_bytes(hashlib.sha256(value).digest()[:8], "big") for value in values) % (1 << 64)
    added = sum(b'"add"' in value for value in values)
    return {"added": added, "removed": len(values) - added, "digest": f"{digest:016x}"}


def added(person: str, until: int) -> bytes:
    return record({"person": person, "event": "add", "until": datetime.fromtimestamp(until / 1000, UTC).isoformat()})


def delivered(wanted: Expected, half: int, now: int) -> tuple[list[dict[str, Any]], list[bytes]]:
    """A full delivery at `half`, and the difference at `now`."""
    then, last = (
        {p: u for (s, p), u in model.members_at(wanted.changes, at).items() if s == "buyers"} for at in (half, now)
    )
    full = [added(person, until) for person, until in then.items()]
    changes = [added(person, until) for person, until in last.items() if then.get(person) != until]
    changes += [record({"person": person, "event": "remove"}) for person in then.keys() - last.keys()]
    return [receipt(full), receipt(changes)], full + changes


def passed_on(one: Stored) -> Stored:
    """What the first hop writes of a stored event."""
    place = {"origin": f"{one.partition}-{one.offset}", "timestamp": one.appended, "nothing": None}
    return one._replace(appended=one.appended + 20, value=orjson.dumps(orjson.loads(one.value) | place))


@pytest.fixture(scope="module")
def good() -> Run:
    journal, stored = posted()
    wanted = reconcile.check_stored(Report(), journal, stored)
    end = BASE + ROUNDS * TURN
    visits = [Visit(act.id, act.person, act.identities) for act in wanted.acts for _ in range(wanted.copies[act.id])]
    for event in wanted.sign_ins:
        person = wanted.persons.of(event)
        known = frozenset(wanted.persons.all_of(person).values())
        visits += [Visit(event["id"], person, known)] * wanted.copies[event["id"]]
    receipts, values = delivered(wanted, BASE + ROUNDS * TURN // 2, end)
    return Run(
        journal,
        stored,
        wanted,
        end,
        stored,
        [passed_on(one) for one in stored],
        visits,
        list(wanted.changes),
        model.members_at(wanted.changes, end),
        model.entered(wanted.changes),
        model.minutes_of(wanted.acts),
        receipts,
        values,
    )


def test_a_good_run_is_good(good: Run) -> None:
    report = good.report()
    assert report.ok, report.examples
    assert report.copies > 100
    assert report.late == 0
    assert all(report.compared[stage] > 3 for stage in reconcile.STAGES), report.compared
    # The run has all cases of the proof.
    assert {change.event for change in good.changes} == {"enter", "prolong", "leave", "expire"}
    assert {change.segment for change in good.changes} == {kind().segment for kind in model.SEGMENTS}
    merged = [
        event for event in good.wanted.sign_ins if len(good.wanted.persons.all_of(good.wanted.persons.of(event))) > 2
    ]
    assert len(merged) > 5


DAMAGES: dict[str, tuple[str, str, Callable[[Run], Run]]] = {
    "an acknowledged event is not stored": (
        "stored",
        "lost",
        lambda run: replace(run, stored=run.stored[1:]),
    ),
    "an event is stored again though its request was not sent again": (
        "stored",
        "duplicated",
        lambda run: replace(run, stored=[*run.stored, run.stored[0]._replace(offset=9_999)]),
    ),
    "an event nobody posted": (
        "stored",
        "wrong",
        lambda run: replace(run, stored=[*run.stored, Stored(0, 9_999, BASE, b'{"id": "bad-1", "ts": 1}')]),
    ),
    "an event whose content changed": (
        "stored",
        "wrong",
        lambda run: replace(
            run, stored=[run.stored[0]._replace(value=run.stored[0].value.replace(b"t0", b"t1", 1)), *run.stored[1:]]
        ),
    ),
    "an event that the first hop did not pass on": (
        "checked",
        "lost",
        lambda run: replace(run, checked=run.checked[1:]),
    ),
    "an event that the first hop changed": (
        "checked",
        "wrong",
        lambda run: replace(
            run,
            checked=[run.checked[0]._replace(value=run.checked[0].value.replace(b"t0", b"t1", 1)), *run.checked[1:]],
        ),
    ),
    "an event that the first hop made up": (
        "checked",
        "wrong",
        lambda run: replace(run, checked=[*run.checked, passed_on(run.stored[0]._replace(offset=9_999))]),
    ),
    "an event without a person's record": (
        "persons",
        "lost",
        lambda run: replace(run, visits=run.visits[1:]),
    ),
    "an event with two": (
        "persons",
        "duplicated",
        lambda run: replace(run, visits=[*run.visits, run.visits[0]]),
    ),
    "an action under another person": (
        "persons",
        "wrong",
        lambda run: replace(run, visits=[run.visits[0]._replace(person=other(run)), *run.visits[1:]]),
    ),
    "an action with an identity too few": (
        "persons",
        "wrong",
        lambda run: replace(run, visits=[run.visits[0]._replace(identities=frozenset()), *run.visits[1:]]),
    ),
    "a sign-in under a person it never was": (
        "persons",
        "wrong",
        lambda run: replace(run, visits=[*run.visits[:-1], run.visits[-1]._replace(person=other(run))]),
    ),
    "nobody's visit": (
        "persons",
        "wrong",
        lambda run: replace(run, visits=[*run.visits, Visit("t9-1", None, frozenset())]),
    ),
    "a change that never came": (
        "changes",
        "lost",
        lambda run: replace(run, changes=run.changes[1:]),
    ),
    "a change that came twice": (
        "changes",
        "duplicated",
        lambda run: replace(run, changes=[*run.changes, run.changes[0]]),
    ),
    "a change too many": (
        "changes",
        "wrong",
        lambda run: replace(run, changes=[*run.changes, run.changes[0]._replace(segment="owls")]),
    ),
    "a change a millisecond late": (
        "changes",
        "wrong",
        lambda run: replace(run, changes=[run.changes[0]._replace(at=run.changes[0].at + 1), *run.changes[1:]]),
    ),
    "a member is missing": (
        "members",
        "lost",
        lambda run: replace(run, members=dict(list(run.members.items())[1:])),
    ),
    "a member who is none": (
        "members",
        "wrong",
        lambda run: replace(run, members={**run.members, ("buyers", "nobody"): 1}),
    ),
    "a member for too long": (
        "members",
        "wrong",
        lambda run: replace(run, members={**run.members, next(iter(run.members)): 1}),
    ),
    "a person counted too many": (
        "reach",
        "wrong",
        lambda run: replace(run, reach={**run.reach, "buyers": run.reach["buyers"] + 1}),
    ),
    "a click counted twice": (
        "minutes",
        "wrong",
        lambda run: replace(
            run, minutes={key: (n, clicks + 1, price) for key, (n, clicks, price) in run.minutes.items()}
        ),
    ),
    "a minute is missing": (
        "minutes",
        "lost",
        lambda run: replace(run, minutes=dict(list(run.minutes.items())[1:])),
    ),
    "a member is not delivered": (
        "deliveries",
        "lost",
        lambda run: replace(
            run, delivered=run.delivered[1:], receipts=[receipt(run.delivered[1 : full(run)]), run.receipts[1]]
        ),
    ),
    "a delivery that the receipt does not tell of": (
        "deliveries",
        "duplicated",
        lambda run: replace(run, delivered=[*run.delivered, run.delivered[-1]]),
    ),
    "a receipt with another digest": (
        "deliveries",
        "wrong",
        lambda run: replace(run, receipts=[{**run.receipts[0], "digest": "0" * 16}, run.receipts[1]]),
    ),
    "someone delivered who never was a member": (
        "deliveries",
        "wrong",
        lambda run: replace(run, delivered=[added("nobody", BASE), *run.delivered[1:]]),
    ),
}


def other(run: Run) -> str:
    """A person other than that of the first visit or the last visit."""
    taken = run.visits[0].person, run.visits[-1].person
    return next(act.person for act in run.wanted.acts if act.person not in taken)


def full(run: Run) -> int:
    return int(run.receipts[0]["added"])


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damage_is_found(good: Run, damage: str) -> None:
    stage, problem, spoil = DAMAGES[damage]
    report = spoil(good).report()
    assert report.problems[stage][problem] >= 1, report.examples
    assert not report.ok
    assert any((told["stage"], told["problem"]) == (stage, problem) for told in report.examples)
    touched = {name for name, found in report.problems.items() if found.total()}
    assert touched == {stage}


def test_what_the_first_hop_repeats_is_counted(good: Run) -> None:
    report = replace(good, checked=[*good.checked, *good.checked[:3]]).report()
    assert (report.repeated, report.ok) == (3, True)


def test_an_event_that_came_after_the_rules_waited_is_counted(good: Run) -> None:
    late = good.stored[0]._replace(appended=good.stored[0].appended + site.LATE)
    report = replace(good, stored=[late, *good.stored[1:]]).report()
    assert (report.late, report.ok) == (1, True)


def test_what_becomes_of_a_person_with_a_late_event_is_not_compared(good: Run) -> None:
    buyers = {change.person for change in good.changes if change.segment == "buyers"}
    act = next(act for act in good.wanted.acts if act.person in buyers)
    number = next(n for n, stored in enumerate(good.stored) if orjson.loads(stored.value)["id"] == act.id)
    stored = list(good.stored)
    stored[number] = stored[number]._replace(appended=stored[number].appended + site.LATE)
    wanted = reconcile.check_stored(Report(), good.journal, stored)
    assert not wanted.in_time(act.person)
    assert len({one.person for one in wanted.acts if wanted.in_time(one.person)}) > 10
    changes = [change for change in good.changes if change.person != act.person]
    for told, right in ((wanted, True), (good.wanted, False)):
        report = Report()
        reconcile.check_changes(report, told, changes)
        reconcile.check_persons(report, told, good.visits)
        reconcile.check_deliveries(report, "buyers", told, good.now, good.receipts, good.delivered)
        assert report.ok is right
