"""Kafka's FileStreamSink: lines as Java writes values, at the end of a file, whole or not at all."""

from __future__ import annotations

import json
import resource
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka_connect import KafkaConnect
from kafka_topics import new_topic
from waiting import until

from penstock.codec.connect_schema import Schema
from penstock.connect.java.text import line_of
from penstock.connect.records.record import DATA, NOTHING, ConnectRecord, Date, Part, TimeOfDay, Timestamp
from penstock.connect.records.semantic_types import MicroTimestamp
from penstock.connect.sinks.files.file_stream import CLASS, CLASS_NAMES, FileDestination, FileStreamSettings, settings
from penstock.connect.worker.checks import CheckedConfig, check
from penstock.connect.worker.providers import Provided
from penstock.errors import PenstockError
from penstock.local.services import Services
from penstock.spark_runtime.failures import Unavailable

TEXT: Schema = {"type": "string", "optional": True}
STRUCT: Schema = {
    "type": "struct",
    "fields": [
        {"field": "id", "type": "int32"},
        {"field": "name", "type": "string"},
        {"field": "r", "type": "float"},
        {"field": "tags", "type": "array", "items": TEXT},
    ],
}
BASE = {
    "name": "x",
    "connector.class": CLASS,
    "topics": "t",
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
}


@pytest.mark.parametrize(
    ("schema", "value", "wanted"),
    [
        (TEXT, "a b", "a b"),
        (None, None, "null"),
        (None, True, "true"),
        (None, 12, "12"),
        (None, 1e10, "1.0E10"),
        ({"type": "float"}, 0.10000000149011612, "0.1"),
        (None, {"a": [1, None, 2.0], "b": {}}, "{a=[1, null, 2.0], b={}}"),
        (STRUCT, {"id": 1, "name": None, "r": 0.5, "tags": ["x", "y"]}, "Struct{id=1,r=0.5,tags=[x, y]}"),
        ({"type": "map", "keys": TEXT, "values": {"type": "float"}}, {"k": 0.10000000149011612}, "{k=0.1}"),
        ({"type": "bytes", "name": f"{DATA}Decimal"}, Decimal("1E+3"), "1E+3"),
        ({"type": "int32", "name": f"{DATA}Date"}, Date(1), "Fri Jan 02 00:00:00 UTC 1970"),
        ({"type": "int32", "name": f"{DATA}Time"}, TimeOfDay(3_600_000), "Thu Jan 01 01:00:00 UTC 1970"),
        ({"type": "int64", "name": f"{DATA}Timestamp"}, Timestamp(1_700_000_000_999), "Tue Nov 14 22:13:20 UTC 2023"),
        ({"type": "int64", "name": f"{DATA}Timestamp"}, Timestamp(1 << 60), str(1 << 60)),
        ({"type": "int64"}, MicroTimestamp(7), "7"),
        (None, [b"\xff"], "[/w==]"),
    ],
    ids=str,
)
def test_values_are_written_as_java_shows_them(schema: Schema | None, value: Any, wanted: str) -> None:
    assert line_of(Part(schema, value)) == wanted.encode()


def test_bytes_are_written_as_they_are() -> None:
    assert line_of(Part({"type": "bytes"}, b"a\xff")) == b"a\xff"


def records(*values: str) -> list[ConnectRecord]:
    return [ConnectRecord("t", 0, number, 0, NOTHING, Part(TEXT, value)) for number, value in enumerate(values)]


def append(file: Path, *values: str) -> None:
    with FileDestination(FileStreamSettings(file, "fail")).writer(timedelta(0), again=False) as writer:
        assert writer.write(records(*values)) == []
        writer.write(records())


def test_tasks_that_append_at_the_same_time_do_not_mix_lines(tmp_path: Path) -> None:
    file = tmp_path / "out"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: append(file, *[name * 1000] * 20), "abcdefgh"))
    lines = file.read_text().splitlines()
    assert lines == [line for at in range(0, 160, 20) for line in [lines[at]] * 20] and len(set(lines)) == 8


def test_a_full_disk_leaves_no_half_of_a_batch(tmp_path: Path) -> None:
    file = tmp_path / "out"
    append(file, "first")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(Unavailable, match=r"File too large .*out.*the batch is repeated"):
            append(file, "a" * 600, "b" * 600)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.read_text() == "first\n"
    append(file, "later")
    assert file.read_text() == "first\nlater\n"


def test_a_task_whose_records_do_not_fit_writes_none(tmp_path: Path) -> None:
    file = tmp_path / "out"
    with (
        pytest.raises(ValueError, match="another"),
        FileDestination(FileStreamSettings(file, "fail")).writer(timedelta(0), again=False) as writer,
    ):
        writer.write(records("a"))
        raise ValueError("another")
    assert not file.exists()


def test_a_missing_folder_is_waited_for_and_a_folder_in_its_place_is_not(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"No such file or directory .*mount or create the folder"):
        append(tmp_path / "gone" / "out", "a")
    with pytest.raises(PenstockError, match=r"Is a directory .*correct the configuration") as raised:
        append(tmp_path, "a")
    assert not raised.value.retriable


def checked(more: dict[str, str]) -> CheckedConfig:
    return check(BASE | more, Provided())


def test_configurations(tmp_path: Path) -> None:
    for name in CLASS_NAMES:
        assert not checked({"connector.class": name, "file": str(tmp_path / "out")}).messages
    for file, why in (
        ("", "standard output is no place for records: give a file"),
        (str(tmp_path), "it is a folder: give a file"),
        (str(tmp_path / "a" / "b"), f"there is no folder {tmp_path}/a on the worker's machine"),
    ):
        errors = checked({"file": file}).errors
        assert set(errors) == {"file"} and why in errors["file"][0]
    assert "file" in checked({}).errors
    values = checked({"file": "out", "errors.tolerance": "all"}).values
    assert settings(values, {}) == FileStreamSettings(Path.cwd() / "out", "log")


def test_a_connector_appends_the_records_of_a_topic(connect: KafkaConnect, services: Services, tmp_path: Path) -> None:
    file, name = tmp_path / "out", f"lines-{uuid.uuid4().hex[:8]}"
    producer = Producer({"bootstrap.servers": services.kafka})
    send: Callable[[str], None]
    with new_topic(services.kafka, "lines", 1) as topic:

        def send(text: str) -> None:
            producer.produce(topic, text)
            producer.flush()

        send(json.dumps({"id": 1}))
        config = {**BASE, "connector.class": "FileStreamSink", "topics": topic, "file": str(file)}
        connect.create_connector({"name": name, "config": {n: text for n, text in config.items() if n != "name"}})
        try:
            until(lambda: file.exists() and file.read_text() == '{"id": 1}\n', "line")
            send("more")
            until(lambda: file.read_text() == '{"id": 1}\nmore\n', "second line")
        finally:
            connect.delete_connector(name)
