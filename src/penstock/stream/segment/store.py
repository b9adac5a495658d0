"""The state of one bucket of persons in memory: the arrays of `layout`, which grow, and their copy as bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from penstock.native import Array
from penstock.stream.segment import copies, kernel, places
from penstock.stream.segment.layout import ID_HEAD, INDEXED, MOST, OUT, QUEUED, USED
from penstock.stream.segment.plan import ABSENCE, FIRST_TERM, KIND, LAST_TERM, WIDTH, Plan
from penstock.stream.segment.rules import Rule
from penstock.stream.segment.touches import Touches

COLUMNS = 5
"""Of a membership event: place of the id, rule, kind, at, until."""
TOGETHER = 4096
"""Events between two looks at the space: what each of them could need must be free."""
SMALLEST = 1024
ARRAYS = WORDS, INDEX, HEAP = 0, 1, 2


class Memory(Protocol):
    """Where the arrays of a store lie, by their places."""

    def zeros(self, place: int, length: int) -> Array:
        """An array that takes the place of the one there."""

    def longer(self, place: int, array: Array, used: int, length: int) -> Array:
        """The array with more room; what is not used takes no memory until it is."""


class Own:
    """Memory of this process."""

    def zeros(self, place: int, length: int) -> Array:
        return np.zeros(length, np.int64)

    def longer(self, place: int, array: Array, used: int, length: int) -> Array:
        new = self.zeros(place, length)
        new[:used] = array[:used]
        return new


OWN = Own()


@dataclass(frozen=True)
class Changes:
    """Membership events in the order in which they happened for each person: ids as UTF-8, kinds as in `layout`."""

    ids: list[bytes]
    rows: Array
    source: tuple[Rule, ...]


class Store:
    """The records of a bucket under one plan."""

    def __init__(self, plan: Plan, memory: Memory = OWN) -> None:
        self.plan, self.memory = plan, memory
        self.words: Array = OWN.zeros(WORDS, SMALLEST)
        self.index: Array = OWN.zeros(INDEX, 3 * SMALLEST)
        self.heap: Array = OWN.zeros(HEAP, 2 * SMALLEST)
        self.sizes: Array = np.zeros(5, np.int64)
        self.sizes[USED] = 1
        self.sizes[MOST] = _most(plan)
        self._id_head = ID_HEAD + places.marks_of(plan.rules)
        self._found = np.empty(len(plan.rules), np.int64)
        self._widest = int(plan.rules[:, WIDTH].max())

    @property
    def due(self) -> int | None:
        """When the store must be looked at again, in milliseconds; it may turn out to be too early."""
        return int(self.heap[0]) if self.sizes[QUEUED] else None

    @property
    def nbytes(self) -> int:
        """Of the records in use."""
        return int(8 * self.sizes[USED])

    def take(self, events: Touches, *, latest: int) -> Changes:
        """Put events into the records, by time; times after `latest` count as `latest`."""
        order = np.argsort(events.times, kind="stable")
        at, found = 0, [self._out(len(events.rules))]
        while at < len(order):
            stop = min(at + TOGETHER, len(order))
            self._require(events, order[at:stop])
            at = self._take(events, order, at, stop, latest, found[-1])
            if at < stop:
                self._close(found, int(np.diff(events.ends, prepend=0)[order[at]]))
        return self._all(found)

    def tick(self, clock: int) -> Changes:
        """Let happen what is due by then."""
        found = [self._out(0)]
        plan = self.plan
        arrays = self.words, self.heap, self.sizes, plan.rules, plan.terms, plan.limits, plan.program
        while not kernel.tick(*arrays, clock, found[-1]):
            self._close(found, 0)
        return self._all(found)

    def compact(self, clock: int) -> None:
        """Drop the records that no longer matter at `clock`."""
        used = int(self.sizes[USED])
        to = np.zeros(used, np.int64)
        self.fill(to[: copies.keep_alive(self.words, used, self.plan.rules, clock, to)])

    def save(self) -> bytes:
        """The records as bytes."""
        used = int(self.sizes[USED])
        return used.to_bytes(8, "little") + bytes(pa.compress(self.words[:used].tobytes(), "zstd", asbytes=True))

    def load(self, data: bytes) -> None:
        """Become what `save` gave."""
        count = int.from_bytes(data[:8], "little")
        self.fill(np.frombuffer(pa.decompress(data[8:], 8 * count, "zstd"), np.int64))

    def fill(self, words: Array) -> None:
        """Become the records that stand in `words`."""
        self.words = self.memory.zeros(WORDS, _power(max(len(words), SMALLEST)))
        self.words[: len(words)] = words
        self.sizes[USED] = len(words)
        least = -(-len(words) // ID_HEAD)
        self.index = self.memory.zeros(INDEX, 3 * _power(max(2 * least, SMALLEST)))
        self.heap = self.memory.zeros(HEAP, 2 * _power(max(least, SMALLEST)))
        places.rebuild(self.words, self.index, self.heap, self.sizes)

    def move(self, memory: Memory) -> None:
        """Lie in this memory from now on."""
        if memory is self.memory:
            return
        self.memory = memory
        self.words = self._moved(WORDS, self.words, int(self.sizes[USED]))
        self.index = self._moved(INDEX, self.index, len(self.index))
        self.heap = self._moved(HEAP, self.heap, 2 * int(self.sizes[QUEUED]))

    def records(self) -> tuple[list[bytes], Array]:
        """Of all records the ids, and the columns place of the id, rule, member until, last time, due; zero is none."""
        rows = np.empty((int(self.sizes[INDEXED]), COLUMNS), np.int64)
        rows = rows[: copies.listed(self.words, int(self.sizes[USED]), rows)]
        return self._ids(rows), rows

    def _moved(self, place: int, array: Array, used: int) -> Array:
        new = self.memory.zeros(place, len(array))
        new[:used] = array[:used]
        return new

    def _take(self, events: Touches, order: Array, at: int, stop: int, latest: int, out: Array) -> int:
        plan = self.plan
        own = self.words, self.index, self.heap, self.sizes, plan.rules, plan.terms, plan.limits, plan.program
        given = events.keys, events.times, events.offsets, events.ids, events.ends, events.rules, events.masks
        return int(kernel.take(*own, *given, events.values, order, at, stop, latest, self._found, out))

    def _require(self, events: Touches, rows: Array) -> None:
        """Room for what these events can add at most."""
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
            places.rehash(old, self.index)

    def _out(self, touches: int) -> Array:
        rows = max(SMALLEST, touches) + int(self.sizes[MOST])
        return np.empty((rows, COLUMNS), np.int64)

    def _close(self, found: list[Array], touches: int) -> None:
        """The output is full: keep it, and go on with a larger one."""
        found[-1] = found[-1][: self.sizes[OUT]]
        self.sizes[OUT] = 0
        found.append(self._out(max(2 * len(found[-1]), touches * int(self.sizes[MOST]))))

    def _all(self, found: list[Array]) -> Changes:
        found[-1] = found[-1][: self.sizes[OUT]]
        self.sizes[OUT] = 0
        return self.changes(np.concatenate(found))

    def changes(self, rows: Array) -> Changes:
        """Rows of output with the ids to which they point."""
        return Changes(self._ids(rows), rows, self.plan.source)

    def _ids(self, rows: Array) -> list[bytes]:
        text = self.words.view(np.uint8)
        starts, sizes = 8 * (rows[:, 0] + self._id_head), self.words[rows[:, 0] + 3]
        spans = zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
        return [text[start:stop].tobytes() for start, stop in spans]


def _most(plan: Plan) -> int:
    """The membership events that one touch or tick can cause for a record."""
    absences = [int((plan.terms[rule[FIRST_TERM] : rule[LAST_TERM], KIND] == ABSENCE).sum()) for rule in plan.rules]
    return 4 + 6 * max(absences)


def _power(number: int) -> int:
    """The power of two that is at least this."""
    return 1 << max(1, number - 1).bit_length()
