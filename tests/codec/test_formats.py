"""Events and structs in each format, written to a real Kafka and read by confluent-kafka's own deserializers."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from change_frames import INSERT, RANGE_DELETE, ROW_DELETE, UPDATE, Table
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.json_format import MessageToDict
from kafka_topics import messages, new_topic
from protobuf_files import message_class
from pyspark.sql import SparkSession

from penstock import cdc, kafka
from penstock.codec.registry import SubjectNames
from penstock.errors import PenstockError
from penstock.local.services import Services

TABLE = Table(
    {
        "id": "int",
        "at": "text",
        "a": "frozen<address>",
        "b": "blob",
        "d": "date",
        "f": "float",
        "g": "double",
        "i": "smallint",
        "l": "list<text>",
        "m": "map<text, int>",
        "n": "decimal",
        "o": "boolean",
        "t": "timestamp",
        "u": "frozen<tuple<int, text>>",
    },
    ["id"],
    ["at"],
    udts={"address": {"street": "text", "number": "bigint"}},
    name="shop.orders",
)
VALUES: dict[str, Any] = {
    "id": -1,
    "at": "é",
    "a": {"street": "High", "number": 2**62},
    "b": b"\x00\xff",
    "d": dt.date(1969, 12, 31),
    "f": 1.5,
    "g": -0.1,
    "i": -5,
    "l": ["x", "ü"],
    "m": [{"key": "one", "value": 1}, {"key": "none", "value": None}],
    "n": "12.50",
    "o": False,
    "t": dt.datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=dt.UTC),
    "u": {"field_0": 7, "field_1": None},
}
WRITTEN = {**VALUES, "a": ("High", 2**62), "m": {"one": 1, "none": None}, "u": (7, None)}
ROW = tuple(WRITTEN[name] for name in sorted(WRITTEN))
EMPTY = tuple(WRITTEN[name] if name in ("id", "at") else None for name in sorted(WRITTEN))
CHANGES = [
    {"kind": INSERT, "key": (-1, "é"), "after": ROW},
    {"kind": UPDATE, "key": (-1, "é"), "before": ROW, "after": EMPTY},
    {"kind": ROW_DELETE, "key": (-1, "é")},
    {"kind": RANGE_DELETE, "key": (-1, None), "range": (("a",), False, (None,), True)},
]
Read = Callable[[bytes | None, str], Any]


@pytest.fixture(scope="module")
def peer(registry: str) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": registry}) as client:
        yield client


@pytest.fixture
def topic(services: Services) -> Iterator[str]:
    with new_topic(services.kafka, "formats", 1) as name:
        yield name


def avro_reader(peer: SchemaRegistryClient, topic: str) -> Read:
    read = AvroDeserializer(peer)
    return lambda content, side: read(content, SerializationContext(topic, side))


def writer_schema(peer: SchemaRegistryClient, content: bytes) -> str:
    return str(peer.get_schema(int.from_bytes(content[1:5], "big")).schema_str)


def json_schema_reader(peer: SchemaRegistryClient, topic: str) -> Read:
    def read(content: bytes | None, side: str) -> Any:
        if content is None:
            return None
        reader = JSONDeserializer(writer_schema(peer, content), schema_registry_client=peer)
        return reader(content, SerializationContext(topic, side))

    return read


def protobuf_reader(peer: SchemaRegistryClient, topic: str) -> Read:
    def read(content: bytes | None, side: str) -> Any:
        if content is None:
            return None
        # Without the registry: Apicurio 3.3 garbles the compiled schemas that this reader requests.
        reader = ProtobufDeserializer(message_class(writer_schema(peer, content)), {"use.deprecated.format": False})
        return reader(content, SerializationContext(topic, side))

    return read


def written(spark: SparkSession, servers: str, topic: str, **options: Any) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values of `CHANGES` as they arrive in the topic."""
    frame = TABLE.frame(spark, CHANGES).coalesce(1)
    kafka.sink(topic, prefix="p", servers=servers, **options).save(frame)
    return [(one.key(), one.value()) for one in messages(servers, topic, 1)]


def test_avro(spark: SparkSession, services: Services, registry: str, peer: SchemaRegistryClient, topic: str) -> None:
    records = written(spark, services.kafka, topic, format="avro", registry=registry)
    read = avro_reader(peer, topic)
    assert [read(key, MessageField.KEY) for key, _ in records] == [
        *[{"id": -1, "at": "é"}] * 4,
        {"id": -1, "at": None},
    ]
    insert, update, delete, tombstone, ranged = (read(value, MessageField.VALUE) for _, value in records)
    assert [event["op"] for event in (insert, update, delete, ranged)] == ["c", "u", "d", "d"] and tombstone is None
    assert (insert["before"], insert["after"]) == (None, VALUES)
    assert update["before"] == VALUES and update["after"]["a"] is None
    assert "range" not in delete
    assert ranged["range"] == {
        "start": {"at": "a"},
        "start_inclusive": False,
        "end": None,
        "end_inclusive": True,
    }
    assert sorted(peer.get_versions(f"{topic}-value")) == [1, 2] and peer.get_versions(f"{topic}-key") == [1]


