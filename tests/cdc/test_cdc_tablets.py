"""Logs of keyspaces with tablets: ScyllaDB's tables of streams, emulated on a node without tablets."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from cassandra.util import uuid_from_time
from keyspaces import new_keyspace

from penstock.cdc.cdc_options import CdcSettings, settings
from penstock.cdc.cdc_tables import find_table, frame_schema
from penstock.cdc.generations import Generations, micros, published, tablets, token_of
from penstock.cdc.partition_read import read_span
from penstock.cdc.planner import Planner
from penstock.database.cql_connection import connection
from penstock.database.cql_types import CqlTable

SECOND = dt.timedelta(seconds=1)
MOST = 10_000


@pytest.fixture(scope="module")
def keyspace(cql: Any) -> Iterator[str]:
    """Two tables with a change log, and the tables where ScyllaDB publishes the streams of their tablets."""
    with new_keyspace(cql, "tablets") as name:
        cql.execute(
            f"""CREATE TABLE {name}.cdc_timestamps (keyspace_name text, table_name text, timestamp timestamp,
                PRIMARY KEY ((keyspace_name, table_name), timestamp)) WITH CLUSTERING ORDER BY (timestamp DESC)"""
        )
        cql.execute(
            f"""CREATE TABLE {name}.cdc_streams (keyspace_name text, table_name text, timestamp timestamp,
                stream_state tinyint, stream_id blob,
                PRIMARY KEY ((keyspace_name, table_name), timestamp, stream_state, stream_id))"""
        )
        for table in ("first", "second"):
            cql.execute(f"CREATE TABLE {name}.{table} (id int PRIMARY KEY, v int) WITH cdc = {{'enabled': true}}")
        yield name


class Tablets:
    """One table's tablets: publishes sets of streams, and writes into its log."""

    def __init__(self, cql: Any, keyspace: str, name: str) -> None:
        self.cql, self.keyspace, self.name = cql, keyspace, name

    def publish(self, at: dt.datetime, tokens: list[int], closed: list[bytes]) -> list[bytes]:
        """Publish the streams from `at` on, one for each tablet's last token; `closed` are the previous streams."""
        streams = [token.to_bytes(8, "big", signed=True) + uuid.uuid4().bytes[:8] for token in tokens]
        place = self.keyspace, self.name, at
        columns = "keyspace_name, table_name, timestamp"
        self.cql.execute(f"INSERT INTO {self.keyspace}.cdc_timestamps ({columns}) VALUES (%s, %s, %s)", place)
        insert = (
            f"INSERT INTO {self.keyspace}.cdc_streams ({columns}, stream_state, stream_id) VALUES (%s, %s, %s, %s, %s)"
        )
        for state, ids in ((0, streams), (1, closed), (2, streams)):
            for stream in ids:
                self.cql.execute(insert, (*place, state, stream))
        return streams

    def write(self, stream: bytes, at: dt.datetime, id: int, v: int) -> None:
        row = {"cdc$stream_id": f"0x{stream.hex()}", "cdc$time": str(uuid_from_time(at)), "id": id, "v": v}
        row |= {"cdc$batch_seq_no": 0, "cdc$operation": 2, "cdc$end_of_batch": True}
        text = json.dumps({f'"{name}"': value for name, value in row.items()})
        self.cql.execute(f"INSERT INTO {self.keyspace}.{self.name}_scylla_cdc_log JSON %s", (text,))


def read_all(chosen: CdcSettings, table: CqlTable, system: str) -> list[tuple[int, int]]:
    """The id and value of each change, batch by batch."""
    planner = Planner(chosen, table)
    planner.generations = Generations(planner.generations.session, tablets(table, system))
    at, target, found = planner.first(), planner.confident(), []
    while (until := planner.next(at, target, MOST)) != at:
        for span in planner.spans(at, until):
            for batch in read_span(chosen, table, frame_schema(table), span):
                found += _changes(batch)
        at = until
    return found


def _changes(batch: pa.RecordBatch) -> list[tuple[int, int]]:
    rows = batch.select(["key", "delta"]).to_pylist()
    return [(row["key"]["id"], row["delta"]["v"]) for row in rows]


@pytest.mark.slow
def test_two_tables_each_with_its_own_streams_through_a_split(cql: Any, services: Any, keyspace: str) -> None:
    """BUG_tablets_two_tables: tables of one keyspace that were created at different times."""
    now = dt.datetime.now(dt.UTC)
    found = {}
    for name, age in (("first", 300), ("second", 200)):
        one, made = Tablets(cql, keyspace, name), now - age * SECOND
        (whole,) = one.publish(made, [2**63 - 1], [])
        left, right = one.publish(made + 60 * SECOND, [0, 2**63 - 1], [whole])
        for i in range(50):
            one.write(whole, made + (1 + i) * SECOND, i % 5, i)
        for i in range(50, 100):
            stream = left if i % 5 < 2 else right
            one.write(stream, made + (11 + i) * SECOND, i % 5, i)
        options = {"table": f"{keyspace}.{name}", "hosts": services.cql, "confidence": "1 second"}
        chosen = settings(options)
        table = find_table(connection(chosen.access).rows, chosen.table)
        found[name] = read_all(chosen, table, keyspace)
    for changes in found.values():
        assert sorted(changes) == sorted((i % 5, i) for i in range(100))
        for id in range(5):
            assert [v for key, v in changes if key == id] == [i for i in range(100) if i % 5 == id]


def test_a_tablet_s_stream_covers_the_tokens_up_to_its_own(cql: Any, keyspace: str, services: Any) -> None:
    one = Tablets(cql, keyspace, "third")
    cql.execute(f"CREATE TABLE {keyspace}.third (id int PRIMARY KEY, v int) WITH cdc = {{'enabled': true}}")
    made = dt.datetime.now(dt.UTC) - 60 * SECOND
    streams = one.publish(made, [-100, 100, 2**63 - 1], [])
    chosen = settings({"table": f"{keyspace}.third", "hosts": services.cql})
    session = connection(chosen.access).rows
    table = find_table(session, chosen.table)
    generations = Generations(session, tablets(table, keyspace))
    (start,) = generations.starts()
    assert generations.streams(start) == tuple(sorted(streams, key=token_of))
    assert generations.streams_within(micros(made), -50, 50) == (streams[1],)
    assert generations.streams_within(micros(made), -100, 101) == (streams[1], streams[2])
    # This node has no tablets: the logs of its tables use the ring's streams.
    assert published(session, table).table == "system_distributed.cdc_generation_timestamps"
