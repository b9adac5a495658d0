"""The converters of sink connectors by class name: what reads keys, values and headers.

Besides those that sources have, too, there are those of bytes and of single values, which are big-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from penstock.connect.definition import Property, full_name, read_all
from penstock.connect.records import csv_data
from penstock.connect.records.avro_data import AvroBytes
from penstock.connect.records.converters import (
    AVRO,
    CONVERTERS,
    JSON,
    JSON_SCHEMA,
    PROTOBUF,
    TEXT,
    UNIONS,
    options_of,
    own_options,
    registry_of,
)
from penstock.connect.records.csv_data import CsvBytes
from penstock.connect.records.deserializers import HEADER, Deserializer, JsonBytes, JsonSchemaBytes, TextBytes
from penstock.connect.records.protobuf_data import ProtobufBytes
from penstock.connect.records.record import NoValue, Part

SIMPLE = "org.apache.kafka.connect.storage.SimpleHeaderConverter"
_OF_VALUES = "org.apache.kafka.connect.converters."


@dataclass(frozen=True)
class RawBytes:
    """ByteArrayConverter."""

    def __call__(self, data: bytes | None) -> Part:
        return Part({"type": "bytes", "optional": True}, data)


@dataclass(frozen=True)
class NumberBytes:
    """LongConverter and its like; `code` is that of `struct`, `kind` Connect's type."""

    kind: str
    code: str

    def __call__(self, data: bytes | None) -> Part:
        size = struct.calcsize(self.code)
        if data is not None and len(data) != size:
            raise NoValue(f"it has {len(data)} bytes, and an {self.kind} has {size}")
        return Part({"type": self.kind, "optional": True}, None if data is None else struct.unpack(self.code, data)[0])


@dataclass(frozen=True)
class BooleanBytes:
    """BooleanConverter."""

    def __call__(self, data: bytes | None) -> Part:
        if data not in (None, b"\x00", b"\x01"):
            raise NoValue("it is not one byte, 0 or 1")
        return Part({"type": "boolean", "optional": True}, None if data is None else data == b"\x01")


PLAIN: dict[str, Deserializer] = {
    f"{_OF_VALUES}ByteArrayConverter": RawBytes(),
    f"{_OF_VALUES}BooleanConverter": BooleanBytes(),
    f"{_OF_VALUES}ShortConverter": NumberBytes("int16", ">h"),
    f"{_OF_VALUES}IntegerConverter": NumberBytes("int32", ">i"),
    f"{_OF_VALUES}LongConverter": NumberBytes("int64", ">q"),
    f"{_OF_VALUES}FloatConverter": NumberBytes("float", ">f"),
    f"{_OF_VALUES}DoubleConverter": NumberBytes("double", ">d"),
}
"""Converters that only sinks have, and that have no options."""
CLASSES = (*CONVERTERS, *PLAIN, csv_data.CLASS)
OF_HEADERS = (SIMPLE, TEXT, JSON, *PLAIN)


def options(name: str) -> tuple[Property, ...]:
    """The options of a class."""
    return csv_data.OPTIONS if name == csv_data.CLASS else CONVERTERS[name].options if name in CONVERTERS else ()


def definitions(config: Mapping[str, str]) -> list[Property]:
    """The properties of a configuration's converters that only sinks have."""
    sides = [side for side in ("key", "value") if full_name(config.get(f"{side}.converter"), CLASSES) == csv_data.CLASS]
    return [
        replace(option, name=f"{side}.converter.{option.name}", group="Converters")
        for side in sides
        for option in csv_data.OPTIONS
    ]


def converter_check(name: str) -> str | None:
    """Why a class is no converter of a sink's keys or values; None if it is one."""
    return None if full_name(name, CLASSES) in CLASSES else f"it must be one of {', '.join(CLASSES)}"


def header_converter_check(name: str) -> str | None:
    """Why a class is no converter of a sink's headers; None if it is one."""
    return None if full_name(name, OF_HEADERS) in OF_HEADERS else f"it must be one of {', '.join(OF_HEADERS)}"


def deserializer(side: Literal["key", "value", "header"], config: Mapping[str, str]) -> Deserializer:
    """The reader of a sink's keys, values or headers, of a valid configuration."""
    chosen = config.get(f"{side}.converter")
    name = full_name(chosen, OF_HEADERS if side == "header" else CLASSES) if chosen else SIMPLE
    if name == SIMPLE:
        return HEADER
    if name in PLAIN:
        return PLAIN[name]
    if name == csv_data.CLASS:
        return CsvBytes.of(read_all(csv_data.OPTIONS, own_options(f"{side}.converter.", config))[0])
    name, values = options_of(side, config)
    if name == JSON:
        return JsonBytes(values["schemas.enable"])
    if name == AVRO:
        return AvroBytes(registry_of(values))
    if name == PROTOBUF:
        return ProtobufBytes(registry_of(values), *(values[option.name] for option in UNIONS))
    return JsonSchemaBytes() if name == JSON_SCHEMA else TextBytes()
