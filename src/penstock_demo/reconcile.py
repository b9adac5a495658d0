"""The proof: compares what the load wrote with what came out of Kafka, with pure functions.

An expected event is one record, found by table, primary key, write time and op; the delete of a row is followed by one
tombstone, which has only the key. The expected records of each Kafka key form a list, and a record's position in that
list decides everything:

- no record at a position: lost;     - a record without a position, or with other content: wrong;
- a first delivery after a later position of its key: misordered;
- a further delivery: replayed if it belongs to a replay (see `_replays`), else duplicated.

Order is checked only within a Kafka key. Kafka keeps no more: the delete of a range or a partition has another key than
the rows it removes, hence perhaps another Kafka partition; a consumer compares `source.ts_us` across keys.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock_demo.journal import Expected

Key = tuple[str, tuple[Any, ...]]
"""Table and primary key: a Kafka key in a topic."""

EXAMPLES = 5


class Record(NamedTuple):
    """A consumed record; a tombstone has neither time nor op. `appended` is Kafka's time in microseconds."""

    table: str
    key: tuple[Any, ...]
    stamp: int
    op: str
    digest: int
    partition: int
    offset: int
    appended: int


class Example(NamedTuple):
    """A problem: the journal's line (None if nothing was expected) and the record (None if none came)."""

    problem: str
    table: str
    key: tuple[Any, ...]
    line: int | None
    record: Record | None


@dataclass
class Report:
    """The verdict; `events` counts distinct delivered events, `records` all records, with tombstones and repeats."""

    events: int = 0
    records: int = 0
    tombstones: int = 0
    lost: int = 0
    duplicated: int = 0
    misordered: int = 0
    wrong: int = 0
    replayed: int = 0
    examples: list[Example] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not (self.lost or self.duplicated or self.misordered or self.wrong)

    def add(self, problem: str, table: str, key: tuple[Any, ...], line: int | None, record: Record | None) -> None:
        setattr(self, problem, getattr(self, problem) + 1)
        if sum(example.problem == problem for example in self.examples) < EXAMPLES:
            self.examples.append(Example(problem, table, key, line, record))


class _Place(NamedTuple):
    """A record that must come, or may come if the outcome of its write is unknown."""

    event: Expected
    tombstone: bool


class _Delivery(NamedTuple):
    """A record at its position in the list of its key; `place` is None for an unexpected record."""

    record: Record
    place: int | None
    again: bool


def reconcile(
    expected: Iterable[Expected], records: Iterable[Record], *, breaks: Sequence[int] = (), grown: Collection[str] = ()
) -> Report:
    """Compare; `breaks` are the times (Unix, microseconds) at which a part was killed: only then replays may come.

    The topics of `grown` tables got more partitions: a key that moved to another partition has no order.
    """
    report = Report()
    places, arrived = _places(expected), _arrived(records)
    deliveries = {key: _deliveries(places.get(key, []), of_key) for key, of_key in arrived.items()}
    for key in places.keys() | deliveries.keys():
        _check(report, key, places.get(key, []), deliveries.get(key, []), may_move=key[0] in grown)
    _check_repeats(report, deliveries, breaks)
    return report


def _places(expected: Iterable[Expected]) -> dict[Key, list[_Place]]:
    places: dict[Key, list[_Place]] = defaultdict(list)
    for event in expected:
        of_key = places[event.identity[:2]]
        of_key.append(_Place(event, tombstone=False))
        if event.tombstone:
            of_key.append(_Place(event, tombstone=True))
    return places


def _arrived(records: Iterable[Record]) -> dict[Key, list[Record]]:
    arrived: dict[Key, list[Record]] = defaultdict(list)
    for record in sorted(records, key=lambda record: (record.partition, record.offset)):
        arrived[record.table, record.key].append(record)
    return arrived


def _deliveries(places: list[_Place], records: list[Record]) -> list[_Delivery]:
    """Give every record its position: an event by its identity, a tombstone by the delete before it.

    A tombstone that does not follow its delete gets the first free position ahead, else the last free position; without
    a free position it is a further delivery of the tombstone before it.
    """
    named = {
        (place.event.identity[2], place.event.identity[3]): number
        for number, place in enumerate(places)
        if not place.tombstone
    }
    found = [named.get((record.stamp, record.op)) if record.op else None for record in records]
    taken = set(found)
    for index, record in enumerate(records):
        before = found[index - 1] if index else None
        if not record.op and before is not None and _is_free_tombstone(places, before + 1, taken):
            found[index] = before + 1
            taken.add(before + 1)
    highest = before = -1
    for index, record in enumerate(records):
        if not record.op and found[index] is None:
            found[index] = _stray_tombstone(places, taken, highest, before)
            taken.add(found[index])
        before = before if found[index] is None else found[index] or 0
        highest = max(highest, before)
    return _with_repeats(records, found)


