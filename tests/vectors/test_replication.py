"""Each vector of replication.json on a real node: statements on one table, its change log applied to another.

The log of a vector is read as a task of `cdc.read` reads it, and applied as a task of `replicate.sink` does, group by
group, in the order that the vector wants. PENSTOCK_VECTORS names a folder whose file of the same name runs instead.
"""

from __future__ import annotations

import json
import random
import re
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest
from cassandra.cluster import Session
from cell_states import State, session_for_states, state_of
from hidden_facts import differences, entries, expected, hidden_scans_of
from log_copies import HOUR, Reader, apply, place
from pyspark.sql import SparkSession
from waiting import patience

from penstock import replicate
from penstock.cdc.cdc_options import settings
from penstock.cdc.cdc_source import CdcStreamReader
from penstock.cdc.cdc_tables import frame_schema
from penstock.cdc.generations import now_micros
from penstock.cdc.planner import describe as described_source
from penstock.errors import PenstockError
from penstock.local.services import Services

VECTORS = "replication.json"
SLACK = patience(4)
"""Seconds by which times of expiry may differ: each side rounds, and is read a moment after the clock."""

HIDDEN = {"cql-cannot"}
"""Tags of vectors whose target differs in what CQL can neither read nor write: a probe may show it."""

Vector = dict[str, Any]


@pytest.fixture(scope="module")
def node(node: Session) -> Session:
    """The session of all vectors, with a reader of times."""
    return session_for_states(node)


@dataclass
class Side:
    """A keyspace of one side, which the vectors call ks."""

    node: Session
    name: str
    logged: bool
    tables: list[str] = field(default_factory=list)

    def create(self, statements: list[str], cdc: str = "'enabled': true") -> None:
        self.node.execute(
            f"CREATE KEYSPACE {self.name} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
        )
        for statement in statements:
            if found := re.match(r"CREATE TABLE ks\.(\w+)", statement):
                self.tables.append(found[1])
                if self.logged:
                    statement += f" {'AND' if ' WITH ' in statement else 'WITH'} cdc = {{{cdc}}}"
            self.execute(statement)

    def clear(self) -> None:
        for table in self.tables:
            for name in (table, f"{table}_scylla_cdc_log")[: 1 + self.logged]:
                self.node.execute(f"TRUNCATE {self.name}.{name}")

    def execute(self, statement: str, base_time: int = 0) -> None:
        timed = re.sub(r"\{T([+-]\d+)?\}", lambda found: str(base_time + int(found[1] or 0)), statement)
        self.node.execute(re.sub(r"(?<!\w)ks(?=\.|')", self.name, timed))

    def states(self) -> dict[str, State]:
        return {table: state_of(self.node, self.name, table) for table in self.tables}


@dataclass
class Pair:
    """A source and a target with the same tables."""

    source: Side
    target: Side


_pairs: dict[tuple[Any, ...], Pair] = {}


@pytest.fixture(scope="module")
def waiting(node: Session, services: Services, request: pytest.FixtureRequest) -> Iterator[dict[str, Future[None]]]:
    """Vectors with seconds between their statements and the replication of their log: they run beside all others."""
    cases = [getattr(item, "callspec", None) for item in request.session.items if item.path == request.path]
    vectors = [case.params["vector"] for case in cases if case and waits(case.params["vector"])]
    pairs = [empty_pair(node, vector) for vector in vectors]
    with ThreadPoolExecutor(max_workers=len(vectors) + 1) as pool:
        yield {
            vector["id"]: pool.submit(check_states, pair, services.cql, vector)
            for pair, vector in zip(pairs, vectors, strict=True)
        }


def waits(vector: Vector) -> bool:
    return vector["group"] != "limits" and "lag_s" in vector.get("run", {})


def empty_pair(node: Session, vector: Vector) -> Pair:
    """The tables of the vector, empty; vectors with the same tables share them."""
    two_ways = bool(vector.get("run", {}).get("two_ways"))
    changed = any(re.match("ALTER|DROP", statement) for statement in vector["source"])
    tagged = any(": " in tag for tag in vector.get("tags", []))
    alone = changed or tagged or waits(vector) or vector["group"] == "limits"
    known = (*vector["ddl"], two_ways, vector["id"] if alone else "")
    if known in _pairs:
        _pairs[known].source.clear()
        _pairs[known].target.clear()
        return _pairs[known]
    name = f"rep_{uuid.uuid4().hex[:8]}"
    made = Pair(Side(node, f"{name}_a", logged=True), Side(node, f"{name}_b", logged=two_ways))
    tags = dict(tag.split(": ", 1) for tag in vector.get("tags", []) if ": " in tag)
    held = f", 'ttl': {int(tags['cdc-ttl'].split()[0])}" if "cdc-ttl" in tags else ""
    made.source.create(vector["ddl"], "'enabled': true" + held)
    unordered = "without CLUSTERING ORDER" in tags.get("target-ddl", "")
    made.target.create(
        [re.sub(r" WITH CLUSTERING ORDER BY \([^)]*\)", "", one) if unordered else one for one in vector["ddl"]]
    )
    _pairs[known] = made
    return made


