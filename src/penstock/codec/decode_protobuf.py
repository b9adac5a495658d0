"""Decodes Protobuf records, which follow the id of a schema in a registry, with Google's library in Arrow batches.

Spark's own `from_protobuf` is not published for this Spark version. The schemas are .proto sources in the registry; the
driver compiles them, and workers get the descriptors. A record is read with the schema that it was written with and
converted to the newest schema of its subject, field by field by name.

Only fields that the columns have are read from a message, at any depth. Google's library reads messages up to 100 deep.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError
from pyspark.sql import Column, types as st
from pyspark.sql.pandas.functions import arrow_udf

from penstock.codec.decode_columns import FRAME, NOT_FRAMED, chosen, schemas_of
from penstock.codec.registry import Registry
from penstock.durations import EPOCH
from penstock.errors import PenstockError
from penstock.extras import install
from penstock.spark_runtime.arrow_types import to_arrow_schema

REASON = "_penstock_reason"
PART = 1 << 20
"""Bytes of records to decode into Python objects at a time: a message of two bytes takes a few hundred as an object."""
MOST_NESTED = 100
"""The most message indexes of a nested message; protoc itself allows fewer."""
VARINT = 10
"""The most bytes of a varint (protobuf.dev, "Encoding")."""
MOST_INDEX = (1 << 31) - 1
TIMESTAMP, DATE = "google.protobuf.Timestamp", "google.type.Date"
BUILT_IN = {
    "google/type/date.proto": """syntax = "proto3"; package google.type;
message Date { int32 year = 1; int32 month = 2; int32 day = 3; }""",
    "google/type/timeofday.proto": """syntax = "proto3"; package google.type;
message TimeOfDay { int32 hours = 1; int32 minutes = 2; int32 seconds = 3; int32 nanos = 4; }""",
    "confluent/type/decimal.proto": """syntax = "proto3"; package confluent.type;
message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }""",
    "confluent/meta.proto": """syntax = "proto3"; package confluent; import "google/protobuf/descriptor.proto";
message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; repeated Rule rules = 4; }
message Rule { string name = 1; string doc = 2; string expr = 3; string sql = 4; }
extend google.protobuf.FileOptions { Meta file_meta = 1088; }
extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }""",
}
"""Files that schemas import without a reference: Confluent's own registry and its clients have them."""
MAIN = "the schema.proto"
"""The name of a file that is compiled; no other one has spaces."""
MOST_IMPORTS = 100
MOST_NAME = 255
_FILE_NAME = re.compile(r"(?:(?!\.|-)[\w.-]+(?<!\.proto)/)*(?!\.|-)[\w.-]+\.proto", re.ASCII)

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
"""Converts a message or a value to a value for Arrow."""


@dataclass(frozen=True)
class ProtobufDecoder:
    """Decodes records of the schemas `writers`: compiled files by schema id."""

    schema: st.StructType
    writers: Mapping[int, bytes]

    @classmethod
    def of_subject(cls, registry: Registry, subject: str, wanted: st.StructType | None) -> ProtobufDecoder:
        versions = schemas_of(registry, subject, "PROTOBUF", '"avro" or "json-schema"')
        writers = {number: compiled(text, f"schema {number} at {registry.url}") for number, text in versions}
        where = f"subject {subject} at {registry.url}"
        has = columns_of(writers[versions[-1][0]], None if wanted is None else wanted.names, where)
        return cls(chosen(has, wanted, where), writers)

    def decode(self, value: Column) -> Column:
        kind = st.StructType([*(st.StructField(field.name, field.dataType) for field in self.schema)])
        kind.add(REASON, st.StringType())
        decode = _Decode(self.writers, self.schema)

        # A function with annotations, because Spark derives the kind of the UDF from them.
        def decoded(values: pa.Array) -> pa.Array:
            return decode.all(values)

        udf: Callable[[Column], Column] = arrow_udf(decoded, kind)  # type: ignore[call-overload]
        return udf(value)

    def reason(self, decoded: Column, value: Column) -> Column:
        return decoded.getField(REASON)


