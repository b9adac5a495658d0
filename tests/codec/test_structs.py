"""Structs of any frame in each format: readers get the values that Spark wrote."""

from __future__ import annotations

import datetime as dt
import io
import json
import math
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from google.protobuf.json_format import MessageToDict
from hypothesis import Phase, given, settings, strategies as some
from kafka_topics import messages, new_topic
from protobuf_files import message_class
from pyspark.sql import Row, SparkSession, functions as F, types as st

from penstock import kafka
from penstock.codec.formats import Format
from penstock.codec.typed_records import RecordPart
from penstock.errors import PenstockError
from penstock.local.services import Services

HERE = "127.0.0.1:1"
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
NESTED = st.StructType().add("text", st.StringType()).add("days", st.ArrayType(st.DateType()))
KIND = (
    st.StructType()
    .add("b", st.BinaryType())
    .add("bo", st.BooleanType())
    .add("by", st.ByteType())
    .add("da", st.DateType())
    .add("de", st.DecimalType(20, 3))
    .add("do", st.DoubleType())
    .add("fl", st.FloatType())
    .add("in", st.IntegerType())
    .add("lo", st.LongType())
    .add("sh", st.ShortType())
    .add("ti", st.TimestampType())
    .add("te", st.StringType())
    .add("list", st.ArrayType(NESTED, containsNull=False))
    .add("counts", st.MapType(st.StringType(), st.LongType(), valueContainsNull=False))
    .add("by_id", st.MapType(st.IntegerType(), NESTED, valueContainsNull=False))
    .add("odd name-1", st.IntegerType())
)


def integers(bits: int) -> some.SearchStrategy[int]:
    return some.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


# A lone surrogate is not valid text.
text = some.text(some.characters(exclude_categories=["Cs"]), max_size=8)
dates = some.dates(dt.date(1, 1, 1), dt.date(9999, 12, 31))
nested = some.tuples(some.none() | text, some.none() | some.lists(dates, max_size=3))
rows = some.tuples(
    *(
        some.none() | strategy
        for strategy in (
            some.binary(max_size=200),
            some.booleans(),
            integers(8),
            dates,
            some.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**12), max_value=10**12),
            some.floats(),
            some.floats(width=32),
            integers(32),
            integers(64),
            integers(16),
            some.integers(-(10**15), 10**17).map(lambda micros: EPOCH + dt.timedelta(microseconds=micros)),
            text,
            some.lists(nested, max_size=3),
            some.dictionaries(text, integers(64), max_size=3),
            some.dictionaries(integers(32), nested, max_size=3),
            integers(32),
        )
    )
)


def same(one: Any, other: Any) -> bool:
    """Whether the values are equal; NaN equals NaN, and entries of a map have no order."""
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        one, other = (sorted(side, key=_key) for side in (one, other))
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def _key(value: Any) -> int:
    return int(value["key"]) if isinstance(value, dict) and "key" in value else 0


