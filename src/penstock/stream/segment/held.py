"""What workers hold between batches: the records of a bucket, in memory that an executor's workers share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from penstock.stream import shared
from penstock.stream.segment.plan import Plan
from penstock.stream.segment.store import ARRAYS, Store

_TOKEN, _LAST, _RULES, _SIZES = 0, 1, slice(2, 6), slice(6, 11)
"""Where it stands in the notes of a slot. A token of zero: what is in the slot is of no known history."""


@dataclass
class Held:
    """The records of a bucket after entry `last` of its log, which has this token, and the digest of their rules."""

    store: Store
    last: int
    token: int
    rules: str


@dataclass
class Place:
    """Where the records of a bucket are taken from, and put back; what is not put back is gone."""

    held: Held | None


_HELD: dict[str, Held] = {}
"""What a worker holds that shares nothing, by the name of the state and the bucket."""


@contextmanager
def place(name: str, plan: Plan, rules: str) -> Iterator[Place]:
    """The place of a bucket of records; no other worker has it meanwhile. `rules` is the digest of the plan's."""
    with shared.held(name) as slot:
        # While the records change they are of no known history: a failure in between leaves nothing to be trusted.
        found = Place(_HELD.pop(name, None) if slot is None else _taken(slot, plan, rules))
        yield found
        if found.held and slot is not None:
            _put(slot, found.held)
        elif found.held:
            _HELD[name] = found.held


def _taken(slot: shared.Slot, plan: Plan, rules: str) -> Held | None:
    notes = slot.notes
    token, notes[_TOKEN] = int(notes[_TOKEN]), 0
    # Records under other rules are read from the log, which knows these.
    if not token or notes[_RULES].tobytes() != bytes.fromhex(rules):
        return None
    store = Store(plan, slot)
    store.words, store.index, store.heap = map(slot.array, ARRAYS)
    store.sizes[:] = notes[_SIZES]
    return Held(store, int(notes[_LAST]), token, rules)


def _put(slot: shared.Slot, held: Held) -> None:
    held.store.move(slot)
    notes = slot.notes
    notes[_LAST], notes[_SIZES] = held.last, held.store.sizes
    notes[_RULES] = np.frombuffer(bytes.fromhex(held.rules), np.int64)
    notes[_TOKEN] = held.token
