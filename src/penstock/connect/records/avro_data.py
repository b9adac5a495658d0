"""Reads Avro in Confluent's wire format as Kafka Connect's AvroConverter does: schemas of the registry, and values.

Besides the converter's own types, times of day and timestamps in microseconds or nanoseconds are read as Debezium's
types of such times, which have all their digits, and a union of several types as the value that it has.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Any

from penstock.codec.avro_value import PRIMITIVES, AvroReader, AvroSchema, NotAvro
from penstock.codec.connect_schema import Schema
from penstock.codec.registry import Registry, RegistryUnavailable
from penstock.connect.records.json_data import decimal_of
from penstock.connect.records.record import DATA, NOTHING, Date, NoValue, Part, TimeOfDay, Timestamp
from penstock.connect.records.semantic_types import TIME, MicroTime, MicroTimestamp, NanoTime, NanoTimestamp
from penstock.errors import PenstockError

HEAD = 5
"""Bytes before a value: zero, and the schema's id."""
_TYPES = {
    "boolean": "boolean",
    "int": "int32",
    "long": "int64",
    "float": "float",
    "double": "double",
    "bytes": "bytes",
    "string": "string",
    "fixed": "bytes",
    "enum": "string",
}


@dataclass(frozen=True)
class AvroBytes:
    """AvroConverter."""

    registry: Registry

    def __call__(self, data: bytes | None) -> Part:
        if data is None:
            return NOTHING
        avro, schema = _schema(self.registry, schema_id(data))
        try:
            return Part(schema, avro.value(data[HEAD:], ConnectReader))
        except NotAvro as error:
            raise NoValue(f"it is not a value of its schema: {error}") from None


def schema_id(data: bytes) -> int:
    """The id in Confluent's wire format; raises NoValue."""
    if len(data) < HEAD or data[0]:
        raise NoValue("it does not begin with the id of a schema (Confluent's wire format)")
    return int.from_bytes(data[1:HEAD], "big")


@lru_cache(maxsize=1000)
def _schema(registry: Registry, number: int) -> tuple[AvroSchema, Schema | None]:
    try:
        text, kind = registry.schema(number)
        if kind != "AVRO":
            raise NoValue(f"its schema {number} is of {kind}")
        avro = AvroSchema.of(text)
    except RegistryUnavailable:
        raise
    except PenstockError as error:
        raise NoValue(f"its schema {number} cannot be read: {error.what}") from None
    except NotAvro as error:
        raise NoValue(f"its schema {number} cannot be read: {error}") from None
    return avro, connect_schema(avro)


def connect_schema(avro: AvroSchema) -> Schema | None:
    """Connect's schema; None for a union of several types, and for what contains itself."""
    return _Schemas(avro).of(avro.root, optional=False, depth=0)


@dataclass
class _Schemas:
    """Connect's schemas of the types in a schema; those of records are created once, with None meanwhile."""

    avro: AvroSchema
    records: dict[int, Schema | None] = field(default_factory=dict)

    def of(self, kind: Any, *, optional: bool, depth: int) -> Schema | None:
        if isinstance(kind, str) and kind not in PRIMITIVES:
            kind = self.avro.names[kind]
        if isinstance(kind, list):
            others = [member for member in kind if member != "null"]
            null = optional or len(others) < len(kind)
            return self.of(others[0], optional=null, depth=depth) if len(others) == 1 else None
        about = kind if isinstance(kind, dict) else {"type": kind}
        if depth > 32 or about["type"] == "null":
            return None
        schema = self._of_type(about, depth + 1)
        return None if schema is None else {**schema, "optional": optional}

    def _of_type(self, about: dict[str, Any], depth: int) -> Schema | None:
        kind = about["type"]
        if kind == "record":
            if id(about) not in self.records:
                self.records[id(about)] = None
                self.records[id(about)] = self._struct(about, depth)
            return self.records[id(about)]
        if kind == "array":
            items = self.of(about["items"], optional=False, depth=depth)
            return None if items is None else {"type": "array", "items": items}
        if kind == "map":
            values = self.of(about["values"], optional=False, depth=depth)
            return None if values is None else {"type": "map", "keys": {"type": "string"}, "values": values}
        name = _logical_name(about) or about.get("connect.name")
        return {"type": about.get("connect.type") or _TYPES[kind], **({"name": name} if name else {})}

    def _struct(self, about: dict[str, Any], depth: int) -> Schema:
        fields = [(name, self.of(kind, optional=False, depth=depth)) for name, kind in about["fields"]]
        # A field without a schema has a value, for which no column can be made.
        members = [{**(schema or {"type": ""}), "field": name} for name, schema in fields]
        return {"type": "struct", "name": about.get("connect.name") or about["full_name"], "fields": members}


def _logical_name(about: dict[str, Any]) -> str:
    """The name of the logical type; "" if it has none."""
    logical = str(about.get("logicalType"))
    return _NAMES.get(logical, "") or (_TIMES[logical][0] if logical in _TIMES else "")


_NAMES = {"decimal": f"{DATA}Decimal", "date": f"{DATA}Date"}
_TIMES: dict[str, tuple[str, type[int]]] = {
    "time-millis": (f"{DATA}Time", TimeOfDay),
    "time-micros": (f"{TIME}MicroTime", MicroTime),
    "time-nanos": (f"{TIME}NanoTime", NanoTime),
    **{
        f"{name}-{unit}": named_class
        for name in ("timestamp", "local-timestamp")
        for unit, named_class in {
            "millis": (f"{DATA}Timestamp", Timestamp),
            "micros": (f"{TIME}MicroTimestamp", MicroTimestamp),
            "nanos": (f"{TIME}NanoTimestamp", NanoTimestamp),
        }.items()
    },
}
"""By Avro's logical type, the name in the schema and the class of its values."""


class ConnectReader(AvroReader):
    """Reads values as Connect has them."""

    def number(self, value: float) -> float:
        return value

    def shown(self, value: Any) -> Any:
        return value

    def logical(self, schema: dict[str, Any], value: Any) -> Any:
        logical = schema.get("logicalType")
        if logical == "decimal" and isinstance(value, bytes):
            return _decimal(schema, value)
        if logical == "date":
            return Date(value)
        if logical in _TIMES and isinstance(value, int):
            return _TIMES[logical][1](value)
        return value


def _decimal(schema: dict[str, Any], value: bytes) -> Decimal:
    try:
        return decimal_of(value, int(schema.get("scale", 0)))
    except (TypeError, ValueError):
        raise NotAvro("the schema has a decimal whose scale is no number") from None
