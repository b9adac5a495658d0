"""Frames to Kafka topics: as Debezium events, as structs in one of the formats, records unchanged, or dead letters.

They go through our own client (`kafka_writer`). With delivery "at-least-once" a row may be written twice when a batch
is repeated after a failure; with "exactly-once" nothing is written twice in a stream. Spark's own Kafka sink, which
also writes at least once, is for real-time mode and for options that our client lacks. Rows keep the order of their
partition of the frame.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, functions as F, types as st
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.codec import change_frame, debezium
from penstock.codec.formats import codec
from penstock.codec.problem import CHANGE_TYPE, PROBLEM, TYPE, cell_headers, headers
from penstock.codec.registry import Registry
from penstock.codec.text_formats import Json
from penstock.codec.typed_records import Codec, Side, struct_part
from penstock.delivery import AT_LEAST_ONCE, DELIVERIES, EXACTLY_ONCE, OURS, SPARKS
from penstock.errors import PenstockError
from penstock.query import Batch, KeyedFrame, in_batches
from penstock.upsert import Newest

if TYPE_CHECKING:
    import pyarrow as pa

# Order and durability depend on these; users cannot override them.
FIXED = {
    # A record counts as written when every in-sync replica has it.
    "acks": "all",
    # The broker drops duplicates from retries, and keeps the order of batches in flight.
    "enable.idempotence": "true",
}
# A broker restart takes about a minute; meanwhile records wait instead of failing the batch.
PATIENCE = {"delivery.timeout.ms": "180000"}
# Better than the defaults of Spark's client for batches of small events; options override them.
DEFAULTS = {
    **PATIENCE,
    "max.block.ms": "180000",
    # A micro-batch sends its rows all at once: waiting a little fills the record batches ...
    "linger.ms": "10",
    # ... up to this size, which events with images reach after some hundred rows.
    "batch.size": "262144",
    # Events repeat their field names: lz4 makes them several times smaller with little CPU.
    "compression.type": "lz4",
}
REFUSED = {
    "bootstrap.servers": "give servers=",
    "servers": "give servers=",
    "delivery": "give delivery=",
    "query": "leave it out; the id comes from the query's checkpoint",
    "batch": "leave it out; the query numbers its batches",
    "key.serializer": "leave it out; keys are written unchanged",
    "value.serializer": "leave it out; values are written unchanged",
    "acks": "leave it out; it is always all, because a lower level loses records",
    "enable.idempotence": "leave it out; it is always on, because without it retries duplicate and reorder records",
    "transactional.id": "leave it out; for transactions give delivery='exactly-once', which sets it",
    "topic": "give topic=",
    "includeHeaders": "leave it out; a column `headers` is written if the frame has it",
}
LOGICAL_NAME = "penstock"


@dataclass(frozen=True)
class KafkaSink:
    """Where and how records are written; `sink` makes and checks it."""

    topic: str | Column | None
    servers: str
    format: str
    codec: Codec
    prefix: str | None
    options: Mapping[str, str] = field(repr=False)  # there may be passwords among them
    delivery: str = AT_LEAST_ONCE
    client: str | None = None
    _planned: list[tuple[DataFrame, DataFrame]] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def target(self) -> tuple[str, str]:
        """How a checkpoint identifies the sink."""
        if isinstance(self.topic, str):
            return "kafka", f"topic {self.topic}"
        return "kafka", "topics of each row" if self.prefix is None else f"topics {self.prefix}.*"

    def records(self, frame: DataFrame) -> DataFrame:
        """The rows to write: topic, key, value and perhaps headers; raises `PenstockError` for other frames."""
        # A query asks twice for the records of its stream, and those of changes take Spark most of a second to plan.
        for known, records in self._planned:
            if known is frame:
                return records
        records = self._records(frame)
        if frame.isStreaming:
            self._planned[:] = [(frame, records)]
        return records

    def _records(self, frame: DataFrame) -> DataFrame:
        if not change_frame.is_change_frame(frame.schema):
            return self._as_they_are(frame)
        if self.topic is None and self.prefix is None:
            raise _no_topic(frame, "give the sink topic=, or prefix= for topics named <prefix>.<keyspace>.<table>")
        prefix = LOGICAL_NAME if self.prefix is None else self.prefix
        return debezium.events(frame, prefix=prefix, topic=self.topic, key=self.codec, value=self.codec)

    def stream(self, frame: DataFrame) -> DataStreamWriter:
        """The writer of a query whose only sink is this one."""
        if self.delivery == EXACTLY_ONCE:
            # In batches, not through the format's stream writer, whose tasks cannot know how many tasks there are.
            return in_batches(frame, self.save)
        if self._is_ours():
            # A stage of the query writes. A sink of Python's would start a process for each batch.
            return self._writing(frame).writeStream.format("noop")
        return self.early(frame)

    def early(self, frame: DataFrame) -> DataStreamWriter:
        """The writer of a query in real-time mode: through Spark's client, as others hold rows back."""
        return self.records(frame).writeStream.format("kafka").options(**self.spark_options)

    def save(self, frame: DataFrame, batch: Batch | None = None) -> None:
        """Write one batch; without `batch`, a repeated call writes the rows again."""
        if self.delivery == EXACTLY_ONCE and batch:
            # Here, because it loads the client's compiled loops, as in `_stage`.
            from penstock.kafka import kafka_writer
            from penstock.kafka.client_options import Options

            kafka_writer.save(self.records(frame), Options.of(self.own_options), batch)
        elif self._is_ours():
            self._writing(frame).collect()
        else:
            self.records(frame).write.format("kafka").options(**self.spark_options).mode("append").save()

    def _is_ours(self) -> bool:
        if self.delivery == AT_LEAST_ONCE and self.client is None:
            return _has_all(self.options)
        return self.client != SPARKS

    def _writing(self, frame: DataFrame) -> DataFrame:
        """The stage that writes the records; it has no rows."""
        records, options = self.records(frame), self.own_options
        if isinstance(self.topic, str):
            records, options = records.drop("topic"), options | {"topic": self.topic}
        return records.mapInArrow(_stage(options), "rows bigint")

    def keyed(self, table: KeyedFrame) -> Newest:
        """The sink of a table's rows, for a compacted topic: a record per row, without a value for a deleted row."""
        if not isinstance(self.topic, str):
            raise _no_topic(table.df, "give the sink the topic's name, because a table goes to one topic")
        return Newest(self, table, lambda frame: self._by_key(frame, table))

    def _by_key(self, frame: DataFrame, table: KeyedFrame) -> DataFrame:
        """The key is a string for one column and plain JSON, as table readers expect, otherwise a struct."""
        plain = len(table.key) == 1 and self.codec == Json()
        key = F.col(table.key[0]).cast("string") if plain else F.struct(*table.key)
        value = F.struct(*(name for name in frame.columns if name not in (table.version, table.deleted)))
        if table.deleted:
            value = F.when(~F.coalesce(F.col(table.deleted), F.lit(False)), value)
        return frame.select(key.alias("key"), value.alias("value"))

    @property
    def own_options(self) -> dict[str, str]:
        """The options of our client."""
        return {**PATIENCE, **self.options, "servers": self.servers, "delivery": self.delivery}

    @property
    def spark_options(self) -> dict[str, str]:
        """The options of Spark's client."""
        producer = {**DEFAULTS, **self.options, **FIXED, "bootstrap.servers": self.servers}
        return {f"kafka.{name}": value for name, value in producer.items()}

    def _as_they_are(self, frame: DataFrame) -> DataFrame:
        if "value" not in frame.columns:
            raise PenstockError(
                "the frame for the Kafka sink has no column `value`",
                where=f"columns {', '.join(frame.columns)}",
                next="give a frame of cdc.read(...), or add the column `value` (and optionally key, headers, topic)",
            )
        if self.topic is not None:
            frame = frame.withColumn("topic", F.lit(self.topic))
        elif "topic" not in frame.columns:
            raise _no_topic(frame, "give the sink topic=, or add a column `topic` to the frame")
        made = {"key": self._encoded(frame, "key"), "value": self._encoded(frame, "value")}
        return frame.select(
            *(made.get(name, F.col(name)) for name in ("topic", "key", "value", "headers") if name in frame.columns)
        )

    def _encoded(self, frame: DataFrame, side: Side) -> Column:
        """A struct in the sink's format; keys and values of other types unchanged."""
        kind = frame.schema[side].dataType if side in frame.columns else None
        topic = self.topic if isinstance(self.topic, str) else ""
        if isinstance(kind, st.StructType):
            part = struct_part(F.col(side), kind, f"{topic or LOGICAL_NAME}.{side.capitalize()}")
            return self.codec.encode(part, topic=topic, side=side).alias(side)
        if side == "value" and self.format != "json" and kind is not None:
            raise PenstockError(
                f"the format {self.format!r} needs a struct, but the column `value` is {kind.simpleString()}",
                where="kafka.sink",
                next='make it a struct, as in F.struct("id", "name").alias("value"), or leave format= out',
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
    client: str | None = None,
    options: Mapping[str, str] | None = None,
) -> KafkaSink:
    """A Kafka sink for `penstock.write`.

    A frame of `cdc.read` becomes Debezium events (`prefix` as in `cdc.events`); any other frame must have a column
    `value`, and may have `key`, `headers` and `topic`. `topic` is a name or a column of the frame. `format` applies to
    events, and to keys and values that are structs; `codec` describes it with `registry`, `subjects` and `schemas`.
    `delivery` is "at-least-once", or "exactly-once" for readers of committed records. `options` are settings of Kafka's
    producer, such as `security.protocol`. `client` is "penstock", which has those listed in docs/delivery.md, or
    "spark" for Spark's own Kafka sink; by default the first, if it has the given options and the pipeline is not in
    real-time mode. Raises `PenstockError` if an argument or option is not valid.
    """
    if not re.fullmatch(r"[^\s,:]+:\d+(,[^\s,:]+:\d+)*", servers):
        raise PenstockError(
            f"servers is not a list of host:port: {servers!r}",
            where="kafka.sink",
            next='write it as "host:9092,other:9092"',
        )
    if delivery not in DELIVERIES:
        raise PenstockError(
            f"unknown delivery {delivery!r}", where="kafka.sink", next=f"use {' or '.join(map(repr, DELIVERIES))}"
        )
    if client not in (None, OURS, SPARKS) or (client == SPARKS and delivery == EXACTLY_ONCE):
        what = "Spark's client has no exactly-once delivery" if client == SPARKS else f"unknown client {client!r}"
        raise PenstockError(what, where="kafka.sink", next=f"leave client= out, or use {OURS!r}")
    chosen = _codec(format, registry, subjects, schemas)
    made = KafkaSink(topic, servers, format, chosen, prefix, _producer_options(options or {}), delivery, client)
    if made._is_ours():
        _require_valid(made.own_options, "delivery='exactly-once'" if delivery == EXACTLY_ONCE else f"client={OURS!r}")
    return made


