"""The caches of matching between batches, without a database: how long, and for which person."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from penstock import cql
from penstock.cql.matching import id_match
from penstock.cql.matching.id_match import KEY, IdentityCache, Match
from penstock.cql.matching.id_store import HUB, Identity, IdTables, Listed, PersonList, read_lists, with_own
from penstock.cql.matching.linking import Node, node_of

FRESH = 10.0
MAPS = pa.map_(pa.string(), pa.list_(pa.string()))


def process(limit: int) -> IdentityCache:
    store = cql.ids("nowhere", hosts="127.0.0.1:9")
    return IdentityCache(Match(store, ("cookie",), "person", False, 60, timedelta(seconds=FRESH), limit))


def binary(*values: bytes) -> pa.Array:
    return pa.array(values, pa.binary())


def knows(made: IdentityCache, cookie: str, at: float) -> None:
    """The process read at that time that the cookie belongs to a person with no other identity."""
    node = node_of("cookie", cookie)
    made.persons.add(binary(f"cookie\0{cookie}".encode()), pa.table({"person": binary(node)}), at)
    made.lists.add(binary(node), pa.table({"ids": pa.array([[("cookie", [cookie])]], MAPS), "whole": [True]}), at)


def matched(made: IdentityCache, *cookies: str) -> list[dict[str, Any]]:
    key = pa.StructArray.from_arrays([pa.array(cookies)], ["cookie"])
    found: list[dict[str, Any]] = made.matched(pa.RecordBatch.from_pydict({KEY: key})).to_pylist()
    return found


def test_lists_that_are_read_anew_do_not_move_those_that_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    # The limit is two: "new" replaces "old", and "held" then has another position.
    made, now = process(2), time.monotonic()
    knows(made, "old", now)
    knows(made, "held", now)
    node = node_of("cookie", "new")
    made.persons.add(binary(b"cookie\0new"), pa.table({"person": binary(node)}), now)

    def read(tables: object, persons: Sequence[Node]) -> list[Listed]:
        assert list(persons) == [node]
        return [Listed([("cookie", "new")], True)]

    monkeypatch.setattr(id_match, "read_lists", read)
    for event, cookie in zip(matched(made, "held", "new"), ("held", "new"), strict=True):
        assert event["person_ids"] == [("cookie", [cookie])]


def test_what_is_read_is_as_old_as_the_batch_that_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    made, clock, reads = process(100), 100.0, 0
    person = pa.table({"person": binary(node_of("cookie", "known"))})
    made.persons.add(binary(b"cookie\0known"), person, clock + FRESH)

    def read(tables: object, persons: Sequence[Node]) -> list[Listed]:
        nonlocal clock, reads
        clock, reads = clock + FRESH, reads + 1  # the database was down
        return [Listed([("cookie", "known")], True) for _ in persons]

    monkeypatch.setattr(id_match, "time", SimpleNamespace(monotonic=lambda: clock))
    monkeypatch.setattr(id_match, "read_lists", read)
    matched(made, "known")
    matched(made, "known")
    assert reads == 2


def process_of(kinds: tuple[str, ...], create: bool) -> IdentityCache:
    store = cql.ids("nowhere", hosts="127.0.0.1:9")
    return IdentityCache(Match(store, kinds, "person", create, 60, timedelta(seconds=FRESH), 100))


def test_an_event_has_its_own_identities_among_the_thousand_of_a_large_person() -> None:
    made, now, person = process_of(("cookie", "email"), create=False), time.monotonic(), bytes(16)
    stored = [("cookie", f"c{number:04}") for number in range(HUB)]
    for identity in ("cookie\0c0001", "cookie\0late", "email\0e1"):
        made.persons.add(binary(identity.encode()), pa.table({"person": binary(person)}), now)
    made.persons.add(binary(b"email\0unknown"), pa.table({"person": binary(b"")}), now)
    ids = pa.array([[("cookie", [value for _, value in stored])]], MAPS)
    made.lists.add(binary(person), pa.table({"ids": ids, "whole": [False]}), now)
    cookies, emails = ["c0001", "late", "late", None, "late"], [None, None, "e1", None, "unknown"]
    key = pa.StructArray.from_arrays([pa.array(cookies), pa.array(emails, pa.string())], ["cookie", "email"])
    listed, late, both, nobody, unknown = (
        row["person_ids"] for row in made.matched(pa.RecordBatch.from_pydict({KEY: key})).to_pylist()
    )
    values = [value for _, value in stored]
    assert listed == [("cookie", values)]
    assert late == unknown == [("cookie", [*values[:-1], "late"])]
    assert both == [("cookie", [*values[:-2], "late"]), ("email", ["e1"])]
    assert nobody is None


class Tables(IdTables):
    """The lists of persons in memory, read as the database reads them: by bucket 0, with a limit."""

    def __init__(self, lists: dict[Node, PersonList]) -> None:
        self.stored = lists

    def lists(self, persons: Sequence[Node], limit: int = HUB + 1) -> dict[Node, PersonList]:
        found = {person: self.stored.get(person, PersonList()) for person in persons}
        return {person: PersonList(some.identities[:limit], some.notes, some.whole) for person, some in found.items()}


def cookies_of(first: int, last: int) -> list[Identity]:
    return [("cookie", f"c{number:04}") for number in range(first, last)]


def test_the_lists_of_merged_persons_are_read_through_their_notes_even_in_a_circle() -> None:
    a, b, c, d = (bytes([number]) * 16 for number in range(4))
    lists = {
        a: PersonList(cookies_of(2, 4), [b, c]),
        b: PersonList(cookies_of(0, 1), [a]),
        c: PersonList(cookies_of(3, 5), [b]),
        d: PersonList(cookies_of(9, 10)),
    }
    found = read_lists(Tables(lists), [a, d, bytes(16)[:-1] + b"x"])
    assert found == [
        Listed([*cookies_of(0, 1), *cookies_of(2, 5)], True),
        Listed(cookies_of(9, 10), True),
        Listed([], True),
    ]


@pytest.mark.parametrize(
    ("own", "of_note", "beyond", "whole"),
    [
        (HUB, 0, False, True),
        (HUB + 1, 0, False, False),
        (10, HUB - 10, False, True),
        (10, HUB, False, False),
        (3, 0, True, False),
        (3, 1, True, False),
    ],
)
def test_a_list_says_whether_the_person_has_others(own: int, of_note: int, beyond: bool, whole: bool) -> None:
    a, b = bytes(16), b"b" * 16
    lists = {
        a: PersonList(cookies_of(0, own), [b] if of_note else [], not beyond or bool(of_note)),
        b: PersonList(cookies_of(own, own + of_note), [], not beyond),
    }
    (found,) = read_lists(Tables(lists), [a])
    assert (len(found.identities), found.whole) == (min(HUB, own + of_note), whole)
    assert found.identities == cookies_of(0, own + of_note)[:HUB]


@given(st.sets(st.integers(0, 1500), max_size=1200), st.sets(st.integers(0, 1500), min_size=1, max_size=4))
@settings(max_examples=30)
def test_own_identities_replace_the_last_of_others(listed: set[int], own: set[int]) -> None:
    names = {number: ("cookie", f"c{number:04}") for number in listed | own}
    found = with_own([names[number] for number in sorted(listed)][:HUB], {names[number] for number in own})
    assert found == sorted(set(found)) and len(found) <= HUB
    assert {names[number] for number in own} <= set(found) <= {names[number] for number in listed | own}
    assert len(found) == min(HUB, len(set(sorted(listed)[:HUB]) | own))
