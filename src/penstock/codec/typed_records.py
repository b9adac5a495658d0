"""Records between the change frame and Kafka: typed keys and values, which transforms change and codecs encode.

A payload is a Spark expression with the Kafka Connect schema of its values. A chain of transforms and codecs therefore
becomes one expression, which Spark evaluates next to the sink.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from pyspark.sql import Column, DataFrame, functions as F, types as st

from penstock.codec.connect_schema import NAMES, Schema, avro_name
from penstock.errors import PenstockError
from penstock.metrics import delays

Side = Literal["key", "value"]
TIMESTAMP = "timestamp"
"""The column with the times of records; Kafka's sources have the same name."""


@dataclass(frozen=True)
class RecordPart:
    """A key or a value: an expression, null where the record has no key or value, and its schema."""

    payload: Column
    schema: Schema


class Codec(Protocol):
    """Encodes keys or values."""

    def encode(self, part: RecordPart, *, topic: str, side: Side) -> Column:
        """Return a string or binary column, null where the payload is null. Errors name the topic."""


@dataclass(frozen=True)
class TypedRecords:
    """Typed records over the rows of `frame`, one record per row.

    `values` are alternatives: at most one of them is not null in a row, and a tombstone has none. `keep` selects the
    rows that are written; None keeps every row. `other_keys` are alternatives to `key`: in a row at most one of `key`
    and `other_keys` is not null.
    """

    frame: DataFrame
    topic: str | Column
    key: RecordPart | None
    values: tuple[RecordPart, ...]
    headers: Column | None = None
    keep: Column | None = None
    other_keys: tuple[RecordPart, ...] = ()

    def only(self, condition: Column) -> TypedRecords:
        """The records where `condition` is true, in addition to earlier conditions."""
        return replace(self, keep=condition if self.keep is None else self.keep & condition)

    def encoded(self, key: Codec, value: Codec) -> DataFrame:
        """A frame with `topic string`, `key`, `value`, and `headers` and `timestamp` if the records have them."""
        # A topic that is computed for each row cannot name a subject; the subject is then the name of the schema.
        topic = self.topic if isinstance(self.topic, str) else ""
        parts = () if self.key is None else (self.key, *self.other_keys)
        keys = [key.encode(part, topic=topic, side="key") for part in parts]
        values = [value.encode(part, topic=topic, side="value") for part in self.values]
        columns = [
            (F.lit(self.topic) if isinstance(self.topic, str) else self.topic).alias("topic"),
            (_first(keys) if keys else F.lit(None).cast("string")).alias("key"),
            _first(values).alias("value"),
        ]
        if self.headers is not None:
            columns.append(self.headers.alias("headers"))
        frame = self.frame if self.keep is None else self.frame.where(self.keep)
        times = delays.event_time(frame)
        return frame.select(*columns, *([] if times is None else [times.alias(TIMESTAMP, metadata=delays.MARK)]))


def _first(columns: Sequence[Column]) -> Column:
    return columns[0] if len(columns) == 1 else F.coalesce(*columns)


Transform = Callable[[TypedRecords], TypedRecords]
"""Changes records before they are encoded, like a single message transform of Kafka Connect."""


# Struct columns of any frame as records: the Kafka Connect schema of a Spark type, and values for it.

_DATE = {"name": "org.apache.kafka.connect.data.Date", "version": 1}
_TIMESTAMP = {"name": "org.apache.kafka.connect.data.Timestamp", "version": 1}


def struct_part(column: Column, kind: st.StructType, name: str) -> RecordPart:
    """Convert a struct column to a record; `name` is the name of its schema.

    Dates become days, timestamps milliseconds (rounded down), decimals strings, and maps whose keys are not strings
    arrays of {key, value}. Raises PenstockError for any other type that the formats do not support.
    """
    schema, value = _struct(column, kind, avro_name(name))
    return RecordPart(F.when(column.isNotNull(), value), schema | {"optional": False})


def _of(value: Column, kind: st.DataType, path: str) -> tuple[Schema, Column]:
    """The schema, without `optional`, and the converted value."""
    if primitive := NAMES.get(type(kind)):
        return {"type": primitive}, value
    if isinstance(kind, st.DecimalType):
        return {"type": "string"}, value.cast("string")
    if isinstance(kind, st.DateType):
        return {"type": "int32", **_DATE}, F.unix_date(value)
    if isinstance(kind, st.TimestampType):
        return {"type": "int64", **_TIMESTAMP}, F.unix_millis(value)
    if isinstance(kind, st.StructType):
        return _struct(value, kind, path)
    if isinstance(kind, st.ArrayType):
        return _array(value, kind, path)
    if isinstance(kind, st.MapType):
        return _map(value, kind, path)
    raise PenstockError(
        f"no record format supports values of the type {kind.simpleString()}",
        where=path,
        next="cast the column, for example to string or timestamp",
    )


def _struct(value: Column, kind: st.StructType, path: str) -> tuple[Schema, Column]:
    fields, values = [], []
    for field in kind.fields:
        schema, converted = _of(value.getField(field.name), field.dataType, f"{path}.{avro_name(field.name)}")
        fields.append({**schema, "optional": field.nullable, "field": field.name})
        values.append(converted.alias(field.name))
    struct = F.when(value.isNotNull(), F.struct(*values))
    return {"type": "struct", "fields": fields, "name": path}, struct


def _array(value: Column, kind: st.ArrayType, path: str) -> tuple[Schema, Column]:
    schema = _schema(kind.elementType, path)
    items = {**schema, "optional": kind.containsNull}
    return {"type": "array", "items": items}, F.transform(
        value, lambda element: _of(element, kind.elementType, path)[1]
    )


def _map(value: Column, kind: st.MapType, path: str) -> tuple[Schema, Column]:
    if isinstance(kind.keyType, st.StringType):
        values = {**_schema(kind.valueType, path), "optional": kind.valueContainsNull}
        converted = F.transform_values(value, lambda key, item: _of(item, kind.valueType, path)[1])
        return {"type": "map", "keys": {"type": "string", "optional": False}, "values": values}, converted
    entry = st.StructType().add("key", kind.keyType, False).add("value", kind.valueType, kind.valueContainsNull)
    return _array(F.map_entries(value), st.ArrayType(entry, False), path)


def _schema(kind: st.DataType, path: str) -> Schema:
    """The schema without a value."""
    return _of(F.lit(None), kind, path)[0]
