"""Transforms of odd values: limits, nulls, fractions, times before 1970, empty structs. A chain is one Spark job."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import pytest
from change_frames import INSERT, PARTITION_DELETE, UPDATE, Table
from pyspark.sql import SparkSession, functions as F, types as st
from smt_chains import EXTRACT, KAFKA, TOMBSTONE, Sent, config_of, sent

from penstock.codec.connect_schema import spark_type
from penstock.codec.typed_records import RecordPart, TypedRecords
from penstock.connect.transforms.source_chain import chain
from penstock.errors import PenstockError

NESTED = Table(
    {"id": "int", "name": "text", "tags": "list<text>", "home": "place", "raw": "blob"},
    ["id"],
    udts={"place": {"city": "text", "zip": "int"}},
)
USERS = Table({"id": "int", "name": "text"}, ["id"], name="shop.users")
TARGETS = ("int8", "int16", "int32", "int64", "float32", "float64", "boolean", "string")


def kafka(name: str, **options: str) -> dict[str, str]:
    return {"type": KAFKA + name, **{key.replace("_", "."): value for key, value in options.items()}}


def copies(spark: SparkSession, kind: str, count: int, given: list[Any], *steps: dict[str, str]) -> list[Sent]:
    """A row per value, which all of the columns c0, c1, ... have."""
    table = Table({"id": "int", **{f"c{i}": kind for i in range(count)}}, ["id"])
    changes = [{"kind": INSERT, "key": (i,), "after": (*[value] * count, i)} for i, value in enumerate(given)]
    return sorted(sent(spark, table, changes, config_of(EXTRACT, *steps)), key=lambda record: record.key["id"])


def cast(spark: SparkSession, given: dict[str, list[Any]]) -> dict[str, list[list[Any]]]:
    """Each value as each of the targets, by type, in one job without events around the values."""
    columns = {f"{kind}_{to}": kind for kind in given for to in TARGETS}
    schema = {
        "type": "struct",
        "fields": [{"type": kind, "optional": True, "field": name} for name, kind in columns.items()],
        "optional": False,
    }
    longest = max(map(len, given.values()))
    padded = {kind: values + [None] * (longest - len(values)) for kind, values in given.items()}
    rows = [(tuple(padded[kind][i] for kind in columns.values()),) for i in range(longest)]
    frame = spark.createDataFrame(rows, st.StructType([st.StructField("value", spark_type(schema))]))
    spec = ",".join(f"{name}:{name.rpartition('_')[2]}" for name in columns)
    (transform,) = chain(config_of(kafka("Cast$Value", spec=spec)))
    changed = transform(TypedRecords(frame, "t", None, (RecordPart(F.col("value"), schema),)))
    (made,) = changed.values
    types = {"float32": "float", "float64": "double"}
    assert {field["field"]: field["type"] for field in made.schema["fields"]} == {
        name: types.get(to, to) for name in columns for to in (name.rpartition("_")[2],)
    }
    found = [row.value for row in changed.frame.select(made.payload.alias("value")).collect()]
    return {
        kind: [[shown(row[f"{kind}_{to}"]) for to in TARGETS] for row in found[: len(given[kind])]] for kind in given
    }


def shown(value: Any) -> Any:
    """The value as in JSON."""
    special = isinstance(value, float) and not math.isfinite(value)
    return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)] if special else value


def single(number: float) -> Any:
    """The number as a float of 32 bits shows it."""
    return pytest.approx(number, rel=1e-6)


def test_values_are_cast_as_in_java(spark: SparkSession) -> None:
    top, low = 2**63 - 1, -(2**63)
    found = cast(
        spark,
        {
            "double": [-0.9, 127.9, 128.0, 2147483648.5, -1e300, math.nan, math.inf, None],
            "int64": [0, -1, 300, 2**31, 2**53 + 1, top, low, None],
            "boolean": [True, False, None],
            "string": ["-128", "+7", "007", None],
        },
    )
    assert found["double"] == [
        # A fraction is cut off, so less than one is 0 and false.
        [0, 0, 0, 0, single(-0.9), -0.9, False, "-0.9"],
        [127, 127, 127, 127, single(127.9), 127.9, True, "127.9"],
        [-128, 128, 128, 128, 128.0, 128.0, True, "128.0"],
        # Beyond an int, a double becomes the largest int, whose lowest bits are all ones.
        [-1, -1, 2**31 - 1, 2**31, single(2.0**31), 2147483648.5, True, "2.1474836485E9"],
        [0, 0, -(2**31), low, "-Infinity", -1e300, True, "-1.0E300"],
        [0, 0, 0, 0, "NaN", "NaN", False, "NaN"],
        [-1, -1, 2**31 - 1, top, "Infinity", "Infinity", True, "Infinity"],
        [None] * 8,
    ]
    assert found["int64"] == [
        [0, 0, 0, 0, 0.0, 0.0, False, "0"],
        [-1, -1, -1, -1, -1.0, -1.0, True, "-1"],
        [44, 300, 300, 300, 300.0, 300.0, True, "300"],
        [0, 0, low // 2**32, 2**31, single(2.0**31), 2.0**31, True, "2147483648"],
        [1, 1, 1, 2**53 + 1, single(2.0**53), 2.0**53, True, "9007199254740993"],
        [-1, -1, -1, top, single(2.0**63), 2.0**63, True, "9223372036854775807"],
        [0, 0, 0, low, single(-(2.0**63)), -(2.0**63), True, "-9223372036854775808"],
        [None] * 8,
    ]
    assert found["boolean"] == [
        [1, 1, 1, 1, 1.0, 1.0, True, "true"],
        [0, 0, 0, 0, 0.0, 0.0, False, "false"],
        [None] * 8,
    ]
    assert found["string"] == [
        [-128, -128, -128, -128, -128.0, -128.0, False, "-128"],
        [7, 7, 7, 7, 7.0, 7.0, False, "+7"],
        [7, 7, 7, 7, 7.0, 7.0, False, "007"],
        [None] * 8,
    ]


def test_only_the_word_true_is_true(spark: SparkSession) -> None:
    records = copies(spark, "text", 1, ["TrUe", " true", "", "yes", "1"], kafka("Cast$Value", spec="c0:boolean"))
    assert [record.value["c0"] for record in records] == [True, False, False, False, False]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(("text", "kind"), [(" 7", "int16"), ("nan", "float64")])
def test_a_string_that_is_not_a_number_of_java_stops_the_query(spark: SparkSession, text: str, kind: str) -> None:
    with pytest.raises(Exception, match=rf"the text '{text}' is no number of the wanted type"):
        copies(spark, "text", 1, [text], kafka("Cast$Value", spec=f"c0:{kind}"))


def test_strings_are_numbers_as_java_writes_them(spark: SparkSession) -> None:
    records = copies(spark, "text", 1, ["NaN", "-Infinity", " 1e3 ", ".5"], kafka("Cast$Value", spec="c0:float64"))
    assert [record.value["c0"] for record in records] == ["NaN", "-Infinity", 1000.0, 0.5]


@pytest.mark.slow
def test_times_are_converted_between_all_their_forms(spark: SparkSession) -> None:
    def to(field: str, target: str, **options: str) -> dict[str, str]:
        return kafka("TimestampConverter$Value", field=field, target_type=target, **options)

    late, early = (
        dt.datetime(2024, 2, 29, 23, 59, 59, 999000, dt.UTC),
        dt.datetime(1969, 12, 31, 23, 59, 59, 1000, dt.UTC),
    )
    records = copies(
        spark,
        "timestamp",
        8,
        [late, early, None],
        to("c0", "unix"),
        to("c1", "unix", unix_precision="nanoseconds"),
        to("c2", "unix", unix_precision="seconds"),
        to("c3", "Date"),
        to("c4", "Time"),
        to("c5", "string", format="yyyy-MM-dd'T'HH:mm:ss.SSS Z"),
        # Back again: the day's midnight, and the time as a string of its own.
        to("c3", "Timestamp"),
        to("c4", "string", format="HH:mm:ss"),
        to("c6", "string", format="dd.MM.yyyy HH:mm"),
        to("c6", "Timestamp", format="dd.MM.yyyy HH:mm"),
        to("c7", "unix", unix_precision="microseconds"),
        to("c7", "Timestamp", unix_precision="microseconds"),
        to("none", "Date"),
    )
    millis, midnight = 1709251199999, 1709164800000
    assert [[record.value[f"c{i}"] for i in range(8)] for record in records] == [
        [
            millis,
            millis * 1_000_000,
            millis // 1000,
            midnight,
            "23:59:59",
            "2024-02-29T23:59:59.999 +0000",
            midnight + (23 * 60 + 59) * 60_000,
            millis,
        ],
        [-999, -999_000_000, 0, -86_400_000, "23:59:59", "1969-12-31T23:59:59.001 +0000", -60_000, -999],
        [None] * 8,
    ]
    types = records[0].types
    assert [types[f"c{i}"].rpartition(".")[2] for i in range(8)] == [
        *["int64"] * 3,
        "Timestamp",
        *["string"] * 2,
        *["Timestamp"] * 2,
    ]


def test_a_key_that_is_a_time_is_converted_without_a_field(spark: SparkSession) -> None:
    (record,) = sent(
        spark,
        Table({"at": "timestamp", "v": "int"}, ["at"]),
        [{"kind": INSERT, "key": (dt.datetime(2024, 2, 29, tzinfo=dt.UTC),), "after": (None, 1)}],
        config_of(
            kafka("ExtractField$Key", field="at"),
            kafka("TimestampConverter$Key", target_type="string", format="yyyyMMdd"),
            kafka("HoistField$Key", field="day"),
        ),
    )
    assert record.key == {"day": "20240229"}


PLACES: list[dict[str, Any]] = [
    {"kind": INSERT, "key": (1,), "after": (("Rom", None), 1, "ann", b"\0\xff", ["a", "ä"])},
    {"kind": INSERT, "key": (2,), "after": (None, 2, None, None, None)},
]


def test_nested_structs_are_flattened_with_null_below_null(spark: SparkSession) -> None:
    first, second = sent(spark, NESTED, PLACES, config_of(EXTRACT, kafka("Flatten$Value")))
    assert first.value == {
        "home.city": "Rom",
        "home.zip": None,
        "id": 1,
        "name": "ann",
        "raw": "AP8=",
        "tags": ["a", "ä"],
    }
    assert second.value == dict.fromkeys(first.value) | {"id": 2}
    assert list(first.types) == ["home.city", "home.zip", "id", "name", "raw", "tags"]


@pytest.mark.slow
def test_values_of_all_kinds_become_headers_and_keys(spark: SparkSession) -> None:
    first, second = sent(
        spark,
        NESTED,
        PLACES,
        config_of(
            EXTRACT,
            kafka("InsertHeader", header="h", value_literal="ä${x}"),
            kafka("InsertHeader", header="h", value_literal="again"),
            kafka("HeaderFrom$Value", fields="raw,home,tags,id", headers="raw,home,tags,raw", operation="copy"),
            kafka("ValueToKey", fields="tags,id"),
            kafka("HeaderFrom$Key", fields="tags,id", headers="k,l", operation="move"),
            kafka("ReplaceField$Value", exclude="tags,home,raw,none", renames="id:name,name:id"),
        ),
    )
    common = [("h", "ä${x}"), ("h", "again")]
    assert first.headers == [
        *common,
        ("raw", "AP8="),
        ("home", '{"city":"Rom","zip":null}'),
        ("tags", '["a","ä"]'),
        ("raw", "1"),
        ("k", '["a","ä"]'),
        ("l", "1"),
    ]
    assert second.headers == [
        *common,
        *((name, None) for name in ("raw", "home", "tags")),
        ("raw", "2"),
        ("k", None),
        ("l", "2"),
    ]
    # Names that are exchanged do not get in each other's way, and a key may lose all its fields.
    assert (first.value, first.key) == ({"name": 1, "id": "ann"}, {})
    assert list(first.types) == ["name", "id"]


@pytest.mark.slow
def test_all_headers_of_a_name_are_dropped_and_predicates_see_what_is_left(spark: SparkSession) -> None:
    has = {"type": f"{KAFKA}predicates.HasHeaderKey", "name": "h"}
    insert, delete, tombstone = sent(
        spark,
        USERS,
        [{"kind": INSERT, "key": (1,), "after": (1, "a")}, {"kind": PARTITION_DELETE, "key": (2,)}],
        config_of(
            # Without any headers no record has one.
            kafka("Filter") | {"predicate": "has"},
            kafka("InsertHeader", header="h", value_literal="1") | {"predicate": "gone"},
            kafka("InsertHeader", header="h", value_literal="2") | {"predicate": "has"},
            kafka("InsertHeader", header="other", value_literal="3") | {"predicate": "has", "negate": "true"},
            kafka("RegexRouter", regex=".*", replacement="with") | {"predicate": "has"},
            kafka("DropHeaders", headers="h"),
            kafka("InsertHeader", header="late", value_literal="") | {"predicate": "has"},
            kafka("InsertHeader", header="topic", value_literal="w") | {"predicate": "routed"},
            has=has,
            gone=TOMBSTONE,
            routed=kafka("predicates.TopicNameMatches", pattern="wi.h"),
        ),
    )
    assert insert.headers == delete.headers == [("other", "3")]
    assert tombstone.headers == [("topic", "w")]
    assert [record.topic for record in (insert, delete, tombstone)] == ["p.shop.users", "p.shop.users", "with"]


def test_fields_are_kept_renamed_and_inserted_by_name(spark: SparkSession) -> None:
    changes = [{"kind": INSERT, "key": (1,), "after": (1, "a")}]
    (record,) = sent(
        spark,
        USERS,
        changes,
        config_of(
            EXTRACT,
            kafka("InsertField$Key", topic_field="t?", static_field="s!", static_value=""),
            kafka("ReplaceField$Key", whitelist="t,s,none"),
            # Excluding counts more than including.
            kafka("ReplaceField$Value", include="id,name", blacklist="name", renames="id:a.b"),
            kafka("InsertField$Value", partition_field="p", timestamp_field="n?"),
            kafka("SetSchemaMetadata$Value", schema_version="0"),
            kafka("SetSchemaMetadata$Key", schema_name=""),
        ),
    )
    assert (record.key, record.value) == ({"t": "p.shop.users", "s": ""}, {"a.b": 1, "p": None, "n": None})
    assert record.key_schema and record.value_schema
    assert [field["optional"] for field in record.key_schema["fields"]] == [True, False]
    assert (record.value_schema["name"], record.value_schema["version"]) == ("p.shop.users.After", 0)
    assert record.types == {"a.b": "int32", "p": "int32", "n": "org.apache.kafka.connect.data.Timestamp"}


@pytest.mark.slow
def test_paths_lead_through_quoted_names_and_null_structs(spark: SparkSession) -> None:
    step = kafka("HoistField$Value", field="a.b`c")
    path = kafka("ExtractField$Value", field="`a.b`c`.home.city", field_syntax_version="v2")
    records = sent(spark, NESTED, PLACES, config_of(EXTRACT, step, path, kafka("HoistField$Value", field="city")))
    assert [record.value for record in records] == [{"city": "Rom"}, {"city": None}]


@pytest.mark.slow
def test_masks_are_replaced_with_values_of_the_field_s_type(spark: SparkSession) -> None:
    table = Table({"d": "double", "id": "int", "s": "text", "t": "tinyint"}, ["id"])
    change = {"kind": INSERT, "key": (1,), "after": (1.5, 1, "secret", 1)}
    steps = [
        kafka("MaskField$Value", fields=fields, replacement=replacement)
        for fields, replacement in (("d", "-0.5"), ("t", "200"), ("s", "NaN"))
    ]
    (record,) = sent(spark, table, [change], config_of(EXTRACT, *steps))
    assert record.value == {"d": -0.5, "id": 1, "s": "NaN", "t": -56}
    for kind, value, replacement in (
        ("int", 1, "NaN"),
        ("bigint", 1, "inf"),
        ("int", 1, "word"),
        ("boolean", True, "false"),
        ("timestamp", dt.datetime(2024, 1, 1, tzinfo=dt.UTC), "0"),
        ("blob", b"a", "b"),
        ("list<int>", [1], "0"),
    ):
        with pytest.raises(PenstockError, match=f"cannot be masked with '{replacement}'.*MaskField, field c0"):
            copies(spark, kind, 1, [value], kafka("MaskField$Value", fields="c0", replacement=replacement))


CHANGES: list[dict[str, Any]] = [
    {"kind": INSERT, "key": (1,), "after": (1, "a")},
    {"kind": UPDATE, "key": (2,), "after": (2, None)},
    {"kind": UPDATE, "key": (3,), "after": (3, " ")},
    {"kind": PARTITION_DELETE, "key": (4,), "before": (4, "gone")},
]


def test_a_row_without_the_topic_s_name_stays_in_its_topic(spark: SparkSession) -> None:
    extract = EXTRACT | {"route.by.field": "name", "delete.tombstone.handling.mode": "tombstone"}
    steps = (
        extract,
        kafka("RegexRouter", regex="(a|gone)", replacement=r"\$$1-$0"),
        kafka("TimestampRouter", topic_format="${topic}${topic}", timestamp_format="yyyy")
        | {"predicate": "short", "negate": "true"},
    )
    records = sent(spark, USERS, CHANGES, config_of(*steps, short=kafka("predicates.TopicNameMatches", pattern="..?")))
    twice = "p.shop.users" * 2
    assert [record.topic for record in records] == ["$a-a$a-a", twice, twice, "$gone-gone$gone-gone"]
    assert [record.value for record in records] == [
        {"id": 1, "name": "a"},
        {"id": 2, "name": None},
        {"id": 3, "name": " "},
        None,
    ]


def test_a_topic_of_a_record_is_matched_in_a_bounded_time(spark: SparkSession) -> None:
    extract = EXTRACT | {"route.by.field": "name"}
    route = kafka("RegexRouter", regex="(a|b)*", replacement="letters")

    def topic_of(name: str, step: dict[str, str]) -> str:
        changes = [{"kind": INSERT, "key": (1,), "after": (1, name)}]
        (record,) = sent(spark, USERS, changes, config_of(extract, step))
        return str(record.topic)

    # Java's matcher overflows its stack, and Spark's process ended with it.
    assert topic_of("ab" * 4000, route) == "letters"
    with pytest.raises(Exception, match="has 400000 characters"):
        topic_of("ab" * 200_000, route)
    with pytest.raises(Exception, match=r"takes more than 1 s .*correct the expression"):
        topic_of("a" * 60, kafka("RegexRouter", regex="(a|aa)+b", replacement="b"))


@pytest.mark.slow_after(4)
@pytest.mark.parametrize(
    ("step", "said"),
    [
        (kafka("InsertField$Value", topic_field="op"), "two fields op"),
        (kafka("ReplaceField$Value", renames="before:after"), "two fields after"),
        (EXTRACT | {"add.fields": "op,op"}, "two fields __op"),
        (EXTRACT | {"add.fields": "op.name"}, "only a struct has fields"),
        (EXTRACT | {"add.headers": "nothing.name"}, r"an event has no field 'nothing'.*use one of: source, before"),
        (kafka("HeaderFrom$Value", fields="op,none", headers="a,b", operation="copy"), "has no field none"),
        (kafka("ValueToKey", fields="op,none"), "has no field none"),
        (kafka("ExtractField$Value", field="op.x", field_syntax_version="V2"), "only a struct has fields"),
        (kafka("Cast$Value", spec="string"), "struct cannot be cast to string .*the whole record"),
        (kafka("TimestampConverter$Key", field="id", target_type="Date"), "type int32 is not a time"),
        (kafka("TimestampConverter$Value", target_type="Date"), "type struct is not a time"),
    ],
    ids=str,
)
def test_a_transform_that_does_not_fit_is_refused_before_anything_is_sent(
    spark: SparkSession, step: dict[str, str], said: str
) -> None:
    with pytest.raises(PenstockError, match=said):
        sent(spark, USERS, CHANGES, config_of(step))
