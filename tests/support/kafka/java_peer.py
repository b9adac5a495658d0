"""Kafka's Java clients as peers: its console consumer reads, its producer writes."""

from __future__ import annotations

import subprocess
import uuid
from typing import Any

from java_kafka import jvm_of
from peer_records import Part, Record
from waiting import PATIENCE

from penstock.local import kafka_broker

# Separators in the console consumer's output; no record contains them.
COLUMN, HEADER, LINE, NULL = b"<column>", b"<header>", b"<line>", b"<null>"


def read(servers: str, topic: str, count: int) -> list[Record]:
    """The first `count` committed records, as the console consumer prints them."""
    shown = {"timestamp": "true", "partition": "true", "headers": "true", "key": "true"}
    properties = [f"print.{name}={value}" for name, value in shown.items()]
    properties += [f"key.separator={COLUMN.decode()}", f"headers.separator={HEADER.decode()}"]
    properties += [f"line.separator={LINE.decode()}", f"null.literal={NULL.decode()}"]
    options = ["--bootstrap-server", servers, "--topic", topic, "--from-beginning", "--max-messages", str(count)]
    options += ["--isolation-level", "read_committed", "--timeout-ms", "20000"]
    options += [word for each in properties for word in ("--formatter-property", each)]
    command = kafka_broker.tool("consumer.ConsoleConsumer", *options)
    done = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return [_printed(line) for line in done.stdout.split(LINE)[:-1]]


def _printed(line: bytes) -> Record:
    time, partition, headers, key, value = line.split(COLUMN)
    pairs = [] if headers == b"NO_HEADERS" else [one.split(b":", 1) for one in headers.split(HEADER)]
    return Record(
        int(partition.removeprefix(b"Partition:")),
        None if key == NULL else key,
        None if value == NULL else value,
        [(name.decode(), None if text == NULL else text) for name, text in pairs],
        int(time.removeprefix(b"CreateTime:")),
    )


def write(servers: str, topic: str, parts: list[Part]) -> None:
    """Each part is written by its own producer with the part's compression."""
    with jvm_of("kafka") as jvm:
        for codec, end, records in parts:
            producer = _producer(jvm, servers, codec, transactional=end is not None)
            if end:
                producer.initTransactions()
                producer.beginTransaction()
            for one in records:
                producer.send(_record(jvm, topic, one))
            producer.flush()
            if end:
                producer.commitTransaction() if end == "commit" else producer.abortTransaction()
            producer.close()


def _producer(jvm: Any, servers: str, codec: str, *, transactional: bool) -> Any:
    settings = jvm.java.util.HashMap()
    settings["bootstrap.servers"], settings["compression.type"], settings["linger.ms"] = servers, codec, "100"
    if transactional:
        settings["transactional.id"] = uuid.uuid4().hex
    bytes_as_they_are = jvm.org.apache.kafka.common.serialization.ByteArraySerializer
    return jvm.org.apache.kafka.clients.producer.KafkaProducer(settings, bytes_as_they_are(), bytes_as_they_are())


def _record(jvm: Any, topic: str, one: Record) -> Any:
    headers = jvm.org.apache.kafka.common.header.internals.RecordHeaders()
    for name, value in one.headers:
        headers.add(name, value)
    make = jvm.org.apache.kafka.clients.producer.ProducerRecord
    return make(topic, one.partition, one.timestamp, one.key, one.value, headers)
