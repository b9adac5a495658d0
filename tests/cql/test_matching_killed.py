"""A node is killed under a stream that matches and writes: the stream waits and continues, and nothing is missing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from identities import persons_of
from pyspark.sql import SparkSession
from waiting import PATIENCE, patience, until

from penstock import cql as pcql, write
from penstock.cql.matching.id_match import KEY, Match
from penstock.database.access import Access
from penstock.database.cql_connection import close, connection
from penstock.local.services import down, up

pytestmark = pytest.mark.kill

KINDS = ("cookie", "email_hash")
PER_BATCH = 300
RECOVERED = 120  # seconds from the node's return until the next batch is done, on a quiet machine


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    down(tmp_path)


def identities(number: int) -> tuple[str, str | None]:
    """Of an event, as the frame below has them: cookies that come again, and now and then an e-mail hash."""
    return f"c{number * 7 % 900}", f"e{number % 350}" if number % 3 == 0 else None


@pytest.mark.slow
def test_a_killed_node_loses_no_row_and_no_link(root: Path, spark: SparkSession) -> None:
    services = up(root, only=["cassandra"])
    access = Access(services.cql)
    store = pcql.ids("ids", hosts=services.cql)
    pcql.create(store, replication={"class": "SimpleStrategy", "replication_factor": 1})
    connection(access).rows.execute("CREATE TABLE ids.events (n bigint PRIMARY KEY, person text)", timeout=PATIENCE)
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", PER_BATCH).option("numPartitions", 2)
    events = source.load().selectExpr(
        "value AS n",
        "concat('c', value * 7 % 900) AS cookie",
        "CASE WHEN value % 3 = 0 THEN concat('e', value % 350) END AS email_hash",
    )
    matched = pcql.match(
        events, store=store, ids=KINDS, into="person", unknown="create", ttl="1 day", fresh="0 seconds"
    )
    sink = pcql.sink("ids.events", hosts=services.cql, timeout="5 seconds")
    query = write(matched.select("n", "person"), sink).start(checkpoint=root / "checkpoint", trigger="0 seconds")

    def last() -> int:
        assert query.exception() is None
        return int(query.lastProgress["batchId"]) if query.lastProgress else -1

    try:
        until(lambda: last() >= 1, "batch before the kill", patience(120))
        os.kill(services.pids["cassandra"], signal.SIGKILL)
        reached = last()
        up(root, only=["cassandra"])
        returned = time.monotonic()
        until(lambda: last() >= reached + 2, "batch after the node's return", patience(RECOVERED))
        print(f"recovered {time.monotonic() - returned:.1f} s after the node's return")
    finally:
        query.stop()
    written = (last() + 1) * PER_BATCH
    close(access)  # this process also had a connection to the killed node
    rows = dict(connection(access).rows.execute("SELECT n, person FROM ids.events"))
    assert set(range(written)) <= rows.keys()
    assert None not in rows.values()
    # The stopped batch may have linked more than it wrote: it is matched as a whole, as in a repeat.
    seen = [identities(number) for number in range(max(written, max(rows) + 1) // PER_BATCH * PER_BATCH + PER_BATCH)]
    columns = [pa.array(column, pa.string()) for column in zip(*seen, strict=True)]
    batch = pa.RecordBatch.from_pydict({KEY: pa.StructArray.from_arrays(columns, list(KINDS))})
    (found,) = Match(store, KINDS, "person", True, 86_400, timedelta(0), 10_000)(iter([batch]))
    expected = persons_of(KINDS, seen)
    for event, person, ids in zip(seen, found["person"].to_pylist(), found["person_ids"].to_pylist(), strict=True):
        assert (person, dict(ids)) == expected["cookie", event[0]]
    close(access)