def test_json_schema(
    spark: SparkSession, services: Services, registry: str, peer: SchemaRegistryClient, topic: str
) -> None:
    records = written(spark, services.kafka, topic, format="json-schema", registry=registry)
    read = json_schema_reader(peer, topic)
    events = [read(value, MessageField.VALUE) for _, value in records]
    assert events[0]["after"] == {**VALUES, "b": "AP8=", "d": -1, "t": -1}
    assert events[3] is None and events[4]["range"]["start"] == {"at": "a"}
    assert [read(key, MessageField.KEY) for key, _ in records][-1] == {"id": -1, "at": None}


@pytest.mark.slow
def test_protobuf(
    spark: SparkSession, services: Services, registry: str, peer: SchemaRegistryClient, topic: str
) -> None:
    records = written(spark, services.kafka, topic, format="protobuf", registry=registry)
    read = protobuf_reader(peer, topic)
    events = [read(value, MessageField.VALUE) for _, value in records]
    assert not events[0].HasField("before")
    row = MessageToDict(events[0].after, preserving_proto_field_name=True)
    assert row == MessageToDict(events[1].before, preserving_proto_field_name=True)
    assert row == {
        **VALUES,
        "a": {"street": "High", "number": str(2**62)},
        "b": "AP8=",
        "d": {"year": 1969, "month": 12, "day": 31},
        "m": [{"key": "one", "value": 1}, {"key": "none"}],
        "t": "1969-12-31T23:59:59.999Z",
        "u": {"field_0": 7},
        "g": pytest.approx(-0.1),
    }
    assert not events[1].after.HasField("o") and events[0].after.HasField("o")
    assert events[3] is None
    assert events[4].range.start.at == "a" and not events[4].range.HasField("end")
    keys = [MessageToDict(read(key, MessageField.KEY)) for key, _ in records]
    assert keys == [*[{"id": -1, "at": "é"}] * 4, {"id": -1}]


@pytest.mark.slow
def test_events_of_a_table_with_collections_are_compiled_in_protobuf(spark: SparkSession, registry: str) -> None:
    """One method of a Java class takes 64 KB; beyond that Spark logs 400 lines and goes on uncompiled."""
    sink = kafka.sink(prefix="rich", servers="127.0.0.1:1", format="protobuf", registry=registry)
    records = sink.records(TABLE.frame(spark, CHANGES).repartition(1))
    spark.conf.set("spark.sql.codegen.fallback", "false")
    try:
        assert records.selectExpr("count(value) AS n", "count_if(value IS NULL) AS none").first() == (4, 1)
    finally:
        spark.conf.unset("spark.sql.codegen.fallback")


def test_a_new_column_is_a_new_version_that_reads_old_records(
    spark: SparkSession, services: Services, registry: str, peer: SchemaRegistryClient, topic: str
) -> None:
    ours = kafka.Registry(registry)
    sink = kafka.sink(topic, servers=services.kafka, format="avro", registry=ours)
    before, after = Table({"id": "int", "v": "int"}, ["id"]), Table({"id": "int", "v": "int", "w": "text"}, ["id"])
    sink.save(before.frame(spark, [{"kind": INSERT, "key": (1,), "after": (1, 2)}]))
    ours.set_compatibility("FULL", f"{topic}-value")
    sink.save(after.frame(spark, [{"kind": INSERT, "key": (1,), "after": (1, 2, "new")}]))
    assert ours.versions(f"{topic}-value") == [1, 2] and ours.versions(f"{topic}-key") == [1]
    read = AvroDeserializer(peer, peer.get_latest_version(f"{topic}-value").schema.schema_str)
    context = SerializationContext(topic, MessageField.VALUE)
    events = [read(one.value(), context)["after"] for one in messages(services.kafka, topic, 1)]
    assert events == [{"id": 1, "v": 2, "w": None}, {"id": 1, "v": 2, "w": "new"}]


def test_a_column_of_another_type_is_refused_when_the_sink_is_asked_for_its_records(
    spark: SparkSession, registry: str
) -> None:
    ours = kafka.Registry(registry)
    sink = kafka.sink("retyped", servers="127.0.0.1:1", format="avro", registry=ours)
    sink.records(Table({"id": "int", "v": "int"}, ["id"]).frame(spark, []))
    ours.set_compatibility("BACKWARD", "retyped-value")
    with pytest.raises(PenstockError, match=r"incompatible .*subject retyped-value at http.*Next: "):
        sink.records(Table({"id": "int", "v": "text"}, ["id"]).frame(spark, []))


