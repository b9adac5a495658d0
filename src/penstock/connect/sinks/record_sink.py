"""The driver's side of a sink connector: its tasks, each with a query per topic, and the sink of their records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from typing import Any, ClassVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.connect import topics
from penstock.connect.records.sink_converters import deserializer
from penstock.connect.sinks import starts as sink_starts
from penstock.connect.sinks.destination import Destination
from penstock.connect.sinks.retries import Patient, Retries
from penstock.connect.sinks.task import DeadLetterTopic, SinkWriter
from penstock.connect.transforms.sink_chain import chain
from penstock.connect.worker.plugins import plugin_of
from penstock.kafka.kafka_read import raw_records
from penstock.kafka.security import SETTINGS as SECURITY
from penstock.metrics import delays
from penstock.query.delivery import AT_LEAST_ONCE
from penstock.query.query import Batch, Query, in_batches, write

OVERRIDE = "consumer.override."
AGE = f"{OVERRIDE}metadata.max.age.ms"
LETTERS_REPLICAS = "errors.deadletterqueue.topic.replication.factor"
LETTERS_STEP = f"correct {LETTERS_REPLICAS}, which is 3 without it, or create the topic by hand"
EVERY = timedelta(milliseconds=100)
MOST_RECORDS = 200_000
"""Records of a batch: tasks remember the rows that they have written in it."""


@dataclass(frozen=True)
class RecordSink:
    """Writes the records of a topic, which are packed, to their tables."""

    counts_delays: ClassVar[bool] = True
    writer: SinkWriter
    topic: str
    delivery: str = AT_LEAST_ONCE
    _saved: set[str] = field(default_factory=set, compare=False)
    """The queries that have written a batch since they were started: the first one may be a repetition."""

    @property
    def target(self) -> tuple[str, str]:
        """The identity of the sink in a checkpoint."""
        return self.writer.destination.identity(self.topic, any_topic=self.writer.transforms.chooses_topics)

    @property
    def servers(self) -> str:
        """The address of the database, in the query's graph and lineage."""
        return self.writer.destination.address

    def records(self, frame: DataFrame) -> DataFrame:
        """The records as the writer takes them."""
        return frame

    def stream(self, frame: DataFrame) -> DataStreamWriter:
        """The writer of a query with only this sink."""
        return in_batches(frame, self.save)

    def save(self, frame: DataFrame, batch: Batch) -> None:
        """Write the records of one batch; writing it again changes only counters."""
        writer = replace(self.writer, topic=self.topic, again=batch.query not in self._saved)
        with delays.failures(batch.query):
            delays.add_rows(batch.query, frame.mapInArrow(writer, delays.SCHEMA).collect())
            for offsets in json.loads(batch.end or "[]"):
                writer.destination.keep_offsets(next_offsets(offsets), writer.patience)
        self._saved.add(batch.query)


def next_offsets(offsets: Mapping[str, Any]) -> dict[tuple[str, int], int]:
    """The next offset of each partition, of offsets as the checkpoint has them."""
    return {
        (topic, int(partition)): offset
        for topic, of in offsets.items()
        if ":" not in topic
        for partition, offset in of.items()
    }


@dataclass(frozen=True)
class SinkTask:
    """Some topics of a connector: each is a query with its own checkpoint, so a topic can move to another task."""

    connector: str
    number: int
    topics: tuple[str, ...]
    servers: str
    values: Mapping[str, Any]
    config: Mapping[str, str]
    client: Mapping[str, str] = field(default_factory=dict)
    """The worker's settings of Kafka's consumers."""
    starts: Mapping[str, str] = field(default_factory=dict)
    """Start by topic, for topics without a checkpoint."""

    @property
    def name(self) -> str:
        return self.connector

    @property
    def parts(self) -> tuple[str, ...]:
        """What each of its queries reads."""
        return self.topics

    @property
    def own(self) -> dict[str, str]:
        """What its configuration has instead of the connector's."""
        return {"topics": ",".join(self.topics)}

    @property
    def every(self) -> timedelta:
        return EVERY

    def queries(self, spark: SparkSession) -> dict[str, Query]:
        """A query per topic, by the topic's name; creates what the destination needs, and the topic of dead letters."""
        writer = self._writer()
        writer.destination.prepare(writer.patience)
        starts = self.known_starts()
        return {
            topic: write(self.records(spark, topic, start, packed=True), RecordSink(writer, topic))
            for topic, start in starts.items()
        }

    @property
    def _options(self) -> dict[str, str]:
        return {**self.client, **overrides(self.config)}

    def known_starts(self) -> dict[str, str]:
        """The start of each of its topics."""
        reset = self.values[f"{OVERRIDE}{sink_starts.RESET}"]
        return sink_starts.starts(self.servers, self._options, self.connector, self.topics, self.starts, reset)

    def records(self, spark: SparkSession, topic: str, start: str, *, packed: bool) -> DataFrame:
        """The undecoded records of a topic."""
        chunk, wait = (self._destination and self._destination.chunks) or (None, None)
        return raw_records(
            spark,
            topic,
            servers=self.servers,
            start=start,
            batch=MOST_RECORDS,
            group=sink_starts.group_of(self.connector),
            chunk=chunk,
            chunk_wait=wait,
            options=self._options,
            packed=packed,
        )

    @cached_property
    def _destination(self) -> Destination | None:
        """Where records go; None if a kind of task of its own writes them."""
        destination = plugin_of(self.config).destination
        return destination(self.values, self.config) if destination else None

    def _writer(self) -> SinkWriter:
        assert self._destination, "the plugin is one of records"
        retries = Retries.of(self.values)
        key, value, header = (deserializer(side, self.config) for side in ("key", "value", "header"))
        if retries:
            key, value, header = (Patient(step, retries) for step in (key, value, header))
        return SinkWriter(
            self._destination,
            key,
            value,
            header,
            self.letters(),
            replace(chain(self.config), retries=retries),
            shows=self.values["errors.log.include.messages"],
        )

    def letters(self) -> DeadLetterTopic | None:
        """Where its dead letters go, created if it is missing; None if they are dropped."""
        topic = self.values["errors.deadletterqueue.topic.name"]
        if not topic:
            return None
        replicas = self.values[LETTERS_REPLICAS]
        how = topics.TopicCreation(1, replicas, {})
        topics.create(self.servers, self._options, topic, how, what="the topic of dead letters", next=LETTERS_STEP)
        context = self.values["errors.deadletterqueue.context.headers.enable"]
        security = {name: text for name, text in self._options.items() if name in SECURITY}
        return DeadLetterTopic(topic, self.servers, self.connector, context, security)


def overrides(config: Mapping[str, str]) -> dict[str, str]:
    """The settings of a connector's own for Kafka's consumers, without those that the connector itself follows."""
    own = {name for name in config if name.startswith(OVERRIDE)} - {AGE, f"{OVERRIDE}{sink_starts.RESET}"}
    return {name.removeprefix(OVERRIDE): config[name] for name in own}
