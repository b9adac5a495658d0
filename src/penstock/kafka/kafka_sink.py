"""Frames to Kafka topics: as Debezium events, as structs in one of the formats, or records as they are.

With delivery "at-least-once" they go through Spark's own Kafka sink, with one producer per executor: a row may be
written twice when a batch is repeated after a failure. With "exactly-once" they go through our own client
(`exactly_once`), which repeats nothing in a stream. Rows keep the order they have in their partition of the frame.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame, functions as F, types as st
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.codec import change_frame, debezium
from penstock.codec.formats import codec
from penstock.codec.json import Json
from penstock.codec.registry import Registry
from penstock.codec.struct_records import struct_part
from penstock.codec.typed_records import Codec, Side
from penstock.delivery import AT_LEAST_ONCE, DELIVERIES, EXACTLY_ONCE
from penstock.errors import PenstockError
from penstock.query import Batch, KeyedFrame, in_batches
from penstock.upsert import Newest

# Order and durability stand on these; nobody overrides them.
FIXED = {
    # A record counts as written when every replica in sync has it.
    "acks": "all",
    # The broker drops the copies that a retry makes and keeps the order of what is in flight.
    "enable.idempotence": "true",
}
# Better than the defaults of Spark's client for batches of small events; options override them.
DEFAULTS = {
    # A broker that restarts is away for about a minute; until then records wait instead of failing the batch.
    "delivery.timeout.ms": "180000",
    "max.block.ms": "180000",
    # A micro-batch hands over its rows at once: waiting a little fills the record batches ...
    "linger.ms": "10",
    # ... up to this size, which events with images reach after some hundred rows.
    "batch.size": "262144",
    # Events repeat their field names: lz4 makes them several times smaller for little CPU.
    "compression.type": "lz4",
}
REFUSED = {
    "bootstrap.servers": "give servers=",
    "servers": "give servers=",
    "delivery": "give delivery=",
    "query": "a query has its id from its checkpoint",
    "batch": "batches are numbered by their query",
    "key.serializer": "keys are written as they are",
    "value.serializer": "values are written as they are",
    "acks": "it is always all; a lower level loses records",
    "enable.idempotence": "it is always on; without it retries duplicate and reorder records",
    "transactional.id": "give delivery='exactly-once' for transactions; it names them",
    "topic": "give topic=",
    "includeHeaders": "a column `headers` is written when the frame has one",
}
LOGICAL_NAME = "penstock"


@dataclass(frozen=True)
class KafkaSink:
    """Where and how records are written; made and checked by `sink`."""

    topic: str | Column | None
    servers: str
    format: str
    codec: Codec
    prefix: str | None
    options: Mapping[str, str] = field(repr=False)  # there may be passwords among them
    delivery: str = AT_LEAST_ONCE

    @property
    def target(self) -> tuple[str, str]:
        """What a checkpoint knows the sink by."""
        if isinstance(self.topic, str):
            return "kafka", f"topic {self.topic}"
        return "kafka", "topics of each row" if self.prefix is None else f"topics {self.prefix}.*"

    def records(self, frame: DataFrame) -> DataFrame:
        """The rows to write: topic, key, value and perhaps headers."""
        if not change_frame.is_change_frame(frame.schema):
            return self._as_they_are(frame)
        if self.topic is None and self.prefix is None:
            raise _no_topic(frame, "give the sink topic=, or prefix= for topics named <prefix>.<keyspace>.<table>")
        prefix = LOGICAL_NAME if self.prefix is None else self.prefix
        return debezium.events(frame, prefix=prefix, topic=self.topic, key=self.codec, value=self.codec)

    def stream(self, frame: DataFrame) -> DataStreamWriter:
        """The write of a query that has only this sink."""
        if self.delivery == EXACTLY_ONCE:
            # By batches and not by the format itself, whose tasks cannot know how many they are.
            return in_batches(frame, self.save)
        return self.records(frame).writeStream.format("kafka").options(**self.spark_options)

    def save(self, frame: DataFrame, batch: Batch | None = None) -> None:
        """Write one batch; without its number it is written again whenever it comes again."""
        records = self.records(frame)
        if self.delivery == EXACTLY_ONCE and batch:
            # Here, because it loads the client, as in `_require_known`.
            from penstock.kafka import exactly_once
            from penstock.kafka.client_options import Options

            exactly_once.save(records, Options.of(self.spark_options), batch)
        else:
            records.write.format(self._spark_format).options(**self.spark_options).mode("append").save()

    def keyed(self, table: KeyedFrame) -> Newest:
        """The sink of a table's rows, for a compacted topic: a record for each row, without value for one deleted."""
        if not isinstance(self.topic, str):
            raise _no_topic(table.df, "a table goes into one: give the sink its name")
        return Newest(self, table, lambda frame: self._by_key(frame, table))

    def _by_key(self, frame: DataFrame, table: KeyedFrame) -> DataFrame:
        """The key as text if it is one column of plain JSON, as readers of tables want it, else as a struct."""
        plain = len(table.key) == 1 and self.codec == Json()
        key = F.col(table.key[0]).cast("string") if plain else F.struct(*table.key)
        value = F.struct(*(name for name in frame.columns if name not in (table.version, table.deleted)))
        if table.deleted:
            value = F.when(~F.coalesce(F.col(table.deleted), F.lit(False)), value)
        return frame.select(key.alias("key"), value.alias("value"))

    @property
    def spark_options(self) -> dict[str, str]:
        if self.delivery == EXACTLY_ONCE:
            return {**self.options, "servers": self.servers, "delivery": self.delivery}
        producer = {**DEFAULTS, **self.options, **FIXED, "bootstrap.servers": self.servers}
        return {f"kafka.{name}": value for name, value in producer.items()}

    @property
    def _spark_format(self) -> str:
        return "penstock-kafka" if self.delivery == EXACTLY_ONCE else "kafka"

    def _as_they_are(self, frame: DataFrame) -> DataFrame:
        if "value" not in frame.columns:
            raise PenstockError(
                "the Kafka sink cannot tell what to write from this frame",
                where=f"columns {', '.join(frame.columns)}",
                next="give it a frame of cdc.read(...), or one with a column `value` (and perhaps key, headers, topic)",
            )
        if self.topic is not None:
            frame = frame.withColumn("topic", F.lit(self.topic))
        elif "topic" not in frame.columns:
            raise _no_topic(frame, "give the sink topic=, or the frame a column `topic`")
        made = {"key": self._encoded(frame, "key"), "value": self._encoded(frame, "value")}
        return frame.select(
            *(made.get(name, F.col(name)) for name in ("topic", "key", "value", "headers") if name in frame.columns)
        )

    def _encoded(self, frame: DataFrame, side: Side) -> Column:
        """A struct in the sink's format; keys and values of other types as they are."""
        kind = frame.schema[side].dataType if side in frame.columns else None
        topic = self.topic if isinstance(self.topic, str) else ""
        if isinstance(kind, st.StructType):
            part = struct_part(F.col(side), kind, f"{topic or LOGICAL_NAME}.{side.capitalize()}")
            return self.codec.encode(part, topic=topic, side=side).alias(side)
        if side == "value" and self.format != "json" and kind is not None:
            raise PenstockError(
                f"the format {self.format!r} is for a struct, and the column `value` is {kind.simpleString()}",
                where="kafka.sink",
                next='make it one, as in F.struct("id", "name").alias("value"), or leave format= out',
            )
        return F.col(side)


