"""Whether a rule's condition is true for a record, and how long it stays true without events (see `rule_plan`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.native import Array
from penstock.native.jit import uncounted
from penstock.segment.rule_plan import (
    ABSENCE,
    AND,
    AT,
    BINS,
    BIT,
    CHAIN,
    COUNT,
    ENDED,
    FIRST_CODE,
    FIRST_TERM,
    IS_TRUE,
    KIND,
    LAST,
    LAST_CODE,
    LAST_TERM,
    LAST_WAITING,
    LATEST,
    NEVER,
    RESOLUTION,
    RULE,
    TOTAL,
    UNTIL,
    UNTIL_FALSE,
    VALUE,
    WITHIN,
    N,
)


@uncounted
def change_of(words: Array, terms: Array, limits: Array, i: int, o: int, t: int) -> int:
    """When the term, true at `t`, may become false without an event; zero if it is false at `t`."""
    kind, s, n, within = terms[i, KIND], o + terms[i, AT], terms[i, N], terms[i, WITHIN]
    since = 0
    if kind == COUNT:
        since = words[s]
    elif kind == CHAIN:
        since = words[s + 2 * n - 2]
    elif kind == ABSENCE:
        since = words[s + ENDED]
    elif kind == LATEST:
        since = words[s] if words[s + IS_TRUE] else 0
    else:
        return change_of_total(words, terms[i, RESOLUTION], limits[i], s, t)
    return since + within if since != 0 and since > t - within else 0


@uncounted
def change_of_total(words: Array, resolution: int, limit: float, s: int, t: int) -> int:
    head = words[s]
    if head == 0:
        return 0
    sums = words.view(np.float64)
    total, change = 0.0, 0
    # Bins are numbered from 1: zero means none.
    for b in range(max(t // resolution + 1, head) - BINS + 1, head + 1):
        value = sums[s + 1 + b % BINS]
        total += value
        if value != 0 and change == 0:
            change = (b + BINS - 1) * resolution
    return change if total >= limit else 0


@uncounted
def is_true(words: Array, rules: Array, terms: Array, limits: Array, program: Array, o: int, t: int) -> bool:
    """Whether the condition is true at `t`."""
    rule = words[o + RULE]
    stack = 0
    for at in range(rules[rule, FIRST_CODE], rules[rule, LAST_CODE]):
        code = program[at]
        if code >= 0:
            stack = (stack << 1) | (1 if change_of(words, terms, limits, code, o, t) else 0)
        elif code == AND:
            stack = (stack >> 2 << 1) | (stack & (stack >> 1) & 1)
        else:
            stack = (stack >> 2 << 1) | ((stack | (stack >> 1)) & 1)
    return stack & 1 == 1


@uncounted
def next_due(words: Array, rules: Array, terms: Array, limits: Array, o: int) -> int:
    """When the record is due without an event: an absence is complete, a membership ends or must be checked."""
    rule, until = words[o + RULE], words[o + UNTIL]
    due = until if until else NEVER
    check = until != 0 and rules[rule, UNTIL_FALSE] != 0
    for i in range(rules[rule, FIRST_TERM], rules[rule, LAST_TERM]):
        if terms[i, KIND] == ABSENCE and words[o + terms[i, AT]]:
            due = min(due, words[o + terms[i, AT]] + terms[i, WITHIN])
        if check:
            change = change_of(words, terms, limits, i, o, words[o + LAST])
            if change:
                due = min(due, change)
    return 0 if due == NEVER else due


# Adds events to the terms of a record (see `rule_plan`).


@uncounted
def add_time(words: Array, s: int, n: int, t: int) -> None:
    """Keep the n newest times in order."""
    if t <= words[s]:
        return
    i = 1
    while i < n and words[s + i] < t:
        words[s + i - 1] = words[s + i]
        i += 1
    words[s + i - 1] = t


@uncounted
def add_sum(words: Array, s: int, resolution: int, t: int, value: float) -> None:
    sums = words.view(np.float64)
    b = t // resolution + 1
    head = words[s]
    if head != 0 and b <= head - BINS:
        return
    if b > head:
        for old in range(max(head + 1, b - BINS + 1), b + 1):
            sums[s + 1 + old % BINS] = 0.0
        words[s] = b
    sums[s + 1 + b % BINS] += value


@uncounted
def add_step(words: Array, s: int, n: int, within: int, steps: int, t: int) -> bool:
    """Begin or continue chains; returns whether one is complete. The last step is first: an event is one step only."""
    done = False
    for i in range(n - 1, -1, -1):
        if not (steps >> i) & 1:
            continue
        start = t
        if i:
            start = words[s + 2 * i - 2]
            if start == 0 or words[s + 2 * i - 1] > t or start <= t - within:
                continue
        if start >= words[s + 2 * i]:
            words[s + 2 * i], words[s + 2 * i + 1] = start, t
        done = done or i == n - 1
    return done


@uncounted
def add_absence(words: Array, s: int, within: int, bits: int, t: int) -> None:
    if bits & 2:
        if words[s] and words[s] <= t:
            words[s] = words[s + LAST_WAITING] if words[s + LAST_WAITING] > t else 0
        if t >= words[s + ENDED] - within:
            words[s + ENDED] = 0
    elif bits & 1:
        words[s] = min(words[s], t) if words[s] else t
        words[s + LAST_WAITING] = max(words[s + LAST_WAITING], t)


@uncounted
def add_event(words: Array, terms: Array, values: Array, i: int, o: int, mask: int, t: int, row: int) -> Any:
    """Add an event to the state of a term; returns whether it can make the condition true."""
    kind, s, bits = terms[i, KIND], o + terms[i, AT], mask >> terms[i, BIT]
    if kind == COUNT:
        if bits & 1:
            add_time(words, s, terms[i, N], t)
        return bits & 1 == 1
    if kind == TOTAL:
        if bits & 1:
            add_sum(words, s, terms[i, RESOLUTION], t, values[row, terms[i, VALUE]] if terms[i, VALUE] >= 0 else 1.0)
        return bits & 1 == 1
    if kind == CHAIN:
        return add_step(words, s, terms[i, N], terms[i, WITHIN], bits, t)
    if kind == ABSENCE:
        add_absence(words, s, terms[i, WITHIN], bits, t)
        return False
    if bits & 3 and t >= words[s]:
        words[s], words[s + IS_TRUE] = t, bits & 1
    return bits & 1 == 1
