"""An independent consumer: a thread that reads the topics from the start and keeps of each record what proves it."""

from __future__ import annotations

import threading
import time
from array import array
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

import orjson
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.demo.journal import Identity, digest
from penstock.demo.reconcile import Record
from penstock.demo.shop import ADDED, KEYSPACE, TABLES
from penstock.errors import PenstockError

PREFIX = "shop"
PARTITIONS = 3
BATCH = 500
WAIT = 0.2
PATIENCE = 15.0
TOPICS = {f"{PREFIX}.{KEYSPACE}.{name}": name for name in TABLES}
"""The topics and the table behind each."""


def create_topics(servers: str) -> None:
    """One topic a table, each of several partitions, so that order across keys is not there by chance."""
    admin = AdminClient({"bootstrap.servers": servers})
    topics = [NewTopic(topic, PARTITIONS, 1) for topic in TOPICS]
    for topic, made in admin.create_topics(topics, operation_timeout=PATIENCE).items():
        try:
            made.result()
        except KafkaException as error:
            raise PenstockError(f"topic {topic} cannot be created: {error}", where=servers) from error


class Reader(threading.Thread):
    """Reads until `close`; its lists only ever grow, so other threads may look at them at any time."""

    def __init__(self, servers: str) -> None:
        super().__init__(name="consumer", daemon=True)
        self.records: list[Record] = []
        self.seen: set[Identity] = set()
        self.tables: set[str] = set()
        self.times = array("q")
        """Pairs of write time and receive time, in microseconds, one pair for each event."""
        self.fault: Exception | None = None
        self._keys: dict[bytes, tuple[Any, ...]] = {}
        self._ends: dict[tuple[str, int], int] = {}
        self._recent: deque[tuple[int, int]] = deque(maxlen=20_000)
        self._closing = threading.Event()
        self._servers = servers
        self._consumer = self._open()

    def run(self) -> None:
        try:
            while not self._closing.is_set():
                messages = self._consumer.consume(BATCH, WAIT)
                now = time.time_ns() // 1000
                for message in messages:
                    self._take(message, now)
        except Exception as error:
            self.fault = error
        finally:
            self._consumer.close()

    def close(self) -> None:
        self._closing.set()
        self.join()

    def recent(self, since: int) -> list[int]:
        """Delays, in microseconds, of the events received since then; their number is that of those kept."""
        return [received - written for written, received in list(self._recent) if received >= since]

    def has_read(self, ends: Mapping[tuple[str, int], int]) -> bool:
        """Whether everything before these offsets, by topic and partition, has been read."""
        return all(self._ends.get(partition, 0) >= end for partition, end in ends.items())

    def _open(self) -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": "penstock-demo",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 100,
                "reconnect.backoff.max.ms": 500,
                # A broker that is away is the demo's own doing; the records will tell.
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(t, p, OFFSET_BEGINNING) for t in TOPICS for p in range(PARTITIONS)])
        return consumer

    def _take(self, message: Message, now: int) -> None:
        fault = message.error()
        if fault is not None:
            if fault.code() in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError.UNKNOWN_TOPIC_OR_PART):
                raise KafkaException(fault)
            return
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        table, key = TOPICS[topic], message.key()
        values = self._keys.get(key) or self._keys.setdefault(key, _key(table, key))
        record = _record(table, values, message.value(), partition, offset, message.timestamp()[1] * 1000)
        self.records.append(record)
        self.tables.add(table)
        self._ends[topic, partition] = offset + 1
        if record.op:
            self.seen.add((record.table, record.key, record.stamp, record.op))
            self.times.extend((record.stamp, now))
            self._recent.append((record.stamp, now))


def _key(table: str, text: bytes | None) -> tuple[Any, ...]:
    try:
        members = orjson.loads(text or b"")
        return tuple(members[column] for column in TABLES[table].key)
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return ("unreadable", text)


def _record(
    table: str, key: tuple[Any, ...], value: bytes | None, partition: int, offset: int, appended: int
) -> Record:
    """What the proof needs; a value that is no event of this table has an op that nothing expects."""
    if value is None:
        return Record(table, key, 0, "", 0, partition, offset, appended)
    try:
        event = orjson.loads(value)
        source = event["source"]
        if (source["name"], source["keyspace_name"], source["table_name"]) != (PREFIX, KEYSPACE, table):
            return Record(table, key, 0, "?", 0, partition, offset, appended)
        content = digest(TABLES[table], _known(event["before"]), _known(event["after"]), event.get("range"))
        return Record(table, key, source["ts_us"], event["op"], content, partition, offset, appended)
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return Record(table, key, 0, "?", 0, partition, offset, appended)


def _known(image: dict[str, Any] | None) -> dict[str, Any] | None:
    """An image without the columns that the demo added, as long as they hold nothing: nobody writes them."""
    if image is None:
        return None
    return {name: value for name, value in image.items() if value is not None or not name.startswith(ADDED)}


def ends(servers: str) -> dict[tuple[str, int], int]:
    """Where the topics end now."""
    # A client of its own: asked through the one that reads, each answer was seen to wait for minutes behind its polls.
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "penstock-demo-look", "log_level": 0})
    found = {}
    for topic, partition in product(TOPICS, range(PARTITIONS)):
        _, found[topic, partition] = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=PATIENCE)
    consumer.close()
    return found


def fetch(servers: str, records: Iterable[Record]) -> list[str]:
    """The text of these records, read again."""
    topics = {table: topic for topic, table in TOPICS.items()}
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "penstock-demo-look", "log_level": 0})
    texts = []
    for record in records:
        consumer.assign([TopicPartition(topics[record.table], record.partition, record.offset)])
        message = consumer.poll(PATIENCE)
        texts.append(str(message and message.value()))
    consumer.close()
    return texts
