"""Records copied to other words: those that still matter, or under other rules; and listed (see `layout`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.native import Array
from penstock.native.jit import copy, uncounted
from penstock.stream.segment.layout import ID_HEAD, LEAVE, MARKED
from penstock.stream.segment.places import marks_of
from penstock.stream.segment.plan import HEAD, KEEP, WIDTH

WORD = 8
"""Bytes."""
GONE, CARRIED, SAME = 0, 1, 2
"""What becomes of the records of a rule."""


@uncounted
def with_id(words: Array, person: int, marks: int, to: Array, end: int, new_marks: int) -> Any:
    """Copy a person's id, without marks, unless its new place is known; where the copy ends."""
    if words[person + 4]:
        return end
    text, new_text = person + ID_HEAD + marks, end + ID_HEAD + new_marks
    size = words[person] - ID_HEAD - marks
    words[person + 4] = end
    copy(to, end, words, person, WORD * ID_HEAD)
    to[end], to[end + 4] = ID_HEAD + new_marks + size, 0
    to[end + ID_HEAD : new_text] = 0
    copy(to, new_text, words, text, WORD * size)
    return new_text + size


@uncounted
def mark(to: Array, person: int, rule: int) -> None:
    """Tell with a person's id that there is a record for the rule."""
    to[person + ID_HEAD + rule // MARKED] |= np.int64(1) << (rule % MARKED)


@uncounted
def keep_alive(words: Array, used: int, rules: Array, clock: int, to: Array) -> int:
    """Copy the records that still matter, and the ids they need; where the copy ends. Moves the ids in `words`."""
    o, end, marks = 1, 1, marks_of(rules)
    while o < used:
        rule = words[o + 2]
        if rule >= 0 and (words[o + 4] or words[o + 6] or words[o + 5] + rules[rule, KEEP] > clock):
            person = words[o + 3]
            end = with_id(words, person, marks, to, end, marks)
            copy(to, end, words, o, WORD * words[o])
            to[end + 3] = words[person + 4]
            mark(to, to[end + 3], rule)
            end += words[o]
        o += words[o]
    return end


@uncounted
def move(
    words: Array, used: int, new_of: Array, how: Array, rules: Array, clock: int, to: Array, out: Array
) -> tuple[int, int]:
    """Copy records with their new rules; where the copy ends, and how many members left."""
    o, end, left, marks, new_marks = 1, 1, 0, marks_of(how), marks_of(rules)
    while o < used:
        rule = words[o + 2]
        if rule >= 0 and how[rule] == GONE and words[o + 4]:
            out[left, 0], out[left, 1], out[left, 2] = words[o + 3], rule, LEAVE
            out[left, 3], out[left, 4] = max(clock, words[o + 5]), words[o + 4]
            left += 1
        if rule >= 0 and (how[rule] == SAME or (how[rule] == CARRIED and words[o + 4])):
            person = words[o + 3]
            end = with_id(words, person, marks, to, end, new_marks)
            width = rules[new_of[rule], WIDTH]
            copied = width if how[rule] == SAME else HEAD
            to[end : end + width] = 0
            copy(to, end, words, o, WORD * copied)
            to[end], to[end + 2], to[end + 3] = width, new_of[rule], words[person + 4]
            mark(to, to[end + 3], new_of[rule])
            if how[rule] == CARRIED:
                to[end + 6] = words[o + 4]
            end += width
        o += words[o]
    return end, left


@uncounted
def listed(words: Array, used: int, out: Array) -> int:
    """Of each record the place of its id, rule, member until, last time, due, as rows of `out`; how many."""
    o, row = 1, 0
    while o < used:
        if words[o + 2] >= 0:
            out[row, 0], out[row, 1] = words[o + 3], words[o + 2]
            out[row, 2], out[row, 3], out[row, 4] = words[o + 4], words[o + 5], words[o + 6]
            row += 1
        o += words[o]
    return row
