"""Reads changes back from a topic of extended events: the frame that `replicate.sink` takes.

The events are those of `cdc.events(changes, format="extended")`, of a frame that was read with `write_times=True`. The
types of all values are those of the table that the changes are for, so an event's form of them is turned back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, Unpack, get_args

from pyspark.sql import Column, DataFrame, SparkSession, functions as F, types as st

from penstock.cdc.cdc_tables import frame_schema
from penstock.codec import debezium
from penstock.codec.avro import field_name
from penstock.codec.change_frame import Layout, is_plain, layout
from penstock.codec.connect_schema import Schema, envelope_schema, spark_type as event_type
from penstock.codec.exact_protobuf import ExactProtobuf, bare_type, unwrapped
from penstock.codec.formats import codec
from penstock.codec.protobuf import Protobuf
from penstock.codec.registry import Registry
from penstock.config import Duration, duration
from penstock.cql.cql_writer import described
from penstock.database.access import Access, AccessOptions
from penstock.database.requests import RequestLimits
from penstock.errors import PenstockError
from penstock.kafka.kafka_read import read
from penstock.replicate.replicate_sink import require_times
from penstock.schema import CqlTable, CqlType, spark_type

EventCodec: TypeAlias = Literal["avro", "json", "protobuf"]
CODECS = get_args(EventCodec)
WHERE = "replicate.changes"
PREFIX = "kafka_"
"""Before the names of Kafka's columns: events have members of the same names."""
KEY = "row_key"
"""The member of an event with its primary key."""
MADE = {"c": 2, "u": 1}
"""The log's codes of INSERT and UPDATE."""


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
    `kafka.read`. A record that is not such an event ends the query, and is read again after a restart.

    Raises PenstockError if the table does not exist, or the arguments do not fit together.
    """
    if format not in CODECS:
        raise _unknown(format, WHERE)
    reach = Access.of(hosts, access, where=WHERE, function=changes)
    target = described(reach, table, duration(patience, name="patience"))
    wanted = frame_schema(target, write_times=True)
    known = layout(wanted)
    schema = event_type(event_schema(known)) if format == "json" else None
    events = read(
        spark,
        topic,
        servers=servers,
        name=name,
        schema=schema,  # type: ignore[arg-type]
        format=format,
        registry=registry,
        start=start,
        batch=batch,
        prefix=PREFIX,
        options=options,
    )
    exact = event_schema(known) if format == "protobuf" else None
    return _Changes(target, known, wanted, events, exact).frame()


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
    made = codec(format, registry=registry)
    if isinstance(made, Protobuf):
        made = ExactProtobuf(made.subjects)
    return debezium.events(
        frame,
        prefix=prefix,
        topic=topic,
        format="extended",
        images="none",
        tombstones=False,
        placement=("kafka-key", "payload-key"),
        payload_key_name=KEY,
        key=made,
        value=made,
    )


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
    """Makes the columns of a change frame of those of events.

    `exact` is the schema of events from Protobuf, whose lists are messages (`exact_protobuf`).
    """

    def __init__(
        self, table: CqlTable, known: Layout, wanted: st.StructType, events: DataFrame, exact: Schema | None
    ) -> None:
        self.table, self.known, self.wanted, self.events, self.exact = table, known, wanted, events, exact

    def frame(self) -> DataFrame:
        """The change frame; raises in Spark's tasks for a record that is not an event."""
        made = {
            "op": self._op(),
            "key": self._key(),
            "after": self._after(),
            "delta": self._of(("change", "values"), self.known.fields("delta")),
            "written": self._member("change", "touched"),
            "deleted": self._member("change", "set_to_null"),
            "deleted_elements": self._removed(),
            "range": self._range(),
            "operation": self._operation(),
            "ttl": self._member("change", "ttl"),
            "ts": F.timestamp_micros(F.col("source.ts_us")),
            "read_ts": F.timestamp_millis(F.col("ts_ms")),
            "stream_id": F.unhex(self._member("change", "stream_id")),
            "time": self._member("change", "time"),
            "batch_seq_no": self._member("change", "batch_seq_no"),
            "end_of_batch": self._member("change", "end_of_batch"),
            "keyspace": F.col("source.keyspace_name"),
            "table": F.col("source.table_name"),
            "expires": F.timestamp_seconds(self._member("times", "expires")),
            "write_times": self._numbers("write_times"),
            "expiries": self._numbers("expiries"),
            "lists": self._lists(),
        }
        columns = [
            made.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name, metadata=field.metadata)
            for field in self.wanted
        ]
        return self.events.select(*columns)

    def _op(self) -> Column:
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
        return F.when(F.col("problem").isNull(), F.col("op")).otherwise(F.raise_error(said))

    def _type(self, *path: str) -> st.DataType | None:
        """The type of a member of the events; None if they do not have it."""
        given, exact = self._given(*path), self._exact(*path)
        return given if given is None or exact is None else bare_type(given, exact)

    def _given(self, *path: str) -> st.DataType | None:
        kind: st.DataType = self.events.schema
        for name in path:
            if not isinstance(kind, st.StructType) or name not in kind.names:
                return None
            kind = kind[name].dataType
        return kind

    def _exact(self, *path: str) -> Schema | None:
        """The schema of a member of events from Protobuf."""
        found = self.exact
        for name in path:
            if found is None:
                return None
            found = next((one for one in found["fields"] if field_name(one["field"]) == name), None)
        return found

    def _member(self, *path: str) -> Column:
        given, exact = self._given(*path), self._exact(*path)
        if given is None:
            return F.lit(None)
        found = self._raw(*path)
        return found if exact is None else unwrapped(found, given, exact)

    def _has(self, *path: str) -> Column:
        return F.lit(False) if self._given(*path) is None else self._raw(*path).isNotNull()

    @staticmethod
    def _raw(*path: str) -> Column:
        found = F.col(path[0])
        for name in path[1:]:
            found = found.getField(name)
        return found

    def _of(self, path: tuple[str, ...], kinds: Mapping[str, CqlType]) -> Column:
        """A struct of values with these types."""
        fields = [
            _decoded(self._member(*path, field_name(name)), self._type(*path, field_name(name)), kind)
            .cast(spark_type(kind))
            .alias(name)
            for name, kind in kinds.items()
        ]
        return F.when(self._has(*path), F.struct(*fields)) if fields else F.lit(None)

    def _key(self) -> Column:
        return self._of((KEY,), self.known.fields("key"))

    def _after(self) -> Column:
        key, values = (
            self._key(),
            self._of(("after",), {n: k for n, k in self.known.types.items() if n not in self.known.key}),
        )
        fields = [(key if name in self.known.key else values).getField(name).alias(name) for name in self.known.columns]
        return F.when(F.col("op") == "r", F.struct(*fields))

    def _removed(self) -> Column:
        path = "change", "removed_elements"
        fields = []
        for name, kind in self.known.fields("deleted_elements").items():
            given, found = self._member(*path, field_name(name)), self._type(*path, field_name(name))
            if self.known.types[name].name == "udt":
                made = _places(given, self.known.types[name].fields) if found else F.lit(None)
            else:
                made = _decoded(given, found, kind)
            fields.append(made.cast(spark_type(kind)).alias(name))
        return F.when(self._has(*path), F.struct(*fields)) if fields else F.lit(None)

    def _range(self) -> Column:
        if "range" not in self.wanted.names:
            return F.lit(None)
        kinds = {name: self.known.types[name] for name in self.known.clustering_key}
        fields = [
            self._of(("range", "start"), kinds).alias("start"),
            self._member("range", "start_inclusive").alias("start_inclusive"),
            self._of(("range", "end"), kinds).alias("end"),
            self._member("range", "end_inclusive").alias("end_inclusive"),
        ]
        if len(kinds) > 1:
            fields.append(self._member("range", "order").alias("order"))
        return F.when(self._has("range"), F.struct(*fields))

    def _operation(self) -> Column:
        """The log's code: a deletion of a whole partition is a range without bounds."""
        one = F.lit(3 if self.known.clustering_key else 4)
        deleted = F.when(self._has("range"), F.lit(5)).otherwise(one)
        made = F.when(F.col("op") == "d", deleted)
        for op, code in MADE.items():
            made = made.when(F.col("op") == op, F.lit(code))
        return made

    def _numbers(self, member: str) -> Column:
        fields = [
            self._member("times", member, field_name(column.name)).alias(column.name) for column in self.table.values
        ]
        return F.struct(*fields) if fields else F.lit(None)

    def _lists(self) -> Column:
        fields = []
        for column in self.table.values:
            if column.type.nonfrozen_list:
                path = "times", "lists", field_name(column.name)
                values = _decoded(self._member(*path, "values"), self._type(*path, "values"), column.type)
                whole = F.struct(values.alias("values"), self._member(*path, "expiries").alias("expiries"))
                fields.append(F.when(self._has(*path), whole).alias(column.name))
        return F.struct(*fields) if fields else F.lit(None)


