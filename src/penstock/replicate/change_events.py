"""Reads changes back from a topic of extended events: the frame that `replicate.sink` takes.

The events are those of `cdc.events(changes, format="extended")`, of a frame that was read with `write_times=True`. The
types of all values are those of the table that the changes are for, so an event's form of them is turned back. What the
table cannot take is a problem of its record: nothing of an event is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, Unpack, get_args

from pyspark.sql import Column, DataFrame, SparkSession, functions as F, types as st

from penstock.border.public import public
from penstock.cdc.cdc_tables import INSERTED, frame_schema
from penstock.codec import debezium
from penstock.codec.avro import field_name
from penstock.codec.change_frame import Layout, is_plain, layout
from penstock.codec.connect_schema import envelope_schema, spark_type as event_type
from penstock.codec.exact_protobuf import ExactProtobuf
from penstock.codec.formats import codec
from penstock.codec.problem import PROBLEM, problem, problem_counts
from penstock.codec.protobuf import Protobuf
from penstock.codec.registry import Registry
from penstock.codec.typed_records import Codec
from penstock.cql.cql_writer import described
from penstock.database.access import Access, AccessOptions
from penstock.database.cql_types import CqlTable, CqlType, spark_type
from penstock.database.requests import RequestLimits
from penstock.durations import Duration, duration
from penstock.errors import PenstockError
from penstock.kafka.kafka_read import decoder_of, raw_records
from penstock.replicate.event_checks import KEY, of_another_table, reasons, require_fit
from penstock.replicate.event_members import PAYLOAD, EventMembers
from penstock.replicate.replicate_sink import require_times

EventCodec: TypeAlias = Literal["avro", "json", "protobuf"]
CODECS = get_args(EventCodec)
WHERE = "replicate.changes"
RECORD = "penstock$record"
"""The column with the decoded value of a record."""
MADE = {"c": 2, "u": 1}
"""The log's codes of INSERT and UPDATE."""


@dataclass(frozen=True)
class EventFormat:
    """How a topic's values are written; with `schemas`, each value of JSON has its schema beside it."""

    codec: EventCodec
    registry: Registry | str | None = None
    schemas: bool = False


@public("replicate.changes")
def changes(
    spark: SparkSession,
    topic: str,
    *,
    table: str,
    hosts: str,
    servers: str,
    name: str,
    format: EventCodec = "avro",
    registry: Registry | str | None = None,
    start: str = "earliest",
    batch: int | None = None,
    options: Mapping[str, str] | None = None,
    patience: Duration = RequestLimits.patience,
    **access: Unpack[AccessOptions],
) -> DataFrame:
    """The changes in a topic, as a frame for `replicate.sink` of the table "keyspace.table" at `hosts`.

    The topic has extended events of one table, with their primary keys in the member `row_key`, as `penstock replicate
    --through` writes them. `servers` are Kafka's; `format`, `registry`, `start`, `batch` and `options` are as in
    `kafka.read`. A record that is not such an event, or that writes a column which the table lacks, ends the query, and
    is read again after a restart. Records without a value are left out.

    Raises PenstockError if the table does not exist or differs from the events, or the arguments do not fit together.
    """
    if format not in CODECS:
        raise _unknown(format, WHERE)
    reach = Access.of(hosts, access, where=WHERE, function=changes)
    target = described(reach, table, duration(patience, name="patience"))
    records = raw_records(spark, topic, servers=servers, start=start, batch=batch, options=options)
    decoded = event_changes(records, topic, target, EventFormat(format, registry)).observe(name, *problem_counts())
    return decoded.select(*(_op() if name == "op" else F.col(name) for name in decoded.columns if name != PROBLEM))


def _op() -> Column:
    """The column `op`; raises in Spark's tasks for a record with a problem."""
    said = F.concat(
        F.lit("a record cannot be read: "),
        F.col("problem.reason"),
        F.lit("; topic "),
        F.col("problem.topic"),
        F.lit(", partition "),
        F.col("problem.partition").cast("string"),
        F.lit(", offset "),
        F.col("problem.offset").cast("string"),
    )
    return F.when(F.col(PROBLEM).isNull(), F.col("op")).otherwise(F.raise_error(said)).alias("op")


