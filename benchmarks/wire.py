"""Our Kafka producer beside confluent-kafka (librdkafka), aiokafka and kafka-python, on one broker, in one run.

    python benchmarks/wire.py --json wire.json

Cases are named <path>/<bytes>/<acks>/<compression>. `table` is an Arrow table handed over at once, beside the fastest
way the peer has; `future` gives a future for each record. `ceiling` sends batches made beforehand, without a client's
work: what the broker takes. Rates are records a second, CPU is the client's own; `ratio` is over confluent-kafka's
rate in `table` and over aiokafka's in `future`.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer as Librdkafka
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaProducer

from _measure import Row, Run, report
from penstock.local.services import down, up
from penstock.wire.batch import stamp
from penstock.wire.columns import TableEncoder
from penstock.wire.compression import codec_number
from penstock.wire.connection import Connection, Link
from penstock.wire.producer import Producer
from penstock.wire.protocol import PRODUCE

TOPIC, PARTITIONS = "bench", 4
MEMORY = 256 << 20
PEER = "confluent-kafka"
PER_MESSAGE = 20
"""How many times fewer records the clients in pure Python are given: they are that much slower."""


@dataclass(frozen=True)
class Case:
    """What is sent, and how."""

    servers: str
    size: int
    acks: str
    compression: str
    count: int

    @property
    def name(self) -> str:
        return f"{self.size}/{self.acks}/{self.compression}"

    @property
    def value(self) -> bytes:
        return (b"penstock moves events from source to sink; " * (self.size // 40 + 1))[: self.size]


def table(case: Case) -> int:
    """Penstock: the whole table in one call."""

    async def work() -> int:
        values = pa.array([case.value] * case.count, pa.binary())
        async with _penstock(case, linger=timedelta(milliseconds=5)) as producer:
            return (await producer.send_table(TOPIC, pa.table({"value": values}))).rows

    return asyncio.run(work())


def future(case: Case) -> int:
    """Penstock: a future for each record."""

    async def work() -> int:
        async with _penstock(case, linger=timedelta(milliseconds=5)) as producer:
            for _ in range(case.count // PER_MESSAGE):
                await producer.send(TOPIC, case.value)
        return case.count // PER_MESSAGE

    return asyncio.run(work())


def _penstock(case: Case, linger: timedelta) -> Producer:
    return Producer(
        case.servers,
        acks="all" if case.acks == "all" else 1,
        compression=case.compression,
        linger=linger,
        buffer_memory=MEMORY,
    )


def librdkafka(case: Case) -> int:
    """confluent-kafka: its produce call in a loop, polled when its queue is full."""
    producer = Librdkafka(
        {
            "bootstrap.servers": case.servers,
            "acks": case.acks,
            "enable.idempotence": case.acks == "all",
            "compression.type": case.compression,
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": MEMORY >> 10,
            "log_level": 3,
        }
    )
    value = case.value
    for _ in range(case.count):
        while True:
            try:
                producer.produce(TOPIC, value)
                break
            except BufferError:
                producer.poll(0.01)
    producer.flush()
    return case.count


def aiokafka(case: Case) -> int:
    """aiokafka: a future for each record."""

    async def work() -> int:
        producer = AIOKafkaProducer(
            bootstrap_servers=case.servers,
            acks=_acks(case),
            enable_idempotence=case.acks == "all",
            linger_ms=5,
            max_batch_size=1_000_000,
            compression_type=None if case.compression == "none" else case.compression,
        )
        await producer.start()
        try:
            for _ in range(case.count // PER_MESSAGE):
                await producer.send(TOPIC, case.value)
        finally:
            await producer.stop()
        return case.count // PER_MESSAGE

    return asyncio.run(work())


def kafka_python(case: Case) -> int:
    """kafka-python: a future for each record."""
    producer = KafkaProducer(
        bootstrap_servers=case.servers,
        acks=_acks(case),
        linger_ms=5,
        batch_size=1_000_000,
        enable_idempotence=case.acks == "all",
        compression_type=None if case.compression == "none" else case.compression,
    )
    for _ in range(case.count // PER_MESSAGE):
        producer.send(TOPIC, case.value)
    producer.close()
    return case.count // PER_MESSAGE


def _acks(case: Case) -> Any:
    return "all" if case.acks == "all" else 1


def ceiling(case: Case) -> int:
    """What the broker takes: the same batches, made before the clock starts, five requests in flight."""
    sent, work = _prepared(case)
    asyncio.run(work)
    return sent


def _prepared(case: Case) -> tuple[int, Coroutine[Any, Any, None]]:
    encoder = TableEncoder(PARTITIONS, batch_size=1_000_000, compression=codec_number(case.compression))
    values = pa.array([case.value] * case.count, pa.binary())
    batches = list(encoder.encode(pa.RecordBatch.from_pydict({"value": values})))
    for one in batches:
        stamp(one.data, producer_id=-1, producer_epoch=-1, base_sequence=-1)

    async def work() -> None:
        host, port = case.servers.split(":")
        connection = await Connection.open(host, int(port), Link())
        answers: list[asyncio.Future[Any]] = []
        for one in batches:
            if len(answers) >= 5:
                await answers[-5]
            data = {"index": one.partition, "records": one.data}
            body = {
                "acks": -1 if case.acks == "all" else 1,
                "timeout_ms": 30_000,
                "topic_data": [{"name": TOPIC, "partition_data": [data]}],
            }
            answers.append(connection.post(PRODUCE, body, version=min(connection.version(PRODUCE), 12)))
        await asyncio.gather(*answers)
        await connection.close()

    return sum(one.count for one in batches), work()


TABLES: dict[str, Callable[[Case], int]] = {"penstock": table, PEER: librdkafka}
FUTURES: dict[str, Callable[[Case], int]] = {"penstock": future, "aiokafka": aiokafka, "kafka-python": kafka_python}


def timed(work: Callable[[Case], int], case: Case) -> Run:
    """One run, its topic made anew; CPU is this process's own, where the client lives."""
    _fresh_topic(case.servers)
    if work is ceiling:
        count, prepared = _prepared(case)
        work = partial(_run, count, prepared)
    cpu, began = _cpu(), time.perf_counter()
    rows = work(case)
    return Run(rows, time.perf_counter() - began, _cpu() - cpu)


