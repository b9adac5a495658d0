"""An independent consumer: a thread that reads the topics from the start and keeps of each record what the proof
needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from itertools import product
from typing import Any

import orjson
from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.admin import NewTopic

from penstock_demo import watch
from penstock_demo.journal import Identity, digest
from penstock_demo.reconcile import Record
from penstock_demo.shop import ADDED, KEYSPACE, TABLES

PREFIX = "shop"
PARTITIONS = 3
TOPICS = {f"{PREFIX}.{KEYSPACE}.{name}": name for name in TABLES}
"""The topics and the table behind each."""


def create_topics(servers: str, *, copies: int = 1, config: Mapping[str, str] | None = None) -> None:
    """Create a topic for each table, with several partitions, so that order across keys does not occur by chance."""
    watch.create(servers, [NewTopic(topic, PARTITIONS, copies, config=dict(config or {})) for topic in TOPICS])


class Reader(watch.TopicWatch):
    """Keeps of each event what the proof needs."""

    def __init__(self, servers: str, **more: Any) -> None:
        super().__init__(watch.consumer(servers, dict.fromkeys(TOPICS, PARTITIONS), **more))
        self.records: list[Record] = []
        self.seen: set[Identity] = set()
        self.tables: set[str] = set()
        self._keys: dict[bytes, tuple[Any, ...]] = {}
        self._ends: dict[tuple[str, int], int] = {}

    def has_read(self, ends: Mapping[tuple[str, int], int]) -> bool:
        """Whether everything before these offsets, by topic and partition, has been read."""
        return all(self._ends.get(partition, 0) >= end for partition, end in ends.items())

    def _values(self, table: str, key: bytes | None) -> tuple[Any, ...]:
        """The values of a record's key."""
        return key_of(table, key)

    def _take(self, message: Message, now: int) -> None:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        table, key = TOPICS[topic], message.key()
        values = self._keys.get(key) or self._keys.setdefault(key, self._values(table, key))
        record = record_of(table, values, message.value(), partition, offset, message.timestamp()[1] * 1000)
        self.records.append(record)
        self.tables.add(table)
        self._ends[topic, partition] = offset + 1
        if record.op:
            self.seen.add((record.table, record.key, record.stamp, record.op))
            self._timed(record.stamp, now)


def key_of(table: str, text: bytes | None) -> tuple[Any, ...]:
    try:
        members = orjson.loads(text or b"")
        return tuple(members[column] for column in TABLES[table].key)
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return ("unreadable", text)


def record_of(
    table: str, key: tuple[Any, ...], value: bytes | None, partition: int, offset: int, appended: int
) -> Record:
    """What the proof needs; a value that is not an event of this table gets an op that is never expected."""
    stamp, op, content = (0, "", 0) if value is None else _event_of(table, value) or (0, "?", 0)
    return Record(table, key, stamp, op, content, partition, offset, appended)


def _event_of(table: str, value: bytes) -> tuple[int, str, int] | None:
    """Time, op and digest of an event; None if it is not an event of this table."""
    try:
        event = orjson.loads(value)
        source = event["source"]
        if (source["name"], source["keyspace_name"], source["table_name"]) != (PREFIX, KEYSPACE, table):
            return None
        content = digest(TABLES[table], _known(event["before"]), _known(event["after"]), event.get("range"))
        return source["ts_us"], event["op"], content
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None


def _known(image: dict[str, Any] | None) -> dict[str, Any] | None:
    """An image without the added columns that are null: nobody writes them."""
    if image is None:
        return None
    return {name: value for name, value in image.items() if value is not None or not name.startswith(ADDED)}


def ends(servers: str) -> dict[tuple[str, int], int]:
    """The current end offsets of the topics, by topic and partition."""
    with _looking(servers) as consumer:
        return {
            (topic, partition): consumer.get_watermark_offsets(
                TopicPartition(topic, partition), timeout=watch.PATIENCE
            )[1]
            for topic, partition in product(TOPICS, range(PARTITIONS))
        }


def fetch(servers: str, records: Iterable[Record]) -> list[str]:
    """Read the values of these records again."""
    topics = {table: topic for topic, table in TOPICS.items()}
    texts = []
    with _looking(servers) as consumer:
        for record in records:
            consumer.assign([TopicPartition(topics[record.table], record.partition, record.offset)])
            message = consumer.poll(watch.PATIENCE)
            texts.append(str(message and message.value()))
    return texts


def _looking(servers: str) -> closing[Consumer]:
    # A client of its own: through the reading client, answers have waited for minutes behind its polls.
    return closing(Consumer({"bootstrap.servers": servers, "group.id": "penstock-demo-look", "log_level": 0}))
