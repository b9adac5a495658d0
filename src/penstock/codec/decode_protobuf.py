"""Protobuf records as columns, behind the ids of schemas in a registry: decoded by Google's library in Arrow batches.

Spark's own `from_protobuf` is not published for this Spark. The schemas, which a registry has as text, are compiled on
the driver; workers get the descriptors. A record is read with the schema that it was written with and comes out in the
newest of its subject, field by field by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError
from pyspark.sql import Column
from pyspark.sql import types as st
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.codec.decode import FRAME, NOT_FRAMED, chosen, schemas_of
from penstock.codec.registry import Registry
from penstock.errors import PenstockError

REASON = "_penstock_reason"
TIMESTAMP, DATE = "google.protobuf.Timestamp", "google.type.Date"
DATE_FILE = 'syntax = "proto3"; package google.type; message Date { int32 year = 1; int32 month = 2; int32 day = 3; }'
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_SCALARS: dict[int, st.DataType] = {
    FieldDescriptor.CPPTYPE_BOOL: st.BooleanType(),
    FieldDescriptor.CPPTYPE_DOUBLE: st.DoubleType(),
    FieldDescriptor.CPPTYPE_ENUM: st.StringType(),
    FieldDescriptor.CPPTYPE_FLOAT: st.FloatType(),
    FieldDescriptor.CPPTYPE_INT32: st.IntegerType(),
    FieldDescriptor.CPPTYPE_INT64: st.LongType(),
    FieldDescriptor.CPPTYPE_UINT32: st.LongType(),
    FieldDescriptor.CPPTYPE_UINT64: st.DecimalType(20, 0),
}
Read = Callable[[Any], Any]
"""From a message or a value to what Arrow takes."""


@dataclass(frozen=True)
class Protobuf:
    """Records of the `writers`, compiled files by the ids of their schemas."""

    schema: st.StructType
    writers: Mapping[int, bytes]

    @classmethod
    def of_subject(cls, registry: Registry, subject: str, wanted: st.StructType | None) -> Protobuf:
        found = schemas_of(registry, subject, "PROTOBUF", '"avro" or "json-schema"')
        writers = {number: compiled(text, f"schema {number} at {registry.url}") for number, text in found}
        has = _struct(_first(writers[found[-1][0]]))
        return cls(chosen(has, wanted, f"subject {subject} at {registry.url}"), writers)

    def decode(self, value: Column) -> Column:
        kind = st.StructType([*(st.StructField(one.name, one.dataType) for one in self.schema)])
        kind.add(REASON, st.StringType())
        decode = _Decode(self.writers, self.schema)

        # A function with types, because Spark reads from it what it is given and gives.
        def decoded(values: pa.Array) -> pa.Array:
            return decode.all(values)

        udf: Callable[[Column], Column] = arrow_udf(decoded, kind)  # type: ignore[call-overload]
        return udf(value)

    def fields(self, decoded: Column) -> list[Column]:
        return [decoded.getField(name).alias(name) for name in self.schema.names]

    def reason(self, decoded: Column, value: Column) -> Column:
        return decoded.getField(REASON)


def compiled(text: str, where: str) -> bytes:
    """A .proto file with all that it imports, as a serialized FileDescriptorSet."""
    try:
        from grpc_tools import protoc
    except ImportError as missing:
        raise PenstockError(
            "reading Protobuf needs a compiler of its schemas", where=where, next="run: pip install penstock[protobuf]"
        ) from missing
    with TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "google/type").mkdir(parents=True)
        (place / "google/type/date.proto").write_text(DATE_FILE)
        (place / "one.proto").write_text(text)
        paths = [f"-I{folder}", f"-I{files('grpc_tools') / '_proto'}"]
        command = ["protoc", *paths, "--include_imports", f"--descriptor_set_out={folder}/set", "one.proto"]
        if protoc.main(command):
            raise PenstockError(
                "the Protobuf schema cannot be compiled", where=where, next=f"see what protoc printed. It is {text}"
            )
        return (place / "set").read_bytes()


def _first(files_of: bytes) -> Descriptor:
    return next(_messages(files_of))


def _messages(files_of: bytes) -> Iterator[Descriptor]:
    """The messages at the top of the file, in order."""
    found = descriptor_pb2.FileDescriptorSet.FromString(files_of)
    pool = descriptor_pool.DescriptorPool()
    for file in found.file:
        pool.Add(file)
    last = found.file[-1]
    for message in last.message_type:
        yield pool.FindMessageTypeByName(f"{last.package}.{message.name}".lstrip("."))


def _struct(message: Descriptor) -> st.StructType:
    return st.StructType([st.StructField(field.name, _type(field)) for field in message.fields])


def _type(field: FieldDescriptor) -> st.DataType:
    if _is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return st.MapType(_single(key), _single(value))
    return st.ArrayType(_single(field)) if field.is_repeated else _single(field)


def _single(field: FieldDescriptor) -> st.DataType:
    if field.message_type is None:
        return _SCALARS.get(field.cpp_type) or (
            st.BinaryType() if field.type == FieldDescriptor.TYPE_BYTES else st.StringType()
        )
    if field.message_type.full_name == TIMESTAMP:
        return st.TimestampType()
    return st.DateType() if field.message_type.full_name == DATE else _struct(field.message_type)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _reader(field: FieldDescriptor) -> Read:
    """From a message that has the field to its value."""
    name = field.name
    if _is_map(field):
        value = _value(field.message_type.fields_by_name["value"])
        return lambda message: [(key, value(item)) for key, item in getattr(message, name).items()]
    read = _value(field)
    if field.is_repeated:
        return lambda message: [read(item) for item in getattr(message, name)]
    if field.has_presence:
        return lambda message: read(getattr(message, name)) if message.HasField(name) else None
    return lambda message: read(getattr(message, name))


def _value(field: FieldDescriptor) -> Read:
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, str(number))
    if field.message_type is None:
        return lambda value: value
    if field.message_type.full_name == TIMESTAMP:
        return lambda at: EPOCH + timedelta(seconds=at.seconds, microseconds=at.nanos // 1000)
    if field.message_type.full_name == DATE:
        return lambda day: date(day.year, day.month, day.day)
    readers = {one.name: _reader(one) for one in field.message_type.fields}
    return lambda message: {name: read(message) for name, read in readers.items()}


class _Decode:
    """A batch of values to a struct with the columns and a reason."""

    def __init__(self, writers: Mapping[int, bytes], schema: st.StructType) -> None:
        self._writers, self._schema = dict(writers), schema

    def all(self, values: pa.Array) -> pa.Array:
        kinds = to_arrow_schema(self._schema, timezone="UTC")
        read = [self._row(value) for value in values.to_pylist()]  # the library has its values one by one
        reasons = [reason for _, reason in read]
        columns = []
        for number, field in enumerate(kinds):
            column, bad = _array([row[number] for row, _ in read], field.type)
            columns.append(column)
            for place in bad:
                reasons[place] = reasons[place] or f"{field.name} is no {self._schema[number].dataType.simpleString()}"
        return pa.StructArray.from_arrays([*columns, pa.array(reasons, pa.string())], [*kinds.names, REASON])

    def __getstate__(self) -> dict[str, Any]:
        return {"_writers": self._writers, "_schema": self._schema}

    @cached_property
    def _classes(self) -> dict[int, list[Any]]:
        """Messages of each schema; made in the process that uses them."""
        return {
            number: [message_factory.GetMessageClass(one) for one in _messages(files_of)]
            for number, files_of in self._writers.items()
        }

    @cached_property
    def _readers(self) -> dict[tuple[str, str], Read | None]:
        return {}

    def _message(self, value: bytes | None) -> tuple[Any, str | None]:
        if value is None:
            return None, None
        if len(value) < FRAME or value[0]:
            return None, NOT_FRAMED
        number = int.from_bytes(value[1:FRAME], "big")
        if number not in self._classes:
            return None, f"no schema with the id {number} in the registry when this query began"
        try:
            path, start = _indexes(value)
            return self._class(number, path).FromString(value[start:]), None
        except (DecodeError, IndexError):
            return None, f"no Protobuf of the schema {number}"

    def _class(self, number: int, path: list[int]) -> Any:
        found = self._classes[number][path[0]]
        for place in path[1:]:
            found = message_factory.GetMessageClass(found.DESCRIPTOR.nested_types[place])
        return found

    def _row(self, value: bytes | None) -> tuple[tuple[Any, ...], str | None]:
        """The columns of a record, and what is wrong with it."""
        nothing = (None,) * len(self._schema)
        message, reason = self._message(value)
        if message is None:
            return nothing, reason
        readers = [self._read(message.DESCRIPTOR, name) for name in self._schema.names]
        try:
            return tuple(None if read is None else read(message) for read in readers), None
        except (OverflowError, ValueError) as error:
            return nothing, f"a time out of range: {error}"

    def _read(self, message: Descriptor, name: str) -> Read | None:
        place = (f"{id(message)}", name)
        if place not in self._readers:
            field = message.fields_by_name.get(name)
            self._readers[place] = None if field is None else _reader(field)
        return self._readers[place]


def _array(values: list[Any], kind: pa.DataType) -> tuple[pa.Array, list[int]]:
    """The values, and where they are none of the type, which older schemas may have had otherwise; those are null."""
    try:
        return pa.array(values, kind), []
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        bad = [place for place, value in enumerate(values) if not _fits(value, kind)]
        wrong = set(bad)
        return pa.array([None if place in wrong else value for place, value in enumerate(values)], kind), bad


def _fits(value: Any, kind: pa.DataType) -> bool:
    try:
        pa.scalar(value, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return False
    return True


def _indexes(value: bytes) -> tuple[list[int], int]:
    """Which message of the file follows, and where: Confluent's path of indexes, zero alone for the first message."""
    count, at = _varint(value, FRAME)
    path = []
    for _ in range(count):
        index, at = _varint(value, at)
        path.append(index)
    return path or [0], at


def _varint(value: bytes, at: int) -> tuple[int, int]:
    """A number in zigzag order, and where it ends."""
    number, shift = 0, 0
    while value[at] & 0x80:
        number |= (value[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    number |= value[at] << shift
    return number >> 1 ^ -(number & 1), at + 1
