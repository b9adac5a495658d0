"""Tables in a CQL database beside a stream: rows written, rows looked up, identities matched.

    python benchmarks/lookup.py --json lookup.json

On a node of its own, with one Python process unless it says spark (local[2]). Subjects of a case take turns.
  write         rows/s of `cql.sink`; the peer is the driver's execute_concurrent with prepared statements
  lookup        lookups/s of keys that are all different and not remembered; the peer is the same driver with 100
                requests at once; beside it one awaited query for each event, as a function of rows would ask, and
                acsylla, the C++ driver, with 100 requests at once, if it is installed
  lookup/two    the same with keys of two columns that differ in one; beside keys that differ in both, a request each
  spark/80      events/s of `cql.lookup` where 80 of 100 find their row remembered and 20 ask for one never asked for
  spark/100     the same where all find it
  match/new     events/s of `cql.match` where each brings two new identities: a person each
  match/known   events with one of two identities of known persons, in a process that knows none of them
  match/fresh   the same in a process that has just seen them
"""

from __future__ import annotations

import argparse
import asyncio
import json
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.concurrent import execute_concurrent_with_args
from cassandra.query import tuple_factory
from pyspark.sql import SparkSession, functions as F

from _measure import Row, alternate, report, rows_of
from penstock import cql
from penstock.cql.cql_writer import CqlWriter
from penstock.cql.matching import id_match
from penstock.cql.matching.id_match import Match
from penstock.cql.row_lookup import KEY, RowLookup
from penstock.database.access import Access
from penstock.database.cql_connection import connection
from penstock.database.cql_types import CqlTable
from penstock.database.requests import RequestLimits
from penstock.database.row_fetch import RowFetch
from penstock.database.table_catalog import describe
from penstock.local import services
from penstock.spark_runtime.session import spark as spark_session

OURS, CONCURRENT, NAIVE = "penstock", "execute_concurrent", "awaited"
AT_ONCE = 100
"""Requests of the drivers."""
REPLICATION: dict[str, str | int] = {"class": "SimpleStrategy", "replication_factor": 1}
TABLE = "bench.users"
BATCH = 20_000
HOT = 50_000
KINDS = 3
"""Values of the second column of keys that differ in the first."""


def connect(hosts: str) -> Any:
    host, port = hosts.split(":")
    profile = ExecutionProfile(row_factory=tuple_factory, request_timeout=60)
    return Cluster([host], port=int(port), execution_profiles={EXEC_PROFILE_DEFAULT: profile}).connect()


def users(first: int, rows: int) -> pa.RecordBatch:
    ids = np.arange(first, first + rows, dtype=np.int64)
    names = [f"user number {id} of the benchmark" for id in ids.tolist()]
    return pa.RecordBatch.from_pydict({"id": ids, "name": names, "score": ids / 7, "seen": ids * 1000})


def batches(first: int, rows: int) -> list[pa.RecordBatch]:
    return [users(at, min(BATCH, first + rows - at)) for at in range(first, first + rows, BATCH)]


