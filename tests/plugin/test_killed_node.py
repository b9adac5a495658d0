"""A node killed under writes: after its start, what was acknowledged is in the table and in its log, once each.

A write that was under way, and so not acknowledged, may be in one of the two only (docs/cassandra.md): it is left out.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
from cassandra.cluster import Cluster, Session
from cql_cluster import LOST
from waiting import PATIENCE

from penstock.local.services import Services, down, up

pytestmark = pytest.mark.kill

KEYSPACE = "killed"
WRITERS = 4
ACKNOWLEDGED_BEFORE = 1500  # writes of one writer before the kill
TABLE = (
    f"CREATE TABLE {KEYSPACE}.t (k int, c int, v int, PRIMARY KEY (k, c))"
    " WITH cdc = {'enabled': true, 'preimage': 'full', 'postimage': true}"
)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    down(tmp_path)


def connected(services: Services) -> Cluster:
    host, port = services.cql.split(":")
    return Cluster([host], port=int(port), connect_timeout=PATIENCE)


def writes(session: Session, writer: int, enough: Event) -> tuple[list[int], int | None]:
    """Rows of one partition, each written once; those that were acknowledged, and the one that was not."""
    insert = session.prepare(f"INSERT INTO {KEYSPACE}.t (k, c, v) VALUES (?, ?, ?)")
    done: list[int] = []
    while True:
        c = len(done)
        try:
            session.execute(insert, (writer, c, c), timeout=5)
        except LOST:
            return done, c
        done.append(c)
        if c == ACKNOWLEDGED_BEFORE:
            enough.set()


def test_acknowledged_writes_are_in_the_table_and_in_its_log(root: Path) -> None:
    services = up(root, only=["cassandra"])
    enough = Event()
    with connected(services) as cluster, ThreadPoolExecutor(WRITERS) as pool:
        session = cluster.connect()
        session.execute(
            f"CREATE KEYSPACE {KEYSPACE} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
        )
        session.execute(TABLE, timeout=PATIENCE)
        running = [pool.submit(writes, session, writer, enough) for writer in range(WRITERS)]
        assert enough.wait(PATIENCE)
        os.kill(services.pids["cassandra"], signal.SIGKILL)
        results = [each.result() for each in running]
    acknowledged = {(writer, c): c for writer, (done, _) in enumerate(results) for c in done}
    in_doubt = {(writer, c) for writer, (_, c) in enumerate(results)}
    with connected(up(root, only=["cassandra"])) as cluster:
        session = cluster.connect()
        base = {(k, c): v for k, c, v in session.execute(f"SELECT k, c, v FROM {KEYSPACE}.t")}
        log = Counter(
            tuple(row) for row in session.execute(f'SELECT "cdc$operation", k, c, v FROM {KEYSPACE}.t_scylla_cdc_log')
        )
    assert len(acknowledged) > ACKNOWLEDGED_BEFORE
    assert {key: v for key, v in base.items() if key not in in_doubt} == acknowledged
    told = Counter({(operation, *key, v): 1 for key, v in acknowledged.items() for operation in (2, 9)})
    assert Counter({row: n for row, n in log.items() if row[1:3] not in in_doubt}) == told
