"""The sink of files: their names, folders and formats, each record in one file, and what its properties do."""

from __future__ import annotations

import json
import random
import resource
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from kafka_connect import KafkaConnect
from kafka_topics import new_topic
from s3_server import BUCKET, s3_server
from waiting import until

from penstock.codec.connect_schema import Schema
from penstock.connect.definition import INERT
from penstock.connect.java.date_time_formatter import zone_of
from penstock.connect.records.record import DATA, NOTHING, ConnectRecord, Date, Part, TimeOfDay, Timestamp
from penstock.connect.records.semantic_types import MicroTimestamp
from penstock.connect.sinks.destination import Bad, BadRecord, Chunks
from penstock.connect.sinks.files import properties as files_properties
from penstock.connect.sinks.files.destination import FilesDestination
from penstock.connect.sinks.files.folders import ByFields, ByTime, OfField, by_partition, of_kafka, path_problem
from penstock.connect.sinks.files.formats import ByteLines, JsonLines, ParquetRows
from penstock.connect.sinks.files.properties import CLASS, CLASS_NAMES, FilesSettings, settings
from penstock.connect.sinks.files.store import FolderStore, S3Store
from penstock.connect.sinks.properties import of_connect
from penstock.connect.worker.checks import CheckedConfig, check
from penstock.connect.worker.providers import Provided
from penstock.errors import PenstockError
from penstock.kafka.whole_chunks import WholeChunks
from penstock.local.services import Services
from penstock.spark_runtime.failures import Unavailable

JSON = "org.apache.kafka.connect.json.JsonConverter"
BASE = {
    "name": "x",
    "connector.class": CLASS,
    "topics": "t",
    "key.converter": JSON,
    "value.converter": JSON,
    "store.url": "/data",
    "flush.size": "3",
    "format.class": "JsonFormat",
}
NOON = 1_709_208_000_123
"""2024-02-29T12:00:00.123Z."""


def checked(more: Mapping[str, str]) -> CheckedConfig:
    return check({**BASE, **more}, Provided(), ask=False)


def made(more: Mapping[str, str]) -> FilesSettings:
    found = checked(more)
    assert not found.messages, found.messages
    assert not found.unknown
    return settings(found.values, {})


def record(offset: int, value: Any, partition: int = 0, at: int | None = NOON, **more: Any) -> ConnectRecord:
    part = value if isinstance(value, Part) else Part(None, value)
    return ConnectRecord("t", partition, offset, at, NOTHING, part)._replace(**more)


def write(of: FilesSettings, records: Sequence[ConnectRecord]) -> list[Bad]:
    with FilesDestination(of).writer(timedelta(0), again=False) as writer:
        return writer.write(records)


def files(root: Path) -> dict[str, str]:
    return {str(file.relative_to(root)): file.read_text() for file in sorted(root.rglob("*")) if file.is_file()}


# Each record in one file.


def test_a_file_has_a_chunk_of_a_partition_and_the_name_of_its_first_record(tmp_path: Path) -> None:
    of = made({"store.url": str(tmp_path)})
    assert write(of, [record(offset, {"n": offset}) for offset in range(1, 7)] + [record(9, "x", 1)]) == []
    assert files(tmp_path) == {
        "topics/t/partition=0/t+0+0000000001.json": '{"n":1}\n{"n":2}\n',
        "topics/t/partition=0/t+0+0000000003.json": '{"n":3}\n{"n":4}\n{"n":5}\n',
        "topics/t/partition=0/t+0+0000000006.json": '{"n":6}\n',
        "topics/t/partition=1/t+1+0000000009.json": '"x"\n',
    }
    # The rest of a chunk that waited, written again with more records.
    write(of, [record(offset, {"n": offset}) for offset in range(6, 9)])
    assert files(tmp_path)["topics/t/partition=0/t+0+0000000006.json"] == '{"n":6}\n{"n":7}\n{"n":8}\n'