class Written:
    """Rows 0, 1, ... in turn by both writers; how many there are by now."""

    def __init__(self, access: Access, session: Any) -> None:
        self.access, self.session, self.rows = access, session, 0
        self.table = describe(connection(access).rows, TABLE)

    def ours(self, rows: int) -> int:
        writer = CqlWriter(self.access, (self.table,), "insert", time.time_ns() // 1000, RequestLimits())
        list(writer(iter(batches(self.rows, rows))))
        self.rows += rows
        return rows

    def theirs(self, rows: int) -> int:
        insert = self.session.prepare(f"INSERT INTO {TABLE} (id, name, score, seen) VALUES (?, ?, ?, ?)")
        for batch in batches(self.rows, rows):
            values = list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
            execute_concurrent_with_args(self.session, insert, values, concurrency=AT_ONCE)
        self.rows += rows
        return rows


def write_cases(written: Written, rows: int, rounds: int) -> list[Row]:
    subjects: dict[str, Callable[[], int]] = {
        OURS: partial(written.ours, rows),
        CONCURRENT: partial(written.theirs, rows),
    }
    alternate(subjects, 1)
    return rows_of("write", alternate(subjects, rounds), CONCURRENT)


def ours(access: Access, written: Written, lookups: int, chance: np.random.Generator) -> int:
    made = RowLookup(
        RowFetch(access, written.table, ("name", "score"), RequestLimits()), ("name", "score"), lookups, 0.0
    )
    ids = chance.permutation(written.rows)[:lookups]
    found = 0
    for start in range(0, lookups, BATCH):
        key = pa.StructArray.from_arrays([pa.array(ids[start : start + BATCH])], ["id"])
        (batch,) = made(iter([pa.RecordBatch.from_pydict({KEY: key})]))
        found += batch.num_rows - batch.column("name").null_count
    assert found == len(ids)
    return found


def concurrent(session: Any, written: Written, lookups: int, chance: np.random.Generator) -> int:
    select = session.prepare(f"SELECT name, score FROM {TABLE} WHERE id = ?")
    keys = [(id,) for id in chance.integers(0, written.rows, lookups).tolist()]
    answers = execute_concurrent_with_args(session, select, keys, concurrency=AT_ONCE)
    assert all(answer.result_or_exc.one() for answer in answers)
    return lookups


def awaited(session: Any, written: Written, lookups: int, chance: np.random.Generator) -> int:
    select = session.prepare(f"SELECT name, score FROM {TABLE} WHERE id = ?")
    for id in chance.integers(0, written.rows, lookups).tolist():
        assert session.execute(select, (id,)).one()
    return lookups


def with_acsylla(hosts: str, written: Written, lookups: int, chance: np.random.Generator) -> int:
    return asyncio.run(_acsylla(hosts, chance.integers(0, written.rows, lookups).tolist()))


async def _acsylla(hosts: str, ids: Sequence[int]) -> int:
    import acsylla

    host, port = hosts.split(":")
    session = await acsylla.create_cluster([host], port=int(port)).create_session()
    select = await session.create_prepared(f"SELECT name, score FROM {TABLE} WHERE id = ?")
    left = iter(ids)

    async def worker() -> int:
        found = 0
        for id in left:
            statement = select.bind()
            statement.bind(0, id)
            row = (await session.execute(statement)).first()
            found += row is not None and len(row.as_tuple()) == 2
        return found

    found = sum(await asyncio.gather(*(worker() for _ in range(AT_ONCE))))
    await session.close()
    assert found == len(ids)
    return found


def lookup_cases(access: Access, session: Any, written: Written, lookups: int, rounds: int) -> list[Row]:
    chance = np.random.default_rng(1)
    subjects: dict[str, Callable[[], int]] = {
        OURS: partial(ours, access, written, lookups, chance),
        CONCURRENT: partial(concurrent, session, written, lookups // 4, chance),
        NAIVE: partial(awaited, session, written, lookups // 20, chance),
    }
    if find_spec("acsylla"):
        subjects["acsylla"] = partial(with_acsylla, access.hosts, written, lookups // 4, chance)
    alternate(subjects, 1)
    return rows_of("lookup", alternate(subjects, rounds), CONCURRENT)


def of_two(access: Access, table: CqlTable, lookups: int, kinds: int) -> int:
    ids = np.arange(lookups)
    rows = RowFetch(access, table, ("v",), RequestLimits())
    keys, _ = rows.keys([pa.array(ids), pa.array(ids % kinds)])
    _, found, _ = rows.fetch(keys.to_pylist())
    assert found.all()
    return lookups


def two_column_cases(access: Access, session: Any, lookups: int, rounds: int) -> list[Row]:
    session.execute("CREATE TABLE bench.visits (id bigint, kind bigint, v text, PRIMARY KEY ((id, kind)))")
    table, ids = describe(connection(access).rows, "bench.visits"), np.arange(lookups)
    for kinds in (KINDS, lookups):
        visits = pa.RecordBatch.from_pydict(
            {"id": ids, "kind": ids % kinds, "v": [f"visit {id}" for id in ids.tolist()]}
        )
        list(CqlWriter(access, (table,), "insert", 1, RequestLimits())(iter([visits])))
    subjects: dict[str, Callable[[], int]] = {
        OURS: partial(of_two, access, table, lookups, KINDS),
        "apart": partial(of_two, access, table, lookups, lookups),
    }
    alternate(subjects, 1)
    return rows_of("lookup/two", alternate(subjects, rounds), "apart")


def in_spark(session: SparkSession, hosts: str, events: int, hits: int, fresh: count[int]) -> int:
    """Events of which `hits` in 100 have a key of the hot ones; the others have one that no run had before."""
    first = HOT + next(fresh) * events
    hot = F.pmod(F.col("id") * 7919, F.lit(HOT))
    frame = session.range(events, numPartitions=2).select(
        F.when(F.col("id") % 100 < hits, hot).otherwise(F.col("id") + first).alias("id"), F.lit("click").alias("kind")
    )
    columns = ["name", "score"]
    made = cql.lookup(frame, TABLE, hosts=hosts, on="id", columns=columns, ttl="1 hour", name="users", cache=500_000)
    made.write.format("noop").mode("append").save()
    return events


def spark_cases(hosts: str, written: Written, events: int, rounds: int) -> list[Row]:
    session = spark_session("lookup", cores=2)
    fresh = count()
    found = []
    for hits in (80, 100):
        subjects: dict[str, Callable[[], int]] = {OURS: partial(in_spark, session, hosts, events, hits, fresh)}
        alternate(subjects, 1)
        found += rows_of(f"spark/{hits}", alternate(subjects, rounds), OURS)
    session.stop()
    return found


def matched(store: cql.IdStore, first: int, events: int, *, one: bool, forget: bool) -> int:
    """Events of persons first, first + 1, ...: both identities of each, or one of the two."""
    if forget:
        id_match.PROCESSES.clear()
    made = Match(store, ("cookie", "email_hash"), "person", True, 86_400, timedelta(minutes=10), 1_000_000)
    for at in range(first, first + events, BATCH):
        numbers = range(at, min(at + BATCH, first + events))
        cookies = pa.array([f"cookie-{n:016d}" for n in numbers])
        mails = pa.array([None if one else struct.pack(">q", n).hex() * 4 for n in numbers], pa.string())
        key = pa.StructArray.from_arrays([cookies, mails], ["cookie", "email_hash"])
        list(made(iter([pa.RecordBatch.from_pydict({id_match.KEY: key})])))
    return events


def match_cases(hosts: str, events: int, rounds: int) -> list[Row]:
    store = cql.ids("bench_ids", hosts=hosts)
    cql.create(store, replication=REPLICATION)
    turn = count()
    new: dict[str, Callable[[], int]] = {
        OURS: lambda: matched(store, next(turn) * events, events, one=False, forget=True)
    }
    found = rows_of("match/new", alternate(new, rounds), OURS)
    known: dict[str, Callable[[], int]] = {OURS: lambda: matched(store, 0, events, one=True, forget=True)}
    found += rows_of("match/known", alternate(known, rounds), OURS)
    again: dict[str, Callable[[], int]] = {OURS: lambda: matched(store, 0, events, one=True, forget=False)}
    return found + rows_of("match/fresh", alternate(again, rounds), OURS)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000, help="rows that a run writes (default: %(default)s)")
    parser.add_argument("--lookups", type=int, default=200_000, help="lookups of a run (default: %(default)s)")
    parser.add_argument("--events", type=int, default=1_000_000, help="events of a run in Spark (default: %(default)s)")
    parser.add_argument(
        "--persons", type=int, default=40_000, help="events of a run of matching (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="counted rounds (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            hosts = services.up(Path(folder), only=["cassandra"]).cql
            found: list[Row] = []
            for rows in measure(hosts, options):
                report(rows, None)
                found += rows
        finally:
            services.down(Path(folder))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in found], indent=1) + "\n")


def measure(hosts: str, options: argparse.Namespace) -> Iterator[list[Row]]:
    """The rows of each case as they are found."""
    session, access = connect(hosts), Access(hosts)
    replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    session.execute(f"CREATE KEYSPACE IF NOT EXISTS bench WITH replication = {replication}")
    session.execute(f"CREATE TABLE {TABLE} (id bigint PRIMARY KEY, name text, score double, seen bigint)")
    written = Written(access, session)
    for case in (
        partial(write_cases, written, options.rows, options.rounds),
        partial(lookup_cases, access, session, written, options.lookups, options.rounds),
        partial(two_column_cases, access, session, options.lookups // 10, options.rounds),
        partial(match_cases, hosts, options.persons, options.rounds),
        partial(spark_cases, hosts, written, options.events, options.rounds),
    ):
        yield case()


if __name__ == "__main__":
    main()
