"""Events put into the terms of a record (see `layout`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.native import Array
from penstock.native.jit import uncounted
from penstock.stream.segment.plan import ABSENCE, AT, BINS, BIT, CHAIN, COUNT, KIND, RESOLUTION, TOTAL, VALUE, WITHIN, N


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
    """Chains that an event begins or continues; whether one is complete. The last step first: an event is one."""
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
            words[s] = words[s + 1] if words[s + 1] > t else 0
        if t >= words[s + 2] - within:
            words[s + 2] = 0
    elif bits & 1:
        words[s] = min(words[s], t) if words[s] else t
        words[s + 1] = max(words[s + 1], t)


@uncounted
def add_event(words: Array, terms: Array, values: Array, i: int, o: int, mask: int, t: int, row: int) -> Any:
    """Put an event into the state of a term; whether it is one that can make the condition true."""
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
        words[s], words[s + 1] = t, bits & 1
    return bits & 1 == 1