@pytest.mark.parametrize("seed", range(20))
def test_whatever_batches_are_repeated_each_record_is_there_once(tmp_path: Path, seed: int) -> None:
    """Batches that are not remembered are planned anew: with other ends, of a topic with gaps."""
    chance = random.Random(seed)
    of = made(
        {
            "store.url": str(tmp_path),
            "flush.size": str(chance.choice((1, 3, 7))),
            "partitioner.class": "FieldPartitioner",
            "partition.field.name": "f",
            "rotate.interval.ms": str(chance.choice((-1, 5))),
        }
    )
    there = [offset for offset in range(60) if chance.random() < 0.8]
    at, end = 0, 0
    while at < 60:
        end = min(max(end, at + chance.randrange(20)), 60)
        plan = WholeChunks(of.chunks.records, chance.choice((0.0, None)) if end < 60 else 0.0)
        until = plan.ready({0: at}, {0: end})[0]
        cut = chance.randrange(at, until + 1)
        until = plan.limited({0: at}, {0: until}, {0: cut})[0] if until > at else at
        rows = [record(n, {"f": n % 3, "n": n}, at=NOON + n) for n in there if at <= n < until]
        assert write(of, rows) == []
        at = until if chance.random() < 0.6 else at
    found = [json.loads(line)["n"] for text in files(tmp_path).values() for line in text.splitlines()]
    assert sorted(found) == there


def test_records_that_transforms_send_to_one_topic_do_not_collide(tmp_path: Path) -> None:
    of = made(
        {"store.url": str(tmp_path), "topics.dir": "a/b", "file.delim": "-", "filename.offset.zero.pad.width": "2"}
    )
    write(of, [record(0, 1, topic="all", origin="x"), record(0, 2, topic="all", origin="y")])
    assert files(tmp_path) == {"a/b/all/partition=0/x-0-00.json": "1\n", "a/b/all/partition=0/y-0-00.json": "2\n"}
    (bad,) = write(of, [record(0, 1, topic="../x", origin="x")])
    assert "which is no name of a folder" in bad.reason


def test_a_file_ends_at_its_time_and_at_another_schema(tmp_path: Path) -> None:
    of = made({"store.url": str(tmp_path), "flush.size": "100", "rotate.interval.ms": "1000"})
    write(of, [record(0, 0, at=0), record(1, 1, at=999), record(2, 2, at=1000), record(3, 3, at=500)])
    assert [*files(tmp_path).values()] == ["0\n1\n", "2\n3\n"]
    of = made({"store.url": str(tmp_path), "flush.size": "100", "format.class": "x.y.ParquetFormat"})
    kinds = [{"type": "struct", "fields": [{"field": "n", "type": kind}]} for kind in ("int32", "int32", "string")]
    write(of, [record(5 + n, Part(kind, {"n": "a" if n == 2 else n})) for n, kind in enumerate(kinds)])
    found = {file.name: pq.read_table(file).column("n").to_pylist() for file in tmp_path.rglob("*.parquet")}
    assert found == {"t+0+0000000005.snappy.parquet": [0, 1], "t+0+0000000007.snappy.parquet": ["a"]}


def test_bad_records_are_told_and_the_others_written(tmp_path: Path) -> None:
    of = made({"store.url": str(tmp_path)})
    (bad,) = write(of, [record(0, None), record(1, "a")])
    assert "set behavior.on.null.values=ignore" in bad.reason
    assert [*files(tmp_path)] == ["topics/t/partition=0/t+0+0000000001.json"]
    assert write(made({"store.url": str(tmp_path), "behavior.on.null.values": "ignore"}), [record(0, None)]) == []
    with FilesDestination(of).writer(timedelta(0), again=False) as writer:
        assert len(writer.write([record(0, None), record(1, None)], until_bad=True)) == 1


# Storage.


