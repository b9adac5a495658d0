"""Memory that the Python workers of an executor share: growing arrays of 64-bit words, three for each name.

Spark gives a piece of state to any worker of an executor. If each worker kept its own copy, it would have to apply
every change of all pieces, and hold all of them. The daemon that forks the workers makes an anonymous file and maps all
of it before the first fork. The file ends with the last worker, and takes memory only for pages that were written. Each
name has a slot in it, which one worker holds at a time. A system without such files has no slots, and workers keep
their own state.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from pyspark import TaskContext

from penstock.native import Array

T = TypeVar("T")

SLOTS = 1024
ARRAYS = 3
LONGEST = 1 << 31
"""Most words of an array, 16 GB: addresses are reserved for all of them, memory is not."""
NOTES = 24
"""Words of a slot that its user may set; zero at first."""
_HEAD = 32
_NAME, _USED_AT, _LENGTHS, _NOTES = slice(0, 2), 2, slice(3, 3 + ARRAYS), slice(8, 8 + NOTES)
_FIRST = SLOTS * _HEAD
_PAGE = mmap.PAGESIZE
IDLE = 600.0
"""Seconds after which the memory of an unused slot is freed."""
_SWEEP = 60.0
LIMIT = "PYSPARK_EXECUTOR_MEMORY_MB"
QUERY = "sql.streaming.queryId"
"""The property of a task with the query's id, as in its checkpoint."""


@dataclass(frozen=True)
class SharedMemory:
    """All slots: their heads come first, then the arrays.

    `locks` is a separate file: a process that closes any descriptor of a file loses its locks on that file.
    """

    mapped: mmap.mmap
    words: Array
    locks: int

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
        return cls(mapped, np.frombuffer(mapped, np.int64), locks)

    @property
    def heads(self) -> Array:
        """The heads of the slots, one row each."""
        return self.words[:_FIRST].reshape(SLOTS, _HEAD)


@dataclass(frozen=True)
class Slot:
    """The slot of one name; valid only while it is held."""

    memory: SharedMemory
    number: int

    @property
    def notes(self) -> Array:
        return self._head[_NOTES]

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
        self._head[_LENGTHS][place] = length
        return self._array(place, length)

    @property
    def _head(self) -> Array:
        head: Array = self.memory.heads[self.number]
        return head

    def _array(self, place: int, length: int) -> Array:
        first = _FIRST + (self.number * ARRAYS + place) * LONGEST
        return self.memory.words[first : first + length]

    def _forget(self, place: int) -> None:
        if size := -(-8 * int(self._head[_LENGTHS][place]) // _PAGE) * _PAGE:
            start = 8 * (_FIRST + (self.number * ARRAYS + place) * LONGEST)
            self.memory.mapped.madvise(mmap.MADV_REMOVE, start, size)
        self._head[_LENGTHS][place] = 0

    def _clear(self) -> None:
        for place in range(ARRAYS):
            self._forget(place)
        self._head[:] = 0


@dataclass
class SharedValue(Generic[T]):
    """The value under a name; change it in place, or replace it."""

    kept: T | None


_MEMORY: SharedMemory | None = None
_NUMBERS: dict[str, int] = {}
"""The slots in which this worker found names; another worker may have reused a slot since."""


def begin() -> None:
    """Make the memory for all processes that are forked from now on; this process frees idle slots."""
    global _MEMORY
    # `spark.executor.pyspark.memory` limits a worker's address space: the mapping would use it up.
    _MEMORY = None if LIMIT in os.environ else SharedMemory.make()
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
def place(
    name: str, own: dict[str, T], take: Callable[[Slot], T | None], put: Callable[[Slot, T], None]
) -> Iterator[SharedValue[T]]:
    """The value that is kept between batches under a name: in its slot, or in `own` if there is no slot.

    No other worker has it meanwhile. After a failure inside, the slot's content is not used again. This function owns
    the first note of a slot. `take` reads what `put` wrote.
    """
    with held(name) as slot:
        if slot is None:
            found = SharedValue(own.pop(name, None))
        else:
            whole, slot.notes[0] = bool(slot.notes[0]), False
            found = SharedValue(take(slot) if whole else None)
        yield found
        if slot is None and found.kept is not None:
            own[name] = found.kept
        elif slot is not None and found.kept is not None:
            put(slot, found.kept)
            slot.notes[0] = True


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
            slot = Slot(memory, number)
            if (slot._head[_NAME] == words).all():
                slot._head[_USED_AT] = int(time.time())
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
