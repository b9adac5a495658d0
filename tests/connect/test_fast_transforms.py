"""Transforms on columns, drawn against their twins on records: a source gets what a sink makes of the same records."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings, strategies as st
from pyspark.sql import SparkSession, functions as F, types as spark_types
from smt_chains import DEBEZIUM, EXTRACT, KAFKA, SCYLLA, TOMBSTONE, config_of

from penstock.codec.connect_schema import Schema, spark_type
from penstock.codec.typed_records import RecordPart, TypedRecords
from penstock.connect.records.record import NOTHING, NOWHERE, ConnectRecord, Part
from penstock.connect.transforms.conversions import header_text
from penstock.connect.transforms.definitions import OF_SOURCES, chosen
from penstock.connect.transforms.record_chain import RecordChain
from penstock.connect.transforms.source_chain import chain

TOPIC = "shop.t"
MODE = "delete.tombstone.handling.mode"
NUMBER, TEXT = {"type": "int32", "optional": True}, {"type": "string", "optional": True}
CELL = {"type": "struct", "fields": [{**NUMBER, "field": "value"}], "optional": True, "name": "shop.t.n.Cell"}
ROW = {"id": NUMBER, "name": TEXT, "n": CELL}


def struct(fields: dict[str, Schema], name: str, optional: bool = False) -> Schema:
    members = [{**schema, "field": field} for field, schema in fields.items()]
    return {"type": "struct", "fields": members, "optional": optional, "name": name}


KEY = struct({"id": NUMBER, "at": NUMBER}, "shop.t.Key")
EVENT = struct(
    {
        "before": struct(ROW, "shop.t.Before", True),
        "after": struct(ROW, "shop.t.After", True),
        "source": struct({"table": {**TEXT, "optional": False}, "ts_ms": NUMBER}, "source"),
        "op": TEXT,
        "ts_ms": NUMBER,
    },
    "shop.t.Envelope",
)
ROWS = st.fixed_dictionaries(
    {
        "id": st.integers(0, 3),
        "name": st.sampled_from(["a", "b-1", " ", None]),
        "n": st.sampled_from([None, {"value": None}, {"value": 7}]),
    }
)
EVENTS = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {
            "before": st.one_of(st.none(), ROWS),
            "after": st.one_of(st.none(), ROWS),
            "source": st.fixed_dictionaries({"table": st.just("t"), "ts_ms": st.sampled_from([None, 5])}),
            "op": st.sampled_from("cudr"),
            "ts_ms": st.just(7),
        }
    ),
)
MODES = ("drop", "tombstone", "rewrite", "rewrite-with-tombstone")
UNWRAP = st.fixed_dictionaries(
    {"type": st.sampled_from([EXTRACT["type"], f"{SCYLLA}ScyllaExtractNewRecordState"]), MODE: st.sampled_from(MODES)},
    optional={
        "add.fields": st.sampled_from(["op", "op,table:of,source.ts_ms", "zz"]),
        "add.headers": st.sampled_from(["op", "source.table:from,ts_ms", "zz,op"]),
        "route.by.field": st.just("name"),
    },
)
DROP = "drop.fields.header.name"
LISTS = ('["name"]', '["id", "n", "zz"]', '["n", 5]', "[]", "name", "5")
INSERTED = st.builds(
    lambda text, of: {"type": f"{KAFKA}InsertHeader", "header": "without", "value.literal": text, **of},
    st.sampled_from(LISTS),
    st.sampled_from([{}, {"predicate": "gone", "negate": "true"}, {"predicate": "gone"}]),
)
DROPPING = st.builds(
    lambda unwrap, more: {**unwrap, DROP: "without", **more},
    UNWRAP,
    st.fixed_dictionaries(
        {},
        optional={
            "drop.fields.from.key": st.just("true"),
            "drop.fields.keep.schema.compatible": st.just("false"),
            "predicate": st.just("gone"),
        },
    ),
)
"""Of fields that a header lists, which some records may not have."""
BY_TABLE = st.fixed_dictionaries(
    {"type": st.just(f"{DEBEZIUM}ByLogicalTableRouter"), "topic.regex": st.sampled_from([r"shop\.(.*)", "other"])},
    optional={"key.enforce.uniqueness": st.just("false"), "schema.name.adjustment.mode": st.just("avro")},
).map(lambda options: {**options, "topic.replacement": "all-$0" if options["topic.regex"] == "other" else "9-$1"})
PREDICATES = {
    "gone": TOMBSTONE,
    "a": {"type": f"{KAFKA}predicates.TopicNameMatches", "pattern": "a|9.*"},
    "marked": {"type": f"{KAFKA}predicates.HasHeaderKey", "name": "__op"},
}
SELECTED = st.fixed_dictionaries(
    {"predicate": st.sampled_from([*PREDICATES]), "negate": st.sampled_from(["true", "false"])}
)
ROUTER = st.just({"type": f"{KAFKA}RegexRouter", "regex": "([a-z])(.*)", "replacement": "$2$1-x"})
LATER = st.one_of(
    st.builds(lambda step, of: {**step, **of}, st.one_of(ROUTER, st.just({"type": f"{KAFKA}Filter"})), SELECTED),
    ROUTER,
    st.just({"type": f"{SCYLLA}ScyllaFlattenColumns"}),
)
CHAINS = st.builds(
    lambda first, *rest: [one for one in (first, *rest) if one],
    st.one_of(st.none(), BY_TABLE),
    st.one_of(st.none(), UNWRAP),
    st.one_of(st.none(), LATER),
    LATER,
)
DROPS = st.builds(lambda *steps: [*steps], INSERTED, INSERTED, DROPPING, LATER)
Made = tuple[int, str, Any, Any, tuple[tuple[str, bytes | None], ...]]
"""A record's number, topic, key and value with their schemas, and headers."""


