"""The stage with the state: one key for each bucket of persons, whose records live in the workers' memory.

For each bucket Spark keeps a snapshot of its records and a log of later entries: the packed events as they are, and the
clock. A batch appends one entry. A worker that holds the records after entry n only replays the entries after n. Each
entry has a random token and that of the entry before. The tokens show whether the records of a worker belong to this
history, so that a repeated batch, another worker or a restart find the right state. When the log outgrows the snapshot,
a new snapshot replaces both, except for a mark of it and the last entries before: Spark gives a bucket to any of its
workers, and a worker that missed these entries replays them instead of rebuilding all records.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from penstock.errors import PenstockError
from penstock.keyed_state import description
from penstock.native import shared_memory
from penstock.segment.event_packing import joined, unpack
from penstock.segment.record_store import ARRAYS, WORDS, MembershipChanges, RecordStore, migrated
from penstock.segment.rule_definitions import Rule, spec
from penstock.segment.rule_files import rule_of
from penstock.segment.rule_plan import ENTER, LAYOUT, PROLONG, USED, RulePlan, plan

_TOKEN, _LAST, _RULES, _SIZES = 1, 2, slice(3, 7), slice(7, 12)
"""Positions in the notes of a slot."""
SCHEMA = "changes binary"
HEAD = "first long, next long, token long, timer long, rules string, logged long, kept long"
ENTRY = "previous long, token long, clock long, latest long, rules binary, data binary"
FAR = 1 << 60
LOG_BYTES = 1 << 20
"""Maximum length of a log, or the length of the snapshot if that is longer."""
LOG_ENTRIES = 4096
SNAPSHOT = -1
"""The entry number of the snapshot; its position in the log has a mark."""
REACH = 8
"""Entries before a snapshot that stay in the log."""


@dataclass(frozen=True)
class Head:
    """The position of a bucket's log: entry `first` marks the snapshot, `next` is the next to write; sizes in bytes."""

    first: int = 0
    next: int = 0
    token: int = 0
    timer: int = 0
    rules: str = ""
    logged: int = 0
    kept: int = 0


class Entry(NamedTuple):
    """The events of a batch; or the mark of a snapshot, where the records were compacted, with the digest of its rules;
    or the snapshot, with the rules and the token of its mark."""

    previous: int
    token: int
    clock: int
    latest: int
    rules: bytes | None
    data: bytes


