"""The sources of a partition as ScyllaDB shows them, in any division, give the same facts; rows are in CQL's order."""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from ipaddress import ip_address
from itertools import pairwise
from typing import Any

import pytest
from hidden_facts import hidden_scans_of
from keyspaces import new_keyspace

from penstock import replicate
from penstock.cdc.generations import FIRST_TOKEN, LAST_TOKEN
from penstock.database.cql_connection import connection
from penstock.database.cql_types import Column, CqlType
from penstock.database.table_catalog import describe
from penstock.local.services import Services
from penstock.replicate.clustering_order import position
from penstock.replicate.fragment_reader import CLUSTERED, END, START, STATIC, Fragment, fragment_reader
from penstock.replicate.hidden_differences import HiddenScans
from penstock.replicate.hidden_state import (
    CELL,
    COLLECTION,
    ELEMENT,
    MARKER,
    PARTITION,
    RANGE,
    ROW,
    Path,
    WantedFacts,
    WriteFacts,
    facts,
)

INT = CqlType("int")
SHAPE = WantedFacts(
    clustering=(Column("ck", INT, "clustering", 0),),
    columns=frozenset("vms"),
    elements=frozenset("m"),
    timed=frozenset(),
    since=0,
)
NOW = 1_800_000_000


def fragment(region: int, metadata: Any, ck: int | None = None, weight: int = 0) -> Fragment:
    clustering = () if ck is None else (ck.to_bytes(4, "big"),)
    return Fragment((b"pk",), "", region, clustering, weight, json.dumps(metadata))


def deletion(time: int) -> dict[str, Any]:
    return {"tombstone": {"timestamp": time, "deletion_time": "2026-11-28 10:00:00z"} if time else {}}


def cell(time: int, **more: Any) -> dict[str, Any]:
    return {"is_live": True, "type": "regular", "timestamp": time, **more}


def row(ck: int, marker: int = 0, deleted: int = 0, **columns: Any) -> Fragment:
    metadata: dict[str, Any] = {"columns": columns}
    if deleted:
        metadata |= deletion(deleted) | {"shadowable_tombstone": {}}
    if marker:
        metadata["marker"] = {"timestamp": marker}
    return fragment(CLUSTERED, metadata, ck)


def change(ck: int, weight: int, time: int) -> Fragment:
    return fragment(CLUSTERED, deletion(time), ck, weight)


def source(*parts: Fragment, deleted: int = 0) -> list[Fragment]:
    return [fragment(START, deletion(deleted)), *parts, Fragment((b"pk",), "", END, (), 0, "")]


def found(*sources: list[Fragment], since: int = 0) -> list[tuple[Path, WriteFacts]]:
    return list(facts([iter(one) for one in sources], replace(SHAPE, since=since), NOW))


def key(ck: int) -> tuple[bytes, ...]:
    return (ck.to_bytes(4, "big"),)


def dead(time: int) -> WriteFacts:
    return WriteFacts(time, dead=True)


DEAD_CELL = {"is_live": False, "deletion_time": "2026-11-28 10:00:00z"}


def test_sources_are_merged_and_what_a_deletion_covers_is_left_out() -> None:
    memtable = source(
        fragment(STATIC, {"s": cell(40, is_live=False, deletion_time="2026-11-28 10:00:00z")}),
        row(1, marker=15, v=cell(30)),
        change(3, -1, 20),
        row(3, marker=19, m={"cells": [{"key": "a", "value": cell(21)}, {"key": "b", "value": cell(20)}]}),
        change(5, 1, 0),
        row(9, marker=50),
        deleted=10,
    )
    sstable = source(
        row(1, marker=12, deleted=14, v=cell(29)),
        row(3, m={"tombstone": {"timestamp": 22, "deletion_time": ""}, "cells": [{"key": "a", "value": cell(25)}]}),
        change(4, 1, 30),
        row(6, marker=29, deleted=31, v=cell(32, **DEAD_CELL)),
        change(7, -1, 0),
    )
    wanted = [
        (Path(PARTITION), dead(10)),
        (Path(CELL, None, column="s"), dead(40)),
        (Path(ROW, key(1)), dead(14)),
        (Path(MARKER, key(1)), WriteFacts(15)),
        (Path(COLLECTION, key(3), column="m"), dead(22)),
        (Path(ELEMENT, key(3), column="m", element="a"), WriteFacts(25)),
        (Path(RANGE, key(3), -1, (key(4), 1)), dead(20)),
        (Path(ROW, key(6)), dead(31)),
        (Path(CELL, key(6), column="v"), dead(32)),
        (Path(RANGE, key(4), 1, (key(7), -1)), dead(30)),
        (Path(MARKER, key(9)), WriteFacts(50)),
    ]
    assert found(memtable, sstable) == wanted
    assert found(sstable, memtable, memtable, source()) == wanted


