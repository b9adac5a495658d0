"""Protobuf in which null and empty differ, for events that must arrive as they were.

Protobuf's repeated fields have no null, and no null inside. So a list is a message here, with the field `values`, and
an element that may be null, or is a list itself, is a message with the field `value`. Dates and timestamps are plain
numbers: Google's messages for them have only the years 1 to 9999. `wrapped` and `unwrapped` turn schemas, values and
decoded columns into this form and back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column, functions as F, types as st

from penstock.codec.avro import field_name
from penstock.codec.connect_schema import Schema
from penstock.codec.protobuf import Protobuf
from penstock.codec.typed_records import RecordPart, Side

VALUE, VALUES = "value", "values"


@dataclass(frozen=True)
class ExactProtobuf:
    """Encodes as `Protobuf` does, after `wrapped`."""

    plain: Protobuf

    def encode(self, part: RecordPart, *, topic: str, side: Side) -> Column:
        whole = replace(part, payload=_value(part.payload, part.schema), schema=wrapped(part.schema))
        return self.plain.encode(whole, topic=topic, side=side)


def wrapped(schema: Schema) -> Schema:
    """The schema with a message for each list."""
    if schema["type"] == "struct":
        return {**schema, "fields": [wrapped(field) for field in schema["fields"]]}
    if schema["type"] == "array":
        values: Schema = {"type": "array", "items": _item_schema(schema["items"]), "optional": False, "field": VALUES}
        return _named({"type": "struct", "fields": [values], "optional": schema["optional"]}, schema)
    return _named({"type": schema["type"], "optional": schema["optional"]}, schema)


def _item_schema(items: Schema) -> Schema:
    if not items["optional"]:
        return wrapped(items)
    return {"type": "struct", "fields": [{**wrapped(items), "field": VALUE}], "optional": False}


def _named(schema: Schema, of: Schema) -> Schema:
    """The schema of a field has its name."""
    return {**schema, "field": of["field"]} if "field" in of else schema


def _value(value: Column, schema: Schema) -> Column:
    """A value of `schema` in the form of `wrapped(schema)`."""
    if not _has_lists(schema):
        return value
    if schema["type"] == "struct":
        fields = [_value(value.getField(one["field"]), one).alias(one["field"]) for one in schema["fields"]]
        return F.when(value.isNotNull(), F.struct(*fields))
    items = F.transform(value, lambda item: _item(item, schema["items"]))
    return F.when(value.isNotNull(), F.struct(items.alias(VALUES)))


def _item(item: Column, schema: Schema) -> Column:
    made = _value(item, schema)
    return F.struct(made.alias(VALUE)) if schema["optional"] else made


def _has_lists(schema: Schema) -> bool:
    return schema["type"] == "array" or any(map(_has_lists, schema.get("fields", ())))


def unwrapped(value: Column, given: st.DataType, schema: Schema) -> Column:
    """A decoded value of type `given`, which is that of `wrapped(schema)` or of an older version of it, as of `schema`.

    Fields that `schema` does not have are left out.
    """
    if not _has_lists(schema) or not isinstance(given, st.StructType):
        return value
    if schema["type"] == "struct":
        known: dict[str, Any] = {field_name(one["field"]): one for one in schema["fields"]}
        fields = [
            unwrapped(value.getField(one.name), one.dataType, known[one.name]).alias(one.name)
            for one in given
            if one.name in known
        ]
        return F.when(value.isNotNull(), F.struct(*fields))
    inner = given[VALUES].dataType
    assert isinstance(inner, st.ArrayType)
    # A list without elements is not in the message.
    values = F.coalesce(value.getField(VALUES), F.array().cast(inner))
    return F.when(value.isNotNull(), F.transform(values, lambda item: _bare(item, inner.elementType, schema["items"])))


def bare_type(given: st.DataType, schema: Schema) -> st.DataType:
    """The type of what `unwrapped` returns."""
    if not _has_lists(schema) or not isinstance(given, st.StructType):
        return given
    if schema["type"] == "struct":
        known: dict[str, Any] = {field_name(one["field"]): one for one in schema["fields"]}
        fields = [(one.name, bare_type(one.dataType, known[one.name])) for one in given if one.name in known]
        return st.StructType([st.StructField(name, kind) for name, kind in fields])
    inner, items = given[VALUES].dataType, schema["items"]
    assert isinstance(inner, st.ArrayType)
    item = inner.elementType
    if items["optional"]:
        assert isinstance(item, st.StructType)
        item = item[VALUE].dataType
    return st.ArrayType(bare_type(item, items))


def _bare(item: Column, given: st.DataType, schema: Schema) -> Column:
    if not schema["optional"]:
        return unwrapped(item, given, schema)
    assert isinstance(given, st.StructType)
    return unwrapped(item.getField(VALUE), given[VALUE].dataType, schema)