def event_changes(
    records: DataFrame,
    topic: str,
    target: CqlTable,
    format: EventFormat,
    *,
    source: tuple[str, str] | None = None,
) -> DataFrame:
    """The changes in `records` (of `kafka_read.raw_records`) for the table `target`, and their `problem`.

    The problem is that of `kafka.read`, null for an event that can be applied; `source` are the keyspace and the table
    that the events must be of. Raises PenstockError if the schemas in the registry do not fit the table.
    """
    wanted = frame_schema(target, write_times=True)
    known = layout(wanted)
    schema, value, rows = event_schema(known), F.col("value"), None
    if format.codec == "json":
        kind = event_type(schema)
        assert isinstance(kind, st.StructType)
        record = st.StructType().add(PAYLOAD, kind) if format.schemas else kind
        after = f"$.{PAYLOAD}.after" if format.schemas else "$.after"
        rows = F.json_object_keys(F.get_json_object(value.cast("string"), after))
        decoder = decoder_of("json", topic, record, None)
    else:
        decoder = decoder_of(format.codec, topic, None, format.registry)
    exact = schema if format.codec == "protobuf" else None
    event = EventMembers(F.col(RECORD), decoder, exact=exact, enveloped=format.schemas)
    if format.codec != "json":
        require_fit(event, target, topic)
    problems = [decoder.reason(F.col(RECORD), value), *reasons(event, target, rows)]
    if source is not None:
        problems.insert(2, of_another_table(event, source))
    decoded = records.where(value.isNotNull()).select("*", decoder.decode(value).alias(RECORD))
    columns = _Changes(target, known, wanted, event).columns()
    return decoded.select(*columns, problem(F.coalesce(*problems), lambda name: name).alias(PROBLEM))


@public("replicate.events")
def events(
    frame: DataFrame,
    *,
    topic: str,
    prefix: str = "replicate",
    format: EventCodec = "avro",
    registry: Registry | str | None = None,
) -> DataFrame:
    """The changes as records for `kafka.sink`: extended events with the times of writes, for `changes`.

    `frame` comes from `cdc.read(..., write_times=True)`. `prefix` is Debezium's logical name, from which the schemas in
    the registry get their names. Raises PenstockError if the frame lacks columns, or the arguments do not fit.
    """
    if format not in CODECS:
        raise _unknown(format, "replicate.events")
    require_times(frame.schema, "replicate.events")
    exact_codec = exact(codec(format, registry=registry))
    return debezium.events(
        frame,
        prefix=prefix,
        topic=topic,
        format="extended",
        images="none",
        tombstones=False,
        placement=("kafka-key", "payload-key"),
        payload_key_name=KEY,
        key=exact_codec,
        value=exact_codec,
    )


def exact(codec: Codec) -> Codec:
    """A codec that loses nothing of an event: another one for Protobuf, whose lists cannot be null."""
    return ExactProtobuf(codec.subjects) if isinstance(codec, Protobuf) else codec


def event_schema(table: Layout) -> dict[str, Any]:
    """The Connect schema of the events of a table, whatever their prefix."""
    return envelope_schema(
        table,
        "replicate",
        images=(False, False),
        payload_key=KEY,
        ranged=bool(table.clustering_key),
        cells=False,
        extended=True,
        timed=True,
    )


def _unknown(format: str, where: str) -> PenstockError:
    return PenstockError(f"unknown format {format!r}", where=where, next=f"use {' or '.join(map(repr, CODECS))}")


