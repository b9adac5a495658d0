"""The state of one bucket of persons in memory: the growing arrays of `rule_plan`, and their copy as bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.native import Array
from penstock.native.jit import copy, uncounted
from penstock.native.shared_memory import Slot
from penstock.segment import record_kernel
from penstock.segment.event_packing import Touches
from penstock.segment.record_kernel import EventColumns, RecordArrays, Rules, marks_of
from penstock.segment.rule_definitions import Rule
from penstock.segment.rule_plan import (
    ABSENCE,
    DUE,
    FIRST_TERM,
    HEAD,
    ID_BYTES,
    ID_HEAD,
    ID_MOVED,
    INDEXED,
    KEEP,
    KIND,
    LAST,
    LAST_TERM,
    LEAVE,
    MARKED,
    MOST,
    OUT,
    PERSON,
    QUEUED,
    RULE,
    UNTIL,
    USED,
    WIDTH,
    RulePlan,
)

WORD = 8
"""Bytes."""
GONE, CARRIED, SAME = 0, 1, 2
"""What happens to the records of a rule."""
COLUMNS = 5
"""Columns of a membership event: position of the id, rule, kind, at, until."""
TOGETHER = 4096
"""Events between two checks for free space, which must be enough for all of them."""
SMALLEST = 1024
ARRAYS = WORDS, INDEX, HEAP = 0, 1, 2


class Own:
    """Memory of this process only, with the functions of `shared_memory.Slot`."""

    def zeros(self, place: int, length: int) -> Array:
        return np.zeros(length, np.int64)

    def longer(self, place: int, array: Array, used: int, length: int) -> Array:
        new = self.zeros(place, length)
        new[:used] = array[:used]
        return new


OWN = Own()


@dataclass(frozen=True)
class MembershipChanges:
    """Membership events, in order for each person: ids as UTF-8, kinds as in `rule_plan`."""

    ids: list[bytes]
    rows: Array
    source: tuple[Rule, ...]


class RecordStore:
    """The records of a bucket under one plan."""

    def __init__(self, plan: RulePlan, memory: Own | Slot = OWN) -> None:
        self.plan, self.memory = plan, memory
        self.words: Array = OWN.zeros(WORDS, SMALLEST)
        self.index: Array = OWN.zeros(INDEX, 3 * SMALLEST)
        self.heap: Array = OWN.zeros(HEAP, 2 * SMALLEST)
        self.sizes: Array = np.zeros(5, np.int64)
        self.sizes[USED] = 1
        self.sizes[MOST] = _most(plan)
        self._id_head = ID_HEAD + record_kernel.marks_of(plan.rules)
        self._offsets = np.empty(len(plan.rules), np.int64)
        self._widest = int(plan.rules[:, WIDTH].max())

    @property
    def due(self) -> int | None:
        """When to call `tick` next, in milliseconds; it may be too early."""
        return int(self.heap[0]) if self.sizes[QUEUED] else None

    @property
    def nbytes(self) -> int:
        """Bytes of the records in use."""
        return int(8 * self.sizes[USED])

    def take(self, events: Touches, *, latest: int) -> MembershipChanges:
        """Apply events to the records in the order of time; times after `latest` count as `latest`."""
        order = np.argsort(events.times, kind="stable")
        at, outputs = 0, [self._out(len(events.rules))]
        while at < len(order):
            stop = min(at + TOGETHER, len(order))
            self._require(events, order[at:stop])
            at = self._take(events, order, at, stop, latest, outputs[-1])
            if at < stop:
                self._close(outputs, int(np.diff(events.ends, prepend=0)[order[at]]))
        return self._all(outputs)

    def tick(self, clock: int) -> MembershipChanges:
        """Apply what is due by `clock`."""
        outputs = [self._out(0)]
        plan = self.plan
        arrays = self.words, self.heap, self.sizes, plan.rules, plan.terms, plan.limits, plan.program
        while not record_kernel.tick(*arrays, clock, outputs[-1]):
            self._close(outputs, 0)
        return self._all(outputs)

    def compact(self, clock: int) -> None:
        """Drop the records that no longer matter at `clock`."""
        used = int(self.sizes[USED])
        to = np.zeros(used, np.int64)
        self.fill(to[: keep_alive(self.words, used, self.plan.rules, clock, to)])

    def save(self) -> bytes:
        """The records as bytes."""
        used = int(self.sizes[USED])
        return used.to_bytes(8, "little") + bytes(pa.compress(self.words[:used].tobytes(), "zstd", asbytes=True))

    def load(self, data: bytes) -> None:
        """Replace the records by those that `save` returned."""
        count = int.from_bytes(data[:8], "little")
        self.fill(np.frombuffer(pa.decompress(data[8:], 8 * count, "zstd"), np.int64))

    def fill(self, words: Array) -> None:
        """Replace the records by those in `words`."""
        self.words = self.memory.zeros(WORDS, _power(max(len(words), SMALLEST)))
        self.words[: len(words)] = words
        self.sizes[USED], self.sizes[INDEXED] = len(words), -(-len(words) // ID_HEAD)
        self.reindex()

    def reindex(self) -> None:
        """Make index and heap anew from the records, of which there are at most `INDEXED`."""
        most = int(self.sizes[INDEXED])
        self.index = self.memory.zeros(INDEX, 3 * _power(max(2 * most, SMALLEST)))
        self.heap = self.memory.zeros(HEAP, 2 * _power(max(most, SMALLEST)))
        record_kernel.rebuild(self.words, self.index, self.heap, self.sizes)

    def move(self, memory: Own | Slot) -> None:
        """Move the arrays to this memory."""
        if memory is self.memory:
            return
        self.memory = memory
        self.words = self._moved(WORDS, self.words, int(self.sizes[USED]))
        self.index = self._moved(INDEX, self.index, len(self.index))
        self.heap = self._moved(HEAP, self.heap, 2 * int(self.sizes[QUEUED]))

    def records(self) -> tuple[list[bytes], Array]:
        """The ids of all records, and the columns position of the id, rule, member until, last time, due; 0: none."""
        rows = np.empty((int(self.sizes[INDEXED]), COLUMNS), np.int64)
        rows = rows[: listed(self.words, int(self.sizes[USED]), rows)]
        return self._ids(rows), rows

    def _moved(self, place: int, array: Array, used: int) -> Array:
        new = self.memory.zeros(place, len(array))
        new[:used] = array[:used]
        return new

    def _take(self, events: Touches, order: Array, at: int, stop: int, latest: int, out: Array) -> int:
        plan = self.plan
        records = RecordArrays(self.words, self.index, self.heap, self.sizes)
        rules = Rules(plan.rules, plan.terms, plan.limits, plan.program)
        arrays = events.keys, events.times, events.offsets, events.ids, events.ends, events.rules, events.masks
        columns = EventColumns(*arrays, events.values, order)
        return int(record_kernel.take(records, rules, columns, at, stop, latest, self._offsets, out))

    def _require(self, events: Touches, rows: Array) -> None:
        """Make room for the most that these events can add."""
        counts = np.diff(events.ends, prepend=0)[rows]
        touches = int(counts.sum())
        text = int((events.offsets[rows + 1] - events.offsets[rows]).sum())
        words = len(rows) * (self._id_head + 1) + text // 8 + touches * self._widest
        if self.sizes[USED] + words > len(self.words):
            used = int(self.sizes[USED])
            self.words = self.memory.longer(WORDS, self.words, used, _power(used + words))
        if 2 * self.sizes[QUEUED] + 2 * touches > len(self.heap):
            used = 2 * int(self.sizes[QUEUED])
            self.heap = self.memory.longer(HEAP, self.heap, used, _power(used + 2 * touches))
        if 2 * (self.sizes[INDEXED] + touches + len(rows)) > len(self.index) // 3:
            entries = 2 * (int(self.sizes[INDEXED]) + touches + len(rows))
            old = self.index.copy()
            self.index = self.memory.zeros(INDEX, 3 * _power(entries))
            record_kernel.rehash(old, self.index)

    def _out(self, touches: int) -> Array:
        rows = max(SMALLEST, touches) + int(self.sizes[MOST])
        return np.empty((rows, COLUMNS), np.int64)

    def _close(self, outputs: list[Array], touches: int) -> None:
        """Keep the full output, and continue with a larger one."""
        outputs[-1] = outputs[-1][: self.sizes[OUT]]
        self.sizes[OUT] = 0
        outputs.append(self._out(max(2 * len(outputs[-1]), touches * int(self.sizes[MOST]))))

    def _all(self, outputs: list[Array]) -> MembershipChanges:
        outputs[-1] = outputs[-1][: self.sizes[OUT]]
        self.sizes[OUT] = 0
        return self.changes(np.concatenate(outputs))

    def changes(self, rows: Array) -> MembershipChanges:
        """Rows of output with their ids."""
        return MembershipChanges(self._ids(rows), rows, self.plan.source)

    def _ids(self, rows: Array) -> list[bytes]:
        text = self.words.view(np.uint8)
        starts, sizes = 8 * (rows[:, 0] + self._id_head), self.words[rows[:, 0] + ID_BYTES]
        spans = zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
        return [text[start:stop].tobytes() for start, stop in spans]


def _most(plan: RulePlan) -> int:
    """The membership events that one touch or tick can cause for a record."""
    absences = [int((plan.terms[rule[FIRST_TERM] : rule[LAST_TERM], KIND] == ABSENCE).sum()) for rule in plan.rules]
    return 4 + 6 * max(absences)


def _power(number: int) -> int:
    """The power of two that is at least this."""
    return 1 << max(1, number - 1).bit_length()


# Copies records to other words: those still needed, or under other rules; and lists them (see `rule_plan`).


@uncounted
def with_id(words: Array, person: int, marks: int, to: Array, end: int, new_marks: int) -> Any:
    """Copy a person's id, without marks, unless it was copied already; returns where the copy ends."""
    if words[person + ID_MOVED]:
        return end
    text, new_text = person + ID_HEAD + marks, end + ID_HEAD + new_marks
    size = words[person] - ID_HEAD - marks
    words[person + ID_MOVED] = end
    copy(to, end, words, person, WORD * ID_HEAD)
    to[end], to[end + ID_MOVED] = ID_HEAD + new_marks + size, 0
    to[end + ID_HEAD : new_text] = 0
    copy(to, new_text, words, text, WORD * size)
    return new_text + size


