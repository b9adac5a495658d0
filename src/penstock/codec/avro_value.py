"""Reads one Avro value for people: as plain Python values, with the times and decimals of logical types as text.

It reads bytes of strangers: nothing is allocated for what a length or a count only announces, and depth and number of
values are limited. The libraries for Avro in Python do not hold these limits: one ends the process on a value that is
nested deep, both make a list as long as its count says. The format is "Apache Avro Specification", 1.12.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from penstock.durations import EPOCH

MOST_DEPTH = 64
"""How deep a schema or a value may be nested."""
MOST_VALUES = 200_000
"""How many values one record may have: an array of nulls takes no bytes."""
MOST_TEXT = 4 << 20
"""How many characters of a value may come from its schema: a record of no bytes has the names of its fields."""
MOST_SCALE = 1000
"""Digits after the point up to which a decimal is written without an exponent."""
VARINT = 10
"""The most bytes of a number."""
PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
NAMED = ("record", "error", "enum", "fixed")
PER_SECOND = {"millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}


class NotAvro(ValueError):
    """The schema is not Avro's, or the bytes are not a value of it."""


@dataclass(frozen=True)
class AvroSchema:
    """A schema, and the named types in it by their full names."""

    root: Any
    names: Mapping[str, Any]

    @classmethod
    def of(cls, text: str) -> AvroSchema:
        """Raises `NotAvro` if the text is not a schema."""
        try:
            read = json.loads(text)
        except (ValueError, RecursionError):
            raise NotAvro("the schema is not valid JSON") from None
        names: dict[str, Any] = {}
        return cls(_resolved(read, "", names, 0), names)

    def value(self, data: bytes, reads: type[AvroReader] | None = None) -> Any:
        """The value that these bytes are, all of them; raises `NotAvro`. `reads` reads its values in another way."""
        reader = (reads or AvroReader)(data, self.names)
        value = reader.read(self.root, 0)
        if reader.at != len(data):
            raise NotAvro(f"{len(data) - reader.at} bytes are left over after the value")
        return value


def _resolved(schema: Any, space: str, names: dict[str, Any], depth: int) -> Any:
    """The schema with the full names of named types; fills `names`."""
    if depth > MOST_DEPTH:
        raise NotAvro(f"the schema is nested more than {MOST_DEPTH} deep")
    if isinstance(schema, str):
        full = schema if schema in PRIMITIVES or "." in schema or not space else f"{space}.{schema}"
        full = full if full in PRIMITIVES or full in names else schema
        if full not in PRIMITIVES and full not in names:
            raise NotAvro(f"the schema does not define the type {schema[:80]}")
        return full
    if isinstance(schema, list):
        return [_resolved(branch, space, names, depth + 1) for branch in schema]
    if not isinstance(schema, dict):
        raise NotAvro(f"the schema has the type {str(schema)[:80]}")
    kind = schema.get("type")
    if kind in NAMED:
        return _named(schema, space, names, depth)
    if kind == "array":
        return {"type": "array", "items": _resolved(schema.get("items"), space, names, depth + 1)}
    if kind == "map":
        return {"type": "map", "values": _resolved(schema.get("values"), space, names, depth + 1)}
    inner = _resolved(kind, space, names, depth + 1)
    return {**schema, "type": inner} if isinstance(inner, str) and inner in PRIMITIVES else inner


def _named(schema: dict[str, Any], space: str, names: dict[str, Any], depth: int) -> Any:
    name = schema.get("name")
    if not isinstance(name, str):
        raise NotAvro("a record, enum or fixed in the schema has no name")
    space = name.rpartition(".")[0] or str(schema.get("namespace", space) or "")
    full = name if "." in name or not space else f"{space}.{name}"
    kind = "record" if schema["type"] == "error" else schema["type"]
    resolved: dict[str, Any] = {**schema, "type": kind, "full_name": full}
    names[full] = resolved
    if resolved["type"] == "record":
        fields = _list(schema, "fields")
        resolved["fields"] = [
            (str(field.get("name")), _resolved(field.get("type"), space, names, depth + 1))
            for field in fields
            if isinstance(field, dict)
        ]
        resolved["width"] = sum(len(name) for name, _ in resolved["fields"])
    elif resolved["type"] == "enum":
        resolved["symbols"] = [str(symbol) for symbol in _list(schema, "symbols")]
    elif not isinstance(schema.get("size"), int) or schema["size"] < 0:
        raise NotAvro(f"the fixed {full[:80]} in the schema has no size")
    return resolved


def _list(schema: dict[str, Any], member: str) -> list[Any]:
    elements = schema.get(member)
    if not isinstance(elements, list):
        raise NotAvro(f"a type in the schema has no list of {member}")
    return elements


