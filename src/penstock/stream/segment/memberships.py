"""A record in time: what is due happens, an event touches it, and memberships begin, go on and end (see `layout`)."""

from __future__ import annotations

from penstock.native import Array
from penstock.native.jit import uncounted
from penstock.stream.segment.conditions import is_true, next_due
from penstock.stream.segment.layout import ENTER, EXPIRE, LEAVE, OUT, PROLONG
from penstock.stream.segment.plan import (
    ABSENCE,
    AT,
    BIT,
    FIRST_TERM,
    HEAD,
    KIND,
    LAST_TERM,
    STEP,
    TTL,
    UNTIL_FALSE,
    WIDTH,
    WITHIN,
)
from penstock.stream.segment.terms import add_event


@uncounted
def emit(words: Array, out: Array, sizes: Array, o: int, kind: int, at: int) -> None:
    row = sizes[OUT]
    sizes[OUT] += 1
    out[row, 0], out[row, 1], out[row, 2], out[row, 3] = words[o + 3], words[o + 2], kind, at
    out[row, 4] = words[o + 4]


@uncounted
def judge(
    words: Array, rules: Array, terms: Array, limits: Array, program: Array, out: Array, sizes: Array, o: int, t: int
) -> None:
    """The record was matched at `t`: if the condition holds, the person enters or stays longer."""
    if not is_true(words, rules, terms, limits, program, o, t):
        return
    rule, until = words[o + 2], words[o + 4]
    step = rules[rule, STEP]
    new = -(-(t + rules[rule, TTL]) // step) * step
    if new > until:
        words[o + 4] = new
        emit(words, out, sizes, o, PROLONG if until else ENTER, t)


@uncounted
def leave(words: Array, out: Array, sizes: Array, o: int, kind: int, at: int) -> None:
    if words[o + 4]:
        emit(words, out, sizes, o, kind, at)
        words[o + 4] = 0


@uncounted
def advance(
    words: Array, rules: Array, terms: Array, limits: Array, program: Array, out: Array, sizes: Array, o: int, t: int
) -> None:
    """What is due by `t` happens, one after another."""
    rule = words[o + 2]
    while words[o + 6] != 0 and words[o + 6] <= t:
        due = words[o + 6]
        words[o + 5] = max(words[o + 5], due)
        fired = False
        for i in range(rules[rule, FIRST_TERM], rules[rule, LAST_TERM]):
            s = o + terms[i, AT]
            if terms[i, KIND] == ABSENCE and words[s] and words[s] + terms[i, WITHIN] <= due:
                words[s + 2] = words[s] + terms[i, WITHIN]
                words[s] = words[s + 1] if words[s + 1] > words[s] else 0
                fired = True
        if fired:
            judge(words, rules, terms, limits, program, out, sizes, o, due)
        if words[o + 4] and words[o + 4] <= due:
            leave(words, out, sizes, o, EXPIRE, words[o + 4])
        if words[o + 4] and rules[rule, UNTIL_FALSE] and not is_true(words, rules, terms, limits, program, o, due):
            leave(words, out, sizes, o, LEAVE, due)
        words[o + 6] = next_due(words, rules, terms, limits, o)


@uncounted
def touch(
    words: Array,
    rules: Array,
    terms: Array,
    limits: Array,
    program: Array,
    values: Array,
    out: Array,
    sizes: Array,
    o: int,
    mask: int,
    t: int,
    row: int,
) -> None:
    """One event for one record. An event that is late is counted when it was, and judged at the record's last time."""
    rule = words[o + 2]
    advance(words, rules, terms, limits, program, out, sizes, o, t)
    now = max(t, words[o + 5])
    words[o + 5] = now
    if mask & 1:
        leave(words, out, sizes, o, LEAVE, now)
        words[o + HEAD : o + rules[rule, WIDTH]] = 0
        words[o + 6] = 0
        return
    matched = False
    for i in range(rules[rule, FIRST_TERM], rules[rule, LAST_TERM]):
        bits = mask >> terms[i, BIT]
        if bits and add_event(words, terms, values, i, o, mask, t, row):
            matched = True
    if words[o + 4] and rules[rule, UNTIL_FALSE] and not is_true(words, rules, terms, limits, program, o, now):
        leave(words, out, sizes, o, LEAVE, now)
    elif matched:
        judge(words, rules, terms, limits, program, out, sizes, o, now)
    words[o + 6] = next_due(words, rules, terms, limits, o)
