"""Kafka topics as frames and as tables: the columns of the records, and the problem of a bad record.

A record that cannot be read stays in the frame: its columns are null, and `problem` says why. It does not stop the
query. Our own source reads most of JSON; Spark's expressions decode the rest, and all other formats.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, NotRequired, TypedDict, Unpack

from pyspark.sql import Column, DataFrame, SparkSession, functions as F, types as st

from penstock.border.public import public
from penstock.codec.decode_avro import AvroDecoder
from penstock.codec.decode_columns import CsvDecoder, Decoder, missing, once, struct_of
from penstock.codec.decode_json import EPOCHS, FIRST, LAST, MICROS, Epoch, JsonDecoder
from penstock.codec.decode_protobuf import ProtobufDecoder
from penstock.codec.formats import Format
from penstock.codec.problem import PROBLEM, problem, problem_counts
from penstock.codec.registry import Registry
from penstock.durations import Duration, duration, duration_text, keywords, require_known
from penstock.errors import PenstockError
from penstock.kafka.source_format import FORMAT, READ, UNREADABLE, member
from penstock.metrics import delays
from penstock.query import real_time
from penstock.query.delivery import OURS, SPARKS, Client, is_marker_group
from penstock.spark_runtime.logical_plan import parallelism

if TYPE_CHECKING:
    from penstock.table.table import Table

REGISTERED = ("avro", "protobuf")
FORMATS = ("json", "csv", "json-schema", *REGISTERED)
META = ("key", "topic", "partition", "offset", "timestamp")
"""Kafka's columns, which come after the columns of the schema."""
KAFKAS = (*META, "value", "headers")
REFUSED = {
    "subscribe": "give topic=",
    "subscribePattern": "give topic=",
    "assign": "give topic=",
    "kafka.bootstrap.servers": "give servers=",
    "startingOffsets": "give start=",
    "maxOffsetsPerTrigger": "give batch=",
    "packed": "leave it out; a query needs the columns",
    "includeHeaders": "leave it out; `problem` has the headers of a bad record",
}
ISOLATION = "kafka.isolation.level"
LOSS = "failOnDataLoss"
"""The option of both clients; `fail_on_data_loss` is its name in Python."""
EPOCH = re.compile(r"timestamp_(seconds|millis|micros)\(\s*(\w+)\s*\)", re.IGNORECASE)
MOST_SECONDS = 62_135_596_800
"""Seconds from the year 1 to 1970; timestamps may be that far before or after 1970."""
AHEAD = timedelta(days=1)
MOST_AHEAD = 1 << 61
"""Microseconds: more than between any two timestamps, and a sum of both is a 64-bit integer."""
NO_VALUE = "no value (a tombstone)"
TABLE_PREFIX = "_kafka_"