def _stage(options: Mapping[str, str]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    given = tuple(sorted(options.items()))

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Here, because it loads the client's compiled loops, which only the workers need.
        from penstock.kafka.kafka_writer import write_part

        write_part(given, batches)
        return iter(())

    return write


def _codec(format: str, registry: Registry | str | None, subjects: str, schemas: bool) -> Codec:
    try:
        return codec(format, registry=registry, subjects=subjects, schemas=schemas)
    except PenstockError as error:
        next = error.next
        if format == "legacy":
            next += "; for 'legacy' use cdc.events, whose records this sink writes unchanged"
        raise PenstockError(error.what, where="kafka.sink", next=next) from None


def _has_all(options: Mapping[str, str]) -> bool:
    # Here, as other sinks do not need it.
    from penstock.kafka.client_options import has_all

    return has_all(options)


def _require_valid(options: Mapping[str, str], because: str) -> None:
    """Raise now the errors that would otherwise come when the query starts."""
    from penstock.kafka.client_options import Options

    try:
        Options.of(options)
    except PenstockError as error:
        raise PenstockError(error.what, where=f"kafka.sink with {because}", next=error.next) from None


def _producer_options(options: Mapping[str, str]) -> dict[str, str]:
    plain = {name.removeprefix("kafka."): str(value) for name, value in options.items()}
    for name in plain:
        if name in REFUSED:
            raise PenstockError(f"the option {name} cannot be set", where="kafka.sink", next=REFUSED[name])
    return plain


def _no_topic(frame: DataFrame, next: str) -> PenstockError:
    return PenstockError("the Kafka sink has no topic", where=f"columns {', '.join(frame.columns)}", next=next)


# Dead letters: the records or changes with a `problem` in their own topic, with their original bytes.


@dataclass(frozen=True)
class DeadLetters:
    """A sink of dead letters; `dead_letters` makes it."""

    kafka: KafkaSink

    @property
    def delivery(self) -> str:
        return self.kafka.delivery

    @property
    def target(self) -> tuple[str, str]:
        """How a checkpoint identifies the sink."""
        return self.kafka.target

    @property
    def client(self) -> str | None:
        return self.kafka.client

    def records(self, frame: DataFrame) -> DataFrame:
        return self.kafka.records(letters(frame))

    def stream(self, frame: DataFrame) -> DataStreamWriter:
        return self.kafka.stream(letters(frame))

    def early(self, frame: DataFrame) -> DataStreamWriter:
        """The writer of a query in real-time mode."""
        return self.kafka.early(letters(frame))

    def save(self, frame: DataFrame, batch: Batch) -> None:
        self.kafka.save(letters(frame), batch)


def dead_letters(
    topic: str,
    *,
    servers: str,
    delivery: str = AT_LEAST_ONCE,
    client: str | None = None,
    options: Mapping[str, str] | None = None,
) -> DeadLetters:
    """A sink for the bad rows of a `kafka.read` frame: `write(frame, dead_letters("clicks.dead", ...))`.

    A letter has the record's key, value and headers, plus headers as in Kafka Connect's dead letters:
    `__connect.errors.topic`, `.partition`, `.offset` and `.exception.message`. In a frame of `cdc.read` with
    `bad_values="problem"`, each cell that could not be read becomes a letter: its key is the row's key as JSON, its
    value the cell's bytes, and its headers are `__connect.errors.table`, `.stream`, `.time`, `.part`, `.column`,
    `.type` and `.exception.message`. The arguments are those of `kafka.sink`. `write` raises `PenstockError` if the
    frame has no column `problem`.
    """
    return DeadLetters(sink(topic, servers=servers, delivery=delivery, client=client, options=options))


def letters(frame: DataFrame) -> DataFrame:
    """`key binary, value binary, headers` of the rows with a problem."""
    kind = frame.schema[PROBLEM].dataType if PROBLEM in frame.columns else None
    if kind not in (TYPE, CHANGE_TYPE):
        raise PenstockError(
            'dead letters need the column `problem` of kafka.read, or of cdc.read with bad_values="problem"',
            where=f"columns {', '.join(frame.columns)}",
            next="pass the frame of kafka.read or cdc.read itself, before any select or where",
        )
    bad = frame.where(F.col(PROBLEM).isNotNull())
    if kind == CHANGE_TYPE:
        cells = bad.select(PROBLEM, F.explode("problem.cells").alias("cell"))
        key = F.col("problem.key").cast("binary").alias("key")
        return cells.select(key, F.col("cell.value").alias("value"), cell_headers("cell").alias("headers"))
    return bad.select(
        F.col("problem.key").alias("key"), F.col("problem.value").alias("value"), headers().alias("headers")
    )
