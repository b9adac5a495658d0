"""A pipeline that keeps tables of one cluster equal to tables of another: what `penstock replicate` runs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from penstock.cdc.cdc_source import read
from penstock.cql.cql_writer import described
from penstock.database.access import Access
from penstock.database.table_catalog import split_name
from penstock.errors import PenstockError
from penstock.kafka.kafka_sink import sink as kafka_sink
from penstock.kafka.security import Security
from penstock.kafka.topic_reader import BrokersAway
from penstock.query.query import Query, write
from penstock.replicate.change_events import EventCodec, changes as received, events
from penstock.replicate.replicate_sink import sink
from penstock.replicate.table_scan import Side
from penstock.replicate.target_schema import prepare
from penstock.wire.admin import Admin
from penstock.wire.errors import KafkaError
from penstock.wire.topic_names import topic_name

PATIENCE = timedelta(minutes=5)


@dataclass(frozen=True)
class TablePair:
    """A table "keyspace.table" of the source, and the one of the target that gets its changes."""

    source: str
    target: str

    @property
    def name(self) -> str:
        """The name of the pair's query, and of its checkpoint."""
        return re.sub(r"[^\w.-]", "_", ".".join(split_name(self.source)))


@dataclass(frozen=True)
class Through:
    """The Kafka that changes go through: a topic `<prefix>.<keyspace>.<table>` for each table of the source.

    The records are in `codec`, which needs a `registry` unless it is "json". `options` are Kafka's settings for TLS and
    SASL.
    """

    servers: str
    prefix: str
    codec: EventCodec = "json"
    registry: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def topic(self, pair: TablePair) -> str:
        return topic_name(f"{self.prefix}.{'.'.join(split_name(pair.source))}")

    def create(self, topics: Iterable[str]) -> None:
        """Create the topics that are missing, with the settings of the brokers.

        Raises PenstockError if Kafka does not answer, or refuses.
        """
        try:
            asyncio.run(self._create(topics))
        except KafkaError as error:
            kind = BrokersAway if error.retriable else PenstockError
            raise kind(
                f"the topics of the replication cannot be created: {error}",
                where=f"{self.prefix}.* at {self.servers}",
                next="check the address, or create the topics by hand with penstock topics create",
            ) from error

    async def _create(self, topics: Iterable[str]) -> None:
        security = Security.of(self.options)
        async with Admin(self.servers, tls=security.tls(), authenticate=security.authenticate()) as admin:
            for topic in topics:
                await admin.create_topic(topic)


@dataclass(frozen=True)
class Replication:
    """Pairs of tables, each with queries of its own; `create` and `alter` say what may be done to the targets.

    `start` is where a new query begins, as in `cdc.read`: "snapshot" copies the rows that are there first. With
    `through` one query writes the changes to a topic, and another one applies them. With `two_ways` changes of the
    targets are applied to the sources as well.
    """

    name: str
    pairs: tuple[TablePair, ...]
    source: Access
    target_access: Access
    every: timedelta
    target: timedelta
    start: str = "snapshot"
    confidence: timedelta = timedelta(seconds=30)
    create: bool = False
    alter: bool = False
    through: Through | None = None
    two_ways: bool = False

    def __post_init__(self) -> None:
        names = [pair.name for pair in self.pairs]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise PenstockError(
                f"{twice} is to be replicated twice",
                where=f"replication {self.name}",
                next="start a second replication, with a name of its own, for the other target",
            )

    def queries(self, spark: SparkSession) -> dict[str, Query]:
        """The queries by the name of their checkpoint; called at each start, so that the tables are as they are now."""
        queries: dict[str, Query]
        for pair in self.pairs:
            table = described(self.source, pair.source, PATIENCE)
            prepare(
                table,
                self.target_access,
                pair.target,
                PATIENCE,
                create=self.create,
                alter=self.alter,
                logged=self.two_ways,
            )
        if self.two_ways:
            queries = {}
            for pair in self.pairs:
                here, there = Side(pair.source, self.source), Side(pair.target, self.target_access)
                queries[pair.name] = self._carried(spark, here, there, pair.name)
                queries[f"{pair.name}.back"] = self._carried(spark, there, here, f"{pair.name}.back")
            return queries
        if self.through is None:
            return {pair.name: self._applied(pair, self._changes(spark, pair)) for pair in self.pairs}
        self.through.create(map(self.through.topic, self.pairs))
        queries = {}
        for pair in self.pairs:
            queries[f"{pair.name}.out"] = self._sent(self.through, pair, self._changes(spark, pair))
            queries[f"{pair.name}.in"] = self._applied(pair, self._received(self.through, spark, pair))
        return queries

    def _carried(self, spark: SparkSession, source: Side, target: Side, name: str) -> Query:
        """One of the two directions."""
        applied = sink(target.table, two_ways=source, **_options(target.access))
        return write(self._read(spark, source, name), applied, name=name)

    def _changes(self, spark: SparkSession, pair: TablePair) -> DataFrame:
        return self._read(spark, Side(pair.source, self.source), pair.name, packed=self.through is None)

    def _read(self, spark: SparkSession, source: Side, name: str, *, packed: bool = True) -> DataFrame:
        # Order among changes does not matter, since each has its time: they are read at once.
        return read(
            spark,
            source.table,
            name=name,
            start=self.start,
            confidence=self.confidence,
            latency="low",
            write_times=True,
            packed=packed,
            **_options(source.access),
        )

    def _sent(self, through: Through, pair: TablePair, changes: DataFrame) -> Query:
        records = events(
            changes,
            topic=through.topic(pair),
            prefix=through.prefix,
            format=through.codec,
            registry=through.registry,
        )
        return write(records, kafka_sink(servers=through.servers, options=through.options), name=f"{pair.name}.out")

    def _received(self, through: Through, spark: SparkSession, pair: TablePair) -> DataFrame:
        return received(
            spark,
            through.topic(pair),
            table=pair.target,
            servers=through.servers,
            name=f"{pair.name}.in",
            format=through.codec,
            registry=through.registry,
            options=through.options,
            **_options(self.target_access),
        )

    def _applied(self, pair: TablePair, changes: DataFrame) -> Query:
        name = pair.name if self.through is None else f"{pair.name}.in"
        return write(changes, sink(pair.target, **_options(self.target_access)), name=name)


def _options(access: Access) -> dict[str, Any]:
    """The arguments that reach a cluster."""
    arguments = {name: getattr(access, name) for name in Access.__dataclass_fields__}
    # Without those that are not set; only sink connectors translate addresses.
    return {name: value for name, value in arguments.items() if value not in ("", ())}