RANGES: dict[str, tuple[list[Fragment], list[tuple[Path, WriteFacts]]]] = {
    "of one row": ([change(3, -1, 20), change(3, 1, 0)], [(Path(ROW, key(3)), dead(20))]),
    "of a row within another": (
        [change(1, -1, 10), change(3, -1, 20), change(3, 1, 10), change(5, 1, 0)],
        [(Path(ROW, key(3)), dead(20)), (Path(RANGE, key(1), -1, (key(5), 1)), dead(10))],
    ),
    "of a row that was deleted later": (
        [change(3, -1, 20), row(3, deleted=25), change(3, 1, 0)],
        [(Path(ROW, key(3)), dead(25))],
    ),
    "neighbours": (
        [change(1, -1, 10), change(3, 1, 10), change(5, 1, 0)],
        [(Path(RANGE, key(1), -1, (key(5), 1)), dead(10))],
    ),
    "one after another": (
        [change(1, -1, 10), change(3, -1, 20), change(5, 1, 0)],
        [
            (Path(RANGE, key(1), -1, (key(3), -1)), dead(10)),
            (Path(RANGE, key(3), -1, (key(5), 1)), dead(20)),
        ],
    ),
    "older than the partition's deletion": ([change(1, -1, 4), change(3, 1, 0)], []),
}


@pytest.mark.parametrize("name", RANGES)
def test_deleted_ranges_are_one_line(name: str) -> None:
    fragments, wanted = RANGES[name]
    covered = "partition" in name
    assert [one for one in found(source(*fragments, deleted=5 * covered)) if one[0].kind != PARTITION] == wanted


def test_old_deletions_cover_what_is_older_and_are_left_out() -> None:
    parts = source(change(1, -1, 20), row(2, marker=15, v=cell(18, **DEAD_CELL)), change(3, 1, 0), deleted=10)
    assert found(parts, since=21) == []


def test_what_has_expired_is_a_deletion() -> None:
    expired, later = "2026-01-01 00:00:00z", "2030-01-01 00:00:00z"
    parts = source(
        row(1, v=cell(10, ttl="5s", expiry=expired), m={"cells": [{"key": "a", "value": cell(9, expiry=later)}]})
    )
    assert found(parts) == [
        (Path(CELL, key(1), column="v"), WriteFacts(10, True, 1767225600)),
        (Path(ELEMENT, key(1), column="m", element="a"), WriteFacts(9, False, 1893456000)),
    ]


@pytest.fixture(scope="module")
def stored(cql: Any) -> Iterator[str]:
    with new_keyspace(cql, "fragments") as name:
        yield name


