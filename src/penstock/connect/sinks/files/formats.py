"""The formats of files of records: lines of JSON, bytes as they are, and Parquet.

A format collects the values of one file; `add` raises BadRecord for a value that it cannot write, and changes nothing
then.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.codec.connect_schema import Schema
from penstock.connect.records.column_numbers import DOUBLE, FLOAT, binary
from penstock.connect.records.record import DATA, Part, Timestamp, type_name
from penstock.connect.records.semantic_types import DATA as DEBEZIUM, PROTOBUF_TIMESTAMP, TIME
from penstock.connect.sinks.destination import BadRecord

MOST_DIGITS = 38
"""Digits of decimals in Parquet, which all of its readers take."""


class FileFormat(Protocol):
    """Makes the bytes of one file."""

    def add(self, part: Part) -> None:
        """Take a value; raises BadRecord."""

    def fits(self, part: Part) -> bool:
        """Whether a value may be in the same file as those before."""

    def data(self) -> bytes:
        """The bytes of the file."""


_JSON = msgspec.json.Encoder(decimal_format="number")


@dataclass
class JsonLines:
    """JsonFormat: a line per value, as JsonConverter without schemas writes it."""

    numeric: bool
    """Whether decimals are numbers, not the base64 of their digits."""
    _lines: list[bytes] = field(default_factory=list)

    def add(self, part: Part) -> None:
        # A decimal without a schema is a number of JSON, and has no scale for its digits.
        numeric = self.numeric or part.schema is None
        try:
            self._lines.append(_JSON.encode(_plain(part.value, numeric)))
        except RecursionError:
            raise BadRecord("its value is nested too deep") from None
        except UnicodeEncodeError:
            raise BadRecord("its value has half of a pair of surrogates, which UTF-8 cannot have") from None

    def fits(self, part: Part) -> bool:
        return True

    def data(self) -> bytes:
        return b"".join(line + b"\n" for line in self._lines)


def _plain(value: Any, numeric: bool) -> Any:
    """What JSON has: dates and times are numbers, bytes are base64, and numbers that JSON lacks are text."""
    if value is None or type(value) in (str, bool):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    if isinstance(value, int):
        return int(value) if abs(value) < 1 << 63 else Decimal(value)
    if isinstance(value, dict):
        return {_name(name, numeric): _plain(element, numeric) for name, element in value.items()}
    if isinstance(value, list):
        return [_plain(element, numeric) for element in value]
    if isinstance(value, Decimal):
        return value if numeric else base64.b64encode(_unscaled(value)).decode()
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _name(name: Any, numeric: bool) -> str:
    return name if isinstance(name, str) else _JSON.encode(_plain(name, numeric)).decode()


def _unscaled(value: Decimal) -> bytes:
    """The digits as Connect has them: a number without its scale, as bytes."""
    sign, digits, _ = value.as_tuple()
    number = int("".join(map(str, digits)) or "0") * (-1 if sign else 1)
    return number.to_bytes((number if number >= 0 else ~number).bit_length() // 8 + 1, "big", signed=True)


@dataclass
class ByteLines:
    """ByteArrayFormat: the bytes of values, a line end after each."""

    _values: list[bytes] = field(default_factory=list)

    def add(self, part: Part) -> None:
        if not isinstance(part.value, bytes):
            kind = type_name(part.value)
            raise BadRecord(f"its value is {kind}, and ByteArrayFormat writes bytes: set ByteArrayConverter")
        self._values.append(part.value)

    def fits(self, part: Part) -> bool:
        return True

    def data(self) -> bytes:
        return b"".join(value + b"\n" for value in self._values)


@dataclass
class ParquetRows:
    """ParquetFormat: a row per struct, with the columns of its schema."""

    codec: str
    columns: Callable[[Schema], pa.Schema]
    _schema: Schema | None = None
    _rows: list[pa.RecordBatch] = field(default_factory=list)

    def add(self, part: Part) -> None:
        if part.schema is None or part.schema["type"] != "struct" or not isinstance(part.value, dict):
            raise BadRecord("its value is no struct with a schema, which ParquetFormat needs")
        columns = self.columns(part.schema)
        try:
            row = [pa.array([_stored(part.value.get(column.name), column.type)], column.type) for column in columns]
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise BadRecord(f"its value does not fit the columns of Parquet: {error}") from None
        self._schema = part.schema
        self._rows.append(pa.RecordBatch.from_arrays(row, schema=columns))

    def fits(self, part: Part) -> bool:
        return self._schema is None or part.schema is self._schema or part.schema == self._schema

    def data(self) -> bytes:
        buffer = io.BytesIO()
        pq.write_table(pa.Table.from_batches(self._rows).combine_chunks(), buffer, compression=self.codec)
        return buffer.getvalue()


def columns_of(schema: Schema) -> pa.Schema:
    """The columns of a struct; raises BadRecord."""
    return pa.schema([pa.field(field["field"], _arrow_type(field)) for field in schema["fields"]])


def _arrow_type(schema: Schema) -> pa.DataType:
    kind, name = schema["type"], str(schema.get("name") or "")
    if name == f"{DATA}Decimal":
        return pa.decimal128(MOST_DIGITS, int(schema["parameters"]["scale"]))
    if (kind, name) in _NAMED:
        return _NAMED[kind, name]
    if kind == "array":
        return pa.list_(_arrow_type(schema["items"]))
    if kind == "map":
        return pa.map_(_arrow_type(schema["keys"]), _arrow_type(schema["values"]))
    if kind == "struct":
        return pa.struct([(field["field"], _arrow_type(field)) for field in schema["fields"]])
    if kind not in _PRIMITIVES:
        raise BadRecord(f"its schema has the type {kind[:80]!r}, which ParquetFormat does not have")
    return _PRIMITIVES[kind]


def _stored(value: Any, kind: pa.DataType) -> Any:
    """The value as Arrow takes it for a type."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return [(_stored(key, kind.key_type), _stored(element, kind.item_type)) for key, element in value.items()]
    if pa.types.is_list(kind):
        return [_stored(element, kind.value_type) for element in value]
    if pa.types.is_struct(kind):
        return {member.name: _stored(value.get(member.name), member.type) for member in kind}
    if pa.types.is_timestamp(kind) and isinstance(value, Timestamp):
        return value.count_of(_NANOS[kind.unit])
    if pa.types.is_floating(kind) and isinstance(value, int | float | Decimal):
        return binary(value, FLOAT if kind == pa.float32() else DOUBLE)
    return str(value) if pa.types.is_string(kind) and isinstance(value, Decimal) else value


_NANOS = {"ms": 1_000_000, "us": 1_000, "ns": 1}
_PRIMITIVES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
_NAMED: dict[tuple[str, str], pa.DataType] = {
    ("int32", f"{DATA}Date"): pa.date32(),
    ("int32", f"{DATA}Time"): pa.time32("ms"),
    ("int64", f"{DATA}Timestamp"): pa.timestamp("ms", "UTC"),
    ("int32", f"{TIME}Date"): pa.date32(),
    ("int32", f"{TIME}Time"): pa.time32("ms"),
    ("int64", f"{TIME}MicroTime"): pa.time64("us"),
    ("int64", f"{TIME}NanoTime"): pa.time64("ns"),
    ("int64", f"{TIME}Timestamp"): pa.timestamp("ms"),
    ("int64", f"{TIME}MicroTimestamp"): pa.timestamp("us"),
    ("int64", f"{TIME}NanoTimestamp"): pa.timestamp("ns"),
    # Nanoseconds in 64 bits end in the year 2262.
    ("int64", PROTOBUF_TIMESTAMP): pa.timestamp("us", "UTC"),
    ("struct", f"{DEBEZIUM}VariableScaleDecimal"): pa.string(),
}
"""Types of values whose schema has one of these names."""