def sink(
    topic: str | Column | None = None,
    *,
    servers: str,
    format: str = "json",
    schemas: bool = False,
    prefix: str | None = None,
    registry: Registry | str | None = None,
    subjects: str = "topic",
    delivery: str = AT_LEAST_ONCE,
    options: Mapping[str, str] | None = None,
) -> KafkaSink:
    """A Kafka sink for `penstock.write`.

    A frame of `cdc.read` becomes Debezium events (`prefix` as in `cdc.events`); any other frame must have a column
    `value`, and may have `key`, `headers` and `topic`. `topic` is a name or a column of the frame. `format` is that of
    events and of keys and values that are structs; with `registry`, `subjects` and `schemas` it is told in `codec`.
    `delivery` is "at-least-once", or "exactly-once" for readers of committed records. `options` are settings of Kafka's
    producer, such as `security.protocol`; with "exactly-once" those that docs/delivery.md lists.
    """
    if not re.fullmatch(r"[^\s,:]+:\d+(,[^\s,:]+:\d+)*", servers):
        raise PenstockError(
            f"servers is no list of host:port: {servers!r}",
            where="kafka.sink",
            next='write it as "host:9092,other:9092"',
        )
    if delivery not in DELIVERIES:
        raise PenstockError(
            f"unknown delivery {delivery!r}", where="kafka.sink", next=f"use {' or '.join(map(repr, DELIVERIES))}"
        )
    chosen = _codec(format, registry, subjects, schemas)
    made = KafkaSink(topic, servers, format, chosen, prefix, _producer_options(options or {}), delivery)
    if delivery == EXACTLY_ONCE:
        _require_known(made.spark_options)
    return made


def _codec(format: str, registry: Registry | str | None, subjects: str, schemas: bool) -> Codec:
    try:
        return codec(format, registry=registry, subjects=subjects, schemas=schemas)
    except PenstockError as error:
        next = error.next
        if format == "legacy":
            next += "; it is a format of cdc.events, whose records this sink takes as they are"
        raise PenstockError(error.what, where="kafka.sink", next=next) from None


def _require_known(options: Mapping[str, str]) -> None:
    """Refuse now what the sink would refuse when the query starts."""
    # Here, because it loads the client, whose compiled loops take a quarter of a second that others need not wait.
    from penstock.kafka.client_options import Options

    try:
        Options.of(options)
    except PenstockError as error:
        raise PenstockError(error.what, where="kafka.sink with delivery='exactly-once'", next=error.next) from None


def _producer_options(options: Mapping[str, str]) -> dict[str, str]:
    plain = {name.removeprefix("kafka."): str(value) for name, value in options.items()}
    for name in plain:
        if name in REFUSED:
            raise PenstockError(f"the option {name} cannot be set", where="kafka.sink", next=REFUSED[name])
    return plain


def _no_topic(frame: DataFrame, next: str) -> PenstockError:
    return PenstockError("the Kafka sink has no topic", where=f"columns {', '.join(frame.columns)}", next=next)