def different(one: dict[str, Any], other: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {name: (one.get(name), other.get(name)) for name in one | other if not same(one.get(name), other.get(name))}


def in_avro(row: tuple[Any, ...]) -> dict[str, Any]:
    """The value that an Avro reader returns for a row of `KIND`."""
    made = dict(zip(KIND.names, row, strict=True))
    nested = ("text", "days")
    if made["de"] is not None:
        made["de"] = format(made["de"], "f")
    if made["ti"] is not None:
        made["ti"] = made["ti"].replace(microsecond=made["ti"].microsecond // 1000 * 1000)
    if made["list"] is not None:
        made["list"] = [dict(zip(nested, value, strict=True)) for value in made["list"]]
    if made["by_id"] is not None:
        entries = made["by_id"].items()
        made["by_id"] = [{"key": key, "value": dict(zip(nested, value, strict=True))} for key, value in entries]
    made["odd_name_1"] = made.pop("odd name-1")
    return made


def in_protobuf(row: tuple[Any, ...]) -> dict[str, Any]:
    """The same for a Protobuf reader, which does not distinguish a null list from an empty one."""
    made = in_avro(row)
    for value in [*(made["list"] or []), *(entry["value"] for entry in made["by_id"] or [])]:
        value["days"] = value["days"] or []
    return made | {name: made[name] or type(empty)() for name, empty in (("list", []), ("counts", {}), ("by_id", []))}


def from_message(message: Any) -> dict[str, Any]:
    return {field.name: _field(message, field) for field in message.DESCRIPTOR.fields}


def _field(message: Any, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return dict(value)
    if field.is_repeated:
        return [_one(item) for item in value]
    return None if field.has_presence and not message.HasField(field.name) else _one(value)


def _one(value: Any) -> Any:
    name = value.DESCRIPTOR.full_name if hasattr(value, "DESCRIPTOR") else None
    if name == "google.type.Date":
        return dt.date(value.year, value.month, value.day)
    if name == "google.protobuf.Timestamp":
        return EPOCH + dt.timedelta(seconds=value.seconds, microseconds=value.nanos / 1e3)
    return from_message(value) if name else value


def latest(registry: str, subject: str) -> str:
    with SchemaRegistryClient({"url": registry}) as peer:
        return str(peer.get_latest_version(subject).schema.schema_str)


@pytest.mark.slow
# Shrinking would take minutes of Spark jobs; the failure names the fields instead.
@settings(max_examples=2, database=None, phases=[Phase.generate])
@given(values=some.lists(rows, min_size=20, max_size=60))
def test_readers_of_avro_and_protobuf_get_the_values_that_spark_wrote(
    spark: SparkSession, registry: str, values: list[tuple[Any, ...]]
) -> None:
    frame = spark.createDataFrame([Row(value=value) for value in values], st.StructType().add("value", KIND)).coalesce(
        1
    )
    found = {
        format: kafka.sink(format, servers=HERE, format=format, registry=registry).records(frame).collect()
        for format in ("avro", "protobuf")
    }
    schema = fastavro.parse_schema(json.loads(latest(registry, "avro-value")))
    for row, value in zip(found["avro"], values, strict=True):
        read = fastavro.schemaless_reader(io.BytesIO(row.value[5:]), schema)
        assert same(read, in_avro(value)), different(read, in_avro(value))
    message = message_class(latest(registry, "protobuf-value"))
    for row, value in zip(found["protobuf"], values, strict=True):
        told = from_message(message.FromString(bytes(row.value[6:])))
        assert same(told, in_protobuf(value)), different(told, in_protobuf(value))


def test_null_stays_null_in_every_format(spark: SparkSession, registry: str) -> None:
    frame = spark.createDataFrame([(None, None)], "key struct<id: int>, value struct<id: int>")
    for format in ("json", "avro", "protobuf", "json-schema", "csv"):
        needed = None if format in ("json", "csv") else registry
        (row,) = kafka.sink(f"null-{format}", servers=HERE, format=format, registry=needed).records(frame).collect()
        assert (row.key, row.value) == (None, None)


def test_structs_as_json(spark: SparkSession) -> None:
    frame = spark.sql(
        "select 'k' key, struct(date'1970-01-02' d, timestamp'1970-01-01 00:00:01.5' t, 1.50BD n, map('a', 1) m,"
        " map(1, 'a') e, X'00ff' b, cast(null as int) i) value"
    )
    (row,) = kafka.sink("t", servers=HERE).records(frame).collect()
    expected = {"d": 1, "t": 1500, "n": "1.50", "m": {"a": 1}, "e": [{"key": 1, "value": "a"}], "b": "AP8=", "i": None}
    assert row.key == "k" and json.loads(row.value) == expected
    (row,) = kafka.sink("t", servers=HERE, schemas=True).records(frame).collect()
    told = json.loads(row.value)
    assert told["payload"] == expected and told["schema"]["name"] == "t.Value"
    assert told["schema"]["fields"][0] == {
        "type": "int32",
        "name": "org.apache.kafka.connect.data.Date",
        "version": 1,
        "optional": False,
        "field": "d",
    }


def test_a_key_that_is_one_plain_value(spark: SparkSession, registry: str) -> None:
    """A key as the transform ExtractField produces it."""
    part = RecordPart(F.col("id"), {"type": "int64", "optional": True})

    def encoded(format: Format, **needs: Any) -> Any:
        column = kafka.codec(format, **needs).encode(part, topic="plain", side="key")
        return [row[0] for row in spark.sql("select 7L id union all select null").select(column).collect()]

    assert encoded("csv") == ["7", None]
    key, nothing = encoded("avro", registry=registry)
    assert (key[5:], nothing) == (b"\x02\x0e", None) and json.loads(latest(registry, "plain-key")) == ["null", "long"]
    with pytest.raises(PenstockError, match=r"a Protobuf record is a message, not a plain int64.*kafka\.codec"):
        encoded("protobuf", registry=registry)


def test_csv_keeps_every_character(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [((1, ' a "quoted", line\nand more ', b"\0", 2.5),), ((None, "", None, None),)],
        "value struct<id: int, text: string, bytes: binary, d: double>",
    ).coalesce(1)
    first, second = kafka.sink("t", servers=HERE, format="csv").records(frame).collect()
    assert first.value == '1," a ""quoted"", line\nand more ",AA==,2.5'
    assert second.value == ',"",,'


def test_exactly_once_writes_the_same_bytes(
    spark: SparkSession, services: Services, registry: str, tmp_path: Any
) -> None:
    kind = "struct<id: int>"
    frame = spark.createDataFrame([((7,), (8,))], f"key {kind}, value {kind}")
    with new_topic(services.kafka, "structs", 1) as topic:
        sink = kafka.sink(topic, servers=services.kafka, format="avro", registry=registry, delivery="exactly-once")
        sink.save(frame)
        ((key, value),) = [(one.key(), one.value()) for one in messages(services.kafka, topic, 1)]
    assert (key[:1], key[5:]) == (b"\0", b"\x02\x0e")
    assert (value[:1], value[5:]) == (b"\0", b"\x02\x10")


def test_a_value_that_is_no_struct_has_no_such_format(spark: SparkSession, registry: str) -> None:
    frame = spark.sql("select 'k' key, 'v' value")
    with pytest.raises(PenstockError, match=r"'avro' needs a struct, but the column `value` is string.*F\.struct"):
        kafka.sink("t", servers=HERE, format="avro", registry=registry).records(frame)


def test_a_type_that_no_format_has_is_named_with_its_place(spark: SparkSession) -> None:
    frame = spark.sql("select struct(array(struct(interval '1' day as wait)) steps) value")
    with pytest.raises(PenstockError, match=r"values of the type interval day \(t\.Value\.steps\.wait\)"):
        kafka.sink("t", servers=HERE).records(frame)


def test_in_protobuf_zero_is_there_and_null_is_not(spark: SparkSession, registry: str) -> None:
    kind = "value struct<zero: int, nothing: int, m: map<string, double>>"
    frame = spark.createDataFrame([((0, None, {"a": 1.5}),)], kind)
    (row,) = kafka.sink("zero", servers=HERE, format="protobuf", registry=registry).records(frame).collect()
    message = message_class(latest(registry, "zero-value")).FromString(bytes(row.value[6:]))
    assert MessageToDict(message) == {"zero": 0, "m": {"a": 1.5}}


def test_decimals_keep_their_scale(spark: SparkSession) -> None:
    frame = spark.createDataFrame([((Decimal("1.500"),),)], "value struct<n: decimal(10,3)>")
    (row,) = kafka.sink("t", servers=HERE).records(frame).collect()
    assert row.value == '{"n":"1.500"}'
