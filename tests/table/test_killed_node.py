"""Global tables whose node or broker is killed: lookups go on, and a process that holds one can end."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import IO

import pyarrow as pa
import pytest
from waiting import PATIENCE, until

from penstock.database.access import Access
from penstock.database.cql_connection import close, connection
from penstock.local.services import down, up
from penstock.process import waits
from penstock.table import global_tables
from penstock.table.global_tables import GlobalTopic, Replica
from penstock.wire import BlockingProducer, Reader

pytestmark = [pytest.mark.kill, pytest.mark.slow]

MOST = 10_000
"""Bytes of a batch of records, decompressed."""
HOLDS = """
import sys

import pyarrow as pa

from penstock import cql
from penstock.table.global_tables import Replica

often = {"refresh": "10 milliseconds", "every": "10 milliseconds"}
replica = Replica(cql.global_table("people.names", hosts=sys.argv[1], columns=["name"], **often).source)
print(replica.get(pa.array([b"1"]))[1]["name"][0], flush=True)
sys.stdin.read()
"""


def told(lines: IO[str]) -> str:
    """The first line about the database; the driver's own are before it."""
    return next(line for line in lines if "database" in line)


def test_a_process_ends_although_the_node_of_its_table_is_gone(tmp_path: Path) -> None:
    services = up(tmp_path, only=["cassandra"])
    access = Access(services.cql)
    try:
        rows = connection(access).rows
        rows.execute("CREATE KEYSPACE people WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
        rows.execute("CREATE TABLE people.names (id int PRIMARY KEY, name text)")
        rows.execute("INSERT INTO people.names (id, name) VALUES (1, 'ann')")
        with subprocess.Popen(
            [sys.executable, "-c", HOLDS, services.cql],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as holds:
            try:
                assert holds.stdin and holds.stdout and holds.stderr
                assert holds.stdout.readline() == "ann\n"
                os.kill(services.pids["cassandra"], signal.SIGKILL)
                assert "waiting for the database (reading the table, people.names" in told(holds.stderr)
                holds.stdin.close()
                assert holds.wait(PATIENCE) == 0
            finally:
                holds.kill()
    finally:
        close(access)
        down(tmp_path)


def test_a_table_keeps_its_rows_while_its_broker_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, waits.__name__)
    services = up(tmp_path, only=["kafka"])
    try:
        send(services.kafka, "ann")
        schema = pa.schema([("name", pa.string())])
        feed = GlobalTopic("people", services.kafka, schema, 1 << 20, "", max_decompressed_bytes=MOST)
        patient = Replica(feed)
        assert names(patient) == ["ann", None] and patient.stale_ms == 0
        monkeypatch.setattr(global_tables, "Reader", partial(Reader, patience="1 second"))
        people = Replica(feed)
        assert names(people) == ["ann", None]
        os.kill(services.pids["kafka"], signal.SIGKILL)
        # It still tries for two minutes, and its rows are old already.
        until(lambda: patient.stale_ms > 0, "age of a table whose reader has not given up")
        until(lambda: "waiting for topic people for " in caplog.text, "line about the broker")
        assert names(people) == ["ann", None] and people.stale_ms > 0
        up(tmp_path, only=["kafka"])
        send(services.kafka, "bob")
        until(lambda: names(people) == ["ann", "bob"], "row written after the broker's return")
        assert "topic people: there after" in caplog.text and people.stale_ms == 0
        until(lambda: names(patient) == ["ann", "bob"] and patient.stale_ms == 0, "table that is followed again")
        # What it cannot read ends the replica's thread, which would ask the stopped broker for as long as pytest runs.
        send(services.kafka, "x" * MOST)
        until(lambda: people.failed and patient.failed, "end of the replicas")
    finally:
        down(tmp_path)


def send(servers: str, name: str) -> None:
    with BlockingProducer(servers, compression="lz4") as producer:
        producer.send("people", f'{{"name": "{name}"}}'.encode(), key=name.encode()).result()


def names(people: Replica) -> list[str | None]:
    found: list[str | None] = people.get(pa.array([b"ann", b"bob"]))[1]["name"].to_pylist()
    return found
