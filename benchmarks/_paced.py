"""Rows written at a steady rate, by a process of its own, and how long each takes to reach a consumer of its event."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cassandra.query import BatchStatement, BatchType
from confluent_kafka import Consumer, TopicPartition

from cdc_source import DDL, connect
from penstock.errors import PenstockError

ROWS_PER_BATCH = 10
WARM_UP = 10.0  # seconds of writes that are not counted
PATIENCE = 90.0  # seconds for the last events after the last write
WRITTEN = re.compile(rb'"at":(\d+)')


@dataclass(frozen=True)
class Paced:
    """A table that is being written: `at`, a part of its key, is the time before the write in nanoseconds."""

    name: str
    hosts: str
    rate: int

    def latencies(self, servers: str, topic: str, partitions: int, seconds: float) -> tuple[list[float], int]:
        """Milliseconds from before a write to the consumer's poll, sorted, and how many events were missing."""
        consumer = Consumer({"bootstrap.servers": servers, "group.id": topic})
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        batches = int((WARM_UP + seconds) * self.rate / ROWS_PER_BATCH)
        command = [sys.executable, __file__, self.hosts, self.name, str(self.rate), str(batches)]
        self._await_first(consumer)
        with subprocess.Popen(command) as writer:
            try:
                seen = self._consume(consumer, writer, batches * ROWS_PER_BATCH)
            finally:
                writer.kill()
                consumer.close()
        first = min(seen)
        counted = sorted(taken / 1e6 for written, taken in seen.items() if written > first + WARM_UP * 1e9)
        return counted, batches * ROWS_PER_BATCH - len(seen)

    @staticmethod
    def _await_first(consumer: Consumer) -> None:
        """Until the row that the table began with has come: the subject is at work."""
        message = consumer.poll(PATIENCE)
        if message is None or message.error():
            raise PenstockError("no event came", next="run again on a machine with less other work")

    @staticmethod
    def _consume(consumer: Consumer, writer: subprocess.Popen[bytes], rows: int) -> dict[int, int]:
        """How long each row took to its first event, by the time of its write."""
        seen: dict[int, int] = {}
        deadline: float | None = None
        while len(seen) < rows and (deadline is None or time.monotonic() < deadline):
            if deadline is None and writer.poll() is not None:
                if writer.returncode:
                    raise PenstockError("the writer failed", next="read what it printed")
                deadline = time.monotonic() + PATIENCE
            messages = consumer.consume(10_000, timeout=0.02)
            now = time.time_ns()
            for message in messages:
                if not message.error() and (written := WRITTEN.search(message.key())):
                    seen.setdefault(int(written[1]), now - int(written[1]))
        return seen


@contextmanager
def paced(hosts: str, name: str, rate: int) -> Iterator[Paced]:
    """A new table with a log and one row; dropped afterwards."""
    session = connect(hosts)
    table = f"bench.{name}"
    try:
        session.execute(DDL[0])
        session.execute(
            f"CREATE TABLE {table} (id bigint, at bigint, note text, PRIMARY KEY (id, at))"
            " WITH cdc = {'enabled': true}"
        )
        session.execute(f"INSERT INTO {table} (id, at, note) VALUES (-1, {time.time_ns()}, 'the first')")
        yield Paced(table, hosts, rate)
        session.execute(f"DROP TABLE {table}")
    finally:
        session.cluster.shutdown()


def write(hosts: str, table: str, rate: int, batches: int) -> None:
    session = connect(hosts)
    insert = session.prepare(f"INSERT INTO {table} (id, at, note) VALUES (?, ?, 'a note of some length')")
    pause, start, pending = ROWS_PER_BATCH / rate, time.monotonic(), []
    for number in range(batches):
        time.sleep(max(0.0, start + number * pause - time.monotonic()))
        batch = BatchStatement(BatchType.UNLOGGED)
        written = time.time_ns()
        for i in range(ROWS_PER_BATCH):
            batch.add(insert, (number, written + i))
        pending.append(session.execute_async(batch))
    for future in pending:
        future.result()
    session.cluster.shutdown()


if __name__ == "__main__":
    write(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
