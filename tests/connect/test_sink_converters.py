"""Converters of bytes, single values and headers, against the serializers of confluent-kafka."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from confluent_kafka.serialization import DoubleSerializer, IntegerSerializer, Serializer, StringSerializer
from hypothesis import given, strategies as st

from penstock.connect.records.deserializers import Deserializer, JsonBytes, RawRecord
from penstock.connect.records.record import NoValue, Part
from penstock.connect.records.sink_converters import (
    CLASSES,
    PLAIN,
    converter_check,
    deserializer,
    header_converter_check,
)
from penstock.connect.sinks.destination import Bad
from penstock.connect.sinks.task import decoded

BYTES, LONG = (f"org.apache.kafka.connect.converters.{name}Converter" for name in ("ByteArray", "Long"))


def key(name: str) -> Deserializer:
    return deserializer("key", {"key.converter": name})


@given(st.integers(-(1 << 31), (1 << 31) - 1), st.floats(allow_nan=False), st.text())
def test_values_are_read_as_another_client_writes_them(number: int, real: float, text: str) -> None:
    written: list[tuple[str, Serializer, Any]] = [
        ("IntegerConverter", IntegerSerializer(), number),
        ("DoubleConverter", DoubleSerializer(), real),
        ("StringConverter", StringSerializer(), text),
    ]
    for name, serializer, value in written:
        assert key(name)(serializer(value)).value == value
    assert key("LongConverter")(struct.pack(">q", number << 32)).value == number << 32
    assert key("Short")(struct.pack(">h", number >> 16)).value == number >> 16
    assert key("FloatConverter")(struct.pack(">f", 0.1)).value == struct.unpack(">f", struct.pack(">f", 0.1))[0]
    assert key("BooleanConverter")(b"\x01").value is True and key("BooleanConverter")(b"\x00").value is False
    assert key(BYTES)(text.encode()) == Part({"type": "bytes", "optional": True}, text.encode())


@pytest.mark.parametrize("name", PLAIN)
@given(st.binary(max_size=20))
def test_bytes_of_another_size_are_refused_and_null_is_null(name: str, data: bytes) -> None:
    read = PLAIN[name]
    assert read(None).value is None
    try:
        found = read(data)
    except NoValue as error:
        assert "byte" in str(error)
    else:
        assert found.schema and found.value is not None
        assert name == BYTES or len(data) == {"int16": 2, "int32": 4, "int64": 8, "float": 4, "double": 8}.get(
            found.schema["type"], 1
        )


def test_headers_are_read_by_their_converter_and_a_bad_one_is_told() -> None:
    def headers(data: bytes, config: dict[str, str]) -> Any:
        raw = RawRecord("t", 0, 7, 1, None, b"{}", (("h", data),))
        (found,) = decoded([raw], JsonBytes(False), JsonBytes(False), deserializer("header", config))
        return (found.stage, found.reason) if isinstance(found, Bad) else found.headers[0][1].value

    name = "header.converter"
    assert headers(b'{"a": 1}', {}) == {"a": 1} and headers(b"12", {}) == "12"
    assert headers(b'{"a": 1}', {name: "StringConverter"}) == '{"a": 1}'
    assert headers(b"\xff\x00", {name: BYTES}) == b"\xff\x00"
    of_json = {name: "JsonConverter", f"{name}.schemas.enable": "false"}
    assert headers(b"12", of_json) == 12
    enveloped = json.dumps({"schema": {"type": "int64"}, "payload": 3}).encode()
    assert headers(enveloped, {name: "JsonConverter"}) == 3
    assert headers(b"12", {name: LONG}) == (
        "HEADER_CONVERTER",
        "its header cannot be read: it has 2 bytes, and an int64 has 8",
    )


def test_classes_that_are_not_there_are_told() -> None:
    assert {converter_check(name) for name in (*CLASSES, "Long", "ByteArrayConverter")} == {None}
    assert "it must be one of" in str(converter_check("org.example.LongConverter"))
    assert header_converter_check("SimpleHeaderConverter") is None
    assert "SimpleHeaderConverter" in str(header_converter_check("AvroConverter"))
