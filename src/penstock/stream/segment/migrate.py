"""Records made under other rules: those of rules that stayed stay, the others' members are carried over or leave.

A rule stays what it is while its digest does. One whose condition changed keeps its members, by its name, until their
time is over, and counts anew. The members of a rule that is gone leave.
"""

from __future__ import annotations

import numpy as np

from penstock.stream.segment.copies import CARRIED, GONE, SAME, move
from penstock.stream.segment.layout import INDEXED, USED
from penstock.stream.segment.places import marks_of
from penstock.stream.segment.plan import WIDTH, Plan
from penstock.stream.segment.store import COLUMNS, Changes, Store


def migrated(old: Store, plan: Plan, clock: int) -> tuple[Store, Changes]:
    """A store under `plan` with the records of `old`, and the leavings of those whose rule is gone."""
    by_digest = {(rule.digest, rule.name): i for i, rule in enumerate(plan.source)}
    by_name = {rule.name: i for i, rule in enumerate(plan.source)}
    new_of, how = [], []
    for rule in old.plan.source:
        same = by_digest.get((rule.digest, rule.name))
        carried = by_name.get(rule.name)
        new_of.append(same if same is not None else carried if carried is not None else -1)
        how.append(SAME if same is not None else CARRIED if carried is not None else GONE)
    used = int(old.sizes[USED])
    to = np.zeros(used * 2 + len(plan.rules) * int(plan.rules[:, WIDTH].max()) + _room(old, plan), np.int64)
    out = np.empty((int(old.sizes[INDEXED]) + 1, COLUMNS), np.int64)
    end, left = move(old.words, used, np.array(new_of), np.array(how), plan.rules, clock, to, out)
    changes = old.changes(out[:left])
    store = Store(plan)
    store.fill(to[:end])
    return store, changes


def _room(old: Store, plan: Plan) -> int:
    """Words that carried records and ids can need beyond what they have."""
    return int(old.sizes[INDEXED]) * int(plan.rules[:, WIDTH].max() + marks_of(plan.rules))