def _is_free_tombstone(places: list[_Place], number: int, taken: set[int | None]) -> bool:
    return number < len(places) and places[number].tombstone and number not in taken


def _stray_tombstone(places: list[_Place], taken: set[int | None], highest: int, before: int) -> int | None:
    tombstones = [number for number, place in enumerate(places) if place.tombstone]
    free = [n for n in tombstones if n not in taken and (places[n].event.certain or n - 1 in taken)]
    ahead = [number for number in free if number > highest]
    passed = [number for number in tombstones if number <= before + 1 and number in taken]
    return next(iter(ahead or free[-1:] or passed[-1:]), None)


def _with_repeats(records: list[Record], found: list[int | None]) -> list[_Delivery]:
    seen: set[int] = set()
    deliveries = []
    for record, place in zip(records, found, strict=True):
        deliveries.append(_Delivery(record, place, place in seen))
        if place is not None:
            seen.add(place)
    return deliveries


def _check(report: Report, key: Key, places: list[_Place], deliveries: list[_Delivery], *, may_move: bool) -> None:
    """Count lost, wrong and misordered records in the list of a Kafka key."""
    moved = may_move and len({delivery.record.partition for delivery in deliveries}) > 1
    highest = -1
    for record, number, again in deliveries:
        report.records += 1
        if number is None:
            report.add("wrong", *key, None, record)
            continue
        event, tombstone = places[number]
        if record.op and event.digests and record.digest not in event.digests:
            report.add("wrong", *key, event.line, record)
        if not again:
            report.events += not tombstone
            report.tombstones += tombstone
            if number < highest and not moved:
                report.add("misordered", *key, event.line, record)
            highest = max(highest, number)
    came = {delivery.place for delivery in deliveries}
    for number, (event, tombstone) in enumerate(places):
        needed = event.certain or (tombstone and number - 1 in came)
        if needed and number not in came:
            report.add("lost", *key, event.line, None)


def _check_repeats(report: Report, deliveries: dict[Key, list[_Delivery]], breaks: Sequence[int]) -> None:
    """Separate replays from duplicates in each Kafka partition; within a replay each key keeps its order."""
    again = {
        (key[0], delivery.record.partition)
        for key, of_key in deliveries.items()
        for delivery in of_key
        if delivery.again
    }
    partitions: dict[tuple[str, int], list[tuple[Key, _Delivery]]] = defaultdict(list)
    for key, of_key in deliveries.items():
        for delivery in of_key:
            if (key[0], delivery.record.partition) in again:
                partitions[key[0], delivery.record.partition].append((key, delivery))
    for of_partition in partitions.values():
        of_partition.sort(key=lambda item: item[1].record.offset)
        _check_partition(report, of_partition, breaks)


def _check_partition(report: Report, deliveries: list[tuple[Key, _Delivery]], breaks: Sequence[int]) -> None:
    places = [
        (key, -index if delivery.place is None else delivery.place) for index, (key, delivery) in enumerate(deliveries)
    ]
    found = _replays(places, [delivery.record.appended for _, delivery in deliveries], breaks)
    start, highest = 0, dict[Key, int]()
    for index, (key, (record, place, again)) in enumerate(deliveries):
        if found.get(index, start) != start:
            start, highest = found[index], {}
        if place is None:
            continue
        if again and index not in found:
            report.add("duplicated", *key, None, record)
        elif again:
            report.replayed += 1
            if place < highest.get(key, -1):
                report.add("misordered", *key, None, record)
        highest[key] = max(place, highest.get(key, -1))


def _replays(places: Sequence[Hashable], appended: Sequence[int], breaks: Sequence[int]) -> dict[int, int]:
    """What at-least-once delivery may repeat after a break: the indexes of the records, each with its replay's start.

    An interrupted batch is written again as a whole. In each Kafka partition its records were the last ones before the
    break, so a replay repeats, without a gap, the records from some position up to the break; records that the second
    run writes for the first time may be between the repeated ones. Anything else is a duplicate.

    `places` says which expected record each one is, `appended` when Kafka took it, `breaks` when a part was killed.
    """
    if not breaks:
        return {}
    first_break = min(breaks)
    found: dict[int, int] = {}
    for run in _runs(places):
        start, originals = min(run), sorted(run.values())
        without_gap = originals[-1] - originals[0] == len(originals) - 1
        if without_gap and appended[start] >= first_break:
            found |= dict.fromkeys(run, start)
    return found


def _runs(places: Sequence[Hashable]) -> list[dict[int, int]]:
    """Repeats, as index -> index of the previous delivery; a repeat of a record of the same run starts a new run."""
    latest: dict[Hashable, int] = {}
    runs: list[dict[int, int]] = []
    start = 0
    for index, place in enumerate(places):
        before = latest.get(place)
        if before is not None:
            if not runs or before >= start:
                runs.append({})
                start = index
            runs[-1][index] = before
        latest[place] = index
    return runs
