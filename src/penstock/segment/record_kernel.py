"""The compiled loops of segmentation: events touch records, clocks advance them (see `rule_plan`)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from penstock.native import Array
from penstock.native.jit import copy, prefetch, uncounted
from penstock.segment.condition_kernel import add_event, is_true, next_due
from penstock.segment.rule_plan import (
    ABSENCE,
    AT,
    AT_RECORD,
    BEGIN,
    BIT,
    DUE,
    ENDED,
    ENTER,
    EXPIRE,
    FIRST_TERM,
    HEAD,
    ID_BYTES,
    ID_HEAD,
    ID_MOVED,
    INDEXED,
    KEY,
    KIND,
    LAST,
    LAST_TERM,
    LAST_WAITING,
    LEAVE,
    MARKED,
    MOST,
    OF_RULE,
    OUT,
    PERSON,
    PROLONG,
    QUEUED,
    QUEUED_DUE,
    RULE,
    STEP,
    TTL,
    UNTIL,
    UNTIL_FALSE,
    USED,
    WIDTH,
    WITHIN,
)


@uncounted
def new_id(
    words: Array, index: Array, sizes: Array, at: int, key: int, ids: Array, start: int, stop: int, marks: int
) -> Any:
    """Write a person's id, with its entry in the hash table at `at`; returns its position."""
    o, size = sizes[USED], stop - start
    text = o + ID_HEAD + marks
    width = ID_HEAD + marks + (size + 7) // 8
    words[o], words[o + KEY], words[o + RULE], words[o + ID_BYTES], words[o + ID_MOVED] = width, key, -1, size, 0
    words[o + ID_HEAD : o + width] = 0
    copy(words.view(np.uint8), 8 * text, ids, start, size)
    index[at], index[at + OF_RULE], index[at + AT_RECORD] = key, -1, o
    sizes[INDEXED] += 1
    sizes[USED] = o + width
    return o


