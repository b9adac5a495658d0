"""The compiled loops of segmentation: events touch records, clocks advance them (see `layout`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.native import Array
from penstock.native.jit import copy, prefetch, uncounted
from penstock.stream.segment.layout import ID_HEAD, INDEXED, MARKED, MOST, OUT, QUEUED, USED
from penstock.stream.segment.memberships import advance, touch
from penstock.stream.segment.places import drop_first, find, first_entry, marks_of, queue
from penstock.stream.segment.plan import BEGIN, HEAD, WIDTH


@uncounted
def new_id(
    words: Array, index: Array, sizes: Array, at: int, key: int, ids: Array, start: int, stop: int, marks: int
) -> Any:
    """Write a person's id, whose place in the hash table is `at`; where it stands."""
    o, size = sizes[USED], stop - start
    text = o + ID_HEAD + marks
    width = ID_HEAD + marks + (size + 7) // 8
    words[o], words[o + 1], words[o + 2], words[o + 3], words[o + 4] = width, key, -1, size, 0
    words[o + ID_HEAD : o + width] = 0
    copy(words.view(np.uint8), 8 * text, ids, start, size)
    index[at], index[at + 1], index[at + 2] = key, -1, o
    sizes[INDEXED] += 1
    sizes[USED] = o + width
    return o


@uncounted
def new_record(words: Array, index: Array, sizes: Array, width: int, key: int, rule: int, person: int) -> Any:
    """Make an empty record; where it stands."""
    o, at = sizes[USED], find(index, key, rule)
    words[o : o + width] = 0
    words[o], words[o + 1], words[o + 2], words[o + 3] = width, key, rule, person
    words[person + ID_HEAD + rule // MARKED] |= np.int64(1) << (rule % MARKED)
    index[at], index[at + 1], index[at + 2] = key, rule, o
    sizes[INDEXED] += 1
    sizes[USED] = o + width
    return o


@uncounted
def locate(
    words: Array, index: Array, key: int, person: int, touched: Array, first: int, stop: int, found: Array
) -> None:
    """Where the person's records of the rules `touched[first:stop]` stand, zero for none.

    They lie all over memory: first the processor is told which entries of the index it will need, then which records.
    """
    for i in range(first, stop):
        rule = touched[i]
        known = person and (words[person + ID_HEAD + rule // MARKED] >> (rule % MARKED)) & 1
        found[i - first] = known
        if known:
            prefetch(index, 3 * first_entry(index, key, rule))
    for i in range(first, stop):
        if found[i - first]:
            o = index[find(index, key, touched[i]) + 2]
            found[i - first] = o
            prefetch(words, o)
            prefetch(words, o + HEAD)


@uncounted
def take(
    words: Array,
    index: Array,
    heap: Array,
    sizes: Array,
    rules: Array,
    terms: Array,
    limits: Array,
    program: Array,
    keys: Array,
    times: Array,
    id_offsets: Array,
    ids: Array,
    touch_ends: Array,
    touched: Array,
    masks: Array,
    values: Array,
    order: Array,
    first: int,
    stop: int,
    latest: int,
    found: Array,
    out: Array,
) -> int:
    """Events `order[first:stop]` into the state; stops early when `out` is nearly full: returns the next one.

    A time after `latest` is taken as `latest`. `found` is room for as many numbers as there are rules.
    """
    marks = marks_of(rules)
    for at in range(first, stop):
        row = order[at]
        begin = touch_ends[row - 1] if row else 0
        if sizes[OUT] + (touch_ends[row] - begin) * sizes[MOST] > len(out):
            return at
        key, t = keys[row], max(1, min(times[row], latest))
        place = find(index, key, -1)
        person = index[place + 2]
        locate(words, index, key, person, touched, begin, touch_ends[row], found)
        for i in range(begin, touch_ends[row]):
            rule, o = touched[i], found[i - begin]
            if o == 0:
                if masks[i] & rules[rule, BEGIN] == 0:
                    continue
                if person == 0:
                    start, end = id_offsets[row], id_offsets[row + 1]
                    person = new_id(words, index, sizes, place, key, ids, start, end, marks)
                o = new_record(words, index, sizes, rules[rule, WIDTH], key, rule, person)
            touch(words, rules, terms, limits, program, values, out, sizes, o, masks[i], t, row)
            queue(words, heap, sizes, o)
    return stop


@uncounted
def tick(
    words: Array,
    heap: Array,
    sizes: Array,
    rules: Array,
    terms: Array,
    limits: Array,
    program: Array,
    clock: int,
    out: Array,
) -> bool:
    """What is due by the clock happens; false when `out` is nearly full and there is more."""
    while sizes[QUEUED] and heap[0] <= clock:
        if sizes[OUT] + sizes[MOST] > len(out):
            return False
        due, o = heap[0], heap[1]
        drop_first(heap, sizes)
        if words[o + 7] == due:
            words[o + 7] = 0
            advance(words, rules, terms, limits, program, out, sizes, o, clock)
            queue(words, heap, sizes, o)
    return True