def decode_values(of: ProtobufDecoder, values: pa.Array) -> pa.Array:
    """Decode values to a struct of the columns and `REASON`, which is null for a good value."""
    return _Decode(of.writers, of.schema).all(values)


def compiled(text: str, where: str, imports: Mapping[str, str] | None = None) -> bytes:
    """Compile a .proto file and its imports to a serialized FileDescriptorSet, whose last file it is.

    `imports` are the texts of files that it imports, by name; Google's and Confluent's files need not be among them.
    Some clients register a file that is compiled already, as base64; registries other than Confluent's keep it so.
    Raises PenstockError if grpcio-tools is not installed or the file does not compile.
    """
    texts = {**(imports or {}), **BUILT_IN, MAIN: text}
    file_by_name: dict[str, descriptor_pb2.FileDescriptorProto] = {}
    _add(MAIN, texts, file_by_name, where)
    return bytes(descriptor_pb2.FileDescriptorSet(file=list(file_by_name.values())).SerializeToString())


def _add(
    name: str,
    texts: Mapping[str, str],
    file_by_name: dict[str, descriptor_pb2.FileDescriptorProto],
    where: str,
    around: tuple[str, ...] = (),
) -> None:
    """Add the descriptors of a file and of what it imports, which comes first; `around` are files that import it."""
    if name in file_by_name:
        return
    if name in around or len(around) > MOST_IMPORTS:
        raise PenstockError(
            f"the Protobuf schema's imports import each other, or are nested more than {MOST_IMPORTS} deep",
            where=f"{where}, {name[:MOST_NAME]}",
            next="register it without such imports",
        )
    file = _described(texts.get(name, ""))
    if file is None:
        for descriptor in descriptor_pb2.FileDescriptorSet.FromString(_run_protoc(name, texts, where)).file:
            file_by_name.setdefault(descriptor.name, descriptor)
        return
    file.name = name
    for other in file.dependency:
        _add(other, texts, file_by_name, where, (*around, name))
    file_by_name[name] = file


def _described(text: str) -> descriptor_pb2.FileDescriptorProto | None:
    """The file that is registered as base64 of its descriptor; None for the text of a .proto file."""
    try:
        return descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True)) if text else None
    except (ValueError, DecodeError):
        return None


def _run_protoc(name: str, texts: Mapping[str, str], where: str) -> bytes:
    try:
        from grpc_tools import protoc
    except ImportError as missing:
        raise PenstockError(
            "reading Protobuf needs a schema compiler", where=where, next=f"run: {install('protobuf')}"
        ) from missing
    _require_file_names([name, *texts], where)
    with TemporaryDirectory() as folder:
        for path, text in texts.items():
            place = Path(folder, path)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        output = Path(folder, "set of files")
        paths = [f"-I{folder}", f"-I{files('grpc_tools') / '_proto'}"]
        if protoc.main(["protoc", *paths, "--include_imports", f"--descriptor_set_out={output}", name]):
            raise PenstockError(
                "the Protobuf schema cannot be compiled",
                where=where,
                next=f"correct the errors that protoc printed. The schema is {texts.get(name, name)}",
            )
        return output.read_bytes()


def _require_file_names(names: Iterable[str], where: str) -> None:
    """Raises PenstockError for names that are not paths of .proto files below a folder."""
    for name in names:
        if len(name) > MOST_NAME or (name != MAIN and not _FILE_NAME.fullmatch(name)):
            raise PenstockError(
                f"the Protobuf schema imports {name[:MOST_NAME]!r}, which is not the name of a file",
                where=where,
                next="refer to it by a relative path, such as shop/money.proto",
            )


def columns_of(files_of: bytes, wanted: Sequence[str] | None, where: str) -> st.StructType:
    """The columns of the file's first message, or only the columns in `wanted`.

    Raises PenstockError if the type of a column contains itself: Spark has no recursive types.
    """
    message = next(messages_of(files_of))
    fields = [field for field in message.fields if wanted is None or field.name in wanted]
    return st.StructType([st.StructField(field.name, _type(field, (message,), where)) for field in fields])