class _Changes:
    """Makes the columns of a change frame of those of events."""

    def __init__(self, table: CqlTable, known: Layout, wanted: st.StructType, event: EventMembers) -> None:
        self.table, self.known, self.wanted, self.event = table, known, wanted, event

    def columns(self) -> list[Column]:
        """The columns of the change frame."""
        columns_by_name = {
            "op": self.event.member("op"),
            "key": self._key(),
            "after": self._after(),
            "delta": self._of(("change", "values"), self.known.fields("delta")),
            "written": self.event.member("change", "touched"),
            "deleted": self.event.member("change", "set_to_null"),
            "deleted_elements": self._removed(),
            "range": self._range(),
            "operation": self._operation(),
            "ttl": self.event.member("change", "ttl"),
            "ts": F.timestamp_micros(self.event.member("source", "ts_us")),
            "read_ts": F.timestamp_millis(self.event.member("ts_ms")),
            "stream_id": F.unhex(self.event.member("change", "stream_id")),
            "time": self.event.member("change", "time"),
            "batch_seq_no": self.event.member("change", "batch_seq_no"),
            "end_of_batch": self.event.member("change", "end_of_batch"),
            "keyspace": self.event.member("source", "keyspace_name"),
            "table": self.event.member("source", "table_name"),
            "expires": F.timestamp_seconds(self.event.member("times", "expires")),
            "write_times": self._numbers("write_times"),
            "expiries": self._numbers("expiries"),
            "lists": self._lists(),
            "inserted": self._inserted(),
        }
        return [
            columns_by_name.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name, metadata=field.metadata)
            for field in self.wanted
        ]

    def _of(self, path: tuple[str, ...], kinds: Mapping[str, CqlType]) -> Column:
        """A struct of values with these types."""
        fields = [
            _decoded(self.event.member(*path, field_name(name)), self.event.type(*path, field_name(name)), kind)
            .cast(spark_type(kind))
            .alias(name)
            for name, kind in kinds.items()
        ]
        return F.when(self.event.has(*path), F.struct(*fields)) if fields else F.lit(None)

    def _key(self) -> Column:
        return self._of((KEY,), self.known.fields("key"))

    def _after(self) -> Column:
        key, values = (
            self._key(),
            self._of(("after",), {n: k for n, k in self.known.types.items() if n not in self.known.key}),
        )
        fields = [(key if name in self.known.key else values).getField(name).alias(name) for name in self.known.columns]
        return F.when(self.event.member("op") == "r", F.struct(*fields))

    def _removed(self) -> Column:
        path = "change", "removed_elements"
        fields = []
        for name, kind in self.known.fields("deleted_elements").items():
            member, kind_in_event = self.event.member(*path, field_name(name)), self.event.type(*path, field_name(name))
            if self.known.types[name].name == "udt":
                elements = _places(member, self.known.types[name].fields) if kind_in_event else F.lit(None)
            else:
                elements = _decoded(member, kind_in_event, kind)
            fields.append(elements.cast(spark_type(kind)).alias(name))
        return F.when(self.event.has(*path), F.struct(*fields)) if fields else F.lit(None)

    def _range(self) -> Column:
        if "range" not in self.wanted.names:
            return F.lit(None)
        kinds = {name: self.known.types[name] for name in self.known.clustering_key}
        fields = [
            self._of(("range", "start"), kinds).alias("start"),
            self.event.member("range", "start_inclusive").alias("start_inclusive"),
            self._of(("range", "end"), kinds).alias("end"),
            self.event.member("range", "end_inclusive").alias("end_inclusive"),
        ]
        if len(kinds) > 1:
            fields.append(self.event.member("range", "order").alias("order"))
        return F.when(self.event.has("range"), F.struct(*fields))

    def _operation(self) -> Column:
        """The log's code: a deletion of a whole partition is a range without bounds."""
        row_or_partition = F.lit(3 if self.known.clustering_key else 4)
        deleted = F.when(self.event.has("range"), F.lit(5)).otherwise(row_or_partition)
        operation = F.when(self.event.member("op") == "d", deleted)
        for op, code in MADE.items():
            operation = operation.when(self.event.member("op") == op, F.lit(code))
        return operation

    def _numbers(self, member: str) -> Column:
        fields = [
            self.event.member("times", member, field_name(column.name)).alias(column.name)
            for column in self.table.values
        ]
        return F.struct(*fields) if fields else F.lit(None)

    def _inserted(self) -> Column:
        path = "times", "inserted"
        marker = F.struct(*(self.event.member(*path, name).alias(name) for name in INSERTED.names))
        return F.when(self.event.has(*path), marker)

    def _lists(self) -> Column:
        fields = []
        for column in self.table.values:
            if column.type.nonfrozen_list:
                path = "times", "lists", field_name(column.name)
                values = _decoded(self.event.member(*path, "values"), self.event.type(*path, "values"), column.type)
                whole = F.struct(values.alias("values"), self.event.member(*path, "expiries").alias("expiries"))
                fields.append(F.when(self.event.has(*path), whole).alias(column.name))
        return F.struct(*fields) if fields else F.lit(None)


def _places(names: Column, fields: Sequence[str]) -> Column:
    """The numbers of fields, from 0, by their names."""
    known = F.array(*map(F.lit, fields))
    return F.transform(names, lambda name: (F.array_position(known, name) - 1).cast("smallint"))


def _decoded(value: Column, actual: st.DataType | None, kind: CqlType) -> Column:
    """A value of an event as the change frame has it; `actual` is its type there, None if the event lacks it."""
    if actual is None:
        return F.lit(None)
    if kind.name == "date" and isinstance(actual, st.NumericType):
        return F.date_from_unix_date(value.cast("int"))
    if kind.name == "timestamp" and isinstance(actual, st.NumericType):
        return F.timestamp_millis(value)
    if (is_plain(kind) and kind.name != "tuple") or kind.name in ("date", "timestamp"):
        return value
    if kind.name == "map" and isinstance(actual, st.ArrayType):
        entry = actual.elementType
        assert isinstance(entry, st.StructType)
        key, item = kind.args
        return F.map_from_entries(
            F.transform(
                value,
                lambda entry_column: F.struct(
                    _decoded(entry_column.getField("key"), entry["key"].dataType, key)
                    .cast(spark_type(key))
                    .alias("key"),
                    _decoded(entry_column.getField("value"), entry["value"].dataType, item)
                    .cast(spark_type(item))
                    .alias("value"),
                ),
            )
        )
    if isinstance(actual, st.ArrayType):
        inner = actual.elementType
        return F.transform(value, lambda element: _decoded(element, inner, kind.args[0]).cast(spark_type(kind.args[0])))
    assert isinstance(actual, st.StructType)
    names = kind.fields or tuple(f"field_{i}" for i in range(len(kind.args)))
    fields = []
    for name, arg in zip(names, kind.args, strict=True):
        there = field_name(name)
        field_type = actual[there].dataType if there in actual.names else None
        fields.append(
            _decoded(value.getField(there) if field_type else value, field_type, arg).cast(spark_type(arg)).alias(name)
        )
    return F.when(value.isNotNull(), F.struct(*fields))