@public("kafka.read")
def read(
    spark: SparkSession,
    topic: str,
    *,
    servers: str,
    name: str,
    schema: str | st.StructType | None = None,
    format: Format = "json",
    at: str | None = None,
    late: Duration | None = None,
    ahead: Duration | None = None,
    epoch: Epoch = "seconds",
    registry: Registry | str | None = None,
    subject: str | None = None,
    start: Literal["earliest", "latest"] | str = "earliest",
    batch: int | None = None,
    prefix: str = "",
    client: Client | None = None,
    fail_on_data_loss: bool = True,
    group: str | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The records of a topic as a stream with the columns of `schema`, Kafka's own, and `problem`.

    Columns: those of `schema` (a StructType or "id int NOT NULL, name string"); `key binary, topic string, partition
    int, offset long, timestamp timestamp`, with `prefix` before their names; `problem struct` (null for a good record,
    else reason, topic, partition, offset, timestamp, key, value, headers). `format` is "json", "csv", "json-schema",
    "avro" or "protobuf"; the last three use Confluent's wire format, and the last two take the columns from `registry`
    by default. `at` is the column with the event's time, or an SQL expression, which becomes the column `at` and must
    not fail (try_to_timestamp, not to_timestamp). `late` is the watermark's delay: how long after newer events an event
    may come. A record without a time, or with one more than `ahead` (1 day) after its arrival in Kafka, has a problem
    and does not move the watermark. Without `at`, `ahead` is for all timestamps of the schema, and none by default; a
    time outside the years 1 to 9999 is always a problem. A number in a timestamp column of JSON counts `epoch` since
    1970: "seconds", "millis" (as in events of Penstock and Debezium) or "micros". `start` is "earliest", "latest", or
    JSON with an offset per partition. `batch` is the
    most records of one batch. `client` is "penstock", or "spark" for Spark's own connector, the default in a pipeline
    of real-time mode. If records, partitions or the topic are gone before they were read, the query stops; with
    `fail_on_data_loss` false it logs what is missing and continues. `group` is a consumer group to which the query's
    position is committed, for tools that show the lag of groups; the query never reads it. `options` are Kafka's, by
    name: TLS, SASL and those in docs/streams.md; with "spark", that connector's.

    The query has the metrics `records`, `problems` and `reasons` (of problems, as numbers: `delays.bad_records`) under
    `name`. Raises `PenstockError` when the frame is built.
    """
    if (at is None) != (late is None):
        raise _wrong("at and late must be given together", 'give both, as in at="ts", late="10 minutes"', topic)
    decoder = decoder_of(format, topic, schema, registry, subject, epoch)
    limit = None if ahead is None else duration(ahead, name="ahead")
    time = None if at is None else _time(at, decoder.schema)
    fields = [*decoder.schema.names, *([time.column] if time and time.computed else [])]
    _require_distinct([*fields, PROBLEM, *(prefix + column for column in META)], topic)
    _require_allowed(options or {}, topic)
    reader_options = dict(options or {})
    if not fail_on_data_loss:
        reader_options = {name: value for name, value in reader_options.items() if name.lower() != LOSS.lower()} | {
            LOSS: "false"
        }
    if batch is not None and real_time.is_building():
        raise _wrong("batch= limits micro-batches, and real-time mode has none", "leave batch= out", topic)
    if client is None and real_time.is_building():
        client, reader_options = SPARKS, {ISOLATION: "read_committed"} | reader_options
    if group is not None:
        reader_options |= {"group": _group(group, client, topic)}
    if client in (None, OURS):
        good = _good(time, decoder.schema, limit)
        raw = _ours(spark, topic, servers, start, batch, decoder, good, reader_options).withColumn(
            "topic", F.lit(topic)
        )
    elif client == SPARKS:
        raw = _sparks(spark, topic, servers, start, batch, reader_options)
    else:
        raise _wrong(f"unknown client {client!r}", f"use {OURS!r} or {SPARKS!r}", topic)
    decoded = _decoded(raw, decoder)
    checked = _checked(decoded, decoder.schema, time, limit)
    marks = {"timestamp": delays.MARK}
    meta = [F.col(_raw(column)).alias(prefix + column, metadata=marks.get(column)) for column in META]
    frame = checked.select(*(_field(name, time) for name in fields), *meta, PROBLEM)
    if time is not None and late is not None:
        delay = duration(late, name="late")
        if real_time.is_building():
            frame = real_time.with_watermark(frame, time.column, prefix + "timestamp", delay)
        else:
            frame = frame.withWatermark(time.column, duration_text(delay))
    return frame.observe(name, *problem_counts())


def raw_records(
    spark: SparkSession,
    topic: str,
    *,
    servers: str,
    start: str,
    batch: int | None = None,
    group: str | None = None,
    chunk: int | None = None,
    chunk_wait: timedelta | None = None,
    options: Mapping[str, str] | None = None,
    packed: bool = False,
) -> DataFrame:
    """The records of a topic as a stream, undecoded: `key, value, partition, offset, timestamp, headers, topic`.

    With `packed` they are in one column (`packed_rows`), and without `topic`. With `chunk`, partitions are read up to
    multiples of so many offsets; the records after the last one wait for the others of their chunk, at most
    `chunk_wait`. The other arguments are those of `read`.
    """
    _require_allowed(options or {}, topic)
    reader_options = dict(options or {})
    if chunk is not None:
        reader_options["chunk"] = str(chunk)
    if chunk_wait is not None:
        reader_options["chunk.wait.ms"] = str(max(chunk_wait // timedelta(milliseconds=1), 1))
    if group is not None:
        reader_options["group"] = _group(group, None, topic)
    if packed:
        return _ours(spark, topic, servers, start, batch, None, None, reader_options | {"packed": "true"})
    frame = _ours(spark, topic, servers, start, batch, None, None, reader_options).withColumn("topic", F.lit(topic))
    names = [name for name in frame.columns if name != "timestamp"]
    return frame.select(*names, F.col("timestamp").alias("timestamp", metadata=delays.MARK))


def _group(group: str, client: Client | None, topic: str) -> str:
    """The consumer group to which the position is committed; raises PenstockError if that is not possible."""
    if client == SPARKS:
        raise _wrong("group= needs our own client: Spark's client commits no positions", "leave group= out", topic)
    if not group:
        raise _wrong("group is empty", "give a name that no consumer uses as its group, or leave group= out", topic)
    if is_marker_group(group):
        raise _wrong(f"the group {group} is one of markers of an exactly-once sink", "give another name", topic)
    return group


@dataclass(frozen=True)
class _Time:
    """The source of an event's time: a column of the schema, or an expression that makes the column `at`."""

    column: str
    expression: Column
    computed: bool
    text: str


def _time(at: str, schema: st.StructType) -> _Time:
    if at not in schema.names:
        return _Time("at", _safe(at).try_cast("timestamp"), True, at)
    kind = schema[at].dataType
    if not isinstance(kind, st.TimestampType):
        raise PenstockError(
            f"the column {at} is {kind.simpleString()}, not a timestamp",
            where="kafka.read",
            next=f'convert it, as in at="timestamp_millis({at})" or at="try_to_timestamp({at})"',
        )
    return _Time(at, F.col(at), False, at)


def _safe(at: str) -> Column:
    """The expression; null for a number out of range, for which Spark's function would stop the query."""
    match = EPOCH.fullmatch(at.strip())
    if not match:
        return F.expr(at)
    most = MOST_SECONDS * 1_000_000 // MICROS[match[1].lower()]
    return F.when(F.abs(F.col(match[2]).cast("double")) <= most, F.expr(at))


def _require_allowed(options: Mapping[str, str], topic: str) -> None:
    for option in options:
        if option in REFUSED:
            raise _wrong(f"the option {option} cannot be set", REFUSED[option], topic)


def _ours(
    spark: SparkSession,
    topic: str,
    servers: str,
    start: str,
    batch: int | None,
    decoder: Decoder | None,
    good: str | None,
    options: Mapping[str, str],
) -> DataFrame:
    """The columns of Spark's source, and the members of JSON values that our source reads."""
    # Here, because both load compiled loops, for which other users need not wait.
    from penstock.kafka.kafka_records import members
    from penstock.kafka.kafka_settings import KafkaSettings
    from penstock.kafka.kafka_source import KafkaTopic

    source_options = {"servers": servers, "topic": topic, "start": start, "tasks": str(parallelism(spark))}
    if batch is not None:
        source_options["batch"] = str(batch)
    if isinstance(decoder, JsonDecoder) and not decoder.framed and members(decoder.schema):
        source_options |= {"members": decoder.schema.json(), "epoch": decoder.epoch}
        source_options |= {"good": good} if good else {}
    KafkaSettings.of(source_options | dict(options))
    spark.dataSource.register(KafkaTopic)
    reader = spark.readStream.format(FORMAT).options(**source_options).options(**options)
    return reader.load()


def _sparks(
    spark: SparkSession, topic: str, servers: str, start: str, batch: int | None, options: Mapping[str, str]
) -> DataFrame:
    from penstock.kafka.kafka_settings import start_of

    start_of(start, topic)
    reader = spark.readStream.format("kafka").options(**options).option("kafka.bootstrap.servers", servers)
    reader = reader.option("subscribe", topic).option("startingOffsets", start).option("includeHeaders", "true")
    return (reader if batch is None else reader.option("maxOffsetsPerTrigger", batch)).load()


def _decoded(raw: DataFrame, decoder: Decoder) -> DataFrame:
    """The columns of the schema, Kafka's under the names of `_raw`, and the first reason, null for good records."""
    value, record = F.col(_raw("value")), F.col(_raw("record"))
    renamed = raw.select(*(F.col(name).alias(_raw(name)) for name in raw.columns))
    names = decoder.schema.names
    decode, fields = decoder.decode(value), [record.getField(name).alias(name) for name in names]

    def reason_of(decoded: Column) -> Column:
        reason = F.when(value.isNull(), NO_VALUE).otherwise(decoder.reason(decoded, value))
        return F.coalesce(F.col(_raw(UNREADABLE)), reason) if UNREADABLE in raw.columns else reason

    if READ in raw.columns:
        read = F.col(_raw(READ))
        # In one column, as Spark does not compile a projection that parses JSON: the next one is compiled.
        both = once(decode, lambda decoded: F.struct(decoded.alias("found"), reason_of(decoded).alias("reason")))
        decode, reason = F.when(~read, both), record.getField("reason")
        decoded = record.getField("found")
        pairs = enumerate(names)
        fields = [
            F.when(read, F.col(_raw(member(n)))).otherwise(decoded.getField(name)).alias(name) for n, name in pairs
        ]
    else:
        reason = reason_of(record)
    kafka = [_raw(name) for name in KAFKAS]
    return renamed.withColumn(_raw("record"), decode).select(*fields, *kafka, reason.alias(_raw("reason")))


def _checked(decoded: DataFrame, schema: st.StructType, time: _Time | None, ahead: timedelta | None) -> DataFrame:
    """Adds `problem`, and the column of the time if an expression makes it."""
    reasons = [F.col(_raw("reason")), missing(schema), *_far_times(schema)]
    if time is not None:
        if time.computed:
            decoded = decoded.withColumn(time.column, time.expression)
        reasons.append(_wrong_time(F.col(time.column), time, AHEAD if ahead is None else ahead))
    elif ahead is not None:
        names = [field.name for field in schema if isinstance(field.dataType, st.TimestampType)]
        reasons += [_ahead_of_arrival(F.col(_quoted(name)), name, ahead) for name in names]
    return decoded.withColumn(PROBLEM, problem(F.coalesce(*reasons), _raw))


def _far_times(schema: st.StructType) -> list[Column]:
    """A reason for each timestamp of a struct outside the years 1 to 9999, which other programs cannot read."""
    names = [field.name for field in schema if isinstance(field.dataType, st.TimestampType)]
    times = [(name, F.col(_quoted(name))) for name in names]
    said = "the time {} is outside the years 1 to 9999"
    return [F.when(~F.unix_micros(time).between(FIRST, LAST), said.format(name)) for name, time in times]


def _good(time: _Time | None, schema: st.StructType, ahead: timedelta | None) -> str | None:
    """Which records our source knows to be good, so that it can leave out what only problems show; None for none."""
    if time is None:
        # It compares one time with the arrival.
        return "[]" if ahead is None else None
    ahead = AHEAD if ahead is None else ahead
    name, micros = time.column, 1
    if time.computed:
        match = EPOCH.fullmatch(time.text.strip())
        name, micros = (match[2], MICROS[match[1].lower()]) if match else ("", 1)
        if name not in schema.names or not isinstance(schema[name].dataType, (st.IntegerType, st.LongType)):
            return None
    return json.dumps([schema.names.index(name), micros, min(ahead // timedelta(microseconds=1), MOST_AHEAD)])


def _wrong_time(time: Column, of: _Time, ahead: timedelta) -> Column:
    return F.when(time.isNull(), f"no time in {of.text}").otherwise(_ahead_of_arrival(time, of.text, ahead))


def _ahead_of_arrival(time: Column, name: str, ahead: timedelta) -> Column:
    said = F.concat(F.lit(f"the time {name} is ahead of its arrival: "), time.cast("string"))
    # As numbers: Spark adds an interval to a timestamp through calendar objects, a tenth of the cost of a record.
    limit = F.unix_micros(_raw("timestamp")) + ahead // timedelta(microseconds=1)
    return F.when(F.unix_micros(time) > limit, said)


def _field(name: str, time: _Time | None) -> Column:
    """A column of the record; the time of a record with a problem is null, so that it does not move the watermark."""
    if time is None or name != time.column:
        return F.col(name)
    return F.when(F.col(PROBLEM).isNull(), F.col(name)).alias(name)


def decoder_of(
    format: Format,
    topic: str,
    schema: str | st.StructType | None,
    registry: Registry | str | None,
    subject: str | None = None,
    epoch: Epoch = "seconds",
) -> Decoder:
    """The decoder of a topic's values; raises `PenstockError` if the arguments do not fit together."""
    if format not in FORMATS:
        raise _wrong(f"unknown format {format!r}", f"use {' or '.join(map(repr, FORMATS))}", topic)
    if epoch not in EPOCHS:
        raise _wrong(f"unknown epoch {epoch!r}", f"use {' or '.join(map(repr, EPOCHS))}", topic)
    if epoch != EPOCHS[0] and format not in ("json", "json-schema"):
        raise _wrong(f"epoch= is the unit of numbers in JSON, and the format is {format!r}", "leave epoch= out", topic)
    if registry is not None and format not in REGISTERED:
        raise _wrong(f"the format {format!r} does not use a schema registry", "leave registry= out", topic)
    if format == "avro" and isinstance(schema, str) and schema.lstrip().startswith("{"):
        return AvroDecoder.plain(schema)
    wanted = None if schema is None else struct_of(schema, f"kafka.read of {topic}")
    if format in REGISTERED:
        if registry is None:
            next = 'give registry="http://host:8081"; for Avro without a registry, give its JSON schema in schema='
            raise _wrong(f"the format {format!r} needs a schema registry", next, topic)
        known = registry if isinstance(registry, Registry) else Registry(registry)
        kind = AvroDecoder if format == "avro" else ProtobufDecoder
        return kind.of_subject(known, subject or f"{topic}-value", wanted)
    if wanted is None:
        raise _wrong("no schema", 'give the columns: schema="id int NOT NULL, name string"', topic)
    return CsvDecoder(wanted) if format == "csv" else JsonDecoder(wanted, format == "json-schema", epoch)


def _require_distinct(names: Sequence[str], topic: str) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        next = 'give prefix="kafka_", which is added to the names of Kafka\'s columns'
        raise _wrong(f"two columns have the name {', '.join(twice)}", next, topic)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _raw(name: str) -> str:
    return f"_penstock_{name}"


def _wrong(what: str, next: str, topic: str) -> PenstockError:
    return PenstockError(what, where=f"kafka.read of {topic}", next=next)


class TableOptions(TypedDict):
    """The arguments of `read` that `read_table` takes."""

    servers: str
    name: str
    schema: NotRequired[str | st.StructType | None]
    format: NotRequired[Format]
    epoch: NotRequired[Epoch]
    registry: NotRequired[Registry | str | None]
    subject: NotRequired[str | None]
    start: NotRequired[Literal["earliest", "latest"] | str]
    batch: NotRequired[int | None]
    client: NotRequired[Client | None]
    fail_on_data_loss: NotRequired[bool]
    group: NotRequired[str | None]
    options: NotRequired[Mapping[str, str] | None]


@public("kafka.read_table")
def read_table(spark: SparkSession, topic: str, *, key: str, **settings: Unpack[TableOptions]) -> Table:
    """A compacted topic as a table by its record key; a record without a value deletes its row.

    The record key, read as a string, becomes the column `key`, in the type that the schema has for that column (default
    string). Columns: the schema's, `version long` (the offset), `deleted boolean`. `settings` are those of `read`,
    without `at`, `late`, `ahead` and `prefix`. Records that cannot be read are left out; the metrics under `name` count
    them. Records without a key, or with a key that is not a value of its type, are left out too, but not counted.
    Raises `PenstockError` as `read` does.
    """
    # Here, because it loads what keeps state, for which others need not wait.
    from penstock.table.table import Table

    known = [*keywords(read_table), *TableOptions.__annotations__]
    require_known(settings, known, where=f"kafka.read_table of {topic}")
    rows = read(spark, topic, prefix=TABLE_PREFIX, **settings)
    deleted = F.coalesce(F.col("problem.reason") == NO_VALUE, F.lit(False))
    text = F.col(f"{TABLE_PREFIX}key").cast("string")
    kind = rows.schema[key].dataType if key in rows.columns else "string"
    columns = [
        F.col(name) for name in rows.columns if name not in (key, "problem") and not name.startswith(TABLE_PREFIX)
    ]
    about = [F.col(f"{TABLE_PREFIX}offset").alias("version"), deleted.alias("deleted")]
    readable = rows.where(F.col("problem").isNull() | deleted)
    times = F.unix_micros(f"{TABLE_PREFIX}timestamp").alias(delays.TIME)
    keyed = readable.select(text.try_cast(kind).alias(key), *columns, *about, times).where(F.col(key).isNotNull())
    return Table(delays.hidden(keyed), (key,), "version", "deleted")