def ordered(groups: list[list[pa.RecordBatch]], order: str, seed: str) -> list[list[pa.RecordBatch]]:
    """The groups in the order that a vector names."""
    if order.startswith("twice"):
        groups = groups * 2
    if order.endswith("shuffled"):
        random.Random(seed).shuffle(groups)
    return groups[::-1] if order == "reversed" else groups


def test_vector(
    node: Session,
    services: Services,
    vector: Vector,
    waiting: dict[str, Future[None]],
    request: pytest.FixtureRequest,
) -> None:
    if waits(vector):
        waiting[vector["id"]].result()
    elif vector["group"] == "limits":
        check_limit(empty_pair(node, vector), services.cql, vector, request.getfixturevalue("spark"))
    else:
        check_states(empty_pair(node, vector), services.cql, vector)


def just_now() -> int:
    """A time of writes, in microseconds."""
    return time.time_ns() // 1000 - 2_000_000


def check_states(pair: Pair, cql: str, vector: Vector) -> None:
    """Both sides have what the vector expects, after its statements and after its probes."""
    base_time, began = just_now(), time.time()
    first = replicated(pair, cql, vector, base_time)
    if vector.get("run", {}).get("two_ways"):
        sent_back = carried_back(pair, cql, first)
        assert sent_back == vector["run"].get("expect_target_log_events_sent_back", sent_back)
    source, target = pair.source.states(), pair.target.states()
    expected = expected_states(vector["expect"]["partitions"], base_time, began)
    assert_same(source, expected, lists=True)
    assert_same(target, source, lists=False)
    check_hidden(pair, cql, vector, base_time)
    for probe in vector.get("probes", []):
        pair.source.execute(probe["cql"], base_time)
        pair.target.execute(probe["cql"], base_time)
        expected = expected_states(probe["partitions"], base_time, began)
        assert_same(pair.source.states(), expected, lists=True)
        if not HIDDEN & set(vector.get("tags", [])):
            assert_same(pair.target.states(), expected, lists=False)


def check_hidden(pair: Pair, cql: str, vector: Vector, base_time: int) -> None:
    """Level 3: the source has what the vector expects, and the target has the same."""
    for table in pair.source.tables:
        sides = [replicate.side(f"{side.name}.{table}", hosts=cql) for side in (pair.source, pair.target)]
        scans = hidden_scans_of(*sides)
        clustering = tuple(column.name for column in scans.source.table.clustering_key)
        found = entries(scans.source, scans.shape, int(time.time()), base_time)
        assert found == expected(vector["expect"]["hidden"], table, clustering)
        unlike = differences(scans)
        if HIDDEN & set(vector.get("tags", [])):
            unlike = [one for one in unlike if one.what != "row marker"]
        assert unlike == []


def carried_back(pair: Pair, cql: str, first: int) -> int:
    """Apply each log to the other table, until nothing is new in either; how many groups the source got at first."""
    # The source's log was applied once.
    seen = {place(group) for table in pair.source.tables for group in log_of(pair.source, cql, table, first)}
    sent = []
    for _ in range(3):
        for here, there in ((pair.target, pair.source), (pair.source, pair.target)):
            before = logged(there, cql, first)
            for table in pair.source.tables:
                new = [group for group in log_of(here, cql, table, first) if place(group) not in seen]
                seen.update(map(place, new))
                apply(cql, f"{there.name}.{table}", new, two_ways_with=f"{here.name}.{table}")
            sent.append(logged(there, cql, first) - before)
    assert sent[-2:] == [0, 0], f"changes go round: {sent}"
    return sent[0]


def log_of(side: Side, cql: str, table: str, first: int) -> list[list[pa.RecordBatch]]:
    return Reader.of(cql, f"{side.name}.{table}").groups(first)


def logged(side: Side, cql: str, first: int) -> int:
    return sum(len(log_of(side, cql, table, first)) for table in side.tables)