def messages_of(files_of: bytes) -> Iterator[Descriptor]:
    """The messages at the top of the file, in order."""
    file_set = descriptor_pb2.FileDescriptorSet.FromString(files_of)
    pool = descriptor_pool.DescriptorPool()
    for file in file_set.file:
        pool.Add(file)
    last = file_set.file[-1]
    for message in last.message_type:
        yield pool.FindMessageTypeByName(f"{last.package}.{message.name}".lstrip("."))


def class_at(tops: Sequence[Descriptor], path: list[int]) -> Any:
    """The message class at this path of indexes below the top-level messages; None if there is none."""
    messages, message = tops, None
    for place in path:
        if place >= len(messages):
            return None
        message = messages[place]
        messages = message.nested_types
    return None if message is None else message_factory.GetMessageClass(message)


def _type(field: FieldDescriptor, around: tuple[Descriptor, ...], where: str) -> st.DataType:
    """The column type of a field; `around` are the enclosing messages, the innermost last."""
    if is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return st.MapType(_single(key, around, where), _single(value, (*around, field.message_type), where))
    single = _single(field, around, where)
    return st.ArrayType(single) if field.is_repeated else single


def _single(field: FieldDescriptor, around: tuple[Descriptor, ...], where: str) -> st.DataType:
    if field.message_type is None:
        return _SCALARS.get(field.cpp_type) or (
            st.BinaryType() if field.type == FieldDescriptor.TYPE_BYTES else st.StringType()
        )
    if field.message_type.full_name == TIMESTAMP:
        return st.TimestampType()
    if field.message_type.full_name == DATE:
        return st.DateType()
    if field.message_type in around:
        raise PenstockError(
            f"the field {field.full_name} contains the message {field.message_type.full_name} recursively, "
            "which cannot be a column",
            where=where,
            next="name the columns that you need without it, as in schema='id int, name string', or read it as bytes",
        )
    inner = (*around, field.message_type)
    return st.StructType(
        [st.StructField(member.name, _type(member, inner, where)) for member in field.message_type.fields]
    )


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _reader(field: FieldDescriptor, kind: st.DataType) -> Read:
    """Return a function that reads the field from a message, as far as the column's type needs it.

    If the writer's type differs from the column's, the result does not fit the column and `_array` reports it.
    """
    name = field.name
    if is_map(field):
        value = _value(
            field.message_type.fields_by_name["value"], kind.valueType if isinstance(kind, st.MapType) else kind
        )
        return lambda message: [(key, value(item)) for key, item in getattr(message, name).items()]
    read = _value(field, kind.elementType if isinstance(kind, st.ArrayType) else kind)
    if field.is_repeated:
        return lambda message: [read(item) for item in getattr(message, name)]
    if field.has_presence:
        return lambda message: read(getattr(message, name)) if message.HasField(name) else None
    return lambda message: read(getattr(message, name))


