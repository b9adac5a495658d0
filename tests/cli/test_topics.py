"""`penstock topics` without a broker: lines for any bytes, and which records are the last."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from penstock.cli import kafka_commands, topic_tail, topics
from penstock.wire.errors import KafkaError
from penstock.wire.fetcher import RecordsTooLarge
from penstock.wire.topic_records import Reader

HEADERS = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
SCHEMA = pa.schema(
    {
        "offset": pa.int64(),
        "timestamp": pa.timestamp("ms", "UTC"),
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": HEADERS,
    }
)

TOPICS = {"b": 1, "a-longer-name": 12}
ALL = topic_tail.Filter(None, None)


class Topic(Reader):
    """A topic in memory: the offsets and times (in milliseconds) of the records of each partition, and its end."""

    def __init__(self, partitions: dict[int, list[tuple[int, int]]], ends: dict[int, int], batch: int = 3) -> None:
        self.records, self.ends, self.batch = partitions, ends, batch
        self.reads = 0

    async def earliest(self, topic: str) -> dict[int, int]:
        return dict.fromkeys(self.records, 0)

    async def latest(self, topic: str) -> dict[int, int]:
        return self.ends

    async def read(
        self, topic: str, *, start: Mapping[int, int], end: Mapping[int, int] | None = None, **limits: Any
    ) -> AsyncGenerator[tuple[int, pa.Table], None]:
        assert end is not None
        self.reads += 1
        for partition, records in self.records.items():
            wanted = range(start.get(partition, 0), end.get(partition, 0))
            chosen = [one for one in records if one[0] in wanted]
            for first in range(0, len(chosen), self.batch):
                some = chosen[first : first + self.batch]
                yield partition, table(some)


def table(records: list[tuple[int, int]]) -> pa.Table:
    rows: list[dict[str, Any]] = [
        {"offset": offset, "timestamp": at, "key": None, "value": b"v", "headers": []} for offset, at in records
    ]
    columns = {name: [row[name] for row in rows] for name in SCHEMA.names}
    times = pa.array(columns["timestamp"], pa.int64()).cast(SCHEMA.field("timestamp").type)
    arrays = [times if name == "timestamp" else pa.array(columns[name], SCHEMA.field(name).type) for name in columns]
    return pa.table(arrays, schema=SCHEMA)


def asked(**options: Any) -> argparse.Namespace:
    usual = {
        "topic": "t",
        "limit": None,
        "json": False,
        "start": None,
        "max_decompressed_bytes": None,
        "uncommitted": False,
    }
    return argparse.Namespace(**(usual | options))


@st.composite
def partitions(draw: st.DrawFn) -> dict[int, list[tuple[int, int]]]:
    """Records whose offsets have gaps, as compaction and transactions leave them."""
    found = {}
    for partition in range(draw(st.integers(1, 3))):
        offsets = sorted(draw(st.sets(st.integers(0, 400), max_size=25)))
        found[partition] = [(offset, draw(st.integers(0, 50))) for offset in offsets]
    return found


@settings(max_examples=60)
@given(partitions(), st.integers(1, 12))
def test_the_last_records_are_found_behind_any_gaps(found: dict[int, list[tuple[int, int]]], limit: int) -> None:
    ends = dict.fromkeys(found, 401)
    shown = asyncio.run(topic_tail.last(Topic(found, ends), asked(limit=limit), ends, ALL))
    # Of each partition the last ones by offset can be among the last; of these, the last by time.
    tails = [(at, partition, offset) for partition, rows in found.items() for offset, at in rows[-limit:]]
    wanted = sorted(tails)[-limit:]
    assert [(row["timestamp"], row["partition"], row["offset"]) for row in shown] == wanted


def test_records_without_gaps_are_read_once() -> None:
    topic = Topic({0: [(n, n) for n in range(1000)]}, {0: 1000}, batch=100)
    shown = asyncio.run(topic_tail.last(topic, asked(), topic.ends, ALL))
    assert [row["offset"] for row in shown] == list(range(990, 1000)) and topic.reads == 1


def test_a_count_has_a_line_per_partition_and_one_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    topic = Topic({0: [(0, 1), (7, 1)], 1: []}, {0: 9, 1: 0})
    asyncio.run(topics.count(topic, asked()))
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["partition", "records", "offsets"],
        ["0", "2", "9"],
        ["1", "0", "0"],
        ["all", "2", "9"],
    ]
    asyncio.run(topics.count(topic, asked(json=True)))
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows[-1] == {"topic": "t", "partition": "all", "records": 2, "offsets": 9}


def test_topics_are_listed_in_order_of_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    topics.list_topics(TOPICS, as_json=False)
    assert capsys.readouterr().out == "a-longer-name     12\nb                  1\n"
    topics.list_topics(TOPICS, as_json=True)
    assert json.loads(capsys.readouterr().out.splitlines()[0]) == {"topic": "a-longer-name", "partitions": 12}


def record(key: bytes | None, value: bytes | None, at: int = 0) -> dict[str, Any]:
    headers = [{"key": "h", "value": value}]
    return {"partition": 1, "offset": 2, "timestamp": at, "key": key, "value": value, "headers": headers}


@given(st.none() | st.binary(max_size=30), st.none() | st.binary(max_size=30) | st.text(max_size=30).map(str.encode))
def test_any_record_is_one_line_that_cannot_control_a_terminal(key: bytes | None, value: bytes | None) -> None:
    line = topic_tail.as_text(record(key, value))
    assert len(line.splitlines()) == 1 and line.count("\t") in (4, 5)
    assert all(character == "\t" or character.isprintable() or ord(character) > 0x9F for character in line)


@given(st.none() | st.binary(max_size=30), st.none() | st.binary(max_size=30))
def test_json_of_a_record_has_its_bytes(key: bytes | None, value: bytes | None) -> None:
    line = topic_tail.as_json(record(key, value))
    assert "\n" not in line
    found = json.loads(line)
    ((name, _),) = found["headers"]
    assert name == "h"
    assert bytes_of(found["key"], found["key_format"]) == key
    assert bytes_of(found["value"], found["value_format"]) == value


def bytes_of(told: str | None, format: str) -> bytes | None:
    if told is None:
        return None
    return bytes.fromhex(told.removeprefix("0x")) if format == "hex" else told.encode()


def test_null_and_empty_are_told_apart() -> None:
    assert topic_tail.as_text(record(None, None)).split("\t")[3:] == ["(null)", "(tombstone)"]
    assert topic_tail.as_text(record(b"", b"")).split("\t")[3:] == ["", ""]


@pytest.mark.parametrize("text", ["earliest", "latest"])
def test_a_start_may_be_an_end_of_the_topic(text: str) -> None:
    assert topic_tail.start_of(text) == text


@pytest.mark.parametrize(
    ("text", "hours"), [("2026-05-31T12:00:00", 12), ("2026-05-31T12:00:00+02:00", 10), ("2026-05-31", 0)]
)
def test_a_start_may_be_a_time_in_utc_or_with_a_zone(text: str, hours: int) -> None:
    assert topic_tail.start_of(text) == datetime(2026, 5, 31, tzinfo=UTC) + timedelta(hours=hours)


def test_a_start_may_be_a_duration_before_now() -> None:
    found = topic_tail.start_of("-10 minutes")
    assert isinstance(found, datetime)
    assert timedelta(0) <= datetime.now(UTC) - timedelta(minutes=10) - found < timedelta(seconds=10)


@pytest.mark.parametrize("text", ["", "now", "-2", "- hours", "-2 parsecs", "-999999 weeks", "2026-13-01", "Earliest"])
def test_another_start_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not earliest, latest, a time such as"):
        topic_tail.start_of(text)


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    async def act(args: object, brokers: str) -> None:
        raise error

    monkeypatch.setattr(topics, "_count", act)
    monkeypatch.setattr(topic_tail, "act", act)


def test_a_batch_that_is_too_large_is_told_with_an_option_that_is_enough(
    monkeypatch: pytest.MonkeyPatch, penstock: Any
) -> None:
    failing(monkeypatch, RecordsTooLarge(topic="t"))
    usual = penstock("topics", "count", "t", "--servers", "h:1")
    assert usual.code == 1 and f"--max-decompressed-bytes {4 * kafka_commands.MOST_DECOMPRESSED}\n" in usual.err
    given = penstock("topics", "count", "t", "--servers", "h:1", "--max-decompressed-bytes", "1000")
    assert "--max-decompressed-bytes 4000\n" in given.err and "(Kafka at h:1)" in given.err


def test_another_error_of_kafka_is_one_line_without_that_option(monkeypatch: pytest.MonkeyPatch, penstock: Any) -> None:
    failing(monkeypatch, KafkaError(topic="t"))
    ran = penstock("topics", "tail", "t", "--servers", "h:1")
    assert ran.code == 1 and ran.err.count("\n") == 1
    assert "(Kafka at h:1)" in ran.err and "--max-decompressed-bytes" not in ran.err
