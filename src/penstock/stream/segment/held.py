"""What workers hold between batches: the records of a bucket, in memory that an executor's workers share."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from penstock.stream import shared
from penstock.stream.segment.plan import Plan
from penstock.stream.segment.store import ARRAYS, Store

_TOKEN, _LAST, _RULES, _SIZES = 1, 2, slice(3, 7), slice(7, 12)
"""Where it stands in the notes of a slot."""


@dataclass
class Held:
    """The records of a bucket after entry `last` of its log, which has this token, and the digest of their rules."""

    store: Store
    last: int
    token: int
    rules: str


_HELD: dict[str, Held] = {}
"""What a worker holds that shares nothing, by the name of the state and the bucket."""


def place(name: str, plan: Plan, rules: str) -> AbstractContextManager[shared.Place[Held]]:
    """The place of a bucket of records (see `shared.place`). `rules` is the digest of the plan's."""

    def take(slot: shared.Slot) -> Held | None:
        notes = slot.notes
        # Records under other rules are read from the log, which knows these.
        if notes[_RULES].tobytes() != bytes.fromhex(rules):
            return None
        store = Store(plan, slot)
        store.words, store.index, store.heap = map(slot.array, ARRAYS)
        store.sizes[:] = notes[_SIZES]
        return Held(store, int(notes[_LAST]), int(notes[_TOKEN]), rules)

    return shared.place(name, _HELD, take, _put)


def _put(slot: shared.Slot, held: Held) -> None:
    held.store.move(slot)
    notes = slot.notes
    notes[_LAST], notes[_TOKEN], notes[_SIZES] = held.last, held.token, held.store.sizes
    notes[_RULES] = np.frombuffer(bytes.fromhex(held.rules), np.int64)
