"""`kafka.sink` of frames without a column `value`: all columns are the value, and `key=` names the key's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from change_frames import INSERT, Table
from kafka_topics import messages, new_topic
from pyspark.sql import DataFrame, SparkSession, functions as F

from penstock import kafka, table, write
from penstock.codec.formats import Format
from penstock.errors import PenstockError
from penstock.local.services import Services

HERE = "127.0.0.1:9092"
ROWS = "SELECT 7 AS id, 'ann' AS name, timestamp'1970-01-01 00:00:01.5' AS at, X'00ff' AS raw"
VALUE = {"id": 7, "name": "ann", "at": 1500, "raw": "AP8="}


@pytest.fixture
def topic(services: Services) -> Iterator[str]:
    with new_topic(services.kafka, "columns", 1) as name:
        yield name


def told(frame: DataFrame, **options: Any) -> list[tuple[Any, Any]]:
    """Keys and values of the records."""
    return [
        (row.asDict().get("key"), json.loads(row.value))
        for row in kafka.sink(**{"topic": "t", "servers": HERE, **options}).records(frame).collect()
    ]


def test_all_columns_are_the_value_and_there_is_no_key(spark: SparkSession) -> None:
    assert told(spark.sql(ROWS)) == [(None, VALUE)]
    assert told(spark.sql("SELECT 'k' AS key, 1 AS `a.b`")) == [(None, {"key": "k", "a.b": 1})]


@pytest.mark.parametrize(
    ("key", "found"),
    [
        ("id", "7"),
        (["name"], "ann"),
        ("raw", bytearray(b"\0\xff")),
        (["name", "id"], '{"name":"ann","id":7}'),
    ],
    ids=str,
)
def test_a_key_is_one_column_as_a_string_or_several_as_a_struct(
    spark: SparkSession, key: str | list[str], found: object
) -> None:
    assert told(spark.sql(ROWS), key=key) == [(found, VALUE)]


def test_a_nested_column_is_a_key_as_a_struct(spark: SparkSession) -> None:
    frame = spark.sql("SELECT named_struct('a', 1) AS of")
    assert told(frame, key="of") == [('{"of":{"a":1}}', {"of": {"a": 1}})]


def test_a_null_in_the_key_is_a_record_without_a_key(spark: SparkSession) -> None:
    frame = spark.sql("SELECT cast(NULL AS string) AS id, 1 AS n")
    assert told(frame, key="id") == [(None, {"id": None, "n": 1})]


def test_a_key_of_a_frame_with_a_value_is_named_too(spark: SparkSession) -> None:
    frame = spark.sql("SELECT 'k' AS key, named_struct('n', 1) AS value, 5L AS id")
    assert told(frame) == [("k", {"n": 1})]
    assert told(frame, key="id") == [("5", {"n": 1})]


def test_topics_and_headers_of_each_row_are_beside_the_value(spark: SparkSession) -> None:
    frame = spark.sql("SELECT 'a' AS topic, 1 AS n, array(named_struct('key', 'h', 'value', X'01')) AS headers")
    (row,) = kafka.sink(servers=HERE).records(frame).collect()
    assert (row.topic, json.loads(row.value), row.headers[0].key) == ("a", {"n": 1}, "h")
    # With a topic of the sink's, and a type that is not Kafka's, they are columns as any other.
    frame = spark.sql("SELECT 'a' AS topic, 1 AS n, 'h' AS headers")
    assert told(frame) == [(None, {"topic": "a", "n": 1, "headers": "h"})]
    (row,) = kafka.sink(F.concat(F.lit("t-"), F.col("topic")), servers=HERE).records(frame).collect()
    assert row.topic == "t-a"


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("format", ["json", "avro", "protobuf", "json-schema", "csv"])
def test_every_format_takes_a_frame_and_its_reader_gets_the_rows(
    spark: SparkSession, services: Services, registry: str, tmp_path: Path, topic: str, format: Format
) -> None:
    registered: dict[str, Any] = {} if format in ("json", "csv") else {"registry": registry}
    spark.range(20, numPartitions=1).write.parquet(str(tmp_path / "in"))
    rows = spark.readStream.schema("id long").parquet(str(tmp_path / "in")).selectExpr("id", "concat('n', id) AS name")
    sink = kafka.sink(topic, servers=services.kafka, format=format, key=["name", "id"], **registered)
    write(rows, sink).start(checkpoint=tmp_path / "c", trigger="once").awaitTermination()
    keys = {message.key() for message in messages(services.kafka, topic, 1)}
    assert len(keys) == 20 and None not in keys
    columns = registered if format in ("avro", "protobuf") else {"schema": "id long, name string"}
    read = kafka.read(spark, topic, servers=services.kafka, name="back", format=format, **columns)
    query = read.writeStream.format("memory").queryName(f"back_{format.replace('-', '_')}").trigger(availableNow=True)
    query.start().awaitTermination()
    found = spark.table(f"back_{format.replace('-', '_')}").select("id", "name", "problem").collect()
    assert sorted(found) == [(n, f"n{n}", None) for n in range(20)]


@pytest.mark.parametrize("client", ["penstock", "spark"])
@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_both_clients_write_keys_and_values(
    spark: SparkSession, services: Services, topic: str, client: Any, delivery: Any
) -> None:
    if (client, delivery) == ("spark", "exactly-once"):
        client = None
    sink = kafka.sink(topic, servers=services.kafka, key="id", client=client, delivery=delivery)
    sink.save(spark.sql(ROWS))
    assert [(one.key(), json.loads(one.value())) for one in messages(services.kafka, topic, 1)] == [(b"7", VALUE)]


def test_a_table_has_its_own_key(spark: SparkSession) -> None:
    rows = spark.readStream.format("rate").load().selectExpr("value AS id", "timestamp AS ts")
    users = table.Table(rows, ("id",), "ts")
    assert write(users, kafka.sink("t", servers=HERE, key="id")).sinks
    with pytest.raises(PenstockError, match=r"key= is ts, but the table's is id.*leave key= out"):
        write(users, kafka.sink("t", servers=HERE, key="ts"))


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ("1 AS id", {"key": "ids"}, r"no column ids for the key .kafka.sink, columns id.*correct key="),
        ("1 AS id", {"key": ["id", "a", "b"]}, r"no column a, b for the key"),
        ("1 AS id", {"key": []}, r"key= names no column.*such as"),
        ("1 AS id", {"key": ["id", ""]}, r"key= names no column.*such as"),
        ("1 AS id, 2 AS id", {}, r"two columns have the name id .*columns id, id.*rename one"),
        ("'t' AS topic", {"topic": None}, r"no column for the value"),
        ("1 AS id", {"topic": None}, r"has no topic.*give the sink topic=, or add a column `topic`"),
        ("1 AS value", {}, r"column `value` is int, and the sink writes strings.*F.struct\('value'\)"),
        ("'v' AS value, 1.5D AS key", {}, r"column `key` is double, and the sink writes strings, bytes and structs"),
        ("array(1) AS value", {}, r"column `value` is array<int>, and the sink"),
        ("interval '1' day AS wait", {}, r"values of the type interval day \(t\.Value\.wait\).*cast the column"),
        ("array(1) AS a, 'v' AS value", {"format": "csv"}, r"format 'csv' needs a struct, but .* is string"),
        ("array(1) AS a", {"format": "csv"}, r"CSV holds flat records, and the value has nested fields: a"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_query_runs(
    spark: SparkSession, columns: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(PenstockError, match=said):
        kafka.sink(**{"topic": "t", "servers": HERE, **options}).records(spark.sql(f"SELECT {columns}"))


def test_changes_keep_the_key_of_their_row(spark: SparkSession) -> None:
    users = Table({"id": "int", "name": "text"}, ["id"], name="shop.users")
    frame = users.frame(spark, [{"kind": INSERT, "key": (1,)}])
    with pytest.raises(PenstockError, match=r"the key of a change is the primary key.*leave key= out, or sel"):
        kafka.sink("t", servers=HERE, key="ts").records(frame)
