"""Drawn records and transforms: what becomes of a record here is what Kafka Connect's own classes make of it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from drawn_transforms import FORMATS, INTEGERS, KAFKA, NUMBERS, RECORDS, REGEXES, REPLACEMENTS, TEXTS, TYPES, steps
from hypothesis import given, settings, strategies as st
from kafka_transforms import (
    DROPPED,
    OFFSET,
    PARTITION,
    UNWRITABLE,
    Chosen,
    Failed,
    Given,
    Got,
    KafkaTransforms,
    kafka_transforms,
    same,
    value_of,
)

from penstock.connect.definition import read_all
from penstock.connect.java.simple_date_format import DateFormat
from penstock.connect.records.record import ConnectRecord, NoValue, Part
from penstock.connect.transforms.sink_chain import chain, definitions


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaTransforms]:
    with kafka_transforms() as found:
        yield found


def config_of(chosen: list[Chosen]) -> dict[str, str]:
    """A connector's properties for these transforms."""
    with_predicate = [n for n, one in enumerate(chosen) if one.predicate]
    config = {"transforms": ",".join(f"t{n}" for n in range(len(chosen)))}
    config["predicates"] = ",".join(f"p{n}" for n in with_predicate)
    for n, one in enumerate(chosen):
        of = {f"transforms.t{n}.{name}": text for name, text in one.options.items()}
        config |= {f"transforms.t{n}.type": one.type, **of}
        if one.predicate:
            name, options = one.predicate
            config |= {f"transforms.t{n}.predicate": f"p{n}", f"transforms.t{n}.negate": str(one.negate).lower()}
            config |= {f"predicates.p{n}.type": name, **{f"predicates.p{n}.{k}": v for k, v in options.items()}}
    return config


def ours(config: dict[str, str], given: Given) -> Got | Failed | str:
    key, value = (Part(schema, value_of(schema, payload)) for schema, payload in (given.key, given.value))
    headers = tuple((name, Part(None, text)) for name, text in given.headers)
    try:
        found = chain(config).start()(ConnectRecord(given.topic, PARTITION, OFFSET, given.millis, key, value, headers))
    except NoValue as error:
        return Failed(str(error))
    if found is None:
        return DROPPED
    return Got(found.topic, tuple(found.key), tuple(found.value), list(found.headers))


def assert_same(one: Got, other: Got) -> None:
    assert one.topic == other.topic
    named = [(f"header {name}", part, java[1]) for (name, part), java in zip(one.headers, other.headers, strict=True)]
    assert [name for name, _ in one.headers] == [name for name, _ in other.headers]
    for what, mine, theirs in (("key", one.key, other.key), ("value", one.value, other.value), *named):
        assert same(mine[1], theirs[1]), (what, mine, theirs)
        assert mine[0] == theirs[0] or what == "header i", (what, mine, theirs)


def compare(kafka: KafkaTransforms, chosen: list[Chosen], record: Given) -> None:
    config = config_of(chosen)
    mine, theirs = ours(config, record), kafka(chosen, record)
    if theirs == UNWRITABLE:
        assert isinstance(mine, Got)
    elif isinstance(mine, Got) and isinstance(theirs, Got):
        assert_same(mine, theirs)
    elif isinstance(theirs, Failed):
        assert isinstance(mine, Failed) or any(defect in theirs.reason for defect in DEFECTS), theirs
    else:
        assert mine == theirs


# What Kafka's classes cannot do, and ours can.
DEFECTS = (
    "Cannot list fields on non-struct type",  # SetSchemaMetadata of schemas that are not structs
    "is not a valid field name",  # ReplaceField of structs that have a field of the new name, but none of the old one
)


def cast(kind: str) -> Chosen:
    return Chosen(f"{KAFKA}Cast$Value", {"spec": kind})


def record_of(schema: Any, payload: Any, topic: str = "t") -> Given:
    return Given(topic, 1, (None, None), (schema, payload))


def is_valid(chosen: list[Chosen]) -> bool:
    config = config_of(chosen)
    return not read_all(definitions(config), config)[1]


CHAINS = st.lists(steps(), min_size=1, max_size=2).filter(is_valid)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(CHAINS, RECORDS)
def test_records_are_transformed_as_by_kafka_connect(kafka: KafkaTransforms, chosen: Any, record: Given) -> None:
    compare(kafka, chosen, record)


def test_times_are_read_and_written_in_all_formats(kafka: KafkaTransforms) -> None:
    millis = [0, -1, 86_399_999, 1_709_251_199_999, -12_219_292_800_001, -62_167_219_200_000, 10**14, -(10**14)]
    for pattern in FORMATS:
        written = [DateFormat(pattern).format(at) for at in millis]
        for text in [*TEXTS, *written]:
            step = Chosen(f"{KAFKA}TimestampConverter$Value", {"target.type": "unix", "format": pattern})
            compare(kafka, [step], record_of({"type": "string", "optional": False}, text))
        for at in millis:
            step = Chosen(f"{KAFKA}TimestampConverter$Value", {"target.type": "string", "format": pattern})
            compare(kafka, [step], record_of(None, at))