def _value(field: FieldDescriptor, kind: st.DataType) -> Read:
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, str(number))
    if field.message_type is None:
        return lambda value: value
    if field.message_type.full_name == TIMESTAMP:
        return lambda at: EPOCH + timedelta(seconds=at.seconds, microseconds=at.nanos // 1000)
    if field.message_type.full_name == DATE:
        return lambda day: date(day.year, day.month, day.day)
    if not isinstance(kind, st.StructType):
        return lambda message: message
    has = field.message_type.fields_by_name
    readers = {column.name: _reader(has[column.name], column.dataType) for column in kind if column.name in has}
    return lambda message: {name: read(message) for name, read in readers.items()}


class _Decode:
    """Decodes a batch of values to a struct with the columns and a reason."""

    def __init__(self, writers: Mapping[int, bytes], schema: st.StructType) -> None:
        self._writers, self._schema = dict(writers), schema

    def all(self, values: pa.Array) -> pa.Array:
        parts = [self._part(values.slice(first, count)) for first, count in _parts(values)]
        return pa.concat_arrays(parts) if parts else self._part(values)

    def _part(self, values: pa.Array) -> pa.Array:
        kinds = to_arrow_schema(self._schema, timezone="UTC")
        read = [self._row(value) for value in values.to_pylist()]  # the library decodes values one by one
        reasons = [reason for _, reason in read]
        columns = []
        for number, field in enumerate(kinds):
            column, bad = _array([row[number] for row, _ in read], field.type)
            columns.append(column)
            for place in bad:
                kind = self._schema[number].dataType.simpleString()
                reasons[place] = reasons[place] or f"{field.name} is not a valid {kind}"
        return pa.StructArray.from_arrays([*columns, pa.array(reasons, pa.string())], [*kinds.names, REASON])

    def __getstate__(self) -> dict[str, Any]:
        return {"_writers": self._writers, "_schema": self._schema}

    @cached_property
    def _tops(self) -> dict[int, list[Descriptor]]:
        """The top-level messages of each schema; built in the process that uses them."""
        return {number: list(messages_of(files_of)) for number, files_of in self._writers.items()}

    @cached_property
    def _readers(self) -> dict[tuple[str, str], Read | None]:
        return {}

    def _message(self, value: bytes | None) -> tuple[Any, str | None]:
        if value is None:
            return None, None
        if len(value) < FRAME or value[0]:
            return None, NOT_FRAMED
        number = int.from_bytes(value[1:FRAME], "big")
        if number not in self._tops:
            return None, f"the registry had no schema with the id {number} when this query started"
        located = indexes(value, FRAME)
        if located is None:
            return None, f"no valid message indexes after the schema id {number}"
        kind = self._class(number, located[0])
        if kind is None:
            return None, f"the schema {number} has no message {'.'.join(map(str, located[0]))}"
        try:
            return kind.FromString(value[located[1] :]), None
        except DecodeError:
            return None, f"not valid Protobuf for the schema {number}"

    def _class(self, number: int, path: list[int]) -> Any:
        return class_at(self._tops[number], path)

    def _row(self, value: bytes | None) -> tuple[tuple[Any, ...], str | None]:
        """The columns of a record, and the reason if it cannot be read."""
        nothing = (None,) * len(self._schema)
        message, reason = self._message(value)
        if message is None:
            return nothing, reason
        readers = [self._read(message.DESCRIPTOR, column) for column in self._schema]
        try:
            return tuple(None if read is None else read(message) for read in readers), None
        except (OverflowError, ValueError) as error:
            return nothing, f"a time out of range: {error}"

    def _read(self, message: Descriptor, column: st.StructField) -> Read | None:
        place = (f"{id(message)}", column.name)
        if place not in self._readers:
            field = message.fields_by_name.get(column.name)
            self._readers[place] = None if field is None else _reader(field, column.dataType)
        return self._readers[place]


def _parts(values: pa.Array) -> Iterator[tuple[int, int]]:
    """Split the values into parts of about `PART` bytes, or one larger value: the first value and their number."""
    ends = np.cumsum(pc.binary_length(values).fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)
    begin, done = 0, 0
    while begin < len(ends):
        end = max(begin + 1, int(np.searchsorted(ends, done + PART, side="right")))
        yield begin, end - begin
        begin, done = end, int(ends[end - 1])


def _array(values: list[Any], kind: pa.DataType) -> tuple[pa.Array, list[int]]:
    """The values as an array, and the rows of values that do not fit the type, which are null.

    An older schema may have had another type.
    """
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


def indexes(value: bytes, at: int) -> tuple[list[int], int] | None:
    """Confluent's message indexes at `at` and the position after them; a single zero means the first message.

    Returns None if they are not valid: a number does not end within `VARINT` bytes, is negative, or is too large.
    """
    count, at = _varint(value, at)
    if count > MOST_NESTED:
        return None
    path = []
    for _ in range(count):
        index, at = _varint(value, at)
        path.append(index)
    return (path or [0], at) if at >= 0 and count >= 0 and min(path, default=0) >= 0 else None


def _varint(value: bytes, at: int) -> tuple[int, int]:
    """A zigzag varint and the position after it; -1 and -1 if it is incomplete, negative, or exceeds 31 bits."""
    number = 0
    for place, byte in enumerate(value[at : at + VARINT] if at >= 0 else b""):
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            signed = number >> 1 ^ -(number & 1)
            return (signed, at + place + 1) if 0 <= signed <= MOST_INDEX else (-1, -1)
    return -1, -1
