"""An index of byte strings: each gets a number when it is first added; compiled loops find it again.

Open addressing over 64-bit FNV-1a hashes; keys with equal hashes are compared by their bytes.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.keyed_state.arrow_keys import Numbers
from penstock.native import Array
from penstock.native.jit import compiled

EMPTY = -1
FILL = 0.5
"""Maximum fraction of used slots."""


class KeyIndex:
    """Byte strings by number: 0, 1, 2 ... in the order of addition."""

    def __init__(self) -> None:
        self._slots = np.full(1 << 12, EMPTY, np.int64)
        self._hashes = np.zeros(1 << 11, np.uint64)
        self._offsets = np.zeros((1 << 11) + 1, np.int64)
        self._arena = np.zeros(1 << 16, np.uint8)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (self._slots, self._hashes, self._offsets, self._arena))

    def find(self, keys: pa.Array) -> Numbers:
        """The number of each key; -1 if it was never added or is null."""
        starts, data, valid = _cells(keys)
        numbers = np.empty(len(keys), np.int64)
        _find(self._slots, self._hashes, self._offsets, self._arena, data, starts, valid, numbers)
        return numbers

    def add(self, keys: pa.Array) -> Numbers:
        """The number of each key; new keys get new numbers. No key may be null."""
        starts, data, valid = _cells(keys)
        self._grow(len(keys), int(starts[-1] - starts[0]))
        numbers = np.empty(len(keys), np.int64)
        arrays = (self._slots, self._hashes, self._offsets, self._arena)
        if self._count:
            _find(*arrays, data, starts, valid, numbers)
        else:
            numbers.fill(EMPTY)
        self._count = int(_add(*arrays, self._count, data, starts, numbers))
        return numbers

    def only(self, numbers: Numbers) -> KeyIndex:
        """A new index with only these keys, numbered 0, 1, 2 ..."""
        buffers = [None, pa.py_buffer(self._offsets), pa.py_buffer(self._arena)]
        keys = pa.Array.from_buffers(pa.large_binary(), self._count, buffers)
        index = KeyIndex()
        index.add(keys.take(pa.array(numbers)))
        return index

    def _grow(self, keys: int, size: int) -> None:
        need = self._count + keys
        if need > len(self._hashes):
            self._hashes = _longer(self._hashes, need)
            self._offsets = _longer(self._offsets, need + 1)
        used = int(self._offsets[self._count])
        if used + size > len(self._arena):
            self._arena = _longer(self._arena, used + size)
        if need > FILL * len(self._slots):
            slots = 1 << int(np.ceil(np.log2(need / FILL)) + 1)
            self._slots = np.full(slots, EMPTY, np.int64)
            _place(self._slots, self._hashes, self._count)


def _cells(keys: pa.Array) -> tuple[Array, Array, Array]:
    """Where each key begins (and the last one ends), all bytes, and a mask of the keys that are not null."""
    if not len(keys):
        return np.zeros(1, np.int64), np.zeros(0, np.uint8), np.zeros(0, bool)
    wide = keys.cast(pa.large_binary())
    _, offsets, data = wide.buffers()
    starts = np.frombuffer(offsets, np.int64, len(wide) + 1, wide.offset * 8)
    content = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
    return starts, content, wide.is_valid().to_numpy(zero_copy_only=False)


def _longer(array: Array, least: int) -> Array:
    longer = np.zeros(max(least, 2 * len(array)), array.dtype)
    longer[: len(array)] = array
    return longer


@compiled
def _hash(data: Array, start: int, end: int) -> np.uint64:
    value = np.uint64(14695981039346656037)
    for at in range(start, end):
        value = (value ^ np.uint64(data[at])) * np.uint64(1099511628211)
    return value ^ (value >> np.uint64(32))


@compiled
def _same(arena: Array, at: int, end: int, data: Array, start: int, stop: int) -> bool:
    if end - at != stop - start:
        return False
    for i in range(end - at):  # noqa: SIM110 - this is compiled
        if arena[at + i] != data[start + i]:
            return False
    return True


@compiled
def _slot(
    slots: Array, hashes: Array, offsets: Array, arena: Array, value: np.uint64, data: Array, start: int, end: int
) -> int:
    """The slot of a key, or the empty slot for it."""
    mask = np.uint64(len(slots) - 1)
    slot = value & mask
    while slots[slot] >= 0:
        number = slots[slot]
        if hashes[number] == value and _same(arena, offsets[number], offsets[number + 1], data, start, end):
            break
        slot = (slot + np.uint64(1)) & mask
    return int(slot)


# One step for all keys before the next step: what a step reads of memory does not wait for the key before. In a large
# index nearly each read misses the processor's caches, and key by key a lookup takes three to five times as long.


@compiled
def _find(
    slots: Array, hashes: Array, offsets: Array, arena: Array, data: Array, starts: Array, valid: Array, numbers: Array
) -> None:
    values = np.empty(len(numbers), np.uint64)
    for row in range(len(numbers)):
        values[row] = _hash(data, starts[row], starts[row + 1])
    mask = np.uint64(len(slots) - 1)
    for row in range(len(numbers)):
        numbers[row] = slots[values[row] & mask]
    places = _candidates(hashes, offsets, values, starts, numbers)
    for row in range(len(numbers)):
        start, end = starts[row], starts[row + 1]
        if not valid[row]:
            numbers[row] = EMPTY
        elif numbers[row] >= 0 and not (
            places[row] >= 0 and _same(arena, places[row], places[row] + end - start, data, start, end)
        ):
            # Another key has the first slot.
            numbers[row] = slots[_slot(slots, hashes, offsets, arena, values[row], data, start, end)]


@compiled
def _candidates(hashes: Array, offsets: Array, values: Array, starts: Array, numbers: Array) -> Array:
    """Where the bytes of the keys with these numbers begin; -1 if the hash or length is not the wanted one."""
    places = np.full(len(numbers), -1, np.int64)
    for row in range(len(numbers)):
        number = numbers[row]
        if number >= 0 and hashes[number] == values[row]:
            at = offsets[number]
            if offsets[number + 1] - at == starts[row + 1] - starts[row]:
                places[row] = at
    return places


@compiled
def _add(
    slots: Array, hashes: Array, offsets: Array, arena: Array, count: int, data: Array, starts: Array, numbers: Array
) -> int:
    """Add the keys that have no number in `numbers`."""
    for row in range(len(numbers)):
        if numbers[row] >= 0:
            continue
        start, end = starts[row], starts[row + 1]
        value = _hash(data, start, end)
        slot = _slot(slots, hashes, offsets, arena, value, data, start, end)
        if slots[slot] < 0:
            slots[slot] = count
            hashes[count] = value
            used = offsets[count]
            for at in range(end - start):
                arena[used + at] = data[start + at]
            offsets[count + 1] = used + end - start
            count += 1
        numbers[row] = slots[slot]
    return count


@compiled
def _place(slots: Array, hashes: Array, count: int) -> None:
    """Put the numbers of all keys into empty slots."""
    mask = np.uint64(len(slots) - 1)
    for number in range(count):
        slot = hashes[number] & mask
        while slots[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = number
