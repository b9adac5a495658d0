"""Converts struct columns of any frame to records: the Kafka Connect schema of a Spark type, and values for it."""

from __future__ import annotations

from pyspark.sql import Column, functions as F, types as st

from penstock.codec.connect_schema import Schema, avro_name
from penstock.codec.typed_records import RecordPart
from penstock.errors import PenstockError

_PRIMITIVES: dict[type[st.DataType], str] = {
    st.BinaryType: "bytes",
    st.BooleanType: "boolean",
    st.ByteType: "int8",
    st.DoubleType: "double",
    st.FloatType: "float",
    st.IntegerType: "int32",
    st.LongType: "int64",
    st.ShortType: "int16",
    st.StringType: "string",
}
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
    if primitive := _PRIMITIVES.get(type(kind)):
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
    made = F.when(value.isNotNull(), F.struct(*values))
    return {"type": "struct", "fields": fields, "name": path}, made


def _array(value: Column, kind: st.ArrayType, path: str) -> tuple[Schema, Column]:
    schema = _schema(kind.elementType, path)
    items = {**schema, "optional": kind.containsNull}
    return {"type": "array", "items": items}, F.transform(
        value, lambda element: _of(element, kind.elementType, path)[1]
    )


def _map(value: Column, kind: st.MapType, path: str) -> tuple[Schema, Column]:
    if isinstance(kind.keyType, st.StringType):
        values = {**_schema(kind.valueType, path), "optional": kind.valueContainsNull}
        made = F.transform_values(value, lambda key, item: _of(item, kind.valueType, path)[1])
        return {"type": "map", "keys": {"type": "string", "optional": False}, "values": values}, made
    entry = st.StructType().add("key", kind.keyType, False).add("value", kind.valueType, kind.valueContainsNull)
    return _array(F.map_entries(value), st.ArrayType(entry, False), path)


def _schema(kind: st.DataType, path: str) -> Schema:
    """The schema without a value."""
    return _of(F.lit(None), kind, path)[0]