def _places(names: Column, fields: Sequence[str]) -> Column:
    """The numbers of fields, from 0, by their names."""
    known = F.array(*map(F.lit, fields))
    return F.transform(names, lambda name: (F.array_position(known, name) - 1).cast("smallint"))


def _decoded(value: Column, given: st.DataType | None, kind: CqlType) -> Column:
    """A value of an event as the change frame has it; `given` is its type there, None if the event lacks it."""
    if given is None:
        return F.lit(None)
    if kind.name == "date" and isinstance(given, st.NumericType):
        return F.date_from_unix_date(value.cast("int"))
    if kind.name == "timestamp" and isinstance(given, st.NumericType):
        return F.timestamp_millis(value)
    if (is_plain(kind) and kind.name != "tuple") or kind.name in ("date", "timestamp"):
        return value
    if kind.name == "map" and isinstance(given, st.ArrayType):
        entry = given.elementType
        assert isinstance(entry, st.StructType)
        key, item = kind.args
        return F.map_from_entries(
            F.transform(
                value,
                lambda one: F.struct(
                    _decoded(one.getField("key"), entry["key"].dataType, key).cast(spark_type(key)).alias("key"),
                    _decoded(one.getField("value"), entry["value"].dataType, item)
                    .cast(spark_type(item))
                    .alias("value"),
                ),
            )
        )
    if isinstance(given, st.ArrayType):
        inner = given.elementType
        return F.transform(value, lambda one: _decoded(one, inner, kind.args[0]).cast(spark_type(kind.args[0])))
    assert isinstance(given, st.StructType)
    names = kind.fields or tuple(f"field_{i}" for i in range(len(kind.args)))
    fields = []
    for name, arg in zip(names, kind.args, strict=True):
        there = field_name(name)
        found = given[there].dataType if there in given.names else None
        fields.append(_decoded(value.getField(there) if found else value, found, arg).cast(spark_type(arg)).alias(name))
    return F.when(value.isNotNull(), F.struct(*fields))
