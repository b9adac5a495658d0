"""Frames to Kafka topics: changes as Debezium events, other frames as structs in one of the formats, or unchanged.

They go through our own client (`kafka_writer`). With delivery "at-least-once" a row may be written twice when a batch
is repeated after a failure; with "exactly-once" nothing is written twice in a stream. Spark's own Kafka sink, which
also writes at least once, is for real-time mode and for options that our client lacks. Rows keep the order of their
partition of the frame.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from importlib.resources import files
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql import Column, DataFrame, functions as F, types as st
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.border.public import public
from penstock.codec import change_frame, debezium
from penstock.codec.formats import Format, codec
from penstock.codec.registry import Registry, SubjectNames
from penstock.codec.text_formats import Json
from penstock.codec.typed_records import TIMESTAMP, Codec, Side, struct_part
from penstock.errors import PenstockError
from penstock.metrics import delays
from penstock.query.delivery import AT_LEAST_ONCE, DELIVERIES, EXACTLY_ONCE, OURS, SPARKS, Client, Delivery
from penstock.query.query import Batch, KeyedFrame, in_batches
from penstock.query.upsert import Newest, require_no_late_results
from penstock.spark_runtime.casts import NESTED
from penstock.spark_runtime.logical_plan import STARTS

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

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
}
AS_JAVA = {"sasl.username": "sasl.jaas.config", "sasl.password": "sasl.jaas.config"}
"""Options of our client that Java's has under another name."""
ALWAYS = {"acks": ("all", "-1"), "enable.idempotence": ("true",)}
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
SIDES: tuple[Side, ...] = ("key", "value")
BYTES = (st.StringType, st.BinaryType, st.NullType)
HEADERS = "array<struct<key:string,value:binary>>"
"""The type of Kafka's headers; a column of another type is one of the value."""