def test_a_full_disk_keeps_the_file_that_was_there(tmp_path: Path) -> None:
    of = made({"store.url": str(tmp_path)})
    write(of, [record(0, "a")])
    kept = files(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(Unavailable, match=r"File too large .*the batch is repeated"):
            write(of, [record(0, "a" * 2000)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert files(tmp_path) == kept
    # What a killed attempt left goes with the next one.
    left = tmp_path / "topics" / "+tmp" / "topics+t+partition=0+t+0+0000000000.json.killed"
    left.write_text("half")
    write(of, [record(0, "b")])
    assert files(tmp_path) == {next(iter(kept)): '"b"\n'}


def test_a_store_that_is_missing_is_not_made(tmp_path: Path) -> None:
    gone = tmp_path / "mount"
    of = made({"store.url": gone.as_uri()})
    for step in (lambda: write(of, [record(0, "a")]), lambda: FilesDestination(of).prepare(timedelta(0))):
        with pytest.raises(Unavailable, match=r"No such file or directory .*mount or create the folder"):
            step()
    assert not gone.exists()
    found = check({**BASE, "store.url": str(gone)}, Provided()).errors
    assert set(found) == {"store.url"} and "No such file" in found["store.url"][0]
    (tmp_path / "topics").write_text("in its place")
    with pytest.raises(PenstockError) as raised:
        write(made({"store.url": str(tmp_path)}), [record(0, "a")])
    assert "files cannot be written" in str(raised.value)


@pytest.mark.slow
def test_objects_of_s3(tmp_path: Path) -> None:
    with s3_server(tmp_path) as server:
        more = {
            "store.url": f"s3://{BUCKET}/some/where/",
            "s3.endpoint": server.url,
            "s3.region": "us-east-1",
            "aws.access.key.id": "a-key",
            "aws.secret.access.key": "a-secret",
        }
        assert not check({**BASE, **more}, Provided()).messages
        of = made(more)
        for text in ("a", "b"):
            write(of, [record(0, text)])
        assert isinstance(of.store, S3Store)
        name = f"{BUCKET}/some/where/topics/t/partition=0/t+0+0000000000.json"
        assert of.store._files.open_input_file(name).read() == b'"b"\n'
        with pytest.raises(PenstockError, match="the object store refuses files") as raised:
            write(made(more | {"store.url": "s3://nobody-has-this"}), [record(0, "a")])
        assert not raised.value.retriable
    with pytest.raises(Unavailable, match="the object store does not take files"):
        write(of, [record(0, "a")])


# Folders.


@pytest.mark.parametrize(
    ("format", "duration", "zone", "wanted"),
    [
        ("'year'=YYYY/'month'=MM/'day'=dd/'hour'=HH", -1, "UTC", "year=2024/month=02/day=29/hour=12"),
        ("yy-M-d H:m:s.SSS", -1, "UTC", "24-2-29 12:0:0.123"),
        ("'it''s' ''d", -1, "UTC", "it's '29"),
        ("dd/HHmm", 600_000, "Asia/Kolkata", "29/1730"),
        ("dd/HHmm", 86_400_000, "America/New_York", "29/0000"),
    ],
)
def test_folders_of_times(format: str, duration: int, zone: str, wanted: str) -> None:
    assert path_problem(format) is None
    assert ByTime(format, duration, zone_of(zone), of_kafka)(record(0, 1)) == wanted


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (Timestamp(5), 5),
        (MicroTimestamp(-1), -1),
        (Date(2), 172_800_000),
        (7, 7),
        ("1970-01-01T00:00:01.5Z", 1500),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01", 0),
        ("yesterday", "no time of ISO 8601"),
        (True, "its field a.b is no time"),
        ({}, "its field a.b is no time"),
    ],
)
def test_times_of_fields(value: Any, wanted: int | str) -> None:
    given = record(0, {"a": {"b": value}})
    if isinstance(wanted, int):
        assert OfField("a.b")(given) == wanted
    else:
        with pytest.raises(BadRecord, match=wanted):
            OfField("a.b")(given)


def test_folders_of_fields() -> None:
    given = record(0, {"a": "x/../y", "b": 7, "c": True, "d.e": "é", "f": None})
    assert ByFields(("a", "b", "c", "d.e"))(given) == "a=x%2F..%2Fy/b=7/c=true/d.e=%C3%A9"
    for name, why in (("f", "is null, and partition.field.name needs"), ("g", "has no field g")):
        with pytest.raises(BadRecord, match=why):
            ByFields((name,))(given)
    with pytest.raises(BadRecord, match="the most are 200"):
        ByFields(("a",))(record(0, {"a": "x" * 201}))
    assert by_partition(record(0, 1, 7)) == "partition=7"


def test_a_record_without_a_time_or_with_one_that_no_calendar_has_is_bad() -> None:
    folder = ByTime("YYYY", -1, zone_of("UTC"), of_kafka)
    for at, why in ((None, "it has no timestamp"), (1 << 60, "no year from 1 to 9999")):
        with pytest.raises(BadRecord, match=why):
            folder(record(0, 1, at=at))


# Formats.


def of_fields(**fields: Schema) -> Schema:
    return {"type": "struct", "fields": [{"field": name, **kind} for name, kind in fields.items()]}


def test_json_is_that_of_the_converter_without_schemas() -> None:
    value = {
        "date": Date(1),
        "at": Timestamp(2),
        "bytes": b"\xff",
        "decimal": Decimal("-1.28"),
        "list": [1.5, float("nan"), float("-inf"), None, True, 1 << 70],
        "map": {7: "é"},
    }
    lines = JsonLines(False)
    lines.add(Part({"type": "map"}, value))
    text = '{"date":1,"at":2,"bytes":"/w==","decimal":"gA==","list":[1.5,"NaN","-Infinity",null,true,'
    assert lines.data().decode() == text + '1180591620717411303424],"map":{"7":"é"}}\n'
    lines = JsonLines(False)
    lines.add(Part(None, [Decimal("-1.28"), Decimal("1E+3")]))
    assert lines.data() == b"[-1.28,1E+3]\n"
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    for wrong, why in ((deep, "nested too deep"), ("\ud800", "half of a pair")):
        with pytest.raises(BadRecord, match=why):
            lines.add(Part(None, wrong))
    assert lines.data() == b"[-1.28,1E+3]\n"


def test_bytes_are_lines() -> None:
    lines = ByteLines()
    lines.add(Part({"type": "bytes"}, b"a\xff"))
    with pytest.raises(BadRecord, match="set ByteArrayConverter"):
        lines.add(Part(None, "text"))
    assert lines.data() == b"a\xff\n"


def test_parquet_has_the_types_of_the_schema(tmp_path: Path) -> None:
    text: Schema = {"type": "string"}
    schema = of_fields(
        i={"type": "int8"},
        s=text,
        d={"type": "bytes", "name": f"{DATA}Decimal", "parameters": {"scale": "2"}},
        date={"type": "int32", "name": f"{DATA}Date"},
        at={"type": "int64", "name": f"{DATA}Timestamp"},
        clock={"type": "int32", "name": f"{DATA}Time"},
        micros={"type": "int64", "name": "io.debezium.time.MicroTimestamp"},
        tags={"type": "array", "items": text},
        m={"type": "map", "keys": text, "values": {"type": "int32"}},
        inner=of_fields(x={"type": "double"}),
    )
    value = {
        "i": 1,
        "s": None,
        "d": Decimal("1.20"),
        "date": Date(1),
        "at": Timestamp(1),
        "clock": TimeOfDay(1),
        "micros": MicroTimestamp(1),
        "tags": ["a", None],
        "m": {"k": 1},
        "inner": {"x": 0.5},
    }
    of = made({"format.class": "ParquetFormat", "parquet.codec": "none", "store.url": str(tmp_path)})
    assert write(of, [record(0, Part(schema, value))]) == []
    (file,) = tmp_path.rglob("*.parquet")
    table = pq.read_table(file)
    types = [str(kind) for kind in table.schema.types]
    assert types[:7] == [
        "int8", "string", "decimal128(38, 2)", "date32[day]", "timestamp[ms, tz=UTC]", "time32[ms]", "timestamp[us]",
    ]  # fmt: skip
    assert table.column("m").to_pylist() == [[("k", 1)]] and table.column("inner").to_pylist() == [{"x": 0.5}]
    assert table.column("at").cast(pa.int64()).to_pylist() == [1]


@pytest.mark.parametrize(
    ("part", "why"),
    [
        (Part(None, {"a": 1}), "no struct with a schema"),
        (Part({"type": "string"}, "a"), "no struct with a schema"),
        (Part(of_fields(a={"type": "int8"}), {"a": 300}), "does not fit the columns"),
        (Part(of_fields(a={"type": ""}), {"a": 1}), "has the type ''"),
    ],
)
def test_what_parquet_does_not_have_is_bad(part: Part, why: str) -> None:
    rows = made({"format.class": "ParquetFormat"}).format()
    assert isinstance(rows, ParquetRows)
    with pytest.raises(BadRecord, match=why):
        rows.add(part)


# Properties.


TIMED = {"partitioner.class": "TimeBasedPartitioner", "path.format": "dd-HH"}
S3 = {"store.url": "s3://b/p", "aws.access.key.id": "k", "aws.secret.access.key": "s"}
# By property: a configuration with it, where its effect is, and the effect.
EFFECTS: dict[str, list[tuple[dict[str, str], str, Any]]] = {
    "store.url": [
        ({}, "store", FolderStore(Path("/data"))),
        ({"store.url": "file:///a%20b"}, "store", FolderStore(Path("/a b"))),
    ],
    "s3.region": [(S3 | {"s3.region": "r"}, "store", S3Store("b/p", "r", "", "k", "s"))],
    "s3.endpoint": [(S3 | {"s3.endpoint": "http://h:1/"}, "store", S3Store("b/p", "", "http://h:1", "k", "s"))],
    "aws.access.key.id": [({"store.url": "s3://b"}, "store", S3Store("b"))],
    "aws.secret.access.key": [(S3, "store", S3Store("b/p", key="k", secret="s"))],
    "topics.dir": [({}, "place", "/data/topics"), ({"topics.dir": "a/b"}, "topics_dir", "a/b")],
    "file.delim": [({}, "delimiter", "+"), ({"file.delim": "_"}, "delimiter", "_")],
    "filename.offset.zero.pad.width": [({}, "width", 10), ({"filename.offset.zero.pad.width": "0"}, "width", 0)],
    "flush.size": [({}, "chunks", Chunks(3, None))],
    "rotate.interval.ms": [
        ({"rotate.interval.ms": "5"}, "chunks", Chunks(3, timedelta(milliseconds=5))),
        ({"rotate.interval.ms": "5"}, "rotation", 5),
    ],
    "rotate.schedule.interval.ms": [
        (
            {"rotate.schedule.interval.ms": "4", "rotate.interval.ms": "5"},
            "chunks",
            Chunks(3, timedelta(milliseconds=4)),
        )
    ],
    "format.class": [
        ({}, "extension", ".json"),
        ({"format.class": "io.confluent.connect.s3.format.bytearray.ByteArrayFormat"}, "extension", ".bin"),
        ({"format.class": "ParquetFormat"}, "extension", ".snappy.parquet"),
    ],
    "json.decimal.format": [({}, "numeric", False), ({"json.decimal.format": "numeric"}, "numeric", True)],
    "format.bytearray.extension": [
        ({"format.class": "ByteArrayFormat", "format.bytearray.extension": ".raw"}, "extension", ".raw")
    ],
    "parquet.codec": [({"format.class": "ParquetFormat", "parquet.codec": "none"}, "extension", ".parquet")],
    "behavior.on.null.values": [
        ({}, "skips_nulls", False),
        ({"behavior.on.null.values": "ignore"}, "skips_nulls", True),
    ],
    "partitioner.class": [
        ({}, "folder", "partition=0"),
        ({"partitioner.class": "a.b.DailyPartitioner"}, "folder", "year=2024/month=02/day=29"),
        ({"partitioner.class": "HourlyPartitioner"}, "folder", "year=2024/month=02/day=29/hour=12"),
    ],
    "partition.field.name": [
        ({"partitioner.class": "FieldPartitioner", "partition.field.name": "f, at"}, "folder", "f=v/at=0")
    ],
    "path.format": [(TIMED, "folder", "29-12")],
    "partition.duration.ms": [(TIMED | {"partition.duration.ms": "25200000"}, "folder", "29-07")],
    "timezone": [(TIMED | {"timezone": "+02:00"}, "folder", "29-14")],
    "timestamp.extractor": [
        (TIMED | {"timestamp.extractor": "RecordField", "timestamp.field": "at"}, "folder", "01-00")
    ],
    "timestamp.field": [(TIMED | {"timestamp.field": "at"}, "folder", "29-12")],
    "errors.tolerance": [({}, "tolerance", "fail"), ({"errors.tolerance": "all"}, "tolerance", "log")],
}  # fmt: skip
REFUSED = {"directory.delim", "schema.compatibility", "store.kafka.keys", "store.kafka.headers"}
"""Other values than the one that has no effect are refused."""


def test_each_property_has_an_effect_is_refused_or_is_listed_as_without_effect() -> None:
    own = [each for each in files_properties.properties() if each.name not in {one.name for one in of_connect(())}]
    inert = {each.name for each in own if each.doc.startswith(INERT)}
    assert {each.name for each in own} == inert | (set(EFFECTS) - {"errors.tolerance"}) | REFUSED
    assert inert == {"storage.class", "retry.backoff.ms", "schema.cache.size", "s3.part.size", "locale"}


@pytest.mark.parametrize(
    ("more", "name", "wanted"), [case for cases in EFFECTS.values() for case in cases], ids=count()
)
def test_effects_of_properties(more: dict[str, str], name: str, wanted: Any) -> None:
    of = made(more)
    if name == "folder":
        assert of.folder(record(0, {"f": "v", "at": 0})) == wanted
    else:
        assert getattr(of.format() if name == "numeric" else of, name) == wanted


@pytest.mark.parametrize(
    ("more", "name", "why"),
    [
        ({"store.url": "hdfs://h/a"}, "store.url", "hdfs: is not supported: mount it as a folder"),
        ({"store.url": "data"}, "store.url", "it must be the whole path of a folder"),
        ({"store.url": "s3:///x"}, "store.url", "it must be s3://bucket/prefix"),
        ({"topics.dir": "../x"}, "topics.dir", "it must be the name of a folder"),
        ({"topics.dir": "/x"}, "topics.dir", "it must be the name of a folder"),
        ({"file.delim": "/"}, "file.delim", "1 to 10 characters"),
        ({"filename.offset.zero.pad.width": "20"}, "filename.offset.zero.pad.width", "from 0 to 19"),
        ({"flush.size": "0"}, "flush.size", "at least 1"),
        ({"format.class": "AvroFormat"}, "format.class", "one of JsonFormat, ParquetFormat, ByteArrayFormat"),
        ({"partitioner.class": "x.Mine"}, "partitioner.class", "one of DefaultPartitioner"),
        ({"partitioner.class": "FieldPartitioner"}, "partition.field.name", "needs the names of fields"),
        ({"partitioner.class": "TimeBasedPartitioner"}, "path.format", "as in 'year'=YYYY"),
        (TIMED | {"path.format": "w"}, "path.format", "the letters y Y M d H m s S"),
        (TIMED | {"path.format": "YYYY/'..'/dd"}, "path.format", "a folder between slashes has no name"),
        (TIMED | {"partition.duration.ms": "0"}, "partition.duration.ms", "above 0"),
        ({"timestamp.extractor": "Wallclock"}, "timestamp.extractor", "would get another time, and be there twice"),
        ({"timezone": "Mars"}, "timezone", "is not a time zone"),
        ({"behavior.on.null.values": "write"}, "behavior.on.null.values", "one of fail, ignore"),
        ({"schema.compatibility": "BACKWARD"}, "schema.compatibility", "one of NONE"),
        ({"store.kafka.keys": "true"}, "store.kafka.keys", "only false is supported"),
        ({"store.kafka.headers": "true"}, "store.kafka.headers", "only false is supported"),
        ({"directory.delim": "-"}, "directory.delim", "one of /"),
        ({"format.bytearray.extension": "/x"}, "format.bytearray.extension", "like .bin"),
        ({"s3.endpoint": "h:1"}, "s3.endpoint", "like https://host:port"),
        ({"aws.access.key.id": "k"}, "store.url", "a key of S3 has an id and a secret"),
        ({"topics": ""}, "topics", "give the topics to read"),
    ],
    ids=count(),
)
def test_wrong_configurations_name_their_property(more: dict[str, str], name: str, why: str) -> None:
    errors = checked(more).errors
    assert set(errors) == {name} and why in errors[name][0], errors


def test_the_secret_of_a_key_is_not_shown() -> None:
    found = checked(S3 | {"aws.secret.access.key": "hush"})
    assert "hush" not in json.dumps(found.shown) + repr(settings(found.values, {}))
    for name in CLASS_NAMES:
        assert not checked({"connector.class": name}).messages
    destination = FilesDestination(made({}))
    assert destination.identity("t", any_topic=False) == ("files", "/data/topics/t")
    assert destination.identity("t", any_topic=True) == ("files", "/data/topics")


# A connector.


@pytest.fixture
def topic(services: Services) -> Iterator[str]:
    with new_topic(services.kafka, "files", 1) as name:
        yield name


def test_a_connector_writes_whole_files_and_the_rest_after_its_time(
    connect: KafkaConnect, services: Services, tmp_path: Path, topic: str
) -> None:
    producer, name = Producer({"bootstrap.servers": services.kafka}), f"files-{uuid.uuid4().hex[:8]}"

    def send(*numbers: int) -> None:
        for number in numbers:
            producer.produce(topic, json.dumps({"n": number}))
        producer.flush()

    def found() -> dict[str, str]:
        return {file.name: file.read_text() for file in (tmp_path / "topics").rglob("*.json")}

    config = {
        **{name: text for name, text in BASE.items() if name != "name"},
        **{"topics": topic, "store.url": str(tmp_path), "value.converter.schemas.enable": "false"},
    }
    wanted = {
        f"{topic}+0+0000000000.json": '{"n":0}\n{"n":1}\n{"n":2}\n',
        f"{topic}+0+0000000003.json": '{"n":3}\n',
    }
    send(0, 1, 2, 3)
    connect.create_connector({"name": name, "config": config | {"rotate.schedule.interval.ms": "50"}})
    try:
        until(lambda: found() == wanted, "a whole file, and the rest")
    finally:
        connect.delete_connector(name)
