"""Makes queries of a connector's values: the tables, the events' format, and the topics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from penstock import cdc, kafka
from penstock.cdc.cdc_options import Image
from penstock.codec.debezium import OPERATIONS
from penstock.codec.typed_records import Transform, TypedRecords
from penstock.connect import topics
from penstock.connect.records.converters import converter
from penstock.connect.source import database
from penstock.connect.source.checks import OVERRIDE
from penstock.connect.transforms.source_chain import chain
from penstock.database.table_catalog import split_name
from penstock.kafka.client_options import CREATE, has_all
from penstock.kafka.kafka_sink import KafkaSink
from penstock.query.delivery import AT_LEAST_ONCE, EXACTLY_ONCE, Delivery
from penstock.query.query import Query, write
from penstock.replicate.change_events import exact
from penstock.replicate.event_checks import KEY
from penstock.wire.topic_names import topic_name

TIMES = "penstock.write.times"
CREATION_STEP = "correct topic.creation.*, create the topic by hand, or let the broker do it without these properties"


@dataclass(frozen=True)
class Setup:
    """What all tasks of a connector share; `producer` are the worker's settings of Kafka's producer."""

    connector: str
    servers: str
    values: Mapping[str, Any]
    config: Mapping[str, str]
    producer: Mapping[str, str] = field(default_factory=dict)
    routed: dict[str, str] = field(default_factory=dict)
    """The topic by table, once its query is built; without tables whose topics transforms choose record by record."""
    signals: str = ""
    """The file of signals for its queries; none for tasks that do not run."""

    @property
    def settings(self) -> dict[str, str]:
        """The settings of Kafka's producer: the worker's, overridden by the connector's."""
        own = {name.removeprefix(OVERRIDE): text for name, text in self.config.items() if name.startswith(OVERRIDE)}
        return {**self.producer, **own}

    def sink(self, delivery: Delivery | None = None, topic: str | None = None) -> KafkaSink:
        """The sink of its records, which are for `topic`; None if each record has its own."""
        once = self.values["exactly.once.support"] == "required"
        chosen = delivery or (EXACTLY_ONCE if once else AT_LEAST_ONCE)
        options = self.settings
        if topic is not None and topics.rule(self.config, topic) and has_all(options):
            # A topic that is deleted meanwhile is created again by the next start, by its rule, and not by the broker.
            options = options | {CREATE: "false"}
        return kafka.sink(servers=self.servers, options=options, delivery=chosen)

    def create(self, topic: str) -> None:
        """Create the topic if topic.creation.* describes it and it is missing; raises PenstockError if Kafka cannot."""
        if how := topics.rule(self.config, topic):
            topics.create(self.servers, self.settings, topic, how, what="the topic", next=CREATION_STEP)

    def topic(self, table: str) -> str:
        """The topic of a table, with Debezium's name."""
        return topic_name(self.values["topic.delimiter"].join((self.values["topic.prefix"], *split_name(table))))


@dataclass(frozen=True)
class Task:
    """Some tables of a connector: each is a query with its own checkpoint, so a table can move to another task."""

    setup: Setup
    number: int
    tables: tuple[str, ...]
    starts: Mapping[str, str] = field(default_factory=dict)
    """Start by table, for tables without a checkpoint; overrides the connector's configuration."""

    @property
    def name(self) -> str:
        return self.setup.connector

    @property
    def parts(self) -> tuple[str, ...]:
        """What each of its queries reads."""
        return self.tables

    @property
    def own(self) -> dict[str, str]:
        """What its configuration has instead of the connector's."""
        return {database.TABLES: ",".join(self.tables)}

    @property
    def every(self) -> timedelta:
        return timedelta(milliseconds=self.setup.values["poll.interval.ms"])

    def queries(self, spark: SparkSession) -> dict[str, Query]:
        """A query per table, by the table's name; creates the topics that topic.creation.* describes."""
        queries, routed = {}, self.setup.routed
        for table in self.tables:
            events = self._events(spark, table)
            queries[table] = write(events, self.setup.sink(topic=routed.get(table)))
        for topic in {routed[table] for table in self.tables if table in routed}:
            self.setup.create(topic)
        return queries

    def _events(self, spark: SparkSession, table: str) -> DataFrame:
        values, config = self.setup.values, self.setup.config
        codec = converter("value", config)
        return cdc.events(
            self._changes(spark, table),
            prefix=values["topic.prefix"],
            topic=self.setup.topic(table),
            tombstones=values["tombstones.on.delete"],
            skipped=[operation for operation in values["skipped.operations"] if operation in OPERATIONS],
            transforms=[*chain(config), self._noting(table)],
            key=converter("key", config),
            value=exact(codec) if values[TIMES] else codec,
            **shape(values),
        )

    def _noting(self, table: str) -> Transform:
        """A transform that changes nothing, and records the topic of a table's records."""

        def note(records: TypedRecords) -> TypedRecords:
            if isinstance(records.topic, str):
                self.setup.routed[table] = records.topic
            return records

        return note

    def _changes(self, spark: SparkSession, table: str) -> DataFrame:
        values, reached = self.setup.values, database.access(self.setup.values)
        page = values["scylla.query.options.fetch.size"]
        options = {
            name: getattr(reached, name) for name in ("user", "password", "local_dc", "ca", "certificate", "key")
        }
        return cdc.read(
            spark,
            table,
            hosts=reached.hosts,
            name=f"{self.setup.connector}.{table}",
            images=read_images(values),
            whole_rows=values["cdc.include.after"] != "only-updated",
            start=self.starts.get(table) or start(values),
            confidence=timedelta(milliseconds=values["scylla.confidence.window.size"]),
            consistency=values["scylla.consistency.level"],
            page_size=page or 5000,
            latency=values["penstock.latency"],
            bad_values="problem" if values["errors.tolerance"] == "all" else "stop",
            write_times=values[TIMES],
            signals=self.setup.signals,
            chunk_rows=values["incremental.snapshot.chunk.size"],
            tls=reached.tls,
            verify_hostname=reached.verify_hostname,
            **{name: text for name, text in options.items() if text},
        )


def start(values: Mapping[str, Any]) -> str:
    """Where a connector without a position starts to read."""
    if values["penstock.snapshot"] == "initial":
        return "snapshot"
    lookback = values["scylla.initial.lookback.ms"]
    return (datetime.now(UTC) - timedelta(milliseconds=lookback)).isoformat() if lookback else "earliest"


def shape(values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `cdc.events` for the format of events."""
    form = values["cdc.output.format"]
    if form == "legacy":
        return {"format": form}
    placement, key = (values[f"cdc.include.primary-key.{name}"] for name in ("placement", "payload-key-name"))
    if values[TIMES]:
        placement, key = [*placement, "payload-key"], KEY
    return {
        "format": form,
        "images": tuple(values[f"cdc.include.{side}"] for side in ("before", "after")),
        "placement": placement,
        "payload_key_name": key,
    }


def read_images(values: Mapping[str, Any]) -> tuple[Image, Image]:
    """The images (before, after) to read from the log for the events."""
    if values["cdc.output.format"] == "legacy":
        return "full" if values["experimental.preimages.enabled"] else "none", "none"
    before, after = (values[f"cdc.include.{side}"] for side in ("before", "after"))
    return "none" if before == "none" else "full", "none" if after == "none" else "full"