def test_partitions_are_read_by_key_where_a_range_is_not_possible(cql: Any, services: Services, stored: str) -> None:
    for table in ("a", "b"):
        cql.execute(f"CREATE TABLE {stored}.{table} (pk int, pt text, ck int, v int, PRIMARY KEY ((pk, pt), ck))")
        for pk in range(5):
            cql.execute(f"INSERT INTO {stored}.{table} (pk, pt, ck, v) VALUES ({pk}, 'x', 1, 1) USING TIMESTAMP {pk}")
    micros = time.time_ns() // 1000
    cql.execute(f"UPDATE {stored}.b USING TIMESTAMP {micros} SET v = 2 WHERE pk = 7 AND pt = '' AND ck = 1")
    cql.execute(f"DELETE FROM {stored}.b USING TIMESTAMP {micros} WHERE pk = 3 AND pt = 'x' AND ck > 2")
    cql.execute(f"DELETE FROM {stored}.b USING TIMESTAMP {micros} WHERE pk = 7 AND pt = ''  AND ck = 9")
    sides = [replicate.side(f"{stored}.{table}", hosts=services.cql) for table in ("a", "b")]
    in_ranges = hidden_scans_of(*sides)
    by_key = [replace(one, by_key=True, page_size=100) for one in (in_ranges.source, in_ranges.target)]
    wanted = dict(in_ranges.differing(FIRST_TOKEN, LAST_TOKEN))
    assert len(wanted) == 2
    for source, target in (by_key, (by_key[0], in_ranges.target), (in_ranges.source, by_key[1])):
        assert dict(HiddenScans(source, target, in_ranges.shape).differing(FIRST_TOKEN, LAST_TOKEN)) == wanted


ORDERED: dict[str, list[Any]] = {
    "int": [0, -1, 1, 2**31 - 1, -(2**31)],
    "text": ["", "a", "ab", "b", "é"],
    "blob": [b"", b"\x00", b"\xff", b"\x00\x01"],
    "boolean": [False, True],
    "double": [0.0, -0.0, -1.5, 1e300, float("nan"), float("inf"), float("-inf")],
    "decimal": [Decimal(text) for text in ("0", "1.5", "1.50001", "-2", "-2.1", "1E+50", "-1E-50", "100", "99")],
    "varint": [0, 1, -1, 2**70, -(2**70), 255, 256],
    "uuid": [uuid.UUID(int=number << 64 | number) for number in (1, 2**60, 2**63)] + [uuid.uuid4(), uuid.uuid1()],
    "timeuuid": [uuid.uuid1(clock_seq=clock) for clock in (0, 0x1FFF, 0x3FFF)],
    "inet": [str(ip_address(text)) for text in ("10.0.0.1", "9.1.1.1", "::1")],
    "frozen<list<int>>": [[], [1], [1, 2], [-1, 5], [2]],
    "frozen<tuple<int, text>>": [(1, "a"), (None, "b"), (1, None), (-5, "z")],
    "frozen<map<text, int>>": [{"a": 1}, {"a": -1}, {"b": 0}, {"a": 1, "b": 2}],
}


@pytest.mark.parametrize("order", ["ASC", "DESC"])
def test_rows_are_in_the_order_of_the_database(cql: Any, services: Services, stored: str, order: str) -> None:
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(ORDERED))
    names = [f"c{number}" for number in range(len(ORDERED))]
    table = f"{stored}.ordered_{order.lower()}"
    clustering = ", ".join(f"{name} {order if name != 'c1' else 'ASC'}" for name in ["kind", *names])
    cql.execute(
        f"CREATE TABLE {table} (pk int, kind int, {columns}, PRIMARY KEY (pk, kind, {', '.join(names)})) "
        f"WITH CLUSTERING ORDER BY ({clustering})"
    )
    insert = cql.prepare(f"INSERT INTO {table} (pk, kind, {', '.join(names)}) VALUES (1{', ?' * (len(names) + 1)})")
    draw = random.Random(1)
    for kind, values in enumerate(ORDERED.values()):
        for value in values:
            row = [draw.choice(some) for some in ORDERED.values()]
            row[kind] = value
            # Values of the first column decide first, so that each kind is the only one that differs in some rows.
            fixed = [some[0] for some in ORDERED.values()]
            fixed[kind] = value
            cql.execute(insert, [kind, *fixed])
            cql.execute(insert, [100, *row])
    side = replicate.side(table, hosts=services.cql)
    described = describe(connection(side.access).rows, table)
    reader = fragment_reader(side, described, patience=timedelta(minutes=1), page_size=7)
    (partition,) = list(reader.partition((b"\0\0\0\1",)))
    places = [position(described.clustering_key, one.clustering, 0) for one in partition if one.region == CLUSTERED]
    assert len(places) > sum(map(len, ORDERED.values()))
    assert all(one < other for one, other in pairwise(places))