def replicated(pair: Pair, cql: str, vector: Vector, base_time: int) -> int:
    """Run the vector's statements, and apply the source's log to the target; the first time that is read of the log."""
    run = vector.get("run", {})
    log_from, snapshot_after = run.get("log_from", 0), run.get("snapshot_after")
    first = base_time + _last_time(vector["source"][:log_from]) + 1 if log_from else base_time - HOUR
    snapshots: dict[str, list[list[pa.RecordBatch]]] = {}
    for number, statement in enumerate(vector["source"]):
        pair.source.execute(statement, base_time)
        if snapshot_after == number + 1:
            snapshots = read_rows(pair, cql, first)
    for statement in vector.get("target_only", []):
        pair.target.execute(statement, base_time)
    wait(run.get("lag_s", 0))
    order = run.get("apply", "")
    for table in pair.source.tables:
        groups = Reader.of(cql, f"{pair.source.name}.{table}").groups(first)
        rows = snapshots.get(table, [])
        both = [*groups, *rows] if order == "log before snapshot" else [*rows, *groups]
        source = f"{pair.source.name}.{table}" if run.get("two_ways") else ""
        target = f"{pair.target.name}.{table}"
        apply(cql, target, ordered(both, order, vector["id"]), two_ways_with=source)
    return first


def check_limit(pair: Pair, cql: str, vector: Vector, spark: SparkSession) -> None:
    """What replication cannot do is refused, or a comparison finds it."""
    expect, table, base_time = vector["expect"], pair.source.tables[0], just_now()
    if any(statement.startswith("--") for statement in vector["source"]):
        report = verified_while_written(pair, cql, vector, spark)
        assert (report.result, report.different) == ("equal", expect["false_alarms"]), report.described
        return
    if expect == "stopped":
        check_stopped(pair, cql, vector, base_time)
        return
    if "either" in expect or expect == "refused":
        check_refused(pair, cql, vector, base_time, spark)
        return
    replicated(pair, cql, vector, base_time)
    for tag in vector.get("tags", []):
        if tag.startswith("tamper: "):
            pair.target.execute(tag.removeprefix("tamper: "), base_time)
    report = verified(pair, cql, table, spark, settle=0)
    assert report.result == {"differs": "different"}.get(expect["verify"], expect["verify"])
    missing = [[*json.loads(row.key).values()] for row in report.described if row.missing == "source"]
    assert missing == expect.get("extra_on_target", missing)
    assert len(missing) == expect.get("missing_on_source", len(missing))
    absent = [[*json.loads(row.key).values()] for row in report.described if row.missing == "target"]
    assert absent == expect.get("missing_on_target", absent)
    changed = [row for row in report.described if not row.missing]
    assert [[*json.loads(row.key).values()] for row in changed] == expect.get("rows", [])
    assert [name for row in changed for name in row.columns] == expect.get("columns", [])


def verified(pair: Pair, cql: str, table: str, spark: SparkSession, **options: Any) -> replicate.Report:
    source, target = (replicate.side(f"{side.name}.{table}", hosts=cql) for side in (pair.source, pair.target))
    return replicate.verify(spark, source, target, **options)


def check_refused(pair: Pair, cql: str, vector: Vector, base_time: int, spark: SparkSession) -> None:
    """The sink refuses the changes, and names what is wrong; or it can apply them."""
    table = pair.source.tables[0]
    changes = vector["source"] or [
        *(f"INSERT INTO ks.{table} (pk, ck, v) VALUES (1, {ck}, {ck}) USING TIMESTAMP {{T}}" for ck in range(5)),
        f"DELETE FROM ks.{table} USING TIMESTAMP {{T+1}} WHERE pk = 1 AND ck > 2",
    ]
    for statement in changes:
        pair.source.execute(statement, base_time)
    described = described_source(settings({"table": f"{pair.source.name}.{table}", "hosts": cql}))
    frame = spark.createDataFrame([], frame_schema(described, write_times=True))
    sink = replicate.sink(f"{pair.target.name}.{table}", hosts=cql)
    added = [re.sub("^ALTER TABLE ks.\\w+ ADD (\\w+) .*", r"\1", one) for one in changes if one.startswith("ALTER")]
    if added:
        with pytest.raises(PenstockError, match=f"{pair.target.name}.{table}.{added[0]}"):
            sink.records(frame)
    elif vector["expect"] == "refused":
        with pytest.raises(PenstockError):
            sink.records(frame)
        return
    else:
        sink.records(frame)
    # Nothing is lost: with the target as it must be, the same changes go on.
    for statement in changes:
        if statement.startswith("ALTER"):
            pair.target.execute(statement)
    replicated(pair, cql, vector | {"source": []}, base_time)
    assert verified(pair, cql, table, spark, settle=0).result == "equal"


def check_stopped(pair: Pair, cql: str, vector: Vector, base_time: int) -> None:
    """A query that begins where the log has nothing left does not go on without a word."""
    for statement in vector["source"]:
        pair.source.execute(statement, base_time)
    reader = Reader.of(cql, f"{pair.source.name}.{pair.source.tables[0]}")
    start = replace(reader.planner.begin(base_time), time=base_time - 1).offset()
    wait(vector.get("run", {}).get("lag_s", 0))
    table = reader.planner.table
    stream = CdcStreamReader(reader.chosen, table, frame_schema(table, write_times=True))
    with pytest.raises(PenstockError):
        stream.partitions(start, stream.latestOffset(start, stream.getDefaultReadLimit()))