def on_records(config: dict[str, str], events: list[Any]) -> list[Made]:
    step, made = RecordChain(tuple(chosen(config, OF_SOURCES))).start(), []
    for number, event in enumerate(events):
        value = NOTHING if event is None else Part(EVENT, event)
        record = step(ConnectRecord(TOPIC, NOWHERE, NOWHERE, None, Part(KEY, {"id": number % 4, "at": 1}), value))
        if record is not None:
            headers = tuple((name, header_text(part)) for name, part in record.headers)
            made.append((number, record.topic, _sorted(record.key), _sorted(record.value), headers))
    return made


def _sorted(part: Part) -> Any:
    """A part with its schema's properties in one order."""
    return None if part.value is None else (_in_order(part.schema), part.value)


def _in_order(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {name: _in_order(schema[name]) for name in sorted(schema)}
    return [_in_order(one) for one in schema] if isinstance(schema, list) else schema


def on_columns(spark: SparkSession, config: dict[str, str], events: list[Any]) -> list[Made]:
    types = spark_types.StructType().add("number", spark_types.IntegerType())
    types = types.add("key", spark_type(KEY)).add("value", spark_type(EVENT))
    frame = spark.createDataFrame([(n, {"id": n % 4, "at": 1}, event) for n, event in enumerate(events)], types)
    (transform,) = chain(config)
    given = TypedRecords(frame, TOPIC, RecordPart(F.col("key"), KEY), (RecordPart(F.col("value"), EVENT),))
    records = transform(given)
    keys = [part for part in (records.key, *records.other_keys) if part is not None]
    columns = {f"key{n}": part for n, part in enumerate(keys)} | {f"value{n}": p for n, p in enumerate(records.values)}
    kept = records.frame if records.keep is None else records.frame.where(records.keep)
    topic = F.lit(records.topic) if isinstance(records.topic, str) else records.topic
    headers = F.array() if records.headers is None else records.headers
    found = kept.select(
        "number",
        topic.alias("topic"),
        headers.alias("headers"),
        *(p.payload.alias(name) for name, p in columns.items()),
    ).collect()

    def part(row: Any, side: str) -> Any:
        there = [(name, one) for name, one in columns.items() if name.startswith(side) and row[name] is not None]
        return next(((_in_order(one.schema), row[name].asDict(True)) for name, one in there), None)

    return [
        (
            row.number,
            row.topic,
            part(row, "key"),
            part(row, "value"),
            tuple((one.key, None if one.value is None else bytes(one.value)) for one in row.headers),
        )
        for row in sorted(found, key=lambda row: row.number)
    ]


@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(CHAINS, st.lists(EVENTS, min_size=30, max_size=30))
def test_columns_hold_what_the_same_transforms_make_of_records(
    spark: SparkSession, steps: list[dict[str, str]], events: list[Any]
) -> None:
    config = config_of(*steps, **PREDICATES)
    assert on_columns(spark, config, events) == on_records(config, events)


@settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(DROPS, st.lists(EVENTS, min_size=30, max_size=30))
def test_a_source_drops_the_fields_that_a_sink_drops(
    spark: SparkSession, steps: list[dict[str, str]], events: list[Any]
) -> None:
    config = config_of(*steps, **PREDICATES)
    assert on_columns(spark, config, events) == on_records(config, events)
