"""Records as people read them, with the real registry and the serializers of Confluent."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from hypothesis import given, strategies as st
from protobuf_files import message_class
from registry_proxy import registry_proxy
from waiting import PATIENCE

from penstock.codec.registry import Registry
from penstock.errors import PenstockError
from penstock.kafka import record_view
from penstock.kafka.record_view import MOST_DECODED, MOST_JSON, ShownValue, shown, view

AVRO = (
    '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}, {"name": "who", "type": "string"}]}'
)
JSON = '{"type": "object", "properties": {"id": {"type": "integer"}, "who": {"type": "string"}}}'
ORDER: dict[str, Any] = {"id": 1 << 60, "who": "Änn"}


def proto(name: str) -> str:
    return f'syntax = "proto3"; package {name}; message Order {{ int64 id = 1; string who = 2; Order next_one = 3; }}'


def record(key: bytes | None, value: bytes | None) -> dict[str, Any]:
    headers = [{"key": "source", "value": b"shop"}, {"key": "trace", "value": b"\xff"}, {"key": "none", "value": None}]
    return {
        "partition": 3,
        "offset": 14,
        "timestamp": 1_780_000_000_123,
        "key": key,
        "value": value,
        "headers": headers,
    }


@pytest.fixture
def written(registry: str) -> Iterator[Callable[[str], bytes]]:
    """Bytes of ORDER by format, from Confluent's serializers."""
    client: Any = SchemaRegistryClient({"url": registry})
    context = SerializationContext(f"view-{uuid4().hex[:8]}", MessageField.VALUE)

    def write(format: str) -> bytes:
        if format == "avro":
            return bytes(AvroSerializer(client, AVRO)(ORDER, context))
        if format == "json-schema":
            return bytes(JSONSerializer(JSON, client)(ORDER, context))
        kind = message_class(proto(f"p{uuid4().hex[:8]}"))
        options = {"use.deprecated.format": False}
        return bytes(ProtobufSerializer(kind, client, options)(kind(**ORDER), context))

    with client:
        yield write


@pytest.mark.parametrize("format", ["avro", "json-schema", "protobuf"])
def test_records_of_a_registry_are_decoded(format: str, written: Callable[[str], bytes], registry: str) -> None:
    found = view(record(b"k", written(format)), Registry(registry))
    # JSON of Protobuf has 64-bit integers as strings.
    id = str(ORDER["id"]) if format == "protobuf" else ORDER["id"]
    assert json.loads(found["value"]) == ORDER | {"id": id}
    assert (found["value_format"], found["value_problem"]) == (format, "")
    assert (found["key"], found["key_format"]) == ("k", "text")


@pytest.mark.parametrize("format", ["avro", "json-schema", "protobuf"])
def test_without_the_registry_the_bytes_are_shown(format: str, written: Callable[[str], bytes]) -> None:
    data = written(format)
    number = int.from_bytes(data[1:5], "big")
    assert shown(data) == ShownValue(
        f"0x{data.hex()}", "hex", f"it begins like a record of the schema {number}; give the schema registry"
    )


@pytest.mark.parametrize("format", ["avro", "json-schema", "protobuf"])
def test_damaged_records_are_shown_as_bytes_with_the_reason(
    format: str, written: Callable[[str], bytes], registry: str
) -> None:
    data = written(format)
    wrong = data[:5] + b"\xff" * 11
    found = shown(wrong, Registry(registry))
    assert (found.text, found.format) == (f"0x{wrong.hex()}", "hex")
    assert found.problem.startswith(f"not valid {format} of the schema {int.from_bytes(data[1:5], 'big')}: ")
    large = data + bytes(MOST_DECODED)
    assert f"larger than {MOST_DECODED} bytes" in shown(large, Registry(registry)).problem


def test_an_unknown_schema_is_asked_for_once(registry: str) -> None:
    data = b"\0\x7f\xff\xff\xff rest"
    with registry_proxy(registry) as proxy:
        client = Registry(proxy.url)
        first, second = shown(data, client), shown(data, client)
        assert first == second and first.format == "hex"
        assert "the schema registry refuses" in first.problem
        assert proxy.asked == ["GET /schemas/ids/2147483647"]


def test_a_registry_that_is_away_is_not_asked_for_each_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.codec.registry.PAUSES", ())
    client = Registry("http://127.0.0.1:9")
    found = [shown(b"\0" + number.to_bytes(4, "big") + b"x", client) for number in range(50)]
    assert {one.format for one in found} == {"hex"}
    assert len({one.problem for one in found}) == 1 and "does not answer" in found[0].problem


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (None, ShownValue(None, "null")),
        (b"", ShownValue("", "text")),
        (b'{"a": 1.0}', ShownValue('{"a": 1.0}', "json")),
        (b" [1]", ShownValue(" [1]", "json")),
        (b"{a: 1}", ShownValue("{a: 1}", "text")),
        (b"[" * 100_000, ShownValue("[" * 100_000, "text")),
        (b"42", ShownValue("42", "text")),
        ("Änn".encode(), ShownValue("Änn", "text")),
        (b"\xff\x00", ShownValue("0xff00", "hex", "not UTF-8")),
        (b"\0\0\0", ShownValue("\0\0\0", "text")),
    ],
)
def test_other_records(data: bytes | None, expected: ShownValue) -> None:
    assert shown(data) == expected