def verified_while_written(pair: Pair, cql: str, vector: Vector, spark: SparkSession) -> replicate.Report:
    """Compare both tables while one is written, and another thread applies its changes."""
    rate, keys, seconds = (int(found) for found in re.findall(r"\d+", vector["source"][0].replace("1 000", "1000")))
    table, stop = pair.source.tables[0], threading.Event()
    reader = Reader.of(cql, f"{pair.source.name}.{table}")

    def write() -> None:
        until, number = time.monotonic() + seconds, 0
        while time.monotonic() < until and not stop.wait(1 / rate):
            number += 1
            pair.source.execute(f"UPDATE ks.{table} SET v = {number} WHERE pk = {number % keys} AND ck = 1")

    def carry() -> None:
        first = 0
        while not stop.is_set():
            now = now_micros() - 1_000_000
            apply(cql, f"{pair.target.name}.{table}", reader.groups(first, now))
            first = now

    with ThreadPoolExecutor() as pool:
        written, carried = pool.submit(write), pool.submit(carry)
        try:
            report = verified(pair, cql, table, spark, settle=4, tries=20)
        finally:
            stop.set()
        written.result()
        carried.result()
    return report


def read_rows(pair: Pair, cql: str, low: int) -> dict[str, list[list[pa.RecordBatch]]]:
    return {table: Reader.of(cql, f"{pair.source.name}.{table}").rows(low) for table in pair.source.tables}


def _last_time(statements: list[str]) -> int:
    """The last of the times of statements, after T."""
    return max(int(found or 0) for statement in statements for found in re.findall(r"\{T([+-]\d+)?\}", statement))


def wait(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.1)


def expected_states(partitions: list[dict[str, Any]], base_time: int, began: float) -> dict[str, State]:
    """The states that a vector expects; times to live count from the statements."""
    found: dict[str, State] = {}
    for partition in partitions:
        rows = [{"ck": row["ck"], "cells": _timed(row["cells"], base_time, began)} for row in partition["rows"]]
        made = {"static": _timed(partition["static"], base_time, began), "rows": rows}
        found.setdefault(partition["table"].removeprefix("ks."), {})[partition["pk"]] = made
    return found


def _timed(cells: dict[str, Any], base_time: int, began: float) -> dict[str, Any]:
    def expires(ttl: int | None) -> int | None:
        return None if ttl is None else int(began) + ttl

    made: dict[str, Any] = {}
    for name, cell in cells.items():
        if "elements" in cell:
            elements = [[key, value, base_time + at, expires(ttl)] for key, value, at, ttl in cell["elements"]]
            made[name] = {"kind": cell["kind"], "elements": elements}
        else:
            at = base_time + cell["writetime"]
            made[name] = {"value": cell["value"], "writetime": at, "expires": expires(cell["ttl"])}
    return made


def assert_same(found: dict[str, State], expected: dict[str, State], *, lists: bool) -> None:
    """`lists` says whether the write times of lists' elements count."""
    for table in {**found, **expected}:
        assert _plain(found.get(table, {}), lists) == _plain(expected.get(table, {}), lists), table
        for at, when in _expiries(found.get(table, {})).items():
            other = _expiries(expected.get(table, {}))[at]
            assert (when is None) == (other is None), at
            assert when is None or abs(when - other) <= SLACK, at


def _plain(state: State, lists: bool) -> State:
    """The state without times of expiry."""

    def plain(cell: dict[str, Any]) -> dict[str, Any]:
        if "elements" not in cell:
            return {name: part for name, part in cell.items() if name != "expires"}
        width = 3 if lists or cell["kind"] != "list" else 2
        return {"kind": cell["kind"], "elements": [element[:width] for element in cell["elements"]]}

    return {
        key: {
            "static": {name: plain(cell) for name, cell in partition["static"].items()},
            "rows": [
                {"ck": row["ck"], "cells": {name: plain(cell) for name, cell in row["cells"].items()}}
                for row in partition["rows"]
            ],
        }
        for key, partition in state.items()
    }


def _expiries(state: State) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key, partition in state.items():
        for at, cells in [
            ("static", partition["static"]),
            *((tuple(r["ck"]), r["cells"]) for r in partition["rows"]),
        ]:
            for name, cell in cells.items():
                parts = cell.get("elements", [[None, None, None, cell.get("expires")]])
                found |= {(key, at, name, number): part[3] for number, part in enumerate(parts)}
    return found
