"""Three nodes, of which one joins and is killed under writes: readers get each acknowledged write, in order."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from pathlib import Path
from threading import Event

import pytest
from cassandra import ConsistencyLevel
from cassandra.cluster import Cluster, Session
from cassandra.query import SimpleStatement
from cdc_queries import Sink, run
from cql_cluster import LOST, CqlCluster, cql_cluster
from cql_owners import assert_rows_are_asked_for_at_owners
from pyspark.sql import SparkSession
from waiting import PATIENCE, until

from penstock import cdc
from penstock.cdc.cdc_options import settings
from penstock.cdc.generations import Generations, Span
from penstock.cdc.log_pages import span_queries

pytestmark = [pytest.mark.kill, pytest.mark.slow]

KEYSPACE = "three"
TABLE = (
    f"CREATE TABLE {KEYSPACE}.t (k int, c int, v int, PRIMARY KEY (k, c))"
    " WITH cdc = {'enabled': true, 'preimage': 'full', 'postimage': true}"
)
KEYS = 50
ALONE = "alone"
"""A keyspace without copies: of each partition there is one owner."""
SCHEMA_ALONE = (
    f"CREATE KEYSPACE {ALONE} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}",
    f"CREATE TABLE {ALONE}.users (id bigint PRIMARY KEY, name text)",
    f"CREATE TABLE {ALONE}.visits (id bigint, n bigint, v text, PRIMARY KEY (id, n))",
)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[CqlCluster]:
    with cql_cluster(tmp_path) as cluster:
        yield cluster


class Writer:
    """Writes one row after the other at QUORUM until it is told to end; a refused write is written again."""

    def __init__(self, session: Session) -> None:
        self.session, self.end, self.acknowledged = session, Event(), 0
        self.insert = session.prepare(f"INSERT INTO {KEYSPACE}.t (k, c, v) VALUES (?, ?, ?)")
        self.insert.consistency_level = ConsistencyLevel.QUORUM

    def __call__(self) -> int:
        """How many rows were written: row n is (n % KEYS, n, n)."""
        while not self.end.is_set():
            n = self.acknowledged
            try:
                self.session.execute(self.insert, (n % KEYS, n, n), timeout=5)
            except LOST:
                continue
            self.acknowledged = n + 1
        return self.acknowledged

    def more(self, rows: int) -> None:
        """Until so many rows more were acknowledged."""
        least = self.acknowledged + rows
        until(lambda: self.acknowledged >= least, f"{rows} acknowledged writes")


def generations(session: Session) -> list[int]:
    """When each generation starts, in milliseconds since 1970, ascending."""
    rows = session.execute("SELECT toUnixTimestamp(time) FROM system_distributed.cdc_generation_timestamps")
    return sorted(int(row[0]) for row in rows)


def assert_log_is_asked_for_at_owners(cluster: CqlCluster, driver: Cluster) -> None:
    """Each SELECT of the log reads streams of one node, by the driver's own account of a keyspace without copies."""
    chosen = settings({"table": f"{ALONE}.t", "hosts": ",".join(cluster.addresses)})
    published = Generations(driver.connect())
    span = Span(published.streams(published.starts()[-1]), 0, 1)
    queries = span_queries(chosen, span)
    owners = [{driver.metadata.get_replicas(ALONE, stream)[0] for stream in streams} for streams, _, _ in queries]
    assert all(len(hosts) == 1 for hosts in owners) and len(set().union(*owners)) == 3
    assert sorted(stream for streams, _, _ in queries for stream in streams) == sorted(span.streams)


def test_nodes_join_and_die_and_the_log_stays_whole(cluster: CqlCluster, spark: SparkSession, tmp_path: Path) -> None:
    cluster.join()
    cluster.join()
    with cluster.connect(0) as first, ThreadPoolExecutor(1) as pool:
        session = first.connect()
        session.execute(
            f"CREATE KEYSPACE {KEYSPACE} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 3}}"
        )
        session.execute(TABLE, timeout=PATIENCE)
        before = generations(session)
        writer = Writer(session)
        written = pool.submit(writer)
        try:
            writer.more(100)
            third = cluster.join()
            until(lambda: len(generations(session)) > len(before), "new generation")
            switch = generations(session)[-1]
            until(lambda: time.time() * 1000 > switch, "start of the new generation")
            writer.more(200)
            cluster.kill(third)
            writer.more(200)
            cluster.start(third)
            writer.more(100)
        finally:
            writer.end.set()
        count = written.result()
        everything = SimpleStatement(f"SELECT k, c, v FROM {KEYSPACE}.t", consistency_level=ConsistencyLevel.QUORUM)
        base = {(k, c): v for k, c, v in session.execute(everything)}
        for statement in SCHEMA_ALONE:
            session.execute(statement, timeout=PATIENCE)
        assert_log_is_asked_for_at_owners(cluster, first)
        assert_rows_are_asked_for_at_owners(first, ALONE, cluster.addresses)
    assert base == {(n % KEYS, n): n for n in range(count)}
    sink = Sink()
    hosts = ",".join(cluster.addresses)
    changes = cdc.read(spark, f"{KEYSPACE}.t", hosts=hosts, name="three", images="full", confidence="0 seconds")
    run(changes, sink, tmp_path / "checkpoint")
    # A write that was not acknowledged, and then written again, may have been logged twice.
    told = list(dict.fromkeys((row.after.k, row.after.c) for row in sink.rows))
    assert sorted(told, key=itemgetter(1)) == [(n % KEYS, n) for n in range(count)]
    for k in range(KEYS):
        assert (of_key := [c for key, c in told if key == k]) == sorted(of_key)
    switched = {row.ts.timestamp() * 1000 >= switch for row in sink.rows}
    assert switched == {False, True}
