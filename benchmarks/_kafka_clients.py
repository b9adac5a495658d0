"""The Kafka producers that the benchmarks put beside each other: each sends a case's records and says what it took."""

from __future__ import annotations

import asyncio
import gc
import random
import re
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer as Librdkafka
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaProducer

from _measure import Run
from penstock.local import kafka_broker
from penstock.wire.broker_connection import BrokerConnection, Link
from penstock.wire.cluster import Cluster
from penstock.wire.producer.producer import Producer
from penstock.wire.protocol.frames import PRODUCE
from penstock.wire.records.batch_header import stamp
from penstock.wire.records.compression import Compression, codec_number
from penstock.wire.records.record_encoder import TableEncoder

TOPIC = "bench"
MEMORY = 64 << 20
BATCH = 1_000_000
LINGER = 5  # milliseconds
VARIETY = 1000
"""Different values in a run; each client sends them over and over, the C tool its own pattern."""


@dataclass(frozen=True)
class Case:
    """What is sent, and how; `count` records of `size` bytes."""

    servers: str
    partitions: int
    size: int
    acks: str
    compression: Compression
    count: int

    @property
    def name(self) -> str:
        return f"{self.size}/{self.acks}/{self.compression}"

    @cached_property
    def values(self) -> list[bytes]:
        """Words in a random order, the same in each run: like text, they shrink to about a third."""
        draw, words = random.Random(1), [b"penstock", b"moves", b"events", b"from", b"a", b"source", b"to", b"sinks"]
        return [b" ".join(draw.choices(words, k=self.size // 4 + 3))[: self.size] for _ in range(VARIETY)]

    def table(self) -> pa.RecordBatch:
        """All records as one Arrow column."""
        order = pa.array(np.arange(self.count, dtype=np.int32) % VARIETY)
        return pa.RecordBatch.from_pydict({"value": pa.array(self.values, pa.large_binary()).take(order)})

    def each(self) -> Iterator[bytes]:
        return islice(cycle(self.values), self.count)

    def divided(self, parts: int) -> Case:
        """The same with fewer records, for clients that need that much longer."""
        return replace(self, count=max(1, self.count // parts))


Client = Callable[[Case], Run]
"""Sends all records of a case and waits until they are acknowledged; CPU is the client's own."""


def table(case: Case) -> Run:
    """Penstock: the whole table in one call."""
    rows = case.table()

    async def work() -> None:
        async with _penstock(case) as producer:
            await producer.send_table(TOPIC, rows)

    return _here(case, lambda: asyncio.run(work()))


def future(case: Case) -> Run:
    """Penstock: a future for each record."""

    async def work() -> None:
        async with _penstock(case) as producer:
            for value in case.each():
                await producer.send(TOPIC, value)

    return _here(case, lambda: asyncio.run(work()))


def _penstock(case: Case) -> Producer:
    return Producer(
        case.servers,
        acks="all" if case.acks == "all" else 1,
        compression=case.compression,
        linger=timedelta(milliseconds=LINGER),
        batch_size=BATCH,
        buffer_memory=MEMORY,
    )


def confluent(case: Case) -> Run:
    """confluent-kafka: its produce call in a loop, polled when its queue is full."""

    def work() -> None:
        producer = Librdkafka({"bootstrap.servers": case.servers, "log_level": 3} | _librdkafka_settings(case))
        for value in case.each():
            while True:
                try:
                    producer.produce(TOPIC, value)
                    break
                except BufferError:
                    producer.poll(0.01)
        producer.flush()

    return _here(case, work)


def rdkafka_performance(tool: Path) -> Client:
    """librdkafka's own benchmark, in C, by the rate it prints."""

    def run(case: Case) -> Run:
        settings = [word for name, value in _librdkafka_settings(case).items() for word in ("-X", f"{name}={value}")]
        what = ["-P", "-t", TOPIC, "-b", case.servers, "-s", str(case.size), "-c", str(case.count), "-q"]
        said, cpu = _elsewhere([str(tool), *what, *settings])
        seconds = re.findall(r"in (\d+)ms", said)
        return Run(case.count, int(seconds[-1]) / 1000, cpu)

    return run


def _librdkafka_settings(case: Case) -> dict[str, Any]:
    return {
        "acks": case.acks,
        "enable.idempotence": str(case.acks == "all").lower(),
        "compression.type": case.compression,
        "linger.ms": LINGER,
        "batch.size": BATCH,
        "batch.num.messages": 1_000_000,
        "queue.buffering.max.messages": 2_000_000,
        "queue.buffering.max.kbytes": MEMORY >> 10,
    }


def java(case: Case) -> Run:
    """Kafka's own ProducerPerformance, by the rate it prints of the second half: its JVM starts cold.

    Its CPU is that of both halves, with the start of the JVM, for twice as many records.
    """
    properties = {
        "acks": case.acks,
        "enable.idempotence": str(case.acks == "all").lower(),
        "compression.type": case.compression,
        "linger.ms": LINGER,
        "batch.size": BATCH,
        "buffer.memory": MEMORY,
        "max.request.size": 2 * BATCH,
    }
    with tempfile.NamedTemporaryFile("wb") as payload:
        payload.write(b"\n".join(case.values))
        payload.flush()
        what = ["--topic", TOPIC, "--num-records", str(2 * case.count), "--warmup-records", str(case.count)]
        what += ["--payload-file", payload.name]
        what += ["--throughput", "-1", "--bootstrap-server", case.servers]
        what += [word for name, value in properties.items() for word in ("--command-property", f"{name}={value}")]
        said, cpu = _elsewhere(kafka_broker.tool("ProducerPerformance", *what))
    rate = re.findall(r"steady state records sent, ([0-9.]+) records/sec", said)
    return Run(case.count, case.count / float(rate[-1]), cpu / 2)


def aiokafka(case: Case) -> Run:
    """aiokafka: a future for each record."""

    async def work() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=case.servers,
            acks=_acks(case),
            enable_idempotence=case.acks == "all",
            linger_ms=LINGER,
            max_batch_size=BATCH,
            compression_type=None if case.compression == "none" else case.compression,
        )
        await producer.start()
        try:
            for value in case.each():
                await producer.send(TOPIC, value)
        finally:
            await producer.stop()

    return _here(case, lambda: asyncio.run(work()))


def kafka_python(case: Case) -> Run:
    """kafka-python: a future for each record."""

    def work() -> None:
        producer = KafkaProducer(
            bootstrap_servers=case.servers,
            acks=_acks(case),
            linger_ms=LINGER,
            batch_size=BATCH,
            enable_idempotence=case.acks == "all",
            compression_type=None if case.compression == "none" else case.compression,
        )
        for value in case.each():
            producer.send(TOPIC, value)
        producer.close()

    return _here(case, work)


def _acks(case: Case) -> Any:
    return "all" if case.acks == "all" else 1


def ceiling(case: Case) -> Run:
    """What the brokers take: the same batches, made before the clock starts, five requests to each in flight."""
    encoder = TableEncoder(case.partitions, batch_size=BATCH, compression=codec_number(case.compression))
    batches = list(encoder.encode(case.table()))
    for one in batches:
        stamp(one.data, producer_id=-1, producer_epoch=-1, base_sequence=-1)

    async def work() -> None:
        cluster = Cluster(case.servers, Link())
        await cluster.refresh(TOPIC)
        queues: dict[int, list[Any]] = {}
        for one in batches:
            queues.setdefault(cluster.topics[TOPIC].leaders[one.partition], []).append(one)
        await asyncio.gather(*[_push(await cluster.connection(node), each, case) for node, each in queues.items()])
        await cluster.close()

    return _here(case, lambda: asyncio.run(work()))


async def _push(connection: BrokerConnection, batches: list[Any], case: Case) -> None:
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


def _here(case: Case, work: Callable[[], None]) -> Run:
    case.values  # noqa: B018 - made before the clock starts
    # As a service does after its start: else each full collection walks through the modules of all clients here.
    gc.collect()
    gc.freeze()
    cpu, began = _cpu(resource.RUSAGE_SELF), time.perf_counter()
    work()
    return Run(case.count, time.perf_counter() - began, _cpu(resource.RUSAGE_SELF) - cpu)


def _elsewhere(command: list[str]) -> tuple[str, float]:
    """What a program printed, and its CPU seconds."""
    cpu = _cpu(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {(done.stderr or done.stdout)[-2000:]}")
    return done.stdout + done.stderr, _cpu(resource.RUSAGE_CHILDREN) - cpu


def _cpu(whose: int) -> float:
    used = resource.getrusage(whose)
    return used.ru_utime + used.ru_stime


@contextmanager
def fresh_topic(servers: str, partitions: int, replicas: int) -> Iterator[None]:
    """The topic of all cases, made anew and deleted afterwards."""
    admin = AdminClient({"bootstrap.servers": servers})
    while True:
        try:
            admin.create_topics([NewTopic(TOPIC, partitions, replicas)])[TOPIC].result()
            break
        except Exception as error:
            if "already exists" not in str(error):
                raise
            time.sleep(0.1)  # the old one is still being deleted
    try:
        yield
    finally:
        admin.delete_topics([TOPIC])[TOPIC].result()