class AvroReader:
    """Reads values from the bytes at `at`, for people; a subclass may give them otherwise."""

    def __init__(self, data: bytes, names: Mapping[str, Any]) -> None:
        self.data, self.names = data, names
        self.at = self.count = self.text = 0
        self._primitives: dict[str, Callable[[], Any]] = {
            "null": lambda: None,
            "boolean": self._boolean,
            "int": self._int,
            "long": self._long,
            "float": lambda: self.number(struct.unpack("<f", self._bytes(4))[0]),
            "double": lambda: self.number(struct.unpack("<d", self._bytes(8))[0]),
            "bytes": lambda: self._bytes(self._long()),
            "string": self._string,
        }

    def read(self, schema: Any, depth: int) -> Any:
        self.count += 1
        if depth > MOST_DEPTH:
            raise NotAvro(f"the value is nested more than {MOST_DEPTH} deep")
        if self.count > MOST_VALUES:
            raise NotAvro(f"it has more than {MOST_VALUES} values")
        if isinstance(schema, list):
            return self.read(schema[self._index(len(schema), "branch of a union")], depth + 1)
        if isinstance(schema, str) and schema not in PRIMITIVES:
            schema = self.names[schema]
        if isinstance(schema, str):
            return self.shown(self._primitives[schema]())
        return self._complex(schema, depth)

    def _complex(self, schema: dict[str, Any], depth: int) -> Any:
        kind = schema["type"]
        if kind == "record":
            self._grow(schema["width"])
            return {name: self.read(of, depth + 1) for name, of in schema["fields"]}
        if kind == "enum":
            return self._grown(schema["symbols"][self._index(len(schema["symbols"]), "symbol of an enum")])
        if kind == "fixed":
            return self._grown(self.logical(schema, self._bytes(schema["size"])))
        if kind == "array":
            return self._blocks(lambda: self.read(schema["items"], depth + 1))
        if kind == "map":
            return dict(self._blocks(lambda: (self._string(), self.read(schema["values"], depth + 1))))
        return self._grown(self.logical(schema, self._primitives[kind]()))

    def number(self, value: float) -> Any:
        """JSON has no such numbers as NaN and infinity: they are shown as text."""
        return value if value - value == 0 else str(value)

    def shown(self, value: Any) -> Any:
        return f"0x{value.hex()}" if isinstance(value, bytes) else value

    def logical(self, schema: dict[str, Any], value: Any) -> Any:
        """The value as its logical type reads it; as it is if it has none, or does not fit it."""
        return _logical(schema, value)

    def _grow(self, characters: int) -> None:
        self.text += characters
        if self.text > MOST_TEXT:
            raise NotAvro(f"it has more than {MOST_TEXT} characters of names, symbols and logical types")

    def _grown(self, value: Any) -> Any:
        if isinstance(value, str):
            self._grow(len(value))
        return value

    def _blocks(self, item: Callable[[], Any]) -> list[Any]:
        """The items of an array or a map; a negative count has the size of its block after it."""
        items = []
        while count := self._long():
            if count < 0:
                self._long()
            items += [item() for _ in range(abs(count))]
        return items

    def _bytes(self, size: int) -> bytes:
        if not 0 <= size <= len(self.data) - self.at:
            raise NotAvro(f"{size} bytes are announced at byte {self.at}, and {len(self.data) - self.at} are left")
        self.at += size
        return self.data[self.at - size : self.at]

    def _string(self) -> str:
        try:
            return self._bytes(self._long()).decode()
        except UnicodeDecodeError:
            raise NotAvro(f"a string that ends at byte {self.at} is not UTF-8") from None

    def _boolean(self) -> bool:
        return bool(self._one_of(self._bytes(1)[0], range(2), "boolean"))

    def _int(self) -> int:
        return self._one_of(self._long(), range(-(1 << 31), 1 << 31), "int")

    def _index(self, count: int, what: str) -> int:
        return self._one_of(self._long(), range(count), what)

    def _one_of(self, number: int, allowed: range, what: str) -> int:
        if number not in allowed:
            raise NotAvro(f"there is no {what} with the number {number}, before byte {self.at}")
        return number

    def _long(self) -> int:
        """A zigzag number of at most 64 bits."""
        number = 0
        for place, byte in enumerate(self.data[self.at : self.at + VARINT]):
            number |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                self.at += place + 1
                return (number & (1 << 64) - 1) >> 1 ^ -(number & 1)
        raise NotAvro(f"the number at byte {self.at} does not end")


def _logical(schema: dict[str, Any], value: Any) -> Any:
    kind = schema.get("logicalType")
    try:
        if kind == "decimal" and isinstance(value, bytes):
            scale = int(schema.get("scale", 0))
            digits = str(abs(unscaled := int.from_bytes(value, "big", signed=True)))
            number = Decimal((int(unscaled < 0), tuple(map(int, digits)), -scale))
            return f"{number:f}" if 0 <= scale <= MOST_SCALE else str(number)
        if kind == "uuid" and isinstance(value, bytes):
            return str(UUID(bytes=value))
        if kind == "date" and isinstance(value, int):
            return (date(1970, 1, 1) + timedelta(days=value)).isoformat()
        if isinstance(kind, str) and isinstance(value, int):
            return _time(kind, value)
    except (ValueError, OverflowError, TypeError):
        pass
    return f"0x{value.hex()}" if isinstance(value, bytes) else value


def _time(kind: str, value: int) -> Any:
    """A time of day or a timestamp in its unit; the number for another type."""
    name, _, unit = kind.rpartition("-")
    if unit not in PER_SECOND or name not in ("time", "timestamp", "local-timestamp"):
        return value
    seconds, part = divmod(value, PER_SECOND[unit])
    whole = EPOCH + timedelta(seconds=seconds)
    fraction = f"{part:0{len(str(PER_SECOND[unit])) - 1}}"
    if name == "time":
        return f"{whole:%H:%M:%S}.{fraction}"
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{fraction}{'Z' if name == 'timestamp' else ''}"