@pytest.mark.parametrize(
    ("subjects", "expected"),
    [
        ("topic", ["t-key", "t-value"]),
        ("record", ["p{}.shop.orders.Key", "p{}.shop.orders.Envelope"]),
        ("topic-record", ["t-p{}.shop.orders.Key", "t-p{}.shop.orders.Envelope"]),
    ],
)
def test_subjects_are_named_by_the_rule(
    spark: SparkSession, registry: str, subjects: SubjectNames, expected: list[str]
) -> None:
    ours, prefix = kafka.Registry(registry), f"p{subjects.replace('-', '_')}"
    codec = kafka.codec("json-schema", registry=ours, subjects=subjects)
    cdc.events(TABLE.frame(spark, []), prefix=prefix, topic="t", key=codec, value=codec)
    assert all(ours.versions(name.replace("p{}", prefix)) for name in expected)


def test_a_topic_that_differs_from_row_to_row_names_no_subject(spark: SparkSession, registry: str) -> None:
    ours = kafka.Registry(registry)
    codec = kafka.codec("avro", registry=ours)
    frame = TABLE.frame(spark, [])
    cdc.events(frame, prefix="rows", topic=frame["op"], key=kafka.codec("json"), value=codec)
    assert ours.versions("rows.shop.orders.Envelope")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"format": "avro"}, r"'avro' needs a schema registry \(kafka.sink\)\. Next: give registry="),
        ({"format": "csv", "registry": "http://x:1"}, "'csv' does not use a schema registry.*'avro' or"),
        ({"format": "csv", "schemas": True}, "schemas is for the format 'json', not 'csv'"),
        ({"format": "avro", "registry": "x:1"}, "'x:1' is not the address of a schema registry.*http://host:8081"),
        ({"format": "avro", "registry": "http://x:1", "subjects": "t"}, "unknown rule for subjects 't'.*'topic' or"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(PenstockError, match=said):
        kafka.sink("t", servers="127.0.0.1:1", **wrong)


def test_events_are_too_deep_for_csv(spark: SparkSession) -> None:
    with pytest.raises(PenstockError, match=r"value has nested fields: source, before, after.*topic p\.shop\.orders"):
        kafka.sink(prefix="p", servers="127.0.0.1:1", format="csv").records(TABLE.frame(spark, []))


def test_lists_of_lists_have_no_place_in_protobuf(spark: SparkSession, registry: str) -> None:
    table = Table({"id": "int", "ll": "list<frozen<list<int>>>"}, ["id"])
    sink = kafka.sink(prefix="p", servers="127.0.0.1:1", format="protobuf", registry=registry)
    with pytest.raises(PenstockError, match=r"Protobuf has no lists .* lists or maps: 'll' \(Envelope\.Before\)"):
        sink.records(table.frame(spark, []))


def test_the_avro_schema_is_that_of_confluents_converter(
    spark: SparkSession, registry: str, peer: SchemaRegistryClient
) -> None:
    table = Table({"id": "smallint", "at": "timestamp"}, ["id"], name="shop.t")
    kafka.sink("schema", prefix="p", servers="127.0.0.1:1", format="avro", registry=registry).records(
        table.frame(spark, [])
    )
    made = json.loads(peer.get_latest_version("schema-value").schema.schema_str)
    fields = {field["name"]: field for field in made["fields"]}
    assert list(fields) == ["source", "before", "after", "op", "ts_ms", "transaction", "ts_us", "ts_ns"]
    assert (made["namespace"], made["name"], made["connect.name"]) == ("p.shop.t", "Envelope", "p.shop.t.Envelope")
    assert fields["op"] == {"name": "op", "type": ["null", "string"], "default": None}
    assert fields["before"]["type"] == [
        "null",
        {
            "type": "record",
            "name": "Before",
            "fields": [
                {
                    "name": "at",
                    "type": [
                        "null",
                        {
                            "type": "long",
                            "connect.version": 1,
                            "connect.name": "org.apache.kafka.connect.data.Timestamp",
                            "logicalType": "timestamp-millis",
                        },
                    ],
                    "default": None,
                },
                {"name": "id", "type": ["null", {"type": "int", "connect.type": "int16"}], "default": None},
            ],
            "connect.name": "p.shop.t.Before",
        },
    ]
    source = fields["source"]["type"]
    assert (source["namespace"], source["name"]) == ("com.scylladb.cdc.debezium", "connector")
    assert source["fields"][4] == {
        "name": "snapshot",
        "type": [
            {
                "type": "string",
                "connect.version": 1,
                "connect.parameters": {"allowed": "true,last,false,incremental"},
                "connect.default": "false",
                "connect.name": "io.debezium.data.Enum",
            },
            "null",
        ],
        "default": "false",
    }