def test_primitive_values_are_cast_to_all_types(kafka: KafkaTransforms) -> None:
    integers = {kind: [0, -1, 7, 127, (1 << bits - 1) - 1, -(1 << bits - 1)] for kind, bits in INTEGERS.items()}
    values: dict[str, list[Any]] = {"string": [*TEXTS], "boolean": [True, False], **integers, "bytes": ["AQI="]}
    for kind, found in values.items():
        for value, target in product(found, TYPES):
            compare(kafka, [cast(target)], record_of({"type": kind, "optional": True}, value))
    # JsonConverter reads neither NaN nor infinities: text becomes these first.
    for kind, text, target in product(("float32", "float64"), NUMBERS, TYPES):
        compare(kafka, [cast(kind), cast(target)], record_of({"type": "string", "optional": True}, text))


def test_topics_are_replaced_as_by_java(kafka: KafkaTransforms) -> None:
    compared = 0
    for regex in REGEXES:
        for replacement in REPLACEMENTS:
            step = Chosen(f"{KAFKA}RegexRouter", {"regex": regex, "replacement": replacement})
            if not is_valid([step]):
                continue  # the replacement has a group that the expression has not
            for topic in ("shop.a", "b-1", "Orders_2", "ab"):
                compare(kafka, [step], record_of(None, 1, topic))
                compared += 1
    assert compared > 80


# Debezium's events.

ROW: dict[str, Any] = {"type": "struct", "optional": True, "name": "shop.t.Value", "fields": [
    {"field": "id", "type": "int32", "optional": False}, {"field": "name", "type": "string", "optional": True},
]}  # fmt: skip
SOURCE = {"type": "struct", "optional": False, "name": "source", "fields": [
    {"field": "table", "type": "string", "optional": False}, {"field": "ts_ms", "type": "int64", "optional": True},
]}  # fmt: skip
EVENT = {"type": "struct", "optional": False, "name": "shop.t.Envelope", "fields": [
    {**ROW, "field": "before"}, {**ROW, "field": "after"}, {**SOURCE, "field": "source"},
    {"field": "op", "type": "string", "optional": False}, {"field": "ts_ms", "type": "int64", "optional": True},
]}  # fmt: skip
KEY = {"type": "struct", "optional": False, "name": "shop.t.Key", "fields": ROW["fields"][:1]}
MODE = "delete.tombstone.handling.mode"
UNWRAPPED: list[dict[str, str]] = [
    {},
    {MODE: "drop", "add.fields": "zz"},
    {MODE: "tombstone", "add.headers": "op,zz"},
    {MODE: "rewrite", "add.fields": "op,table,source.ts_ms:at", "add.headers": "op,ts_ms,source.table:from"},
    {MODE: "rewrite-with-tombstone", "add.headers": "op", "add.fields.prefix": "", "add.fields": "op"},
    {"route.by.field": "name"},
    {"route.by.field": "name", MODE: "rewrite"},
]
BY_TABLE: list[dict[str, str]] = [
    {"topic.regex": r"shop\.(.*)", "topic.replacement": "all.$1"},
    {"topic.regex": ".*", "topic.replacement": "all", "key.enforce.uniqueness": "false"},
    {"topic.regex": "other.*", "topic.replacement": "all"},
    {"topic.regex": ".*", "topic.replacement": "all", "key.field.name": "of", "key.field.regex": "(.).*",
     "key.field.replacement": "$1"},
]  # fmt: skip


def test_events_of_debezium_become_what_its_own_transforms_make_of_them(kafka: KafkaTransforms) -> None:
    one, other = {"id": 1, "name": "x"}, {"id": 1, "name": "y"}
    changes = {"c": (None, one), "u": (one, other), "r": (None, other), "d": (one, None), "t": (None, None)}
    values: list[tuple[Any, Any]] = [(None, None), ({"type": "string", "optional": False}, "no event")]
    for op, (before, after) in changes.items():
        source = {"table": "t", "ts_ms": 5}
        values.append((EVENT, {"before": before, "after": after, "source": source, "op": op, "ts_ms": 7}))
    classes = (("ExtractNewRecordState", UNWRAPPED), ("ByLogicalTableRouter", BY_TABLE))
    for name, options in ((name, options) for name, chosen in classes for options in chosen):
        for value in values:
            given = Given("shop.t", 1, (KEY, {"id": 1}), value)
            step = [Chosen(f"io.debezium.transforms.{name}", options)]
            mine, theirs = ours(config_of(step), given), kafka(step, given)
            if isinstance(mine, Got) and isinstance(theirs, Got) and mine.value[1] is None:
                # Debezium's tombstones keep the schema of the row, so that some converters write the word null.
                mine = mine._replace(value=theirs.value)
            if isinstance(mine, Got) and isinstance(theirs, Got):
                assert_same(mine, theirs)
            else:
                assert mine == theirs, (options, value)


@pytest.mark.slow
@settings(max_examples=3000, deadline=None, derandomize=True, database=None)
@given(CHAINS, RECORDS)
def test_many_records_are_transformed_as_by_kafka_connect(kafka: KafkaTransforms, chosen: Any, record: Given) -> None:
    compare(kafka, chosen, record)