class Segments(StatefulProcessor):
    """Takes the touches of a bucket, returns membership events; `late` is in milliseconds; with `by_events` the time is
    the watermark."""

    def __init__(self, plan: RulePlan, name: str, buckets: int, late: int, by_events: bool) -> None:
        self.plan, self.name, self.buckets, self.late, self.by_events = plan, name, buckets, late, by_events
        self.rules = hashlib.sha256(_as_text(plan).encode()).hexdigest()

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle, self.query = handle, shared_memory.query()
        self.head = handle.getValueState(self.name + description.HEAD, HEAD)
        self.log = handle.getMapState(self.name + description.SEGMENTS, "number long", ENTRY)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        return self._step(key[0], [bytes(row.events) for row in rows], timerValues, fired=False)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        return self._step(key[0], [], timerValues, fired=True)

    def close(self) -> None:
        pass

    def _step(self, bucket: int, parts: Sequence[bytes], timer_values: Any, fired: bool) -> Iterator[Row]:
        if self.by_events:
            now = timer_values.getCurrentWatermarkInMs()
            clock, latest = now, FAR
        else:
            now = timer_values.getCurrentProcessingTimeInMs()
            clock, latest = now - self.late, now
        with place(f"{self.query}/{self.name}/{bucket}", self.plan, self.rules) as own:
            head, own.kept, changes = self._stepped(own.kept, parts, clock, latest)
            head = self._timed(head, own.kept.store.due, now, fired)
            self.head.update(tuple(asdict(head).values()))
        if data := as_bytes(changes, None if self.by_events else now):
            yield Row(changes=data)

    def _stepped(
        self, held: Held | None, parts: Sequence[bytes], clock: int, latest: int
    ) -> tuple[Head, Held, list[MembershipChanges]]:
        """The records after a batch, and what it changed."""
        head = Head(*(self.head.get() or ()))
        held, changes = self._current(head, held), []
        if held.rules != self.rules:
            held.store, left = migrated(held.store, self.plan, clock)
            held.rules = self.rules
            changes.append(left)
            head = self._snapshot(head, held, clock)
        changes += _apply(held.store, parts, clock, latest)
        head = self._logged(head, held, parts, clock, latest)
        if head.logged > max(LOG_BYTES, head.kept) or head.next - head.first > LOG_ENTRIES:
            held.store.compact(clock)
            head = self._snapshot(head, held, clock)
        return head, held, changes

    def _current(self, head: Head, held: Held | None) -> Held:
        """The records as the state has them: those held, brought up to date, or rebuilt."""
        if head.next == 0:
            return Held(RecordStore(self.plan), -1, 0, self.rules)
        if held and held.token == head.token:
            return held
        missed = self._missed(head, held) if held else None
        if held is None or missed is None:
            store = replayed(map(self._entry, (SNAPSHOT, *range(head.first, head.next))))
            return Held(store, head.next - 1, head.token, head.rules)
        _replay(held.store, missed)
        held.last, held.token = head.next - 1, head.token
        return held

    def _missed(self, head: Head, held: Held) -> list[Entry] | None:
        """The entries that a worker missed; None if the log does not have them all, or if rules changed in between."""
        number = held.last + 1
        first = self.log.getValue((number,)) if number < head.next else None
        if first is None or Entry(*first).previous != held.token:
            return None
        entries = [Entry(*first), *map(self._entry, range(number + 1, head.next))]
        others = any(entry.rules is not None and bytes(entry.rules) != held.rules.encode() for entry in entries)
        return None if others else entries

    def _entry(self, number: int) -> Entry:
        values = self.log.getValue((number,))
        assert values, f"entry {number} of the log"
        return Entry(*values)

    def _snapshot(self, head: Head, held: Held, clock: int) -> Head:
        """Replace the log by the records, except for its last entries."""
        rules, data = _described(held.store.plan, self.buckets), held.store.save()
        for number in range(max(head.first - REACH, 0), head.next - REACH):
            self.log.removeKey((number,))
        head = replace(head, first=head.next, logged=0, kept=len(data), rules=held.rules)
        head = self._append(head, held, (clock, 0, held.rules.encode(), b""))
        self.log.updateValue((SNAPSHOT,), (head.token, head.token, clock, 0, rules, data))
        return head

    def _logged(self, head: Head, held: Held, parts: Sequence[bytes], clock: int, latest: int) -> Head:
        """Append the events of a batch; before the first entry of a bucket, an empty snapshot."""
        if head.next == 0:
            empty = Held(RecordStore(self.plan), -1, 0, self.rules)
            head = self._snapshot(head, empty, clock)
        data = _joined(parts)
        head = self._append(head, held, (clock, latest, None, data))
        return replace(head, logged=head.logged + len(data))

    def _append(self, head: Head, held: Held, content: tuple[int, int, bytes | None, bytes]) -> Head:
        token = secrets.randbits(62) + 1
        self.log.updateValue((head.next,), (head.token, token, *content))
        held.last, held.token = head.next, token
        return replace(head, next=head.next + 1, token=token)

    def _timed(self, head: Head, due: int | None, now: int, fired: bool) -> Head:
        """Set a timer for when something is due; an early timer does no harm."""
        timer = 0 if fired else head.timer
        wanted = 0 if due is None else max(due + self.late, now) + 1
        if timer and (timer <= now or (wanted and wanted < timer)):
            self.handle.deleteTimer(timer)
            timer = 0
        if not timer and wanted:
            self.handle.registerTimer(wanted)
            timer = wanted
        return replace(head, timer=timer)


def replayed(log: Iterable[Entry]) -> RecordStore:
    """The records from a log: the snapshot is first, and the entries after its mark apply to it."""
    entries = iter(log)
    snapshot = next(entries)
    next(entry for entry in entries if entry.token == snapshot.token)
    rules, _ = described(snapshot)
    store = RecordStore(plan(rules))
    store.load(snapshot.data)
    _replay(store, entries)
    return store


def described(snapshot: Entry) -> tuple[list[Rule], int]:
    """The rules of a snapshot, and the number of buckets."""
    description = json.loads(zlib.decompress(snapshot.rules or b""))
    if description.get("layout") != LAYOUT:
        raise PenstockError(
            "an earlier build wrote this state, in a layout that this build cannot read",
            where="the checkpoint of segment.match",
            next="start the query with a new checkpoint",
        )
    return [rule_of(rule, "the state") for rule in description["rules"]], description["buckets"]


def _described(plan: RulePlan, buckets: int) -> bytes:
    return zlib.compress(f'{{"layout": {LAYOUT}, "buckets": {buckets}, "rules": {_as_text(plan)}}}'.encode())


