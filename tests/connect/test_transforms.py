"""Kafka's own transforms on events; the expected records are from Kafka Connect 4.3."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from change_frames import AT, INSERT, PARTITION_DELETE, UPDATE, Table
from pyspark.sql import SparkSession
from smt_chains import EXTRACT, KAFKA, TOMBSTONE, Sent, config_of, sent

from penstock.errors import PenstockError

USERS = Table({"id": "int", "name": "text"}, ["id"], name="shop.users")
COLUMNS = {"at": "timestamp", "b": "boolean", "d": "date", "id": "int", "l": "list<int>", "n": "double", "x": "blob"}
VALUES = Table({**COLUMNS, "big": "bigint", "s": "text"}, ["id"])
OLD_TIME = dt.datetime(1969, 12, 31, 12, 0, 0, 500000, tzinfo=dt.UTC)

CHANGES = [
    {"kind": INSERT, "key": (1,), "after": (1, "a")},
    {"kind": PARTITION_DELETE, "key": (2,), "before": (2, "b")},
]


def kafka(name: str, **options: str) -> dict[str, str]:
    return {"type": KAFKA + name, **{key.replace("_", "."): value for key, value in options.items()}}


def users(spark: SparkSession, *steps: dict[str, str], **predicates: dict[str, str]) -> list[Sent]:
    return sent(spark, USERS, CHANGES, config_of(*steps, **predicates), placement=PLACES)


PLACES = ["kafka-key", "kafka-headers", "payload-before", "payload-after"]


def row(**values: Any) -> tuple[Any, ...]:
    base = {"at": AT, "b": True, "big": 5_000_000_000, "d": dt.date(2024, 2, 29), "id": 1, "l": [1]}
    return tuple((base | {"n": 3.75, "s": "7", "x": b"\1\2"} | values)[name] for name in sorted(VALUES.columns))


def rows(spark: SparkSession, *steps: dict[str, str], **values: Any) -> list[Sent]:
    """The result of a chain for two rows: the row above, and a row with other values."""
    changes = [{"kind": INSERT, "key": (1,), "after": after} for after in (row(), row(**values))]
    return sent(spark, VALUES, changes, config_of(EXTRACT, *steps))


def test_fields_are_inserted_replaced_and_named_anew(spark: SparkSession) -> None:
    insert = kafka("InsertField$Value", topic_field="topic!", timestamp_field="ts", static_field="s", static_value="v")
    (record,) = users(
        spark,
        EXTRACT,
        insert,
        kafka("ReplaceField$Value", exclude="name", renames="id:number"),
        kafka("SetSchemaMetadata$Value", schema_name="User", schema_version="3"),
    )
    assert record.value == {"number": 1, "topic": "p.shop.users", "ts": None, "s": "v"}
    assert record.value_schema == {
        "type": "struct",
        "fields": [
            {"type": "int32", "optional": True, "field": "number"},
            {"type": "string", "optional": False, "field": "topic"},
            {
                "type": "int64",
                "optional": True,
                "name": "org.apache.kafka.connect.data.Timestamp",
                "version": 1,
                "field": "ts",
            },
            {"type": "string", "optional": True, "field": "s"},
        ],
        "optional": False,
        "name": "User",
        "version": 3,
    }


def test_keys_are_changed_also_on_tombstones_and_values_only_where_they_are(spark: SparkSession) -> None:
    insert, delete, tombstone = users(
        spark,
        kafka("ExtractField$Key", field="id"),
        kafka("Cast$Key", spec="string"),
        kafka("ExtractField$Value", field="after.name", field_syntax_version="V2"),
        kafka("HoistField$Value", field="name"),
    )
    assert [record.key for record in (insert, delete, tombstone)] == ["1", "2", "2"]
    assert insert.key_schema == {"type": "string", "optional": True}
    # As in Kafka, HoistField makes a struct also of null: in the delete's event the name is null.
    assert [record.value for record in (insert, delete, tombstone)] == [{"name": "a"}, {"name": None}, {"name": None}]
    assert insert.value_schema == {
        "type": "struct",
        "fields": [{"type": "string", "optional": True, "field": "name"}],
        "optional": False,
    }


@pytest.mark.slow
def test_a_key_of_value_fields_leaves_tombstones_their_own(spark: SparkSession) -> None:
    kept = EXTRACT | {"drop.tombstones": "false"}
    to_key = kafka("ValueToKey", fields="name")
    insert, tombstone = users(spark, kept, to_key | {"predicate": "gone", "negate": "true"}, gone=TOMBSTONE)
    assert (insert.key, tombstone.key) == ({"name": "a"}, {"id": 2})
    assert insert.key_schema == {
        "type": "struct",
        "fields": [{"type": "string", "optional": True, "field": "name"}],
        "optional": False,
    }
    assert tombstone.key_schema and tombstone.key_schema["name"] == "p.shop.users.Key"
    # As in Kafka, a tombstone has nothing to make a key of.
    with pytest.raises(Exception, match=r"the transform t1 .*ValueToKey\) failed: it has no value to make a key of"):
        users(spark, kept, to_key)


@pytest.mark.slow
def test_masked_fields_are_empty_or_replaced(spark: SparkSession) -> None:
    fields = "at,b,big,d,id,l,n,s"
    masked, nulls = rows(spark, kafka("MaskField$Value", fields=fields), at=None, l=None)
    expected = {"at": 0, "b": False, "big": 0, "d": 0, "id": 0, "l": [], "n": 0.0, "s": "", "x": "AQI="}
    assert (masked.value, nulls.value) == (expected, expected | {"at": None, "l": None})
    # As an int, 2**32 + 3 is 3.
    replaced, _ = rows(spark, kafka("MaskField$Value", fields="id,big,n,s", replacement="4294967299"))
    assert [replaced.value[name] for name in ("id", "big", "n", "s")] == [3, 4294967299, 4294967299.0, "4294967299"]


def test_casts_follow_java_s_rules(spark: SparkSession) -> None:
    first, second = rows(
        spark,
        kafka("Cast$Value", spec="at:string,b:int8,big:int32,d:string,n:int16,s:int64,x:string,id:float64"),
        big=-1,
        n=-1e20,
        at=OLD_TIME,
        s="-9",
    )
    assert first.value == {
        "at": "2024-02-29T12:00:00.123Z",
        "b": 1,
        "big": 705032704,
        "d": "2024-02-29",
        "id": 1.0,
        "l": [1],
        "n": 3,
        "s": 7,
        "x": "AQI=",
    }
    # A time before 1970-01-02 looks like a time of day to Connect; a double beyond an int is cut to it before a short.
    assert [second.value[name] for name in ("at", "big", "n", "s")] == ["12:00:00.500Z", -1, 0, -9]
    assert first.types["at"] == "string" and first.types["n"] == "int16"


@pytest.mark.slow
def test_casts_to_booleans_and_large_integers(spark: SparkSession) -> None:
    first, second = rows(spark, kafka("Cast$Value", spec="b:string,big:boolean,n:int64,s:boolean"), n=1e20, s="TRUE")
    assert [first.value[name] for name in ("b", "big", "n", "s")] == ["true", True, 3, False]
    assert (second.value["n"], second.value["s"]) == (2**63 - 1, True)


@pytest.mark.slow
def test_times_become_text_numbers_and_logical_types(spark: SparkSession) -> None:
    def to(field: str, target: str, **options: str) -> dict[str, str]:
        return kafka("TimestampConverter$Value", field=field, target_type=target, **options)

    first, old = rows(
        spark,
        to("at", "unix", unix_precision="seconds"),
        to("big", "Date", unix_precision="microseconds"),
        to("d", "string", format="EEE dd MMM yyyy"),
        kafka("Flatten$Value", delimiter="_"),
        at=OLD_TIME,
        big=-1_000_000,
        d=dt.date(1969, 12, 30),
    )
    assert [first.value[name] for name in ("at", "big", "d")] == [1709208000, 0, "Thu 29 Feb 2024"]
    # Towards 0 as in TimeUnit, but to the previous midnight as in Calendar.
    assert [old.value[name] for name in ("at", "big", "d")] == [-43199, -1, "Tue 30 Dec 1969"]
    assert first.types["big"] == "org.apache.kafka.connect.data.Date"


@pytest.mark.slow
def test_texts_are_read_as_times(spark: SparkSession) -> None:
    step = kafka("TimestampConverter$Value", field="s", target_type="Timestamp", format="yyyyMMdd HH:mm:ss.SSS")
    time = kafka("TimestampConverter$Value", field="at", target_type="Time")
    changes = [{"kind": INSERT, "key": (1,), "after": row(s=text)} for text in ("20240229 12:00:00.123", None)]
    read, null = sent(spark, VALUES, changes, config_of(EXTRACT, step, time))
    assert (read.value["s"], null.value["s"], read.value["at"]) == (1709208000123, None, 43200123)
    with pytest.raises(Exception, match="'7' is no time in the format yyyyMMdd"):
        rows(spark, step)


def test_flat_events_have_optional_fields_below_optional_structs(spark: SparkSession) -> None:
    insert, delete, tombstone = users(spark, kafka("Flatten$Value", delimiter="_"))
    assert (insert.value["after_name"], insert.value["before_name"], delete.value["before_id"]) == ("a", None, 2)
    assert tombstone.value is None and insert.value_schema
    optional = {field["field"]: field["optional"] for field in insert.value_schema["fields"]}
    assert (optional["source_db"], optional["transaction_id"]) == (False, True)
    assert {"source_snapshot", "ts_ns"} <= optional.keys()


def test_topics_are_routed_by_name_by_time_and_by_predicate(spark: SparkSession) -> None:
    insert, delete, tombstone = users(
        spark,
        kafka("RegexRouter", regex=r"p\.(?<ks>\w+)\.(.*)", replacement="$2-${ks}"),
        kafka("RegexRouter", regex="users", replacement="not all of it"),
        kafka("RegexRouter", regex=".*", replacement="gone") | {"predicate": "tombstone"},
        kafka("TimestampRouter", timestamp_format="yyyy-MM", topic_format="${topic}.${timestamp}"),
        tombstone=TOMBSTONE,
    )
    assert [record.topic for record in (insert, delete, tombstone)] == [
        "users-shop.2024-02",
        "users-shop.2024-02",
        "gone.2024-02",
    ]


def test_headers_are_inserted_taken_from_fields_and_dropped(spark: SparkSession) -> None:
    not_gone = {"predicate": "gone", "negate": "true"}
    insert, delete, tombstone = users(
        spark,
        kafka("InsertHeader", header="h", value_literal="text"),
        kafka("HeaderFrom$Key", fields="id", headers="key", operation="copy"),
        kafka("HeaderFrom$Value", fields="op,after", headers="op,row", operation="move") | not_gone,
        kafka("DropHeaders", headers="pk.id,none"),
        kafka("InsertHeader", header="never", value_literal="x") | {"predicate": "placed"},
        placed={"type": f"{KAFKA}predicates.HasHeaderKey", "name": "pk.id"},
        gone=TOMBSTONE,
    )
    assert insert.headers == [("h", "text"), ("key", "1"), ("op", "c"), ("row", '{"id":1,"name":"a"}')]
    assert delete.headers == [("h", "text"), ("key", "2"), ("op", "d"), ("row", None)]
    assert tombstone.headers == [("h", "text"), ("key", "2")]
    assert "op" not in insert.value and "before" in insert.value


@pytest.mark.slow
def test_predicates_tell_which_records_go(spark: SparkSession) -> None:
    dropped = kafka("Filter") | {"predicate": "p"}
    assert [each.value["op"] for each in users(spark, dropped, p=TOMBSTONE)] == ["c", "d"]
    assert [each.value for each in users(spark, dropped | {"negate": "true"}, p=TOMBSTONE)] == [None]
    assert users(spark, dropped, p=kafka("predicates.TopicNameMatches", pattern=r"p\..*")) == []
    # A transform of some of the records gives two schemas.
    insert, _, tombstone = users(
        spark,
        kafka("InsertField$Key", static_field="tenant", static_value="x") | {"predicate": "p"},
        p=TOMBSTONE,
    )
    assert (insert.key, tombstone.key) == ({"id": 1}, {"id": 2, "tenant": "x"})


def test_records_that_do_not_fit_are_refused_with_the_transform_s_name(spark: SparkSession) -> None:
    wrong = [
        (kafka("ExtractField$Value", field="nothing"), r"has no field nothing.*ExtractField.*source, before, after"),
        (kafka("InsertField$Value", static_field="op", static_value="x"), "two fields op"),
        (kafka("MaskField$Value", fields="after"), "cannot be masked"),
        (kafka("Cast$Value", spec="after:string"), "cannot be cast to string"),
        (kafka("TimestampConverter$Value", field="op", target_type="unix"), "needs a format"),
    ]
    for step, message in wrong:
        with pytest.raises(PenstockError, match=message):
            users(spark, step)
    with pytest.raises(PenstockError, match=r"only a struct has fields.*int32"):
        users(spark, kafka("ExtractField$Key", field="id"), kafka("ExtractField$Key", field="id"))


@pytest.mark.slow
def test_a_value_that_cannot_be_cast_fails_unless_it_was_filtered(spark: SparkSession) -> None:
    cast = kafka("Cast$Value", spec="s:int8")
    with pytest.raises(Exception, match=r"Cast.Value\) failed: the text '300' is no number"):
        rows(spark, cast, s="300")
    update = {"kind": UPDATE, "key": (1,), "before": None, "after": row(s="300")}
    routed = EXTRACT | {"route.by.field": "s"}
    dropped = kafka("Filter") | {"predicate": "p"}
    large = kafka("predicates.TopicNameMatches", pattern="300")
    changes: list[dict[str, Any]] = [{"kind": INSERT, "key": (1,), "after": row()}, update]
    (record,) = sent(spark, VALUES, changes, config_of(routed, dropped, cast, p=large))
    assert (record.topic, record.value["s"]) == ("7", 7)
