"""Whether a rule's condition holds for a record, and until when by the mere passing of time (see `layout`)."""

from __future__ import annotations

import numpy as np

from penstock.native import Array
from penstock.native.jit import uncounted
from penstock.stream.segment.layout import NEVER
from penstock.stream.segment.plan import (
    ABSENCE,
    AND,
    AT,
    BINS,
    CHAIN,
    COUNT,
    FIRST_CODE,
    FIRST_TERM,
    KIND,
    LAST_CODE,
    LAST_TERM,
    LATEST,
    RESOLUTION,
    UNTIL_FALSE,
    WITHIN,
    N,
)


@uncounted
def change_of(words: Array, terms: Array, limits: Array, i: int, o: int, t: int) -> int:
    """When the term, true at `t`, may become false by the mere passing of time; zero if it is false at `t`."""
    kind, s, n, within = terms[i, KIND], o + terms[i, AT], terms[i, N], terms[i, WITHIN]
    since = 0
    if kind == COUNT:
        since = words[s]
    elif kind == CHAIN:
        since = words[s + 2 * n - 2]
    elif kind == ABSENCE:
        since = words[s + 2]
    elif kind == LATEST:
        since = words[s] if words[s + 1] else 0
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
    """Whether the condition holds at `t`."""
    rule = words[o + 2]
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
    """When the record must be looked at without an event: an absence is certain, a membership over or to be checked."""
    rule, until = words[o + 2], words[o + 4]
    due = until if until else NEVER
    check = until != 0 and rules[rule, UNTIL_FALSE] != 0
    for i in range(rules[rule, FIRST_TERM], rules[rule, LAST_TERM]):
        if terms[i, KIND] == ABSENCE and words[o + terms[i, AT]]:
            due = min(due, words[o + terms[i, AT]] + terms[i, WITHIN])
        if check:
            change = change_of(words, terms, limits, i, o, words[o + 5])
            if change:
                due = min(due, change)
    return 0 if due == NEVER else due