def _replay(store: RecordStore, entries: Iterable[Entry]) -> None:
    for entry in entries:
        if entry.rules is None:
            _apply(store, _parts(entry.data), entry.clock, entry.latest)
        else:
            store.compact(entry.clock)


def _as_text(plan: RulePlan) -> str:
    return json.dumps([spec(rule) for rule in plan.source])


def _apply(store: RecordStore, parts: Sequence[bytes], clock: int, latest: int) -> list[MembershipChanges]:
    """Apply events, then the clock."""
    taken = [store.take(joined([unpack(part) for part in parts]), latest=latest)] if parts else []
    return [*taken, store.tick(clock)]


def _joined(parts: Sequence[bytes]) -> bytes:
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def _parts(data: bytes) -> list[bytes]:
    parts, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 8], "little")
        parts.append(data[at + 8 : at + 8 + size])
        at += 8 + size
    return parts


# What workers hold between batches: the records of a bucket, in memory shared by an executor's workers.


@dataclass
class Held:
    """The records of a bucket after entry `last` of its log, with that entry's token and the digest of their rules."""

    store: RecordStore
    last: int
    token: int
    rules: str


def place(name: str, plan: RulePlan, rules: str) -> AbstractContextManager[shared_memory.SharedValue[Held]]:
    """The slot of a bucket of records (see `shared_memory.place`); `rules` is the digest of the plan's rules."""

    def take(slot: shared_memory.Slot) -> Held | None:
        notes = slot.notes
        # Records under other rules are read from the log, which has those rules.
        if notes[_RULES].tobytes() != bytes.fromhex(rules):
            return None
        store = RecordStore(plan, slot)
        store.words, store.index, store.heap = map(slot.array, ARRAYS)
        store.sizes[:] = notes[_SIZES]
        if not len(store.index):
            store.reindex()
        return Held(store, int(notes[_LAST]), int(notes[_TOKEN]), rules)

    return shared_memory.place(name, shared_memory.Form(take, _put, lambda held: held.store.nbytes))


def _put(slot: shared_memory.Slot, held: Held) -> None:
    held.store.move(slot)
    notes = slot.notes
    notes[_LAST], notes[_TOKEN], notes[_SIZES] = held.last, held.token, held.store.sizes
    notes[_RULES] = np.frombuffer(bytes.fromhex(held.rules), np.int64)
    # Index and heap are made faster than they are compressed.
    slot.needed[:] = 0
    slot.needed[WORDS] = held.store.sizes[USED]


# Membership events on their way out of the stage: packed as bytes, then rows again.

MEMBERSHIP = "person string, segment string, event string, at timestamp, until timestamp, ttl int, `to` string"
KINDS = pa.array([None, "enter", "prolong", "leave", "expire"])
_TIME = pa.timestamp("us", "UTC")
_EVENTS = pa.schema(
    {
        "person": pa.string(),
        "segment": pa.string(),
        "event": pa.string(),
        "at": _TIME,
        "until": _TIME,
        "ttl": pa.int32(),
        "to": pa.string(),
    }
)
_SECOND = 1000


def as_bytes(changes: Sequence[MembershipChanges], now: int | None) -> bytes | None:
    """The events as an Arrow stream, None if there are none; `ttl` counts from `now` or, if None, from the event's
    time."""
    batches = [_batch(some, now) for some in changes if len(some.rows)]
    if not batches:
        return None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _EVENTS, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Unpack the events; for `mapInArrow` with `MEMBERSHIP`."""
    for batch in batches:
        for piece in batch.column(0):
            yield from pa.ipc.open_stream(piece.as_buffer())


def _batch(changes: MembershipChanges, now: int | None) -> pa.RecordBatch:
    _, rule, kind, at, until = changes.rows.T
    member = (kind == ENTER) | (kind == PROLONG)
    left = until - (at if now is None else now)
    names = pa.array([rule.name for rule in changes.source])
    topics = pa.array([rule.to for rule in changes.source])
    columns = [
        pa.array(changes.ids, pa.binary()).cast(pa.string()),
        names.take(pa.array(rule)),
        KINDS.take(pa.array(kind)),
        _times(at),
        _times(until),
        pa.array(np.where(member, np.maximum(1, -(-left // _SECOND)), 0).astype(np.int32)),
        topics.take(pa.array(rule)),
    ]
    return pa.record_batch(columns, schema=_EVENTS)


def _times(ms: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> pa.Array:
    return pa.array(ms * 1000, pa.int64()).cast(_TIME)
