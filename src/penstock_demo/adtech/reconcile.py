"""The proof: compares acknowledged events with what independent clients read, in stages, with pure functions.

- stored: each acknowledged event at least once, as it was posted; more often only if its request was sent again.
- checked: each stored copy at least once, unchanged, with its time in Kafka.
- persons: each stored copy once, with its person. For an action it is the person by the links so far, with all
  identities. For a sign-in, which makes links, it is a name between the event's own and the person at the end.
- changes: the membership events of the model, each once.
- members: the model's members whose time is not over.
- reach: how many persons entered or prolonged each segment.
- minutes: the counts of the model.
- deliveries: they result in the members of the model, and the receipts agree with the records.

Of the copies of an event the first stored copy counts; its time is the event's. If it was stored later than the rules
wait, nothing is promised about its person: then only its own arrival is compared.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

import orjson

from penstock_demo.adtech import model
from penstock_demo.adtech.model import Act, Change, Persons, names_of
from penstock_demo.adtech.site import LATE, SIGN_IN

K = TypeVar("K", bound=Hashable)
EXAMPLES = 5
HORIZON = 60_000
"""Milliseconds for which the model continues after the last event: all short memberships are over by then."""
MEMBER = ("enter", "prolong")
STAGES = ("stored", "checked", "persons", "changes", "members", "reach", "minutes", "deliveries")
PROBLEMS = ("lost", "duplicated", "wrong")
Event = dict[str, Any]


class Stored(NamedTuple):
    """An event in Kafka; `appended` is Kafka's time in milliseconds."""

    partition: int
    offset: int
    appended: int
    value: bytes


class Visit(NamedTuple):
    """An event with its person, as matching found it."""

    id: str
    person: str | None
    identities: frozenset[tuple[str, str]]


class Posted(NamedTuple):
    """An acknowledged event and the times of the requests that carried it."""

    event: Event
    stamps: list[int]


@dataclass
class Report:
    """The problems by stage and kind, with some examples of each, and what was compared."""

    problems: dict[str, Counter[str]] = field(default_factory=lambda: {stage: Counter() for stage in STAGES})
    examples: list[dict[str, Any]] = field(default_factory=list)
    compared: Counter[str] = field(default_factory=Counter)
    copies: int = 0
    """Further copies of events whose request was sent again."""
    repeated: int = 0
    """Stored copies that the first hop wrote again."""
    late: int = 0
    """Events that reached Kafka later than the rules wait: the memberships of their persons are not compared."""

    @property
    def ok(self) -> bool:
        return not any(map(Counter.total, self.problems.values()))

    def add(self, stage: str, problem: str, key: Any, expected: Any, got: Any) -> None:
        self.problems[stage][problem] += 1
        if self.problems[stage][problem] <= EXAMPLES:
            told = {"stage": stage, "problem": problem, "key": key, "expected": expected, "got": got}
            self.examples.append(told)

    def total(self, problem: str) -> int:
        return sum(found[problem] for found in self.problems.values())


@dataclass(frozen=True)
class Expected:
    """The model's results for the stored events: all later stages are compared with this."""

    sign_ins: list[Event]
    acts: list[Act]
    changes: list[Change]
    persons: Persons
    copies: Mapping[str, int]
    """How often each event is stored."""
    late: frozenset[str] = frozenset()
    """Persons with an event that was stored too late, by their final name."""

    def in_time(self, name: str) -> bool:
        """Whether all events of the person with this name were stored in time."""
        return not self.late or self.persons.last(name) not in self.late


def posted(lines: Iterable[bytes]) -> dict[str, Posted]:
    """The journal: acknowledged events by id."""
    found = {}
    for line in lines:
        request = orjson.loads(line)
        found.update({event["id"]: Posted(event, request["stamps"]) for event in request["events"]})
    return found


def check_stored(report: Report, journal: Mapping[str, Posted], records: Iterable[Stored]) -> Expected:
    """Compare the records in Kafka with the journal; returns the model's results."""
    copies: dict[str, list[tuple[int, int, Event]]] = defaultdict(list)
    late: set[tuple[int, int]] = set()
    for record in records:
        event = orjson.loads(record.value)
        was = journal.get(event["id"])
        if was is None or event["ts"] not in was.stamps or event != was.event | {"ts": event["ts"]}:
            report.add("stored", "wrong", event["id"], was, event)
            continue
        if record.appended - event["ts"] >= LATE:
            late.add((record.partition, record.offset))
        copies[event["id"]].append((record.partition, record.offset, event))
    for id, was in journal.items():
        _check_copies(report, id, was, copies[id])
    firsts = [min(some) for some in copies.values() if some]
    report.late = len(late)
    too_late = [event["id"] for partition, offset, event in firsts if (partition, offset) in late]
    return expected([event for *_, event in firsts], {id: len(copies[id]) for id in copies}, too_late)


def _check_copies(report: Report, id: str, was: Posted, copies: Sequence[tuple[int, int, Event]]) -> None:
    report.compared["stored"] += 1
    report.copies += max(0, len(copies) - 1)
    if not copies:
        report.add("stored", "lost", id, was.event, None)
    if len(copies) > len(was.stamps):
        report.add("stored", "duplicated", id, f"{len(was.stamps)} requests", f"{len(copies)} copies")
    if len({partition for partition, _, _ in copies}) > 1:
        report.add("stored", "wrong", id, "copies in one partition, that of the tracker", copies)


