"""What the source of topics plans and hands over: offsets, tasks and record batches; no broker runs here."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from pyspark.sql import types as sql
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from penstock.errors import DataLost, PenstockError
from penstock.kafka import kafka_records, kafka_source, kafka_writer
from penstock.kafka.kafka_records import MOST_ROWS, TIMES, batches
from penstock.kafka.kafka_settings import KafkaSettings, start_of
from penstock.kafka.kafka_source import Ranges, TopicStreamReader, split
from penstock.kafka.source_format import TopicOffsets, schema
from penstock.kafka.topic_reader import BrokersAway, TopicReader
from penstock.wire.errors import KafkaError
from penstock.wire.fetcher import RecordsTooLarge, RecordsUnreadable, Unreadable

GIVEN = {"servers": "nowhere:1", "topic": "clicks"}
Offsets = dict[int, int]


@dataclass
class Topic:
    """A topic with these offsets."""

    first: Offsets = field(default_factory=lambda: {0: 5, 1: 0})
    last: Offsets = field(default_factory=lambda: {0: 20, 1: 9})

    def id(self) -> str:
        return "a1"

    def earliest(self) -> Offsets:
        return dict(self.first)

    def latest(self) -> Offsets:
        return dict(self.last)


def reader(topic: Topic | None = None, **given: str) -> TopicStreamReader:
    made = TopicStreamReader(KafkaSettings.of(GIVEN | given))
    made.topic = cast(TopicReader, topic or Topic())
    return made


def offsets(of: Mapping[str, Any]) -> Offsets:
    return dict(TopicOffsets.of(of, "clicks").at)


def told(at: Offsets) -> dict[str, Any]:
    return TopicOffsets("clicks", at, "a1", tasks=1).offset()


# Where a query begins.


def starting(partitions: Mapping[str, object]) -> str:
    return json.dumps({"clicks": partitions})


@pytest.mark.parametrize(
    ("start", "found"),
    [
        ("earliest", {0: 5, 1: 0}),
        ("latest", {0: 20, 1: 9}),
        (starting({"0": 12, "1": 3}), {0: 12, 1: 3}),
        (starting({"0": -1, "1": -2}), {0: 20, 1: 0}),
    ],
)
def test_a_query_begins_where_its_start_says(start: str, found: Offsets) -> None:
    made = reader(start=start).initialOffset()
    assert offsets(made) == found and TopicOffsets.of(made, "clicks").id == "a1"


@pytest.mark.parametrize("partitions", [{"0": 12}, {"0": 12, "1": 3, "2": 0}, {}])
def test_a_start_names_each_partition(partitions: dict[str, int]) -> None:
    named = ", ".join(partitions)
    with pytest.raises(PenstockError, match=rf"start has the partitions {named} \(.*give the offset of each of 0, 1"):
        reader(start=starting(partitions)).initialOffset()


@pytest.mark.parametrize(
    "text",
    [
        *("Latest", "", "[]", "{}", '{"clicks": [1]}', '{"clicks": {"0": 1}', '{"other": {"0": 1}}'),
        *(starting({"0": -3}), starting({"0": "1"}), starting({"0": 1.5}), starting({"x": 1})),
    ],
)
def test_a_start_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(
        PenstockError, match=r"is not valid \(kafka.read of clicks\).*'earliest', 'latest', or an offset"
    ):
        start_of(text, "clicks")


# What a batch holds.


def test_a_batch_ends_where_the_topic_ends_or_at_its_limit() -> None:
    begin = told({0: 5, 1: 0})
    assert offsets(reader().latestOffset(begin, ReadAllAvailable())) == {0: 20, 1: 9}
    limited = offsets(reader().latestOffset(begin, ReadMaxRows(8)))
    assert sum(limited.values()) - 5 == 8 and limited[0] > 5 and limited[1] > 0
    assert reader().getDefaultReadLimit() == ReadAllAvailable() and reader(
        batch="7"
    ).getDefaultReadLimit() == ReadMaxRows(7)


def test_a_batch_of_chunks_ends_at_their_ends_and_the_rest_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_source, "time", SimpleNamespace(sleep=lambda seconds: None))
    topic, now = Topic(), [0.0]
    made = reader(topic, chunk="8", **{"chunk.wait.ms": "2000"})
    assert made.chunks is not None
    made.chunks.clock = lambda: now[0]
    first = offsets(made.latestOffset(told({0: 5, 1: 0}), ReadAllAvailable()))
    assert first == {0: 16, 1: 8}
    assert offsets(made.latestOffset(told(first), ReadAllAvailable())) == first
    now[0], topic.last[1] = 1.0, 15
    assert offsets(made.latestOffset(told(first), ReadAllAvailable())) == first
    now[0] = 2.0
    assert offsets(made.latestOffset(told(first), ReadAllAvailable())) == {0: 20, 1: 15}
    # The rest of its chunk begins to wait anew.
    topic.last[0] = 23
    assert offsets(made.latestOffset(told({0: 20, 1: 15}), ReadAllAvailable())) == {0: 20, 1: 15}
    topic.last[0] = 24
    assert offsets(made.latestOffset(told({0: 20, 1: 15}), ReadAllAvailable())) == {0: 24, 1: 15}


def test_without_a_time_a_chunk_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_source, "time", SimpleNamespace(sleep=lambda seconds: None))
    made = reader(chunk="100")
    assert made.chunks is not None
    now = iter((0.0, 0.0, 1e9))
    made.chunks.clock = lambda: next(now)
    for _ in range(2):
        assert offsets(made.latestOffset(told({0: 5, 1: 0}), ReadAllAvailable())) == {0: 5, 1: 0}


@pytest.mark.parametrize(
    ("limit", "wanted"), [(1, {0: 8, 1: 0}), (5, {0: 8, 1: 0}), (22, {0: 16, 1: 8}), (100, {0: 16, 1: 8})]
)
def test_a_limited_batch_has_whole_chunks_and_at_least_one(limit: int, wanted: Offsets) -> None:
    assert offsets(reader(chunk="8").latestOffset(told({0: 5, 1: 0}), ReadMaxRows(limit))) == wanted


def test_without_new_records_the_offset_stays_and_spark_asks_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(kafka_source, "time", SimpleNamespace(sleep=pauses.append))
    begin = told({0: 20, 1: 9})
    assert reader().latestOffset(begin, ReadAllAvailable()) is begin and pauses == [kafka_source.PAUSE]


def test_a_query_of_present_data_ends_where_the_topic_ended_at_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_source, "time", SimpleNamespace(sleep=pytest.fail))
    topic = Topic()
    made = reader(topic)
    made.prepareForTriggerAvailableNow()
    topic.last = {0: 25, 1: 30}
    until = made.latestOffset(told({0: 5, 1: 0}), ReadAllAvailable())
    assert offsets(until) == {0: 20, 1: 9}
    assert made.latestOffset(until, ReadAllAvailable()) is until
    assert offsets(made.reportLatestOffset()) == {0: 25, 1: 30}


def test_a_batch_that_reads_all_has_no_lag_though_records_come_a_moment_later() -> None:
    topic = Topic()
    made = reader(topic)
    until = made.latestOffset(told({0: 5, 1: 0}), ReadAllAvailable())
    topic.last = {0: 25, 1: 30}
    assert made.reportLatestOffset() == until
    # A limited batch leaves the others.
    until = made.latestOffset(until, ReadMaxRows(4))
    assert sum(offsets(made.reportLatestOffset()).values()) - sum(offsets(until).values()) == 22


def test_a_new_partition_is_read_from_its_first_record() -> None:
    topic = Topic({0: 5, 1: 0, 2: 4}, {0: 20, 1: 9, 2: 6})
    begin, made = told({0: 20, 1: 9}), reader(topic, tasks="3")
    until = made.latestOffset(begin, ReadMaxRows(100))
    assert offsets(until) == {0: 20, 1: 9, 2: 6}
    (part,) = made.partitions(begin, until)
    assert part == Ranges({2: 4}, {2: 6})


def test_a_query_that_may_miss_records_reads_those_that_are_left() -> None:
    begin, until = told({0: 2, 1: 12}), told({0: 20, 1: 9})
    made = reader(failOnDataLoss="false")
    parts = made.partitions(begin, until)
    assert parts == [Ranges({0: 5, 1: 0}, {0: 20, 1: 9})]
    with pytest.raises(DataLost, match="offsets 2 to 4 of partition 0"):
        reader().partitions(begin, until)


def test_a_checkpoint_of_another_topic_is_refused() -> None:
    with pytest.raises(PenstockError, match=r"the checkpoint is of views \(kafka.read of clicks\).*its own checkpoint"):
        reader().latestOffset({"views": {"0": 1}}, ReadAllAvailable())


SIZES = st.dictionaries(st.integers(0, 20), st.integers(0, 50), max_size=12)


@given(SIZES, st.integers(1, 6))
def test_partitions_are_divided_evenly_among_tasks(sizes: dict[int, int], most: int) -> None:
    tasks = split(dict.fromkeys(sizes, 7), {p: 7 + size for p, size in sizes.items()}, most)
    full = [p for p, size in sizes.items() if size]
    assert sorted(p for task in tasks for p in task) == sorted(full)
    assert len(tasks) == min(most, len(full)) and all(tasks)
    loads = [sum(sizes[p] for p in task) for task in tasks]
    # Without the smallest of its partitions no task has more than another one.
    for task, load in zip(tasks, loads, strict=True):
        assert load - min(sizes[p] for p in task) <= min(loads)


# Settings.


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"servers": "nowhere"}, r"nowhere.*kafka.read of clicks"),
        ({"batch": "0"}, "the invalid batch '0'.*above zero"),
        ({"tasks": "two"}, "the invalid tasks 'two'"),
        ({"request.timeout.ms": "-1"}, "the invalid request.timeout.ms '-1'"),
        ({"fetch.max.decompressed.bytes": "1.5"}, "the invalid fetch.max.decompressed.bytes '1.5'"),
        ({"failOnUnreadableBatch": "no"}, "the unknown failonunreadablebatch 'no'.*true or false"),
        ({"kafka.topic": "x"}, "kafka.read has topic twice"),
    ],
)
def test_a_wrong_setting_is_told(given: dict[str, str], said: str) -> None:
    with pytest.raises(PenstockError, match=said):
        KafkaSettings.of(GIVEN | given)


def test_settings_have_kafkas_defaults_and_names() -> None:
    usual = KafkaSettings.of(GIVEN)
    assert (usual.start, usual.batch, usual.tasks, usual.members) == ("earliest", None, 1, None)
    assert (usual.committed, usual.lossy, usual.tolerant) == (True, False, False)
    assert usual.request_timeout == timedelta(seconds=30) and usual.max_decompressed > usual.max_bytes
    members = sql.StructType().add("id", sql.IntegerType())
    given = {"kafka.isolation.level": "read_uncommitted", "failOnUnreadableBatch": "false", "fetch.max.bytes": "1000"}
    made = KafkaSettings.of(GIVEN | given | {"members": members.json(), "kafka.request.timeout.ms": "1500"})
    assert (made.committed, made.tolerant, made.members) == (False, True, members)
    assert (made.max_bytes, made.request_timeout) == (1000, timedelta(seconds=1.5))
    assert made.max_decompressed - made.max_bytes == usual.max_decompressed - usual.max_bytes


# Record batches for Spark.

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def records(first: int, values: list[bytes | None], times: list[int] | None = None, headers: Any = None) -> pa.Table:
    """Records in the columns of the client."""
    count = len(values)
    return pa.table(
        {
            "key": pa.array([b"k"] * count, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "offset": pa.array(range(first, first + count), pa.int64()),
            "timestamp": pa.array(times or [0] * count, pa.timestamp("ms", "UTC")),
            "headers": pa.array([headers] * count if headers else [[]] * count, HEADERS),
        }
    )


def read(monkeypatch: pytest.MonkeyPatch, *found: object, **given: str) -> list[pa.RecordBatch]:
    """The batches for Spark of what a reader finds."""

    def answers(start: Offsets, end: Offsets) -> Iterator[object]:
        yield from found

    monkeypatch.setattr(kafka_records, "topic", lambda settings: SimpleNamespace(read=answers))
    made = list(batches(KafkaSettings.of(GIVEN | given), {0: 0}, {0: 99}))
    for batch in made:
        batch.validate(full=True)
    return made


def test_records_keep_their_bytes_places_and_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    (batch,) = read(monkeypatch, (3, records(7, [b"\xff", None], headers=[{"key": "h", "value": None}])))
    assert batch.schema.names == schema(None, tolerant=False).names
    at = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    same = {"key": b"k", "partition": 3, "timestamp": at, "headers": [{"key": "h", "value": None}]}
    assert batch.to_pylist() == [same | {"value": b"\xff", "offset": 7}, same | {"value": None, "offset": 8}]


def test_records_without_headers_have_null_as_in_spark_s_source(monkeypatch: pytest.MonkeyPatch) -> None:
    (batch,) = read(monkeypatch, (0, records(0, [b"a"])))
    assert batch["headers"].to_pylist() == [None]


def test_times_that_python_does_not_have_become_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    times = [-(2**63) + 1, TIMES[0] - 1, -1, TIMES[1], 2**63 - 1]
    (batch,) = read(monkeypatch, (0, records(0, [b"a"] * 5, times)))
    millis = batch["timestamp"].cast(pa.int64()).to_pylist()
    assert millis == [1000 * at for at in (TIMES[0], TIMES[0], -1, TIMES[1], TIMES[1])]
    assert all(1 <= at.year <= 9999 for at in batch["timestamp"].to_pylist())


def test_many_records_come_in_batches_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.concat_tables([records(0, [b"a"] * 15_000), records(15_000, [b"b"] * 30_000)])
    made = read(monkeypatch, (0, table), (1, records(0, [b"c"])))
    assert [batch.num_rows for batch in made] == [MOST_ROWS, MOST_ROWS, 5_000, 1]
    assert [offset for batch in made[:3] for offset in batch["offset"].to_pylist()] == list(range(45_000))


def test_members_of_json_are_columns_and_other_values_are_left_to_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    members = sql.StructType().add("id", sql.IntegerType()).add("name", sql.StringType())
    values = [b'{"id": 1, "name": "\\u00e9"}', b"no json", None, b'{"name": null}']
    (batch,) = read(monkeypatch, (0, records(0, values)), members=members.json())
    assert batch.select(["read", "member0", "member1"]).to_pylist() == [
        {"read": True, "member0": 1, "member1": "é"},
        {"read": False, "member0": None, "member1": None},
        {"read": False, "member0": None, "member1": None},
        {"read": True, "member0": None, "member1": None},
    ]


def test_a_batch_that_cannot_be_read_is_a_row_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    error = RecordsUnreadable("the checksum is wrong", topic="clicks", partition=4)
    bad = Unreadable(partition=4, offset=11, timestamp=5_000, error=error)
    members = sql.StructType().add("id", sql.IntegerType()).json()
    first, row = read(monkeypatch, (4, records(10, [b"{}"])), bad, members=members, failOnUnreadableBatch="false")
    assert first["unreadable"].to_pylist() == [None]
    assert row.to_pylist() == [
        {
            **dict.fromkeys(("key", "value", "headers", "member0")),
            "partition": 4,
            "offset": 11,
            "timestamp": dt.datetime(1970, 1, 1, 0, 0, 5, tzinfo=dt.UTC),
            "unreadable": str(error),
            "read": False,
        }
    ]


# Errors of the client.


class Passing(KafkaError):
    retriable = True


@pytest.mark.parametrize(
    ("error", "kind", "next"),
    [
        (Passing("away"), BrokersAway, ""),
        (KafkaError("refused"), PenstockError, ""),
        (
            RecordsUnreadable("bad", topic="clicks", partition=0),
            PenstockError,
            'options={"failOnUnreadableBatch": "false"}',
        ),
        (
            RecordsTooLarge("large", topic="clicks", partition=0),
            PenstockError,
            'if you trust the producer, give options={"kafka.fetch.max.decompressed.bytes": "4000"}',
        ),
    ],
)
def test_errors_of_the_client_have_the_topic_and_the_next_step(
    error: KafkaError, kind: type[PenstockError], next: str
) -> None:
    found = TopicReader(KafkaSettings.of(GIVEN | {"fetch.max.decompressed.bytes": "1000"}))._explained(error)
    assert type(found) is kind and isinstance(found, PenstockError) and next in found.next
    assert found.where == "clicks at nowhere:1" and found.retriable is error.retriable
    other = ValueError("ours")
    assert TopicReader(KafkaSettings.of(GIVEN))._explained(other) is other


# Batches of the sink.


def test_batches_of_a_task_are_joined_until_they_fill_several_record_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_writer, "GATHERED", 1000)
    some = [pa.record_batch({"value": pa.array([b"x" * size], pa.binary())}) for size in (300, 300, 900, 10, 2000, 5)]
    empty = some[0].slice(0, 0)
    made = list(kafka_writer._gathered(iter([empty, *some[:3], empty, *some[3:], empty])))
    assert [batch.num_rows for batch in made] == [3, 2, 1]
    assert [len(value) for batch in made for value in batch["value"].to_pylist()] == [300, 300, 900, 10, 2000, 5]
    assert list(kafka_writer._gathered(iter([empty, empty]))) == []
