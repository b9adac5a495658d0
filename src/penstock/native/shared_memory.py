"""Memory that the Python workers of an executor share: growing arrays of 64-bit words, three for each name.

Spark gives a piece of state to any worker of an executor. If each worker kept its own copy, it would have to apply
every change of all pieces, and hold all of them. The daemon that forks the workers makes an anonymous file and maps all
of it before the first fork. The file ends with the last worker, and takes memory only for pages that were written. Each
name has a slot in it, which one worker holds at a time. A system without such files has no slots, and workers keep
their own state.

The memory is bounded (`memory_bound`). A value that does not fit goes to disk until it is asked for again. Values are
only copies of what Spark has in its state: one that cannot be kept is forgotten, and its user makes it again.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import mmap
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from pyspark import TaskContext

from penstock.native import Array, memory_bound
from penstock.native.spill_files import SpillFiles

T = TypeVar("T")
_LOG = logging.getLogger(__name__)

SLOTS = 1024
ARRAYS = 3
LONGEST = 1 << 31
"""Most words of an array, 16 GB: addresses are reserved for all of them, memory is not."""
NOTES = 16
"""Words of a slot that its user may set; zero at first."""
_HEAD = 32
_NAME, _USED_AT, _LENGTHS, _NEEDED = slice(0, 2), 2, slice(3, 3 + ARRAYS), slice(6, 6 + ARRAYS)
_ON_DISK, _TURN, _NOTES = 9, 10, slice(16, 16 + NOTES)
_FIRST = SLOTS * _HEAD
_PAGE = mmap.PAGESIZE
IDLE = 600.0
"""Seconds after which the memory of an unused slot is freed."""
_SWEEP = 60.0
QUERY = "sql.streaming.queryId"
"""The property of a task with the query's id, as in its checkpoint."""


@dataclass(frozen=True)
class SharedMemory:
    """All slots: their heads come first, then the arrays.

    `locks` is a separate file: a process that closes any descriptor of a file loses its locks on that file. Values take
    at most `bound` bytes; those that tasks work on come on top.
    """

    mapped: mmap.mmap
    words: Array
    locks: int
    bound: int
    files: SpillFiles

    @classmethod
    def make(cls) -> SharedMemory | None:
        """None if the system has no such files, or cannot reserve that many addresses."""
        size = 8 * (_FIRST + SLOTS * ARRAYS * LONGEST)
        try:
            file, locks = os.memfd_create("penstock"), os.memfd_create("penstock-locks")
            os.ftruncate(file, size)
            mapped = mmap.mmap(file, size)
        except (AttributeError, OSError):
            return None
        os.close(file)
        return cls(mapped, np.frombuffer(mapped, np.int64), locks, memory_bound.of_executor(), SpillFiles.of_worker())

    @property
    def heads(self) -> Array:
        """The heads of the slots, one row each."""
        return self.words[:_FIRST].reshape(SLOTS, _HEAD)

    @property
    def full(self) -> bool:
        """Whether values in memory take more than the bound."""
        heads = self.heads
        return int(8 * heads[heads[:, _ON_DISK] == 0, _LENGTHS].sum()) > self.bound


