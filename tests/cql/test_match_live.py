"""Matching on a real node: persons, their identities, merges, hubs, times to live, concurrent writers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from random import Random
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from identities import persons_of
from pyspark.sql import SparkSession
from waiting import PATIENCE

from penstock import cql as pcql, segment
from penstock.cli.main import main
from penstock.cql.matching import id_match, id_store
from penstock.cql.matching.id_match import KEY, Match
from penstock.cql.matching.id_store import HUB, IdStore, IdTables
from penstock.cql.matching.linking import Links, node_of
from penstock.cql.row_cache import MEASURED
from penstock.errors import PenstockError
from penstock.local.services import Services
from penstock.segment.member_tables.member_schema import bucket_of

KINDS = ("cookie", "email_hash", "partner")
ONE_NODE: dict[str, str | int] = {"class": "SimpleStrategy", "replication_factor": 1}


@pytest.fixture(scope="module")
def store(services: Services, keyspace: str) -> IdStore:
    made = pcql.ids(keyspace, hosts=services.cql)
    pcql.create(made, replication=ONE_NODE)
    pcql.create(made, replication=ONE_NODE)  # again: nothing
    return made


@pytest.fixture
def empty(cql: Any, store: IdStore) -> Iterator[IdStore]:
    for name in ("links", "identities"):
        cql.execute(f"TRUNCATE {store.keyspace}.{name}", timeout=PATIENCE)
    yield store
    id_match.PROCESSES.clear()


def matcher(store: IdStore, fresh: float = 60.0, create: bool = True) -> Match:
    return Match(store, KINDS, "person", create, 3600, timedelta(seconds=fresh), 100_000)


def run(made: Match, events: Sequence[tuple[str | None, ...]]) -> list[dict[str, Any]]:
    """The events with the columns that matching adds, in one Arrow batch."""
    columns = [pa.array(column, pa.string()) for column in zip(*events, strict=True)]
    key = pa.StructArray.from_arrays(columns, list(KINDS))
    (batch,) = made(iter([pa.RecordBatch.from_pydict({"n": pa.array(range(len(key))), KEY: key})]))
    found: list[dict[str, Any]] = batch.to_pylist()
    return found


def test_an_event_gets_its_person_and_all_identities_of_the_person(empty: IdStore) -> None:
    first = run(matcher(empty), [("c1", "e1", None), (None, None, None), ("c2", None, "p2"), ("c1", None, None)])
    one, two = first[0]["person"], first[2]["person"]
    assert one == str(UUID(bytes=min(node_of("cookie", "c1"), node_of("email_hash", "e1"))))
    assert [row["person"] for row in first] == [one, None, two, one] and one != two
    assert dict(first[3]["person_ids"]) == {"cookie": ["c1"], "email_hash": ["e1"]}
    assert first[1]["person_ids"] is None
    assert (first[0][MEASURED]["created"], first[0][MEASURED]["merged"]) == (2, 0)
    # Another process with empty caches sees e1 and p2 together: the two persons are merged.
    id_match.PROCESSES.clear()
    merged = run(matcher(empty), [(None, "e1", "p2"), ("c1", None, None), ("c2", None, None)])
    assert {row["person"] for row in merged} == {min(one, two)}
    everything = {"cookie": ["c1", "c2"], "email_hash": ["e1"], "partner": ["p2"]}
    assert [dict(row["person_ids"]) for row in merged] == [everything] * 3
    assert (merged[0][MEASURED]["created"], merged[0][MEASURED]["merged"]) == (0, 1)
    # Cached identities need no requests.
    again = run(matcher(empty), [("c1", None, None), (None, "e1", None)])
    assert (again[0][MEASURED]["requests"], again[0][MEASURED]["hits"]) == (0, 2)
    assert dict(again[0]["person_ids"]) == everything


def test_without_create_nothing_is_written(empty: IdStore, cql: Any) -> None:
    run(matcher(empty), [("c1", "e1", None)])
    id_match.PROCESSES.clear()
    before = sorted(cql.execute(f"SELECT node, lower, WRITETIME(seen) FROM {empty.keyspace}.links"))
    found = run(matcher(empty, create=False), [("c1", None, "p9"), ("c9", None, None), (None, "e1", None)])
    assert found[0]["person"] == found[2]["person"] is not None and found[1]["person"] is None
    assert dict(found[0]["person_ids"]) == {"cookie": ["c1"], "email_hash": ["e1"]}
    assert sorted(cql.execute(f"SELECT node, lower, WRITETIME(seen) FROM {empty.keyspace}.links")) == before


def test_every_cell_has_a_time_to_live(empty: IdStore, cql: Any) -> None:
    run(matcher(empty), [("c1", "e1", None), ("c2", None, "p2"), (None, "e1", "p2")])
    for table in ("links", "identities"):
        left = [row[0] for row in cql.execute(f"SELECT TTL(seen) FROM {empty.keyspace}.{table}")]
        assert left and all(3500 < seconds <= 3600 for seconds in left)


@pytest.mark.slow
def test_a_hub_does_not_make_a_large_partition(empty: IdStore, cql: Any) -> None:
    count = 5000
    for start in range(0, count, 1000):
        found = run(matcher(empty), [(f"c{n}", None, "hub") for n in range(start, start + 1000)])
    person = found[0]["person"]
    assert {row["person"] for row in found} == {person}
    rows = list(cql.execute(f"SELECT person, bucket, kind, value FROM {empty.keyspace}.identities", timeout=PATIENCE))
    assert {value for _, _, kind, value in rows if kind == "cookie"} == {f"c{n}" for n in range(count)}
    sizes: dict[tuple[UUID, int], int] = {}
    for owner, bucket, *_ in rows:
        sizes[owner, bucket] = sizes.get((owner, bucket), 0) + 1
    assert max(sizes.values()) <= HUB + 1
    assert len([1 for _, bucket in sizes if bucket]) > 100
    links = [row[0] for row in cql.execute(f"SELECT node FROM {empty.keyspace}.links", timeout=PATIENCE)]
    assert max(map(links.count, set(links[:50]))) <= 30
    for number, row in enumerate(found, 4000):
        ids = dict(row["person_ids"])
        assert f"c{number}" in ids["cookie"] and ids["partner"] == ["hub"]
        assert sum(map(len, ids.values())) == HUB


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(("left", "rewritten"), [(0.95, False), (0.85, True)])
def test_what_is_seen_again_and_again_stays_listed(
    empty: IdStore, cql: Any, monkeypatch: pytest.MonkeyPatch, left: float, rewritten: bool
) -> None:
    """Rows are rewritten before they expire, many more times than the size of a hub, and stay in their bucket."""
    monkeypatch.setattr(id_store, "HUB", 6)
    made = matcher(empty, fresh=0.0)
    few, many = [(f"c{n}", None, "few") for n in range(4)], [(f"d{n}", None, "many") for n in range(9)]
    run(made, few + many)
    real, now = IdTables.links, time.monotonic()
    monkeypatch.setattr(IdTables, "links", lambda *args: aged(real(*args), left))
    for number in range(1, 20):
        at = now + number * (1 - left) * made.ttl
        monkeypatch.setattr(id_store, "time", SimpleNamespace(monotonic=lambda at=at: at, time_ns=time.time_ns))
        before = write_times(cql, empty)
        found = run(made, few + many)
        counts = [len([value for _, some in row["person_ids"] for value in some]) for row in found]
        assert counts == [5] * len(few) + [6] * len(many)
        after = write_times(cql, empty)
        assert after.keys() == before.keys()
        assert {after[key] > before[key] for key in before} == {rewritten}


def aged(links: Links, left: float) -> Links:
    """The links as they are when this fraction of their time is left."""
    return {node: dict.fromkeys(lowers, left) for node, lowers in links.items()}


def write_times(cql: Any, store: IdStore) -> dict[tuple[Any, ...], int]:
    """When each identity in the lists was written last."""
    text = f"SELECT person, bucket, kind, value, WRITETIME(seen) FROM {store.keyspace}.identities"
    return {tuple(row[:4]): row[4] for row in cql.execute(text) if row[2]}


def test_identities_that_no_table_can_hold_are_none(empty: IdStore, spark: SparkSession) -> None:
    frame = spark.sql(
        "SELECT * FROM VALUES (repeat('x', 70000), 'e1'), (CAST(X'FF61' AS STRING), 'e1'), ('', 'e1'), ('c1', 'e1')"
        " AS t (cookie, email_hash)"
    )
    ids = ["cookie", "email_hash"]
    rows = pcql.match(frame, store=empty, ids=ids, into="person", unknown="create", ttl="1 hour").collect()
    assert len({row["person"] for row in rows}) == 1
    assert {kind for row in rows for kind in row["person_ids"]} == {"email_hash", "cookie"}
    assert {value for row in rows for value in row["person_ids"].get("cookie", [])} <= {"c1"}


def test_writers_at_once_find_the_same_persons_as_union_find(empty: IdStore) -> None:
    chance = Random(5)
    events = [
        tuple(f"{kind[0]}{chance.randrange(60)}" if chance.random() < 0.6 else None for kind in KINDS)
        for _ in range(240)
    ]
    batches = [events[i : i + 12] for i in range(0, len(events), 12)]

    def process(number: int) -> None:
        for batch in batches[number::4]:
            made = id_match.IdentityCache(matcher(empty, fresh=0.0))
            columns = [pa.array(column, pa.string()) for column in zip(*batch, strict=True)]
            made.matched(pa.RecordBatch.from_pydict({KEY: pa.StructArray.from_arrays(columns, list(KINDS))}))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(process, range(4)))
    expected = persons_of(KINDS, events)
    id_match.PROCESSES.clear()
    found = run(matcher(empty, create=False), events)
    for event, row in zip(events, found, strict=True):
        name = next(((kind, value) for kind, value in zip(KINDS, event, strict=True) if value), None)
        assert (row["person"], dict(row["person_ids"] or {})) == (expected[name] if name else (None, {}))


def test_an_erased_person_leaves_no_row(empty: IdStore, cql: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run(matcher(empty), [("c1", "e1", None), ("c2", None, "p2"), ("c9", "e9", None)])
    other = run(matcher(empty), [("c9", None, None)])[0]["person"]
    run(matcher(empty), [(f"h{n}", "e1", None) for n in range(HUB + 100)])
    merged = run(matcher(empty), [(None, "e1", "p2")])[0]["person"]
    erased = pcql.erase(empty, "cookie", "c2")
    everything = {("cookie", "c1"), ("cookie", "c2"), ("email_hash", "e1"), ("partner", "p2")}
    assert set(erased.identities) == everything | {("cookie", f"h{n}") for n in range(HUB + 100)}
    assert merged in erased.persons and other not in erased.persons
    rows = cql.execute(f"SELECT kind, value FROM {empty.keyspace}.identities", timeout=PATIENCE)
    assert {tuple(row) for row in rows if row[0]} == {("cookie", "c9"), ("email_hash", "e9")}
    links = cql.execute(f"SELECT node FROM {empty.keyspace}.links", timeout=PATIENCE)
    assert {row[0].bytes for row in links} == {node_of("cookie", "c9"), node_of("email_hash", "e9")}
    assert pcql.erase(empty, "cookie", "c2") == pcql.Erased((), ())


def test_a_person_is_erased_from_segments_first(
    empty: IdStore, cql: Any, keyspace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    person = run(matcher(empty), [("c9", "e9", None)])[0]["person"]
    segment.create_tables(cql, keyspace)
    cql.execute(
        f"INSERT INTO {keyspace}.members (segment, bucket, person, until) VALUES ('gold', %s, %s, %s)",
        (bucket_of(person), person, datetime.now(UTC) + timedelta(hours=1)),
    )

    def away(persons: Sequence[str]) -> None:
        raise PenstockError(f"nobody erases {', '.join(persons)} elsewhere")

    with pytest.raises(PenstockError, match=f"nobody erases {person} elsewhere"):
        pcql.erase(empty, "cookie", "c9", before=away)
    options = ["--keyspace", empty.keyspace, "--hosts", empty.access.hosts, "--segments", keyspace]
    assert main(["erase", "cookie", "c9", *options]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"erased {person} from segment gold",
        f"erased person {person}",
        "erased cookie c9",
        "erased email_hash e9",
    ]
    assert cql.execute(f"SELECT person FROM {keyspace}.members").one() is None
    assert main(["erase", "cookie", "c9", *options]) == 0
    assert "no person has cookie c9" in capsys.readouterr().out


def test_what_cannot_work_is_told_when_the_pipeline_is_built(
    spark: Any, services: Services, store: IdStore, cql: Any
) -> None:
    frame = spark.sql("SELECT 'c' AS cookie, 1 AS partner, 1.5 AS price")
    good: dict[str, Any] = {"store": store, "ids": ["cookie"], "into": "person", "unknown": "create", "ttl": "1 day"}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"ids": ["cooky"]}, r"no column cooky.*columns cookie, partner, price"),
        ({"ids": ["price"]}, r"the identity price is decimal\(2,1\).*convert it to a string"),
        ({"ids": []}, "ids is empty"),
        ({"into": "cookie"}, "already has a column cookie"),
        ({"unknown": "drop"}, r"unknown cannot be 'drop'.*'create' or 'ignore'"),
        ({"ttl": "0 seconds"}, "ttl cannot be 0:00:00"),
        ({"store": pcql.ids("nosuch", hosts=services.cql)}, r"no table nosuch\.links.*cql\.create\(ids, replication="),
    ]
    for wrong, said in cases:
        with pytest.raises(PenstockError, match=said):
            pcql.match(frame, **(good | wrong))
    with pytest.raises(TypeError, match="ttl"):
        pcql.match(frame, **{name: value for name, value in good.items() if name != "ttl"})
    with pytest.raises(PenstockError, match=r"not safe with consistency ONE.*QUORUM"):
        pcql.ids("ids", hosts=services.cql, consistency="ONE")
    matched = pcql.match(frame, **good | {"ids": ["cookie", "partner"]})
    (row,) = matched.collect()
    assert row.person_ids == {"cookie": ["c"], "partner": ["1"]}