def _run(count: int, prepared: Coroutine[Any, Any, None], _: Case) -> int:
    asyncio.run(prepared)
    return count


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _fresh_topic(servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    if TOPIC in admin.list_topics(timeout=10).topics:
        for done in admin.delete_topics([TOPIC]).values():
            done.result()
    while True:
        try:
            for done in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]).values():
                done.result()
            return
        except Exception:  # the old one is still being deleted
            time.sleep(0.2)


def measure(case: Case, kind: str, subjects: dict[str, Callable[[Case], int]], rounds: int) -> list[Row]:
    """Medians of all subjects, which take turns, the order turned round each time; the ratio is over the second."""
    runs: dict[str, list[Run]] = {name: [] for name in subjects}
    for number in range(rounds + 1):
        for name in sorted(subjects, key=list(subjects).index, reverse=number % 2 == 1):
            run = timed(subjects[name], case)
            if number:  # the first round warms up broker and compiled code
                runs[name].append(run)
    peer = list(subjects)[1]
    rate = {name: statistics.median(run.rows / run.seconds for run in each) for name, each in runs.items()}
    cpu = {name: statistics.median(run.cpu / run.rows * 1e6 for run in each) for name, each in runs.items()}
    return [
        Row(f"{kind}/{case.name}", name, round(rate[name]), round(cpu[name], 4), round(rate[name] / rate[peer], 2))
        for name in runs
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds of each case (default: %(default)s)")
    parser.add_argument("--megabytes", type=int, default=200, help="payload of a run (default: %(default)s)")
    parser.add_argument("--most", type=int, default=4_000_000, help="most records of a run (default: %(default)s)")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 50, 100, 1000], help="bytes of a value")
    parser.add_argument("--acks", nargs="+", default=["1", "all"])
    parser.add_argument("--compression", nargs="+", default=["none", "lz4", "zstd"])
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            servers = up(Path(folder), only=["kafka"]).kafka
            for size in options.sizes:
                count = min(options.most, options.megabytes * 1_000_000 // size)
                for acks in options.acks:
                    for compression in options.compression:
                        case = Case(servers, size, acks, compression, count)
                        rows += measure(case, "table", TABLES | {"ceiling": ceiling}, options.rounds)
                    rows += measure(Case(servers, size, acks, "none", count), "future", FUTURES, options.rounds)
        finally:
            down(Path(folder))
    report(rows, options.json)


if __name__ == "__main__":
    main()