@dataclass(frozen=True)
class Slot:
    """The slot of one name; valid only while it is held. It was held before at `turn`."""

    memory: SharedMemory
    number: int
    turn: int = 0

    @property
    def notes(self) -> Array:
        return self._head[_NOTES]

    @property
    def needed(self) -> Array:
        """The words of each array that the next user needs: all of them, unless this one sets fewer.

        When the memory is full, an array of which nothing is needed gets the length 0.
        """
        return self._head[_NEEDED]

    def array(self, place: int) -> Array:
        """The array as its last user left it."""
        return self._array(place, int(self._head[_LENGTHS][place]))

    def zeros(self, place: int, length: int) -> Array:
        """A new array of zeros; the memory of the old array is freed."""
        self._forget(place)
        return self.longer(place, np.empty(0, np.int64), 0, length)

    def longer(self, place: int, array: Array, used: int, length: int) -> Array:
        """The same array, grown in place to `length` words; `used` words of it count."""
        if length > LONGEST:
            raise MemoryError(f"one bucket needs {8 * length} bytes, more than {8 * LONGEST}: use more buckets")
        self._head[_LENGTHS][place] = self.needed[place] = length
        return self._array(place, length)

    @property
    def _head(self) -> Array:
        head: Array = self.memory.heads[self.number]
        return head

    def _array(self, place: int, length: int) -> Array:
        first = _FIRST + (self.number * ARRAYS + place) * LONGEST
        return self.memory.words[first : first + length]

    def _forget(self, place: int) -> None:
        self._free(place)
        self._head[_LENGTHS][place] = self.needed[place] = 0

    def _free(self, place: int) -> None:
        """Give the pages of an array back, which then has zeros."""
        if size := -(-8 * int(self._head[_LENGTHS][place]) // _PAGE) * _PAGE:
            start = 8 * (_FIRST + (self.number * ARRAYS + place) * LONGEST)
            self.memory.mapped.madvise(mmap.MADV_REMOVE, start, size)

    def _clear(self) -> None:
        self._empty()
        self._head[:] = 0

    def _empty(self) -> None:
        """Forget the value, but not whose slot this is."""
        for place in range(ARRAYS):
            self._forget(place)
        self.memory.files.remove(self.number)
        self._head[_ON_DISK] = False
        self.notes[:] = 0

    def _trim(self) -> None:
        """Forget the arrays of which nothing is needed."""
        for place in np.flatnonzero(self.needed == 0).tolist():
            self._forget(place)

    def _to_disk(self) -> None:
        if not self.notes[0]:
            # Its last user failed.
            self._empty()
            return
        self._trim()
        arrays = [self._array(place, int(words)) for place, words in enumerate(self.needed)]
        try:
            self.memory.files.write(self.number, arrays)
        except OSError as problem:
            self._lost("written to", problem)
            return
        # A worker may be killed between any two lines here: until the memory has all, the file counts.
        self._head[_ON_DISK] = True
        for place in range(ARRAYS):
            self._free(place)

    def _from_disk(self) -> None:
        try:
            self.memory.files.read(self.number, [self._array(place, int(n)) for place, n in enumerate(self.needed)])
        except OSError as problem:
            self._lost("read from", problem)
        self._head[_ON_DISK] = False
        self.memory.files.remove(self.number)

    def _lost(self, verb: str, problem: OSError) -> None:
        """Nothing but time is lost: Spark has the value in its state."""
        _LOG.warning("state cannot be %s %s: %s; it is made again, slowly", verb, self.memory.files.folder, problem)
        self._empty()


@dataclass
class SharedValue(Generic[T]):
    """The value under a name; change it in place, or replace it."""

    kept: T | None


@dataclass(frozen=True)
class Form(Generic[T]):
    """How a value is kept: `take` reads from a slot what `put` wrote, None if it does not fit the caller; `put` may say
    what is `needed` of the slot's arrays. Without slots, `size` is what the value takes in bytes.
    """

    take: Callable[[Slot], T | None]
    put: Callable[[Slot, T], None]
    size: Callable[[T], int]


_MEMORY: SharedMemory | None = None
_OWN: dict[str, tuple[int, Any]] = {}
"""The values of a worker without slots, with their sizes, by name."""
_NUMBERS: dict[str, int] = {}
"""The slots in which this worker found names; another worker may have reused a slot since."""


def begin() -> None:
    """Make the memory for all processes that are forked from now on; this process frees idle slots."""
    global _MEMORY
    # `spark.executor.pyspark.memory` limits a worker's address space: the mapping would use it up.
    _MEMORY = None if memory_bound.LIMIT in os.environ else SharedMemory.make()
    if _MEMORY:
        # A timer, which a fork does not inherit, and not a thread, which is unsafe to fork with.
        signal.signal(signal.SIGALRM, lambda *_: sweep())
        signal.setitimer(signal.ITIMER_REAL, _SWEEP, _SWEEP)


def sweep() -> None:
    """Free the memory of idle slots."""
    if _MEMORY:
        with _locked(_MEMORY, 0):
            _sweep(_MEMORY)


def query() -> str:
    """The id of the query of a worker's task, "" if none: queries of an application may use the same state name."""
    task = TaskContext.get()
    return (task.getLocalProperty(QUERY) if task else None) or ""


@contextmanager
def place(name: str, form: Form[T]) -> Iterator[SharedValue[T]]:
    """The value that is kept between batches under a name: in its slot, or by this process if there is no slot.

    No other worker has it meanwhile. After a failure inside, the slot's content is not used again. This function owns
    the first note of a slot.
    """
    with held(name) as slot:
        if slot is None:
            shared = SharedValue(_OWN.pop(name, (0, None))[1])
        else:
            whole, slot.notes[0] = bool(slot.notes[0]), False
            shared = SharedValue(form.take(slot) if whole else None)
        yield shared
        if shared.kept is None:
            return
        if slot is None:
            _keep(name, shared.kept, form.size(shared.kept))
        else:
            form.put(slot, shared.kept)
            slot.notes[0] = True
            _fit(slot)


def _keep(name: str, value: object, size: int) -> None:
    """Keep the value in this process, unless it has values enough: one that stays each time is better than none."""
    if size + sum(other for other, _ in _OWN.values()) <= memory_bound.of_worker():
        _OWN[name] = size, value


def _fit(slot: Slot) -> None:
    """Move values to disk while they take more than the bound, the coldest first.

    Colder than a slot are those that nobody held since its last turn but one. Usually a batch takes all in turns, and
    there are none: then the slot's own value is what will not be needed for the longest time.
    """
    memory = slot.memory
    if not memory.full:
        return
    slot._trim()
    heads = memory.heads
    others = np.flatnonzero((heads[:, _TURN] > 0) & (heads[:, _ON_DISK] == 0))
    others = others[np.argsort(heads[others, _TURN])]
    for other in _free_slots(memory, others[others != slot.number].tolist()):
        other._trim()
    for other in _free_slots(memory, others[heads[others, _TURN] < slot.turn].tolist()):
        other._to_disk()
    if memory.full:
        slot._to_disk()


def _free_slots(memory: SharedMemory, numbers: Sequence[int]) -> Iterator[Slot]:
    """Those of the slots that no worker holds, for as long as the memory is full."""
    for number in numbers:
        if not memory.full:
            return
        with suppress(BlockingIOError, PermissionError), _locked(memory, 1 + number, fcntl.LOCK_NB):
            if memory.heads[number, _TURN] and not memory.heads[number, _ON_DISK]:
                yield Slot(memory, number)


@contextmanager
def held(name: str) -> Iterator[Slot | None]:
    """The slot of a name; waits while another worker holds it; None if there is no slot."""
    memory = _MEMORY
    if memory is None:
        yield None
        return
    words = _words_of(name)
    while True:
        number = _NUMBERS.get(name)
        if number is None and (number := _placed(memory, words)) is None:
            yield None
            return
        _NUMBERS[name] = number
        with _locked(memory, 1 + number):
            head = memory.heads[number]
            if (head[_NAME] == words).all():
                slot = Slot(memory, number, int(head[_TURN]))
                head[_USED_AT], head[_TURN] = int(time.time()), time.monotonic_ns()
                if head[_ON_DISK]:
                    slot._from_disk()
                yield slot
                return
        del _NUMBERS[name]


@contextmanager
def _locked(memory: SharedMemory, place: int, how: int = 0) -> Iterator[None]:
    fcntl.lockf(memory.locks, fcntl.LOCK_EX | how, 1, place)
    try:
        yield
    finally:
        fcntl.lockf(memory.locks, fcntl.LOCK_UN, 1, place)


def _words_of(name: str) -> Array:
    return np.frombuffer(hashlib.sha256(name.encode()).digest(), np.int64, 2)


def _placed(memory: SharedMemory, words: Array) -> int | None:
    """The number of the slot with this name, or of a free slot, which gets it; None if all are in use."""
    with _locked(memory, 0):
        heads = memory.heads
        known = np.flatnonzero((heads[:, _NAME] == words).all(axis=1))
        if len(known):
            return int(known[0])
        _sweep(memory)
        free = np.flatnonzero(heads[:, _USED_AT] == 0)
        if not len(free):
            return None
        heads[free[0], _NAME], heads[free[0], _USED_AT] = words, int(time.time())
        return int(free[0])


def _sweep(memory: SharedMemory) -> None:
    """Clear the idle slots that no worker holds."""
    used = memory.heads[:, _USED_AT]
    for number in np.flatnonzero((used > 0) & (used < time.time() - IDLE)).tolist():
        with suppress(BlockingIOError, PermissionError), _locked(memory, 1 + number, fcntl.LOCK_NB):
            Slot(memory, number)._clear()
