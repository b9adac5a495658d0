"""The caches of matching between batches, without a database: how long, and for which person."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from penstock import cql
from penstock.cql.matching import id_match
from penstock.cql.matching.id_match import KEY, IdentityCache, Match
from penstock.cql.matching.id_store import Identity
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
    made.lists.add(binary(node), pa.table({"ids": pa.array([[("cookie", [cookie])]], MAPS)}), at)


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

    def read(tables: object, persons: Sequence[Node]) -> list[list[Identity]]:
        assert list(persons) == [node]
        return [[("cookie", "new")]]

    monkeypatch.setattr(id_match, "read_lists", read)
    for event, cookie in zip(matched(made, "held", "new"), ("held", "new"), strict=True):
        assert event["person_ids"] == [("cookie", [cookie])]


def test_what_is_read_is_as_old_as_the_batch_that_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    made, clock, reads = process(100), 100.0, 0
    person = pa.table({"person": binary(node_of("cookie", "known"))})
    made.persons.add(binary(b"cookie\0known"), person, clock + FRESH)

    def read(tables: object, persons: Sequence[Node]) -> list[list[Identity]]:
        nonlocal clock, reads
        clock, reads = clock + FRESH, reads + 1  # the database was down
        return [[("cookie", "known")] for _ in persons]

    monkeypatch.setattr(id_match, "time", SimpleNamespace(monotonic=lambda: clock))
    monkeypatch.setattr(id_match, "read_lists", read)
    matched(made, "known")
    matched(made, "known")
    assert reads == 2
