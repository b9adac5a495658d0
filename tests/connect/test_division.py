"""How a group's work is divided: evenly, with few moves, and never to two workers at the same time."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from penstock.connect.group.division import Claim, Share, TaskId, divide, spread

NAMES = st.sampled_from("abcdefgh")
ITEMS = st.sets(NAMES, max_size=8)
HELD = st.dictionaries(st.sampled_from(["m0", "m1", "m2", "m3"]), ITEMS, min_size=1, max_size=4)


@given(ITEMS, HELD)
def test_items_are_spread_evenly_and_stay_where_they_can(items: set[str], held: dict[str, set[str]]) -> None:
    found = spread(items, held)
    sizes = [len(one) for one in found.values()]
    assert sum(sizes) == len(items) and set().union(*found.values()) == items
    assert max(sizes) - min(sizes) <= 1
    # Only what is too much for its member goes away from it.
    for member, had in held.items():
        mine = had & items
        if not any(mine & other for name, other in held.items() if name != member):
            assert len(found[member] & mine) >= min(len(mine), min(sizes))


class Simulated:
    """Workers that stop what they lose before they claim less, as `SharedWork` does."""

    def __init__(self, members: list[str]) -> None:
        self.running: dict[str, set[TaskId]] = {member: set() for member in members}
        self.shares: dict[str, Share] = {}

    def round(self, tasks: list[TaskId], slow: set[str]) -> None:
        """All join and are given their shares; `slow` workers have not stopped anything yet."""
        claims = {
            member: Claim(
                member, tasks=frozenset(running | (self.shares[member].tasks if member in self.shares else set()))
            )
            for member, running in self.running.items()
        }
        self.shares = divide(claims, [], tasks, 0)
        for member, share in self.shares.items():
            if member not in slow:
                self.running[member] &= share.tasks
        for member, share in self.shares.items():
            self.running[member] |= share.tasks

    def tables(self, shares: dict[TaskId, tuple[str, ...]]) -> list[str]:
        return [table for running in self.running.values() for id in running for table in shares[id]]


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3), st.sets(st.sampled_from(["m0", "m1", "m2"]))), max_size=12)
)
def test_no_table_is_ever_with_two_workers(steps: list[tuple[int, int, set[str]]]) -> None:
    """Whatever comes and goes: workers join and die, sources are divided anew, and workers are slow to stop."""
    shares: dict[TaskId, tuple[str, ...]] = {}
    group, generation, tasks = Simulated(["m0"]), 0, list[TaskId]()
    for count, members, slow in steps:
        for member in [f"m{number}" for number in range(3)]:
            if int(member[1:]) > members:
                group.running.pop(member, None)
                group.shares.pop(member, None)
            elif member not in group.running:
                group.running[member] = set()
        if generation == 0 or count != len(tasks):
            generation += 1
            tasks = [TaskId("c", generation, number) for number in range(count)]
            shares |= {id: tuple("tuvwxyz"[id.number :: count]) for id in tasks}
        group.round(tasks, slow)
        found = group.tables(shares)
        assert len(found) == len(set(found))
    for _ in range(3):
        group.round(tasks, set())
    assert sorted(group.tables(shares)) == sorted(table for id in tasks for table in shares[id])


@pytest.mark.parametrize(
    "data", [b"", b"[]", b'{"tasks": [1]}', b'{"tasks": [["a", "b", 1]]}', b"\xff", b'{"tasks": 5}']
)
def test_what_is_no_claim_is_refused(data: bytes) -> None:
    for kind in (Claim, Share):
        with pytest.raises(ValueError):
            kind.decoded(data)


def test_claims_and_shares_are_read_as_they_were_written() -> None:
    claim = Claim("here:1", frozenset("ab"), frozenset({TaskId("ä", 7, 1)}))
    assert Claim.decoded(claim.encoded()) == claim
    share = Share(9, frozenset("a"), frozenset({TaskId("ä", 7, 1)}), frozenset({"here:1"}))
    assert Share.decoded(share.encoded()) == share
    assert json.loads(share.encoded())["tasks"] == [["ä", 7, 1]]