def check_checked(report: Report, stored: Iterable[Stored], records: Iterable[Stored]) -> None:
    """Compare what the first hop has written with the stored copies; it may write one again."""
    copies = {f"{one.partition}-{one.offset}": one for one in stored}
    report.compared["checked"] += len(copies)
    found: set[str] = set()
    for record in records:
        told = {name: value for name, value in orjson.loads(record.value).items() if value is not None}
        origin = told.pop("origin", None)
        was = copies.get(origin)
        _compare(report, "checked", origin, was and orjson.loads(was.value) | {"timestamp": was.appended}, told)
        report.repeated += origin in found
        found.add(origin)
    for origin in copies.keys() - found:
        report.add("checked", "lost", origin, copies[origin], None)


def expected(events: Iterable[Event], copies: Mapping[str, int], late: Collection[str] = ()) -> Expected:
    """The model's results for events, each the first of its copies; `late` are the ids of events stored too late."""
    ordered, persons = sorted(events, key=lambda event: event["ts"]), Persons()
    acts = list(model.acts_of(ordered, persons))
    until = (ordered[-1]["ts"] if ordered else 0) + HORIZON
    sign_ins = [event for event in ordered if event["event"] == SIGN_IN]
    waited = frozenset(persons.of(event) for event in ordered if event["id"] in late)
    return Expected(sign_ins, acts, model.changes_of(acts, until), persons, copies, waited)


def check_persons(report: Report, wanted: Expected, visits: Sequence[Visit]) -> None:
    """Check that each stored copy of an event has its person."""
    found: dict[str, list[Visit]] = defaultdict(list)
    for visit in visits:
        found[visit.id].append(visit)
    for act in wanted.acts:
        for visit in _visits(report, wanted, act.id, found):
            if wanted.in_time(act.person):
                _compare(report, "persons", act.id, Visit(act.id, act.person, act.identities), visit)
    for event in wanted.sign_ins:
        for visit in _visits(report, wanted, event["id"], found):
            _check_sign_in(report, wanted.persons, event, visit)
    for id in found:
        report.add("persons", "wrong", id, None, found[id])


def _visits(report: Report, wanted: Expected, id: str, found: dict[str, list[Visit]]) -> list[Visit]:
    report.compared["persons"] += 1
    got = found.pop(id, [])
    if len(got) < wanted.copies[id]:
        report.add("persons", "lost", id, wanted.copies[id], got)
    if len(got) > wanted.copies[id]:
        report.add("persons", "duplicated", id, wanted.copies[id], got)
    return got


def _check_sign_in(report: Report, persons: Persons, event: Event, visit: Visit) -> None:
    """While links are made, the name is that of an identity of the same final person, at most the event's own."""
    final = persons.of(event)
    names = [name for name in persons.all_of(final) if name <= min(names_of(event))]
    if visit.person not in names:
        report.add("persons", "wrong", event["id"], names, visit.person)


def check_changes(report: Report, wanted: Expected, changes: Sequence[Change]) -> None:
    """Check that each membership event of the model has come once."""
    found = Counter(change for change in changes if wanted.in_time(change.person))
    due = Counter(change for change in wanted.changes if wanted.in_time(change.person))
    report.compared["changes"] += len(due)
    for change in due.keys() | found.keys():
        if change not in found:
            report.add("changes", "lost", change.person, change, None)
        elif change not in due:
            report.add("changes", "wrong", change.person, None, change)
        elif found[change] > due[change]:
            report.add("changes", "duplicated", change.person, change, f"{found[change]} times")


def check_table(report: Report, stage: str, wanted: Mapping[K, object], found: Mapping[K, object]) -> None:
    """Compare the rows of a table by key."""
    report.compared[stage] += len(wanted)
    for key in wanted.keys() | found.keys():
        if key not in found:
            report.add(stage, "lost", key, wanted[key], None)
        else:
            _compare(report, stage, key, wanted.get(key), found[key])


def check_deliveries(
    report: Report, segment: str, wanted: Expected, now: int, receipts: Sequence[Event], values: Sequence[bytes]
) -> None:
    """Check a full delivery and later changes: the receipts match the records, which result in the members."""
    memberships = {(c.person, c.until) for c in wanted.changes if c.segment == segment and c.event in MEMBER}
    have: dict[str, int] = {}
    left = [(orjson.loads(value), value) for value in values]
    left = [(told, value) for told, value in left if told["segment"] == segment]
    for receipt in receipts:
        some, left = left[: receipt["added"] + receipt["removed"]], left[receipt["added"] + receipt["removed"] :]
        _check_receipt(report, segment, receipt, some)
        for told, _ in some:
            if not wanted.in_time(told["person"]):
                continue
            if told["event"] == "add":
                have[told["person"]] = _millis(told["until"])
                if (told["person"], have[told["person"]]) not in memberships:
                    report.add("deliveries", "wrong", told["person"], "a membership of the model", told)
            else:
                have.pop(told["person"], None)
    if left:
        report.add("deliveries", "duplicated", segment, "the records of the receipts", f"{len(left)} more")
    due = model.members_at(wanted.changes, now)
    members = {person: until for (of, person), until in due.items() if of == segment and wanted.in_time(person)}
    check_table(report, "deliveries", members, have)


def _check_receipt(report: Report, segment: str, receipt: Event, records: Sequence[tuple[Event, bytes]]) -> None:
    added = sum(told["event"] == "add" for told, _ in records)
    digest = sum(int.from_bytes(hashlib.sha256(value).digest()[:8], "big") for _, value in records) % (1 << 64)
    told = receipt["added"], receipt["removed"], receipt["digest"]
    _compare(report, "deliveries", segment, told, (added, len(records) - added, f"{digest:016x}"))


def _compare(report: Report, stage: str, key: object, wanted: object, got: object) -> None:
    if wanted != got:
        report.add(stage, "wrong", key, wanted, got)


def _millis(time: str) -> int:
    return round(datetime.fromisoformat(time).timestamp() * 1000)