@uncounted
def new_record(words: Array, index: Array, sizes: Array, width: int, key: int, rule: int, person: int) -> Any:
    """Create an empty record; returns its position."""
    o, at = sizes[USED], find(index, key, rule)
    words[o : o + width] = 0
    words[o], words[o + KEY], words[o + RULE], words[o + PERSON] = width, key, rule, person
    words[person + ID_HEAD + rule // MARKED] |= np.int64(1) << (rule % MARKED)
    index[at], index[at + OF_RULE], index[at + AT_RECORD] = key, rule, o
    sizes[INDEXED] += 1
    sizes[USED] = o + width
    return o


@uncounted
def locate(
    words: Array, index: Array, key: int, person: int, touched: Array, first: int, stop: int, offsets: Array
) -> None:
    """Write the positions of the person's records of the rules `touched[first:stop]` to `offsets`, zero for none.

    They are scattered over memory: the entries of the index are prefetched first, then the records.
    """
    for i in range(first, stop):
        rule = touched[i]
        known = person and (words[person + ID_HEAD + rule // MARKED] >> (rule % MARKED)) & 1
        offsets[i - first] = known
        if known:
            prefetch(index, 3 * first_entry(index, key, rule))
    for i in range(first, stop):
        if offsets[i - first]:
            o = index[find(index, key, touched[i]) + AT_RECORD]
            offsets[i - first] = o
            prefetch(words, o)
            prefetch(words, o + HEAD)


class RecordArrays(NamedTuple):
    """The arrays of a bucket's records; `entries` is the hash table."""

    words: Array
    entries: Array
    heap: Array
    sizes: Array


class Rules(NamedTuple):
    """The arrays of a plan."""

    rules: Array
    terms: Array
    limits: Array
    program: Array


class EventColumns(NamedTuple):
    """The columns of events, their touches, and the order of the events in time."""

    keys: Array
    times: Array
    id_offsets: Array
    ids: Array
    touch_ends: Array
    touched: Array
    masks: Array
    values: Array
    order: Array


@uncounted
def take(
    records: RecordArrays,
    plan: Rules,
    events: EventColumns,
    first: int,
    stop: int,
    latest: int,
    offsets: Array,
    out: Array,
) -> int:
    """Apply the events `order[first:stop]`; returns the next event, before `stop` if `out` is nearly full.

    A time after `latest` counts as `latest`. `offsets` has room for one number per rule.
    """
    words, index, heap, sizes = records.words, records.entries, records.heap, records.sizes
    rules, touched, masks = plan.rules, events.touched, events.masks
    marks = marks_of(rules)
    for at in range(first, stop):
        row = events.order[at]
        begin, end = events.touch_ends[row - 1] if row else 0, events.touch_ends[row]
        if sizes[OUT] + (end - begin) * sizes[MOST] > len(out):
            return at
        key, t = events.keys[row], max(1, min(events.times[row], latest))
        place = find(index, key, -1)
        person = index[place + AT_RECORD]
        locate(words, index, key, person, touched, begin, end, offsets)
        for i in range(begin, end):
            rule, o = touched[i], offsets[i - begin]
            if o == 0:
                if masks[i] & rules[rule, BEGIN] == 0:
                    continue
                if person == 0:
                    name, name_end = events.id_offsets[row], events.id_offsets[row + 1]
                    person = new_id(words, index, sizes, place, key, events.ids, name, name_end, marks)
                o = new_record(words, index, sizes, rules[rule, WIDTH], key, rule, person)
            touch(records, plan, events.values, out, o, masks[i], t, row)
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
    """Apply what is due by the clock; returns false when `out` is nearly full and more is due."""
    while sizes[QUEUED] and heap[0] <= clock:
        if sizes[OUT] + sizes[MOST] > len(out):
            return False
        due, o = heap[0], heap[1]
        drop_first(heap, sizes)
        if words[o + QUEUED_DUE] == due:
            words[o + QUEUED_DUE] = 0
            advance(words, rules, terms, limits, program, out, sizes, o, clock)
            queue(words, heap, sizes, o)
    return True


# A record in time: what is due happens, an event touches it, and memberships begin, continue and end.


@uncounted
def emit(words: Array, out: Array, sizes: Array, o: int, kind: int, at: int) -> None:
    row = sizes[OUT]
    sizes[OUT] += 1
    out[row, 0], out[row, 1], out[row, 2], out[row, 3] = words[o + PERSON], words[o + RULE], kind, at
    out[row, 4] = words[o + UNTIL]


@uncounted
def judge(
    words: Array, rules: Array, terms: Array, limits: Array, program: Array, out: Array, sizes: Array, o: int, t: int
) -> None:
    """After an event that can make the condition true: if it is true at `t`, the person enters or stays longer."""
    if not is_true(words, rules, terms, limits, program, o, t):
        return
    rule, until = words[o + RULE], words[o + UNTIL]
    step = rules[rule, STEP]
    new = -(-(t + rules[rule, TTL]) // step) * step
    if new > until:
        words[o + UNTIL] = new
        emit(words, out, sizes, o, PROLONG if until else ENTER, t)


@uncounted
def leave(words: Array, out: Array, sizes: Array, o: int, kind: int, at: int) -> None:
    if words[o + UNTIL]:
        emit(words, out, sizes, o, kind, at)
        words[o + UNTIL] = 0


@uncounted
def advance(
    words: Array, rules: Array, terms: Array, limits: Array, program: Array, out: Array, sizes: Array, o: int, t: int
) -> None:
    """Apply what is due by `t`, in order."""
    rule = words[o + RULE]
    while words[o + DUE] != 0 and words[o + DUE] <= t:
        due = words[o + DUE]
        words[o + LAST] = max(words[o + LAST], due)
        fired = False
        for i in range(rules[rule, FIRST_TERM], rules[rule, LAST_TERM]):
            s = o + terms[i, AT]
            if terms[i, KIND] == ABSENCE and words[s] and words[s] + terms[i, WITHIN] <= due:
                words[s + ENDED] = words[s] + terms[i, WITHIN]
                words[s] = words[s + LAST_WAITING] if words[s + LAST_WAITING] > words[s] else 0
                fired = True
        if fired:
            judge(words, rules, terms, limits, program, out, sizes, o, due)
        if words[o + UNTIL] and words[o + UNTIL] <= due:
            leave(words, out, sizes, o, EXPIRE, words[o + UNTIL])
        if words[o + UNTIL] and rules[rule, UNTIL_FALSE] and not is_true(words, rules, terms, limits, program, o, due):
            leave(words, out, sizes, o, LEAVE, due)
        words[o + DUE] = next_due(words, rules, terms, limits, o)


@uncounted
def touch(records: RecordArrays, plan: Rules, values: Array, out: Array, o: int, mask: int, t: int, row: int) -> None:
    """Apply one event to one record. A late event counts at its own time and is judged at the record's last time."""
    words, sizes, rules, terms = records.words, records.sizes, plan.rules, plan.terms
    limits, program = plan.limits, plan.program
    rule = words[o + RULE]
    advance(words, rules, terms, limits, program, out, sizes, o, t)
    now = max(t, words[o + LAST])
    words[o + LAST] = now
    if mask & 1:
        leave(words, out, sizes, o, LEAVE, now)
        words[o + HEAD : o + rules[rule, WIDTH]] = 0
        words[o + DUE] = 0
        return
    matched = False
    for i in range(rules[rule, FIRST_TERM], rules[rule, LAST_TERM]):
        bits = mask >> terms[i, BIT]
        if bits and add_event(words, terms, values, i, o, mask, t, row):
            matched = True
    if words[o + UNTIL] and rules[rule, UNTIL_FALSE] and not is_true(words, rules, terms, limits, program, o, now):
        leave(words, out, sizes, o, LEAVE, now)
    elif matched:
        judge(words, rules, terms, limits, program, out, sizes, o, now)
    words[o + DUE] = next_due(words, rules, terms, limits, o)


# The hash table with the positions of records, and the heap of those that are due (see `rule_plan`).


@uncounted
def marks_of(rules: Array) -> Any:
    """Words of the marks of an id under these rules."""
    return (len(rules) + MARKED - 1) // MARKED


@uncounted
def first_entry(index: Array, key: int, rule: int) -> Any:
    """The first entry of the hash table that (key, rule) can have."""
    mixed = (np.uint64(key) ^ (np.uint64(rule + 2) * np.uint64(0x9E3779B97F4A7C15))) * np.uint64(0xBF58476D1CE4E5B9)
    return np.int64((mixed ^ (mixed >> np.uint64(29))) & np.uint64(len(index) // 3 - 1))


@uncounted
def find(index: Array, key: int, rule: int) -> Any:
    """The position of (key, rule) in the hash table, or the free position for it."""
    at, mask = first_entry(index, key, rule), len(index) // 3 - 1
    while index[3 * at + AT_RECORD] != 0 and (index[3 * at] != key or index[3 * at + OF_RULE] != rule):
        at = (at + 1) & mask
    return 3 * at


@uncounted
def rehash(old: Array, new: Array) -> None:
    """Copy the entries of a hash table to a larger, empty table."""
    for i in range(0, len(old), 3):
        if old[i + AT_RECORD]:
            at = find(new, old[i], old[i + OF_RULE])
            new[at], new[at + OF_RULE], new[at + AT_RECORD] = old[i], old[i + OF_RULE], old[i + AT_RECORD]


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
    """Make sure that the heap has the record at its due time or earlier."""
    due, queued = words[o + DUE], words[o + QUEUED_DUE]
    if due != 0 and (queued == 0 or due < queued):
        push(heap, sizes, due, o)
        words[o + QUEUED_DUE] = due


@uncounted
def rebuild(words: Array, index: Array, heap: Array, sizes: Array) -> None:
    """Build index and heap of the records in `words`."""
    sizes[INDEXED], sizes[QUEUED] = 0, 0
    index[:] = 0
    o = 1
    while o < sizes[USED]:
        at = find(index, words[o + KEY], words[o + RULE])
        index[at], index[at + OF_RULE], index[at + AT_RECORD] = words[o + KEY], words[o + RULE], o
        sizes[INDEXED] += 1
        if words[o + RULE] >= 0:
            words[o + QUEUED_DUE] = 0
            queue(words, heap, sizes, o)
        o += words[o]
