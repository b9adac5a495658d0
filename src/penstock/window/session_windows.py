"""Session windows: rows of a key belong to one session while less than the gap lies between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.keyed_state.aggregates import Aggregate, merged, partial
from penstock.keyed_state.arrow_keys import Numbers, codes, concat, numbers
from penstock.window.window_state import END, START, Mask, Merge

SESSION = "_session"


@dataclass(frozen=True)
class Sessions:
    """Sessions that end `gap` microseconds after their last row."""

    gap: int

    def partial(self, rows: pa.Table, keys: Sequence[str], aggregates: Sequence[Aggregate]) -> pa.Table:
        start = numbers(rows[START])
        of = _grouped(codes([rows], keys)[0], start, start + self.gap)
        made = partial(rows.append_column(SESSION, pa.array(of.session)), [*keys, SESSION], aggregates)
        return of.bounded(made)

    def merge(self, state: pa.Table, windows: pa.Table, keys: Sequence[str], aggregates: Sequence[Aggregate]) -> Merge:
        there, here = codes([state, windows], keys)
        # Open sessions of other keys stay as they are.
        near = np.isin(there, here)
        known = state.filter(pa.array(near))
        rows = concat([known, windows], state.schema)
        of = _grouped(np.concatenate([there[near], here]), numbers(rows[START]), numbers(rows[END]))
        slim = rows.drop_columns([START, END]).append_column(SESSION, pa.array(of.session))
        made = of.bounded(merged(slim, [*keys, SESSION], aggregates))
        touched, opened = (_flags(some, len(of.start)) for some in (of.session[len(known) :], of.session[: len(known)]))
        number = numbers(made[SESSION])
        changed = touched[number]
        # Rows of the state whose session now has another start.
        swallowed = numbers(known[START]) != of.start[of.session[: len(known)]]
        return Merge(
            made.filter(pa.array(changed)).select(state.column_names),
            known.filter(pa.array(swallowed)),
            ~opened[number][changed],
        )


@dataclass(frozen=True)
class _Grouped:
    """The session of each row, and start and end of each session."""

    session: Numbers
    start: Numbers
    end: Numbers

    def bounded(self, made: pa.Table) -> pa.Table:
        """Sessions with their start and end."""
        number = numbers(made[SESSION])
        bounds = made.append_column(START, pa.array(self.start[number]))
        return bounds.append_column(END, pa.array(self.end[number]))


def _grouped(key: Numbers, start: Numbers, end: Numbers) -> _Grouped:
    """Rows of one key with overlapping spans form one session; sessions are numbered from 0."""
    if not len(key):
        return _Grouped(key, start, end)
    order = np.lexsort((start, key))
    key, starts = key[order], start[order]
    # The largest end so far within a key: ends as ranks, which do not overflow when combined with the key.
    by_end = np.argsort(end[order], kind="stable")
    rank = np.empty(len(key), np.int64)
    rank[by_end] = np.arange(len(key))
    change = np.concatenate([[False], key[1:] != key[:-1]])
    base = np.cumsum(change) * len(key)
    reached = end[order][by_end[np.maximum.accumulate(base + rank) - base]]
    begins = change | np.concatenate([[True], starts[1:] >= reached[:-1]])
    number = np.cumsum(begins) - 1
    session = np.empty(len(key), np.int64)
    session[order] = number
    last = np.concatenate([begins[1:], [True]])
    return _Grouped(session, starts[begins], reached[last])


def _flags(numbers_of_sessions: Numbers, count: int) -> Mask:
    flags = np.zeros(count, bool)
    flags[numbers_of_sessions] = True
    return flags