@uncounted
def mark(to: Array, person: int, rule: int) -> None:
    """Mark in a person's id that there is a record for the rule."""
    to[person + ID_HEAD + rule // MARKED] |= np.int64(1) << (rule % MARKED)


@uncounted
def keep_alive(words: Array, used: int, rules: Array, clock: int, to: Array) -> int:
    """Copy the records still needed, and their ids; returns where the copy ends. Sets the new positions of the ids in
    `words`."""
    o, end, marks = 1, 1, marks_of(rules)
    while o < used:
        rule = words[o + RULE]
        if rule >= 0 and (words[o + UNTIL] or words[o + DUE] or words[o + LAST] + rules[rule, KEEP] > clock):
            person = words[o + PERSON]
            end = with_id(words, person, marks, to, end, marks)
            copy(to, end, words, o, WORD * words[o])
            to[end + PERSON] = words[person + ID_MOVED]
            mark(to, to[end + PERSON], rule)
            end += words[o]
        o += words[o]
    return end


@uncounted
def move(
    words: Array, used: int, new_of: Array, how: Array, rules: Array, clock: int, to: Array, out: Array
) -> tuple[int, int]:
    """Copy records with their new rules; returns where the copy ends, and how many members left."""
    o, end, left, marks, new_marks = 1, 1, 0, marks_of(how), marks_of(rules)
    while o < used:
        rule = words[o + RULE]
        if rule >= 0 and how[rule] == GONE and words[o + UNTIL]:
            out[left, 0], out[left, 1], out[left, 2] = words[o + PERSON], rule, LEAVE
            out[left, 3], out[left, 4] = max(clock, words[o + LAST]), words[o + UNTIL]
            left += 1
        if rule >= 0 and (how[rule] == SAME or (how[rule] == CARRIED and words[o + UNTIL])):
            person = words[o + PERSON]
            end = with_id(words, person, marks, to, end, new_marks)
            width = rules[new_of[rule], WIDTH]
            copied = width if how[rule] == SAME else HEAD
            to[end : end + width] = 0
            copy(to, end, words, o, WORD * copied)
            to[end], to[end + RULE], to[end + PERSON] = width, new_of[rule], words[person + ID_MOVED]
            mark(to, to[end + PERSON], new_of[rule])
            if how[rule] == CARRIED:
                to[end + DUE] = words[o + UNTIL]
            end += width
        o += words[o]
    return end, left


@uncounted
def listed(words: Array, used: int, out: Array) -> int:
    """Write position of the id, rule, member until, last time and due of each record to `out`; returns their number."""
    o, row = 1, 0
    while o < used:
        if words[o + RULE] >= 0:
            out[row, 0], out[row, 1] = words[o + PERSON], words[o + RULE]
            out[row, 2], out[row, 3], out[row, 4] = words[o + UNTIL], words[o + LAST], words[o + DUE]
            row += 1
        o += words[o]
    return row


# Records made under other rules.
#
# A rule with the same name and digest keeps its records. A rule with the same name but another digest keeps its members
# until their time is over, and counts from zero. The members of a removed rule leave.


def migrated(old: RecordStore, plan: RulePlan, clock: int) -> tuple[RecordStore, MembershipChanges]:
    """A store under `plan` with the records of `old`, and a leave event for each member of a removed rule."""
    by_digest = {(rule.digest, rule.name): i for i, rule in enumerate(plan.source)}
    by_name = {rule.name: i for i, rule in enumerate(plan.source)}
    new_of, how = [], []
    for rule in old.plan.source:
        same = by_digest.get((rule.digest, rule.name))
        carried = by_name.get(rule.name)
        new_of.append(same if same is not None else carried if carried is not None else -1)
        how.append(SAME if same is not None else CARRIED if carried is not None else GONE)
    used = int(old.sizes[USED])
    to = np.zeros(used * 2 + len(plan.rules) * int(plan.rules[:, WIDTH].max()) + _room(old, plan), np.int64)
    out = np.empty((int(old.sizes[INDEXED]) + 1, COLUMNS), np.int64)
    end, left = move(old.words, used, np.array(new_of), np.array(how), plan.rules, clock, to, out)
    changes = old.changes(out[:left])
    store = RecordStore(plan)
    store.fill(to[:end])
    return store, changes


def _room(old: RecordStore, plan: RulePlan) -> int:
    """Additional words that carried records and ids can need."""
    return int(old.sizes[INDEXED]) * int(plan.rules[:, WIDTH].max() + marks_of(plan.rules))