def test_a_large_value_is_text() -> None:
    found = shown(b'"' * (MOST_JSON + 1))
    assert found.format == "text" and f"larger than {MOST_JSON} bytes" in found.problem


def test_a_whole_record() -> None:
    assert view(record(None, b'{"a": 1}')) == {
        "partition": 3,
        "offset": 14,
        "timestamp": "2026-05-28T20:26:40.123Z",
        "key": None,
        "value": '{"a": 1}',
        "key_format": "null",
        "value_format": "json",
        "key_problem": "",
        "value_problem": "",
        "headers": [["source", "shop"], ["trace", "0xff"], ["none", None]],
        "size": 8,
        "truncated": False,
    }


def test_a_long_text_is_cut() -> None:
    found = view(record(b"k" * 30, b"v" * 30), most=20)
    assert (found["key"], found["value"], found["truncated"], found["size"]) == ("k" * 20, "v" * 20, True, 60)


@given(st.none() | st.binary(max_size=40), st.none() | st.binary(max_size=40))
def test_any_record_is_json(key: bytes | None, value: bytes | None) -> None:
    found = view(record(key, value))
    assert json.loads(json.dumps(found)) == found


def test_schemas_are_forgotten_before_they_fill_the_memory(registry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_view, "MOST_FAILED", 3)
    client = Registry(registry, user=uuid4().hex)
    for number in range(1 << 20, (1 << 20) + 5):
        shown(b"\0" + number.to_bytes(4, "big"), client)
    assert len(record_view._schemas(client)._failed) == 3


class SlowRegistry:
    """Has the schema 1 at once; `wait` is called for the others."""

    url = "http://registry"

    def __init__(self, wait: Callable[[], Any]) -> None:
        self.wait, self.asked = wait, 0

    def schema(self, number: int) -> tuple[str, str]:
        self.asked += 1
        if number != 1:
            self.wait()
            raise PenstockError(f"there is no schema {number}")
        return '"long"', "AVRO"


def framed(number: int) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + b"\x02"


def test_known_schemas_do_not_wait_for_a_registry_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_view, "PATIENCE", 60.0)
    asked, ended = threading.Event(), threading.Event()

    def hang() -> None:
        asked.set()
        ended.wait(PATIENCE)

    schemas: Any = record_view._Schemas(SlowRegistry(hang))  # type: ignore[arg-type]
    assert schemas.shown(1, framed(1)) == ShownValue("1", "avro")
    waiting = threading.Thread(target=schemas.shown, args=(2, framed(2)))
    waiting.start()
    try:
        assert asked.wait(PATIENCE)
        known = threading.Thread(target=schemas.shown, args=(1, framed(1)), daemon=True)
        known.start()
        known.join(PATIENCE)
        assert not known.is_alive()
    finally:
        ended.set()
        waiting.join()


def test_a_record_waits_for_its_schema_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_view, "PATIENCE", 0.2)
    ended = threading.Event()
    registry = SlowRegistry(lambda: ended.wait(PATIENCE))
    try:
        schemas: Any = record_view._Schemas(registry)  # type: ignore[arg-type]
        for _ in range(3):
            assert "has not answered within 0.2 s" in schemas.shown(2, framed(2)).problem
        assert registry.asked == 1
    finally:
        ended.set()


def test_bytes_that_name_many_schemas_do_not_flood_the_registry() -> None:
    registry = SlowRegistry(lambda: None)
    schemas: Any = record_view._Schemas(registry)  # type: ignore[arg-type]
    problems = [schemas.shown(number, framed(number)).problem for number in range(2, 1000)]
    assert registry.asked == record_view.MOST_FAILED
    assert "there is no schema 2" in problems[0] and "schemas could not be had" in problems[-1]


def test_protobuf_that_could_become_megabytes_of_names_is_shown_as_bytes() -> None:
    name = "V" * 5000
    text = f'syntax = "proto3"; message M {{ enum E {{ {name} = 0; }} repeated E many = 1; }}'
    decode = record_view._protobuf(1, text)
    assert json.loads(decode(b"\0\0\0\0\1\0" + b"\x0a\x02\0\0")) == {"many": [name] * 2}
    with pytest.raises(ValueError, match="may become too large"):
        decode(b"\0\0\0\0\1\0" + b"\x0a\xa0\x8d\x06" + b"\0" * 100_000)
