"""Where records stand, in a hash table, and which is due first, in a heap (see `layout`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.native import Array
from penstock.native.jit import uncounted
from penstock.stream.segment.layout import INDEXED, MARKED, QUEUED, USED


@uncounted
def marks_of(rules: Array) -> Any:
    """Words of the marks of an id under so many rules."""
    return (len(rules) + MARKED - 1) // MARKED


@uncounted
def first_entry(index: Array, key: int, rule: int) -> Any:
    """The first entry of the hash table in which (key, rule) can stand."""
    mixed = (np.uint64(key) ^ (np.uint64(rule + 2) * np.uint64(0x9E3779B97F4A7C15))) * np.uint64(0xBF58476D1CE4E5B9)
    return np.int64((mixed ^ (mixed >> np.uint64(29))) & np.uint64(len(index) // 3 - 1))


@uncounted
def find(index: Array, key: int, rule: int) -> Any:
    """Where (key, rule) stands in the hash table, or the free place for it."""
    at, mask = first_entry(index, key, rule), len(index) // 3 - 1
    while index[3 * at + 2] != 0 and (index[3 * at] != key or index[3 * at + 1] != rule):
        at = (at + 1) & mask
    return 3 * at


@uncounted
def rehash(old: Array, new: Array) -> None:
    """The entries of a hash table in a larger, empty one."""
    for i in range(0, len(old), 3):
        if old[i + 2]:
            at = find(new, old[i], old[i + 1])
            new[at], new[at + 1], new[at + 2] = old[i], old[i + 1], old[i + 2]


@uncounted
def push(heap: Array, sizes: Array, due: int, record: int) -> None:
    at = sizes[QUEUED]
    sizes[QUEUED] += 1
    while at > 0 and heap[2 * ((at - 1) // 2)] > due:
        up = (at - 1) // 2
        heap[2 * at], heap[2 * at + 1] = heap[2 * up], heap[2 * up + 1]
        at = up
    heap[2 * at], heap[2 * at + 1] = due, record


@uncounted
def drop_first(heap: Array, sizes: Array) -> None:
    sizes[QUEUED] -= 1
    size = sizes[QUEUED]
    due, record = heap[2 * size], heap[2 * size + 1]
    at = 0
    while True:
        down = 2 * at + 1
        if down + 1 < size and heap[2 * (down + 1)] < heap[2 * down]:
            down += 1
        if down >= size or heap[2 * down] >= due:
            break
        heap[2 * at], heap[2 * at + 1] = heap[2 * down], heap[2 * down + 1]
        at = down
    heap[2 * at], heap[2 * at + 1] = due, record


@uncounted
def queue(words: Array, heap: Array, sizes: Array, o: int) -> None:
    """See that the heap knows when the record is due, or a time before that."""
    due, queued = words[o + 6], words[o + 7]
    if due != 0 and (queued == 0 or due < queued):
        push(heap, sizes, due, o)
        words[o + 7] = due


@uncounted
def rebuild(words: Array, index: Array, heap: Array, sizes: Array) -> None:
    """Index and heap of the records that stand in `words`."""
    sizes[INDEXED], sizes[QUEUED] = 0, 0
    index[:] = 0
    o = 1
    while o < sizes[USED]:
        at = find(index, words[o + 1], words[o + 2])
        index[at], index[at + 1], index[at + 2] = words[o + 1], words[o + 2], o
        sizes[INDEXED] += 1
        if words[o + 2] >= 0:
            words[o + 7] = 0
            queue(words, heap, sizes, o)
        o += words[o]
