"""Reads with independent clients: confluent-kafka from the topics, drivers from the tables; compares nothing."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC
from typing import Any

import orjson
from adbc_driver_postgresql import dbapi
from confluent_kafka import KafkaError, Message
from confluent_kafka.admin import NewTopic

from penstock_demo import watch
from penstock_demo.adtech import site
from penstock_demo.adtech.model import Change
from penstock_demo.adtech.reconcile import Stored, Visit
from penstock_demo.node import connect

TOPICS = {
    site.EVENTS: site.PARTITIONS,
    site.CHECKED: site.PARTITIONS,
    site.VISITS: site.PARTITIONS,
    **dict.fromkeys(site.CHANGES, site.PARTITIONS),
    # One destination reads its records in order.
    site.DELIVERED: 1,
}


def create_topics(servers: str, *, copies: int = 1, config: Mapping[str, str] | None = None) -> None:
    # A record's timestamp is the time of its append.
    chosen = {"message.timestamp.type": "LogAppendTime", **(config or {})}
    watch.create(servers, [NewTopic(topic, count, copies, config=chosen) for topic, count in TOPICS.items()])


class Reader(watch.TopicWatch):
    """Counts the matched events, keeps the membership events, and times the first hop."""

    def __init__(self, servers: str) -> None:
        topics = dict.fromkeys((site.CHECKED, site.VISITS, *site.CHANGES), site.PARTITIONS)
        super().__init__(watch.consumer(servers, topics))
        self.visits = 0
        self._hops = array("q")
        """Pairs of the times at which Kafka got an event and what the first hop made of it, in microseconds."""
        self._hopped: dict[int, int] = {}
        """The last offset by partition of the events that the first hop has passed on."""
        self.changes: list[Change] = []

    def _take(self, message: Message, now: int) -> None:
        if message.topic() == site.VISITS:
            self.visits += 1
            return
        if message.topic() == site.CHECKED:
            self._hop(orjson.loads(message.value()), message.timestamp()[1])
            return
        change = change_of(message.value())
        self.changes.append(change)
        if change.event in site.AT_ONCE and change.segment != site.BY_TIME:
            self._timed(change.at * 1000, now)

    def _hop(self, told: dict[str, Any], left: int) -> None:
        partition, offset = map(int, told["origin"].split("-"))
        # What it repeats comes in order again.
        if offset > self._hopped.get(partition, -1):
            self._hopped[partition] = offset
            self._hops.extend((told["timestamp"] * 1000, left * 1000))

    def hops_since(self, since: int) -> list[int]:
        """The sorted delays of the first hop, by Kafka's clock; all in microseconds."""
        return watch.delays(self._hops, since)


def change_of(value: bytes) -> Change:
    return Change(**orjson.loads(value))


def visit_of(value: bytes) -> Visit:
    told = orjson.loads(value)
    known = told["person_ids"] or {}
    return Visit(told["id"], told["person"], frozenset((kind, one) for kind in known for one in known[kind]))


def stored(servers: str, *topics: str) -> list[Stored]:
    """All records of these topics up to their current ends; in order within a partition."""
    partitions = {topic: TOPICS[topic] for topic in topics}
    found, left = [], {(topic, partition) for topic in topics for partition in range(TOPICS[topic])}
    with closing(watch.consumer(servers, partitions, **{"enable.partition.eof": True})) as consumer:
        while left:
            for message in consumer.consume(watch.BATCH, watch.WAIT):
                if not watch.is_fault(message):
                    value, appended = message.value(), message.timestamp()[1]
                    found.append(Stored(message.partition(), message.offset(), appended, value))
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    left.discard((message.topic(), message.partition()))
    return found


def members(hosts: str) -> dict[tuple[str, str], int]:
    """The end of each membership in the table of members, in milliseconds, by segment and person."""
    with connect(hosts) as session:
        rows = session.execute(f"SELECT segment, person, until FROM {site.KEYSPACE}.members")
        # The driver's times have no zone and are UTC.
        return {
            (segment, person): round(until.replace(tzinfo=UTC).timestamp() * 1000) for segment, person, until in rows
        }


def counted(hosts: str) -> set[str]:
    """The segments that had a member."""
    with connect(hosts) as session:
        rows = session.execute(f"SELECT DISTINCT segment, level, span FROM {site.KEYSPACE}.counts")
        return {segment for segment, _, _ in rows}


def minutes(url: str) -> dict[tuple[str, int], tuple[int, int, int]]:
    """The counts in PostgreSQL, by campaign and minute (in milliseconds)."""
    query = f"SELECT campaign, extract(epoch FROM minute)::bigint, events, clicks, revenue FROM {site.COUNTS}"
    with dbapi.connect(url) as session, session.cursor() as cursor:
        cursor.execute(query)
        rows = cursor.fetchall()
    return {(campaign, minute * 1000): (events, clicks, revenue) for campaign, minute, events, clicks, revenue in rows}


def create_counts(url: str) -> None:
    """Create the table of the counts."""
    with dbapi.connect(url) as session, session.cursor() as cursor:
        for statement in site.COUNTS_SQL:
            cursor.execute(statement)
        session.commit()
