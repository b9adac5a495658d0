"""The compiled loops of segmentation: events touch records, clocks advance them (see `layout`)."""

from __future__ import annotations

import numpy as np

from penstock.stream.segment.layout import ID_HEAD, INDEXED, MOST, OUT, QUEUED, USED
from penstock.stream.segment.memberships import advance, touch
from penstock.stream.segment.places import drop_first, find, queue
from penstock.stream.segment.plan import BEGIN, WIDTH, Array
from penstock.wire.kernels import compiled


@compiled
def new_id(words: Array, index: Array, sizes: Array, at: int, key: int, ids: Array, start: int, stop: int) -> None:
    """Write a person's id, whose place in the hash table is `at`."""
    o, size = sizes[USED], stop - start
    width = ID_HEAD + (size + 7) // 8
    words[o], words[o + 1], words[o + 2], words[o + 3], words[o + 4] = width, key, -1, size, 0
    words[o + ID_HEAD : o + width] = 0
    words.view(np.uint8)[8 * (o + ID_HEAD) : 8 * (o + ID_HEAD) + size] = ids[start:stop]
    index[at], index[at + 1], index[at + 2] = key, -1, o
    sizes[INDEXED] += 1
    sizes[USED] = o + width


@compiled
def new_record(words: Array, index: Array, sizes: Array, at: int, width: int, key: int, rule: int, person: int) -> None:
    """Make an empty record, whose place in the hash table is `at`."""
    o = sizes[USED]
    words[o : o + width] = 0
    words[o], words[o + 1], words[o + 2], words[o + 3] = width, key, rule, person
    index[at], index[at + 1], index[at + 2] = key, rule, o
    sizes[INDEXED] += 1
    sizes[USED] = o + width


@compiled
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
    out: Array,
) -> int:
    """Events `order[first:stop]` into the state; stops early when `out` is nearly full: returns the next one.

    A time after `latest` is taken as `latest`.
    """
    for at in range(first, stop):
        row = order[at]
        begin = touch_ends[row - 1] if row else 0
        if sizes[OUT] + (touch_ends[row] - begin) * sizes[MOST] > len(out):
            return at
        key, t = keys[row], max(1, min(times[row], latest))
        for i in range(begin, touch_ends[row]):
            rule = touched[i]
            place = find(index, key, rule)
            if index[place + 2] == 0:
                if masks[i] & rules[rule, BEGIN] == 0:
                    continue
                person = find(index, key, -1)
                if index[person + 2] == 0:
                    new_id(words, index, sizes, person, key, ids, id_offsets[row], id_offsets[row + 1])
                    place = find(index, key, rule)
                new_record(words, index, sizes, place, rules[rule, WIDTH], key, rule, index[person + 2])
            o = index[place + 2]
            touch(words, rules, terms, limits, program, values, out, sizes, o, masks[i], t, row)
            queue(words, heap, sizes, o)
    return stop


@compiled
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
