"""Protobuf in which null and empty differ, for events that must arrive as they were.

Protobuf's repeated fields have no null, and no null inside. So a list is a message here, with the field `values`, and
an element that may be null, or is a list itself, is a message with the field `value`. Dates and timestamps are plain
numbers: Google's messages for them have only the years 1 to 9999. `wrapped` is the schema of this form, and `unwrapped`
turns decoded columns back.

Records are encoded with Google's library, in Arrow batches. As expressions of Spark's (`codec.protobuf`), the members
of such an event take seconds to plan, in each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, functions as F, types as st
from pyspark.sql.pandas.functions import arrow_udf

from penstock.codec.avro import field_name
from penstock.codec.connect_schema import Schema, require_told_apart
from penstock.codec.decode_protobuf import class_at, compiled, messages_of
from penstock.codec.protobuf import FIRST_MESSAGE, protobuf_schema
from penstock.codec.registry import Subjects
from penstock.codec.typed_records import RecordPart, Side

VALUE, VALUES = "value", "values"
PART = 1000
"""Rows that are Python objects at a time."""


@dataclass(frozen=True)
class ExactProtobuf:
    """Protobuf in the form of `wrapped`, after the id of its schema."""

    subjects: Subjects

    def encode(self, part: RecordPart, *, topic: str, side: Side) -> Column:
        require_told_apart(part.schema)
        text = protobuf_schema(wrapped(part.schema))
        encoder = _Encoder(part.schema, compiled(text, f"the {side} of {topic}"))

        # A function with annotations, because Spark derives the kind of the UDF from them.
        def encoded(payloads: pa.Array) -> pa.Array:
            return encoder.all(payloads)

        udf: Callable[[Column], Column] = arrow_udf(encoded, st.BinaryType())  # type: ignore[call-overload]
        return self.subjects.framed(udf(part.payload), text, "PROTOBUF", topic=topic, side=side, schema=part.schema)


@dataclass
class _Encoder:
    """Encodes payloads of `schema`; `files` is the compiled form of `wrapped(schema)`."""

    schema: Schema
    files: bytes

    def __getstate__(self) -> dict[str, Any]:
        """Without the message class, which each process makes."""
        return {"schema": self.schema, "files": self.files}

    @cached_property
    def _message(self) -> Any:
        return class_at(list(messages_of(self.files)), [0])

    def all(self, payloads: pa.Array) -> pa.Array:
        parts = (payloads.slice(first, PART).to_pylist() for first in range(0, len(payloads), PART))
        return pa.array([self._one(payload) for part in parts for payload in part], pa.binary())

    def _one(self, payload: Mapping[str, Any] | None) -> bytes | None:
        if payload is None:
            return None
        message = self._message()
        _fill(message, self.schema, payload)
        return FIRST_MESSAGE + bytes(message.SerializeToString())


def _fill(message: Any, schema: Schema, value: Mapping[str, Any]) -> None:
    for field in schema["fields"]:
        if (member := value[field["field"]]) is not None:
            _put(message, field_name(field["field"]), field, member)


def _put(message: Any, name: str, schema: Schema, value: Any) -> None:
    """Set a field to a value that is not null."""
    if schema["type"] not in ("struct", "array"):
        setattr(message, name, value)
        return
    inner = getattr(message, name)
    inner.SetInParent()
    if schema["type"] == "struct":
        _fill(inner, schema, value)
        return
    for item in value:
        _add(getattr(inner, VALUES), schema["items"], item)


def _add(repeated: Any, schema: Schema, item: Any) -> None:
    if schema["optional"]:
        entry = repeated.add()
        if item is not None:
            _put(entry, VALUE, schema, item)
    elif schema["type"] == "struct":
        _fill(repeated.add(), schema, item)
    else:
        repeated.append(item)


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


def _has_lists(schema: Schema) -> bool:
    return schema["type"] == "array" or any(map(_has_lists, schema.get("fields", ())))


def unwrapped(value: Column, source_type: st.DataType, schema: Schema) -> Column:
    """A decoded value of type `source_type`, which is that of `wrapped(schema)` or an older one, as of `schema`.

    Fields that `schema` does not have are left out.
    """
    if not _has_lists(schema) or not isinstance(source_type, st.StructType):
        return value
    if schema["type"] == "struct":
        known: dict[str, Any] = {field_name(field["field"]): field for field in schema["fields"]}
        fields = [
            unwrapped(value.getField(field.name), field.dataType, known[field.name]).alias(field.name)
            for field in source_type
            if field.name in known
        ]
        return F.when(value.isNotNull(), F.struct(*fields))
    inner = source_type[VALUES].dataType
    assert isinstance(inner, st.ArrayType)
    # A list without elements is not in the message.
    values = F.coalesce(value.getField(VALUES), F.array().cast(inner))
    return F.when(value.isNotNull(), F.transform(values, lambda item: _bare(item, inner.elementType, schema["items"])))


def bare_type(source_type: st.DataType, schema: Schema) -> st.DataType:
    """The type of what `unwrapped` returns."""
    if not _has_lists(schema) or not isinstance(source_type, st.StructType):
        return source_type
    if schema["type"] == "struct":
        known: dict[str, Any] = {field_name(field["field"]): field for field in schema["fields"]}
        fields = [
            (field.name, bare_type(field.dataType, known[field.name])) for field in source_type if field.name in known
        ]
        return st.StructType([st.StructField(name, kind) for name, kind in fields])
    inner, items = source_type[VALUES].dataType, schema["items"]
    assert isinstance(inner, st.ArrayType)
    item = inner.elementType
    if items["optional"]:
        assert isinstance(item, st.StructType)
        item = item[VALUE].dataType
    return st.ArrayType(bare_type(item, items))


def _bare(item: Column, source_type: st.DataType, schema: Schema) -> Column:
    if not schema["optional"]:
        return unwrapped(item, source_type, schema)
    assert isinstance(source_type, st.StructType)
    return unwrapped(item.getField(VALUE), source_type[VALUE].dataType, schema)