@dataclass(frozen=True)
class KafkaSink:
    """Where and how records are written; `sink` makes and checks it."""

    counts_delays: ClassVar[bool] = True
    topic: str | Column | None
    servers: str
    format: str
    codec: Codec
    prefix: str | None
    options: Mapping[str, str] = field(repr=False)  # there may be passwords among them
    delivery: str = AT_LEAST_ONCE
    client: str | None = None
    key: tuple[str, ...] = ()
    event_time: str | None = None
    _planned: list[tuple[DataFrame, DataFrame]] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def target(self) -> tuple[str, str]:
        """How a checkpoint identifies the sink."""
        if isinstance(self.topic, str):
            return "kafka", f"topic {self.topic}"
        return "kafka", "topics of each row" if self.prefix is None else f"topics {self.prefix}.*"

    def records(self, frame: DataFrame) -> DataFrame:
        """The rows to write: topic, key, value and perhaps headers; raises `PenstockError` for other frames."""
        return self._timed(frame).drop(*delays.HIDDEN)

    def _timed(self, frame: DataFrame) -> DataFrame:
        """The rows to write, with the times of their events if the frame has them."""
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
            return self._of_columns(self._with_event_time(frame))
        if self.event_time:
            raise PenstockError(
                "the time of a change is when it was written, and the sink has event_time=",
                where=f"kafka.sink, event_time {self.event_time}",
                next="leave event_time= out, or select columns of the changes before the sink",
            )
        if self.key:
            raise PenstockError(
                "the key of a change is the primary key of its row, and the sink has key=",
                where=f"kafka.sink, key {', '.join(self.key)}",
                next="leave key= out, or select columns of the changes before the sink",
            )
        if self.topic is None and self.prefix is None:
            raise _no_topic(frame, "give the sink topic=, or prefix= for topics named <prefix>.<keyspace>.<table>")
        prefix = LOGICAL_NAME if self.prefix is None else self.prefix
        events = debezium.events(frame, prefix=prefix, topic=self.topic, key=self.codec, value=self.codec)
        return delays.timed(events).drop(TIMESTAMP)

    def _with_event_time(self, frame: DataFrame) -> DataFrame:
        if self.event_time:
            if self.event_time not in frame.columns:
                raise _wrong(frame, f"event_time= names no column: {self.event_time!r}", "correct it, or add it")
            kind = frame.schema[self.event_time].dataType
            if not isinstance(kind, st.TimestampType):
                raise _wrong(frame, f"event_time= is {kind.simpleString()}", "give a column of timestamps")
        return delays.timed(frame, self.event_time)

    def stream(self, frame: DataFrame) -> DataStreamWriter:
        """The writer of a query whose only sink is this one."""
        if self.delivery == EXACTLY_ONCE:
            # In batches, not through the format's stream writer, whose tasks cannot know how many tasks there are.
            return in_batches(delays.timed(frame), self.save)
        if self._is_ours():
            # A stage of the query writes. A sink of Python's would start a process for each batch.
            return delays.observed(self._writing(frame, delays.stage_failures)).writeStream.format("noop")
        return self.early(frame)

    def early(self, frame: DataFrame) -> DataStreamWriter:
        """The writer of a query in real-time mode: through Spark's client, as others hold rows back."""
        _require_javas(self.options)
        return self.records(frame).writeStream.format("kafka").options(**self.spark_options)

    def save(self, frame: DataFrame, batch: Batch | None = None) -> None:
        """Write one batch; without `batch`, a repeated call writes the rows again."""
        with delays.failures(batch.query) if batch else nullcontext():
            self._save(frame, batch)

    def _save(self, frame: DataFrame, batch: Batch | None) -> None:
        if self.delivery == EXACTLY_ONCE and batch:
            # Here, because it loads the client's compiled loops, as in `_stage`.
            from penstock.kafka import kafka_writer
            from penstock.kafka.client_options import Options

            kafka_writer.save(self._timed(frame), Options.of(self.own_options), batch)
        elif self._is_ours():
            counts = self._writing(frame).collect()
            if batch:
                delays.add_rows(batch.query, counts)
        else:
            self.records(frame).write.format("kafka").options(**self.spark_options).mode("append").save()

    def _require_valid(self) -> None:
        """Raise now the errors of options that would otherwise come when the query starts."""
        if self._is_ours():
            from penstock.kafka.client_options import Options

            chosen = "delivery='exactly-once'" if self.delivery == EXACTLY_ONCE else f"client={OURS!r}"
            _require(Options.of, self.own_options, f"kafka.sink with {chosen}")
        else:
            _require_javas(self.options)

    def _is_ours(self) -> bool:
        if self.delivery == AT_LEAST_ONCE and self.client is None:
            return _has_all(self.options)
        return self.client != SPARKS

    def _writing(
        self, frame: DataFrame, failures: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> DataFrame:
        """The stage that writes the records; each task gives a row of counts, and writes within `failures`."""
        records, options = self._timed(frame), self.own_options
        if isinstance(self.topic, str):
            records, options = records.drop("topic"), options | {"topic": self.topic}
        return records.mapInArrow(_stage(options, failures), delays.SCHEMA)

    def keyed(self, table: KeyedFrame) -> Newest:
        """The sink of a table's rows, for a compacted topic: a record per row, without a value for a deleted row."""
        if not isinstance(self.topic, str):
            raise _no_topic(table.df, "give the sink the topic's name, because a table goes to one topic")
        if self.key not in ((), table.key):
            raise PenstockError(
                f"key= is {', '.join(self.key)}, but the table's is {', '.join(table.key)}",
                where="kafka.sink",
                next="leave key= out: the table defines it",
            )
        return Newest(replace(self, key=(), event_time=None), table, lambda frame: self._by_key(frame, table))

    def _by_key(self, frame: DataFrame, table: KeyedFrame) -> DataFrame:
        frame = self._with_event_time(frame)
        times = [name for name in frame.columns if name == delays.TIME]
        about = (table.version, table.deleted, *times)
        value = F.struct(*(name for name in frame.columns if name not in about))
        if table.deleted:
            value = F.when(~F.coalesce(F.col(table.deleted), F.lit(False)), value)
        return frame.select(self._key_column(frame, table.key).alias("key"), value.alias("value"), *times)

    def _key_column(self, frame: DataFrame, names: Sequence[str]) -> Column:
        """The key is a string for one column and plain JSON, as table readers expect, otherwise a struct."""
        kind = frame.schema[names[0]].dataType
        if len(names) > 1 or self.codec != Json() or isinstance(kind, NESTED):
            return _struct(names)
        return _column(names[0]) if isinstance(kind, st.BinaryType) else _column(names[0]).cast("string")

    @property
    def own_options(self) -> dict[str, str]:
        """The options of our client."""
        return {**PATIENCE, **self.options, "servers": self.servers, "delivery": self.delivery}

    @property
    def spark_options(self) -> dict[str, str]:
        """The options of Spark's client."""
        producer = {**DEFAULTS, **self.options, **FIXED, "bootstrap.servers": self.servers}
        return {f"kafka.{name}": value for name, value in producer.items()}

    def _of_columns(self, frame: DataFrame) -> DataFrame:
        """The columns `key`, `value` and `headers` of a frame; without `value`, all columns are the value."""
        if self.topic is None and "topic" not in frame.columns:
            raise _no_topic(frame, "give the sink topic=, or add a column `topic` to the frame")
        topic = F.col("topic") if self.topic is None else F.lit(self.topic)
        whole = "value" not in frame.columns
        with_headers = "headers" in frame.columns and (
            not whole or frame.schema["headers"].dataType.simpleString() == HEADERS
        )
        columns = {"topic": topic}
        if self.key:
            columns["key"] = self._key_column(frame, _present(frame, self.key))
            # Without the start, the key tells partitions and not rows, in a topic that is not compacted.
            if any(STARTS in field.metadata for field in frame.schema if field.name in self.key):
                require_no_late_results(frame, self.key, "kafka.sink")
        elif "key" in frame.columns and not whole:
            columns["key"] = F.col("key")
        columns["value"] = self._whole(frame, with_headers) if whole else F.col("value")
        if with_headers:
            columns["headers"] = F.col("headers")
        columns |= {name: F.col(name) for name in delays.HIDDEN if name in frame.columns}
        records = frame.select(*(column.alias(name) for name, column in columns.items()))
        encoded = {str(side): self._encoded(records.schema, side) for side in SIDES if side in columns}
        return records.select(*(encoded.get(name, F.col(name)) for name in columns))

    def _whole(self, frame: DataFrame, with_headers: bool) -> Column:
        """All columns as a struct, without those that a record has beside its value."""
        beside = {"topic": self.topic is None, "headers": with_headers, delays.TIME: True}
        names = [name for name in frame.columns if not beside.get(name)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise _wrong(frame, f"two columns have the name {', '.join(twice)}", "rename one of them")
        if not names:
            raise _wrong(frame, "the frame has no column for the value", "add the columns of the value")
        return _struct(names)

    def _encoded(self, records: st.StructType, side: Side) -> Column:
        """A struct in the sink's format; a string or bytes unchanged."""
        kind = records[side].dataType
        topic = self.topic if isinstance(self.topic, str) else ""
        if isinstance(kind, st.StructType):
            part = struct_part(F.col(side), kind, f"{topic or LOGICAL_NAME}.{side.capitalize()}")
            return self.codec.encode(part, topic=topic, side=side).alias(side)
        if side == "value" and self.format != "json":
            raise PenstockError(
                f"the format {self.format!r} needs a struct, but the column `value` is {kind.simpleString()}",
                where="kafka.sink",
                next='make it a struct, as in F.struct("id", "name").alias("value"), or leave format= out',
            )
        if not isinstance(kind, BYTES):
            raise PenstockError(
                f"the column `{side}` is {kind.simpleString()}, and the sink writes strings, bytes and structs",
                where="kafka.sink",
                next=f"cast it to string, or make it a struct, as in F.struct({side!r}).alias({side!r})",
            )
        return F.col(side)


@public("kafka.sink")
def sink(
    topic: str | Column | None = None,
    *,
    servers: str,
    key: str | Sequence[str] | None = None,
    format: Format = "json",
    schemas: bool = False,
    prefix: str | None = None,
    registry: Registry | str | None = None,
    subjects: SubjectNames = "topic",
    delivery: Delivery = AT_LEAST_ONCE,
    client: Client | None = None,
    event_time: str | None = None,
    options: Mapping[str, str] | None = None,
) -> KafkaSink:
    """A Kafka sink for `penstock.write`.

    A frame of `cdc.read` becomes Debezium events (`prefix` as in `cdc.events`). Of any other frame, all columns are the
    value, and `key` names the columns of the record's key: one column is a string in plain JSON, otherwise the key is a
    struct. A frame with a column `value` is written as it is: `value` and, if it has them, `key` and `headers` are
    strings, bytes or structs. `topic` is a name or a column of the frame, by default the column `topic`. `format`
    applies to events and structs; `codec` describes it with `registry`, `subjects` and `schemas`.
    `delivery` is "at-least-once", or "exactly-once" for readers of committed records. `options` are settings of Kafka's
    producer, such as `security.protocol`. `client` is "penstock", which has those listed in docs/delivery.md, or
    "spark" for Spark's own Kafka sink; by default the first, if it has the given options and the pipeline is not in
    real-time mode. `event_time` names the column of timestamps from which the delay to the brokers' acknowledgement is
    measured (docs/delivery.md has the columns that are taken by default). Raises `PenstockError` if an argument or
    option is not valid.
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
    names = (key,) if isinstance(key, str) else tuple(key or ())
    if key is not None and not all(names or ("",)):
        raise PenstockError("key= names no column", where="kafka.sink", next='give a name, or a list such as ["id"]')
    producer_options = _producer_options(options or {})
    kafka_sink = KafkaSink(
        topic, servers, format, chosen, prefix, producer_options, delivery, client, names, event_time
    )
    kafka_sink._require_valid()
    if client is None and not kafka_sink._is_ours():
        log.info(
            "kafka.sink writes through Spark's client, for %s: docs/delivery.md", ", ".join(_not_ours(producer_options))
        )
    return kafka_sink


def require_options(options: Mapping[str, str]) -> None:
    """Raise the PenstockError that `sink` raises for these options."""
    KafkaSink(None, "localhost:9092", "json", Json(), None, _producer_options(options))._require_valid()


def _stage(
    options: Mapping[str, str], failures: Callable[[], AbstractContextManager[None]]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    settings = tuple(sorted(options.items()))

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Here, because it loads the client's compiled loops, which only the workers need.
        from penstock.kafka.kafka_writer import write_part

        with failures():
            counts = write_part(settings, batches)
        yield counts.batch()

    return write


def _codec(format: Format, registry: Registry | str | None, subjects: SubjectNames, schemas: bool) -> Codec:
    try:
        return codec(format, registry=registry, subjects=subjects, schemas=schemas)
    except PenstockError as error:
        next = error.next
        if str(format) == "legacy":
            next += "; for 'legacy' use cdc.events, whose records this sink writes unchanged"
        raise PenstockError(error.what, where="kafka.sink", next=next) from None


def _has_all(options: Mapping[str, str]) -> bool:
    # Here, as other sinks do not need it.
    from penstock.kafka.client_options import has_all

    return has_all(options)


def _not_ours(options: Mapping[str, str]) -> list[str]:
    from penstock.kafka.client_options import KNOWN

    return [name for name in options if name.lower() not in KNOWN]


def _require_javas(options: Mapping[str, str]) -> None:
    """Raise PenstockError for an option that Java's producer, which Spark uses, lacks: it would ignore the option."""
    from penstock.kafka.client_options import KNOWN, require_security
    from penstock.kafka.security import SAME

    javas = (files("penstock.kafka") / "producer_options.txt").read_text().split()
    # What no client has is reported before what only the other one has.
    for name in dict.fromkeys([*_not_ours(options), *options]):
        if name in javas:
            continue
        ours = name.lower() in KNOWN
        if ours:
            # It may be for Spark's client only because its login is not whole.
            _require(require_security, options, "kafka.sink")
        close = get_close_matches(AS_JAVA.get(name) or SAME.get(name, name), javas if ours else {*javas, *KNOWN}, 1)
        hint = f"did you mean {close[0]}?" if close else "docs/delivery.md has those of Penstock's client"
        which = "Java's producer, which Spark's client uses," if ours else "Kafka's producer"
        raise PenstockError(f"{which} has no option {name}", where="kafka.sink", next=hint)


def _require(check: Callable[[Mapping[str, str]], object], options: Mapping[str, str], where: str) -> None:
    try:
        check(options)
    except PenstockError as error:
        raise PenstockError(error.what, where=where, next=error.next) from None


def _producer_options(options: Mapping[str, str]) -> dict[str, str]:
    plain = {name.removeprefix("kafka."): str(value) for name, value in options.items()}
    # Configurations name what is always so, too.
    plain = {name: text for name, text in plain.items() if text.strip().lower() not in ALWAYS.get(name, ())}
    for name in plain:
        if name in REFUSED:
            raise PenstockError(f"the option {name} cannot be set", where="kafka.sink", next=REFUSED[name])
    return plain


def _struct(names: Sequence[str]) -> Column:
    return F.struct(*(_column(name).alias(name) for name in names))


def _column(name: str) -> Column:
    """The column of this name, which may contain dots."""
    return F.col(f"`{name.replace('`', '``')}`")


def _present(frame: DataFrame, key: Sequence[str]) -> Sequence[str]:
    if missing := [name for name in key if name not in frame.columns]:
        raise _wrong(frame, f"the frame has no column {', '.join(missing)} for the key", "correct key=, or add it")
    return key


def _no_topic(frame: DataFrame, next: str) -> PenstockError:
    return _wrong(frame, "the Kafka sink has no topic", next)


def _wrong(frame: DataFrame, what: str, next: str) -> PenstockError:
    return PenstockError(what, where=f"kafka.sink, columns {', '.join(frame.columns)}", next=next)
