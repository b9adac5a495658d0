"""Transforms of a sink's records, one by one: with and without schemas, what is dropped, and what is refused."""

from __future__ import annotations

import json
import pickle
from decimal import Decimal
from typing import Any

import pytest
from smt_chains import DEBEZIUM, KAFKA, SCYLLA, config_of

from penstock.codec.avro_value import AvroSchema
from penstock.connect.definition import read_all
from penstock.connect.java import regex as java_regex
from penstock.connect.java.simple_date_format import DateFormat
from penstock.connect.records.avro_data import connect_schema
from penstock.connect.records.record import ConnectRecord, Date, NoValue, Part, TimeOfDay, Timestamp
from penstock.connect.transforms.definitions import OF_SINKS, OF_SOURCES
from penstock.connect.transforms.sink_chain import chain, definitions

EXTRACT = f"{DEBEZIUM}ExtractNewRecordState"
MODE = "delete.tombstone.handling.mode"
ID = {"type": "int32", "optional": False}
TEXT = {"type": "string", "optional": True}
DATA = "org.apache.kafka.connect.data."


def struct(fields: dict[str, dict[str, Any]], **more: Any) -> dict[str, Any]:
    made = [{**schema, "field": name} for name, schema in fields.items()]
    return {"type": "struct", "fields": made, "optional": False, **more}


ROW = struct({"id": ID, "name": TEXT})


def kafka(name: str, **options: str) -> dict[str, str]:
    return {"type": KAFKA + name, **{option.replace("_", "."): text for option, text in options.items()}}


def record(value: Part, key: Part = Part(None, {"id": 1}), **more: Any) -> ConnectRecord:  # noqa: B008 (a constant)
    return ConnectRecord(**{"topic": "shop.t", "partition": 3, "offset": 77, "millis": 5, **more}, key=key, value=value)


def errors(*steps: dict[str, str], **predicates: dict[str, str]) -> dict[str, list[str]]:
    config = config_of(*steps, **predicates)
    return read_all(definitions(config), config)[1]


def applied(given: ConnectRecord, *steps: dict[str, str], **predicates: dict[str, str]) -> ConnectRecord | None:
    """The record after these transforms, as a task gets and starts them."""
    assert errors(*steps, **predicates) == {}
    sent = pickle.loads(pickle.dumps(chain(config_of(*steps, **predicates))))
    found: ConnectRecord | None = sent.start()(given)
    return found


def changed(value: Part, *steps: dict[str, str]) -> Part:
    found = applied(record(value), *steps)
    assert found is not None
    return found.value


def refused(value: Part, *steps: dict[str, str]) -> str:
    with pytest.raises(NoValue) as error:
        applied(record(value), *steps)
    return str(error.value)


def plain(**fields: Any) -> Part:
    return Part(None, fields)


def test_a_sink_has_all_transforms_and_predicates_of_sources() -> None:
    assert OF_SINKS.transforms.keys() == OF_SOURCES.transforms.keys()
    assert OF_SINKS.predicates.keys() == OF_SOURCES.predicates.keys()
    for name, kind in OF_SOURCES.transforms.items():
        assert [one.name for one in OF_SINKS.transforms[name].options] == [one.name for one in kind.options]


def test_cast() -> None:
    step = kafka("Cast$Value", spec="id:string,name:int8")
    assert changed(plain(id=7, name="12", x=1.5), step) == plain(id="7", name=12, x=1.5)
    made = changed(Part(ROW, {"id": 7, "name": None}), step)
    assert made.value == {"id": "7", "name": None}
    assert [field["type"] for field in made.schema["fields"]] == ["string", "int8"]  # type: ignore[index]
    assert changed(Part({"type": "string"}, "1e3"), kafka("Cast$Value", spec="float64")).value == 1000.0
    said = refused(plain(id=1, name="300"), step)
    assert said == f"the transform t0 ({KAFKA}Cast$Value) failed: the text '300' is no number of the wanted type"
    assert "only primitive" in refused(plain(id={"a": 1}), step)
    time = Part({"type": "int64", "name": f"{DATA}Timestamp"}, Timestamp(0))
    assert changed(time, kafka("Cast$Value", spec="int64")) == ({"type": "int64", "optional": False}, 0)


@pytest.mark.parametrize("value", [1 << 70, 10**400, Decimal("1E+2147483647"), Decimal("1E-2147483647")])
def test_numbers_of_any_size_are_narrowed_or_refused(value: Any) -> None:
    for kind in ("int8", "int64", "float32", "float64", "boolean", "string"):
        try:
            assert changed(Part(None, value), kafka("Cast$Value", spec=kind)).value is not None
        except NoValue as error:
            assert kind.startswith("float") and "is no double" in str(error)


def test_timestamp_converter() -> None:
    step = kafka("TimestampConverter$Value", field="at", target_type="Timestamp", format="yyyy-MM-dd HH:mm:ss.SSS")
    assert changed(plain(at="2024-02-29 23:59:59.999"), step).value == {"at": Timestamp(1_709_251_199_999)}
    made = changed(Part(struct({"at": TEXT}), {"at": None}), step)
    assert made == (
        struct({"at": {"type": "int64", "optional": True, "name": f"{DATA}Timestamp", "version": 1}}),
        {"at": None},
    )
    for target, wanted in (("Date", Date(-1)), ("Time", TimeOfDay(86_399_999)), ("unix", -1)):
        (found,) = changed(
            plain(at=-1), kafka("TimestampConverter$Value", field="at", target_type=target)
        ).value.values()
        assert found == wanted and type(found) is type(wanted)
    assert "in the format" in refused(plain(at="29.2.2024"), step)
    assert "only with `format`" in refused(
        plain(at=""), kafka("TimestampConverter$Value", field="at", target_type="unix")
    )


def test_insert_field() -> None:
    fields = {"topic_field": "t!", "partition_field": "p", "offset_field": "o", "timestamp_field": "at"}
    step = kafka("InsertField$Value", **fields, static_field="s", static_value="x")
    assert changed(plain(id=1), step) == plain(id=1, t="shop.t", p=3, o=77, at=5, s="x")
    made = changed(Part(struct({"id": ID}, name="Row"), {"id": 1}), step)
    assert made.value == {"id": 1, "t": "shop.t", "p": 3, "o": 77, "at": Timestamp(5), "s": "x"}
    assert made.schema and made.schema["name"] == "Row"
    assert [field["optional"] for field in made.schema["fields"]] == [False, False, True, True, True, True]
    untimed = applied(record(plain(id=1), millis=None), kafka("InsertField$Value", timestamp_field="at"))
    assert untimed and untimed.value == plain(id=1)
    assert "two fields id" in refused(Part(ROW, {"id": 1}), kafka("InsertField$Value", topic_field="id"))


def test_replace_field_mask_field_and_set_schema_metadata() -> None:
    step = kafka("ReplaceField$Value", exclude="x", renames="id:nr")
    assert changed(plain(id=1, x=2, y=3), step) == plain(nr=1, y=3)
    assert changed(Part(ROW, {"id": 1, "name": "a"}), step) == (
        struct({"nr": ID, "name": TEXT}),
        {"nr": 1, "name": "a"},
    )
    mask = kafka("MaskField$Value", fields="id,name")
    assert changed(plain(id=1, name="a", x=2), mask) == plain(id=0, name="", x=2)
    assert changed(plain(id=Date(7), name=[1]), mask).value == {"id": Date(0), "name": []}
    masked = changed(Part(ROW, {"id": 1, "name": "a"}), kafka("MaskField$Value", fields="id", replacement="4294967303"))
    assert masked.schema is ROW and masked.value == {"id": 7, "name": "a"}
    named = changed(Part(ROW, {"id": 1}), kafka("SetSchemaMetadata$Value", schema_name="n", schema_version="2"))
    assert named.schema == {**ROW, "name": "n", "version": 2}
    assert "has no schema" in refused(plain(id=1), kafka("SetSchemaMetadata$Value", schema_name="n"))


def test_defaults_replace_null_unless_they_should_not() -> None:
    schema = struct({"n": {"type": "bytes", "optional": True, "default": "AQI="}})
    for replaces, wanted in (("true", b"\1\2"), ("false", None)):
        step = kafka("InsertField$Value", topic_field="t", replace_null_with_default=replaces)
        assert changed(Part(schema, {"n": None}), step).value == {"n": wanted, "t": "shop.t"}


def test_extract_field_hoist_field_and_flatten() -> None:
    nested = struct({"a": {**struct({"b": ID}), "optional": True}})
    deep = kafka("ExtractField$Value", field="a.b", field_syntax_version="V2")
    assert changed(plain(a={"b": 1}), deep) == (None, 1)
    assert changed(Part(nested, {"a": {"b": 1}}), deep) == (ID, 1)
    assert changed(Part(nested, {"a": None}), deep) == (ID, None)
    assert "it has no field b; it has id, name" in refused(Part(ROW, {}), kafka("ExtractField$Value", field="b"))
    assert changed(Part(ID, 1), kafka("HoistField$Value", field="f")) == (struct({"f": ID}), {"f": 1})
    flat = kafka("Flatten$Value", delimiter="_")
    assert changed(plain(a={"b": {"c": 1}, "d": [2]}), flat) == plain(a_b_c=1, a_d=[2])
    assert changed(Part(nested, {"a": {"b": 1}}), flat) == (struct({"a_b": {**ID, "optional": True}}), {"a_b": 1})
    assert changed(Part(nested, {"a": None}), flat).value == {"a_b": None}
    endless: dict[str, Any] = {}
    for _ in range(100):
        endless = {"a": endless}
    assert "nested more than 64 deep" in refused(Part(None, endless), flat)


def test_value_to_key_makes_keys_of_fields() -> None:
    step = kafka("ValueToKey", fields="name,id")
    made = applied(record(Part(ROW, {"id": 1, "name": "a"})), step, kafka("ExtractField$Key", field="id"))
    assert made and made.key == (ID, 1) and made.value.schema is ROW
    free = applied(record(plain(id=1, x=2)), step)
    assert free and free.key == plain(name=None, id=1)
    assert "its value has no field x" in refused(Part(ROW, {"id": 1}), kafka("ValueToKey", fields="x"))
    assert "it has no value" in refused(Part(None, None), step)


def test_headers() -> None:
    steps = [
        kafka("HeaderFrom$Value", fields="id", headers="nr", operation="move"),
        kafka("InsertHeader", header="zip", value_literal="007"),
        kafka("DropHeaders", headers="old"),
    ]
    given = record(Part(ROW, {"id": 1, "name": "a"}), headers=(("old", Part(None, "x")),))
    made = applied(given, *steps)
    assert made and made.headers == (("nr", Part(ID, 1)), ("zip", Part(None, "007")))
    assert made.value == (struct({"name": TEXT}), {"name": "a"})
    listed = applied(record(plain()), kafka("InsertHeader", header="l", value_literal="[1, 2]"))
    assert listed and listed.headers == (("l", Part(None, [1, 2])),)


def test_topics_are_routed_and_keep_where_they_are_from() -> None:
    steps = [
        kafka("RegexRouter", regex=r"(?<db>\w+)\.(.+)", replacement="${db}_$2"),
        kafka("TimestampRouter", timestamp_format="yyyyMM", topic_format="${topic}.${timestamp}"),
    ]
    made = applied(record(plain(id=1)), *steps)
    assert made and made.topic == "shop_t.197001" and made.place == ("shop.t", 3, 77)
    with pytest.raises(NoValue, match="has no timestamp"):
        applied(record(plain(), millis=None), steps[1])
    for name in ("a b", ".."):
        with pytest.raises(NoValue, match=f"'{name}' is no name of a topic"):
            applied(record(plain()), kafka("RegexRouter", regex=".*", replacement=name))


def test_predicates_select_the_records() -> None:
    drop, tombstone = kafka("Filter"), kafka("predicates.RecordIsTombstone")
    gone = {**drop, "predicate": "p"}
    assert applied(record(Part(None, None)), gone, p=tombstone) is None
    assert applied(record(plain()), gone, p=tombstone) == record(plain())
    assert applied(record(plain()), {**gone, "negate": "true"}, p=tombstone) is None
    named = kafka("predicates.TopicNameMatches", pattern=r"shop\..")
    assert applied(record(plain()), gone, p=named) is None
    assert applied(record(plain(), topic="shop.tt"), gone, p=named) is not None
    headed = {"type": f"{KAFKA}predicates.HasHeaderKey", "name": "h"}
    assert applied(record(plain(), headers=(("h", Part(None, "x")),)), gone, p=headed) is None
    assert applied(record(plain()), gone, p=headed) is not None


# Debezium's events.

SOURCE = struct({"table": TEXT, "ts_ms": {"type": "int64", "optional": True}})
IMAGE = {**ROW, "name": "shop.t.Value", "optional": True}
EVENT = struct({"before": IMAGE, "after": IMAGE, "source": SOURCE, "op": TEXT, "extra": TEXT}, name="shop.t.Envelope")
KEY = Part(struct({"id": ID}, name="shop.t.Key"), {"id": 1})


def event(op: str, before: Any, after: Any, *, schema: bool) -> ConnectRecord:
    body = {"before": before, "after": after, "source": {"table": "t", "ts_ms": 7}, "op": op, "extra": "e"}
    return record(Part(EVENT, body), KEY) if schema else record(Part(None, body), Part(None, KEY.value))


@pytest.mark.parametrize("schema", [True, False])
def test_events_become_rows_and_deletes_what_the_mode_says(schema: bool) -> None:
    row = {"id": 1, "name": "a"}
    kept = applied(event("u", None, row, schema=schema), {"type": EXTRACT})
    assert kept and kept.value == (struct({"id": ID, "name": TEXT}, name="shop.t.Value") if schema else None, row)
    cases: dict[str, tuple[Any, bool]] = {
        "": ("gone", False),
        "drop": (None, False),
        "tombstone": ("gone", False),
        "rewrite": ({**row, "__deleted": "true"}, False),
        "rewrite-with-tombstone": ({**row, "__deleted": "true"}, True),
    }
    for mode, (wanted, tombstones) in cases.items():
        step = {"type": EXTRACT, **({MODE: mode} if mode else {})}
        made = applied(event("d", row, None, schema=schema), step)
        if wanted == "gone":
            assert made and made.value == (None, None) and made.key.value == {"id": 1}
        else:
            assert (made and made.value.value) == wanted, mode
        assert (applied(record(Part(None, None)), step) is not None) is tombstones
    for legacy, value in (("drop", None), ("none", "gone")):
        made = applied(event("d", row, None, schema=schema), {"type": EXTRACT, "delete.handling.mode": legacy})
        assert (made is not None) is (value == "gone")


@pytest.mark.parametrize("schema", [True, False])
def test_a_delete_without_its_row_has_the_columns_of_its_key(schema: bool) -> None:
    made = applied(event("d", None, None, schema=schema), {"type": EXTRACT, MODE: "rewrite"})
    wanted = {"id": 1, "name": None, "__deleted": "true"} if schema else {"id": 1, "__deleted": "true"}
    assert made and made.value.value == wanted
    assert applied(event("t", None, None, schema=schema), {"type": EXTRACT, MODE: "rewrite"}) is None


def test_deleted_ranges_have_no_row() -> None:
    given = event("d", None, None, schema=False)
    ranged = record(Part(None, {**given.value.value, "range": {"from": 1}}), given.key)
    assert applied(given, {"type": EXTRACT}) is not None and applied(ranged, {"type": EXTRACT}) is None


def test_a_header_may_have_the_name_of_a_field() -> None:
    step = {"type": EXTRACT, "add.fields": "op:x", "add.headers": "source.ts_ms:x"}
    made = applied(event("c", None, {"id": 1, "name": "a"}, schema=True), step)
    assert made and made.value.value["__x"] == "c" and made.headers[0][1].value == 7


@pytest.mark.parametrize("schema", [True, False])
def test_fields_of_events_are_added_and_choose_topics(schema: bool) -> None:
    step = {
        "type": EXTRACT,
        "add.fields": "op,table:of,extra,source.ts_ms,zz,transaction.id",
        "add.headers": "op,source.table",
    }
    made = applied(event("c", None, {"id": 1, "name": "T2"}, schema=schema), {**step, "route.by.field": "name"})
    assert made and made.topic == "T2" and made.place[0] == "shop.t"
    added = {"__op": "c", "__of": "t", "__extra": "e", "__source_ts_ms": 7}
    assert made.value.value == {"id": 1, "name": "T2", **added}
    assert [(name, part.value) for name, part in made.headers] == [("__op", "c"), ("__source_table", "t")]
    with pytest.raises(NoValue, match="to choose a topic by"):
        applied(event("c", None, {"id": 1, "name": "T2"}, schema=schema), {"type": EXTRACT, "route.by.field": "id"})


def test_a_header_names_columns_to_drop() -> None:
    step = {"type": EXTRACT, "drop.fields.header.name": "without"}
    given = event("c", None, {"id": 1, "name": "a"}, schema=True)
    named = record(given.value, given.key, headers=(("without", Part(None, ["id", "name", 5])),))
    made = applied(named, step)
    assert made and made.value.value == {"id": 1}  # id is required
    strict = {**step, "drop.fields.keep.schema.compatible": "false", "drop.fields.from.key": "true"}
    made = applied(named, strict)
    assert made and made.value.value == {} and made.key.value == {}


def test_events_in_avro_have_the_name_of_their_record() -> None:
    field = {"name": "op", "type": "string"}
    avro = AvroSchema.of(json.dumps({"type": "record", "name": "Envelope", "namespace": "shop.t", "fields": [field]}))
    schema = connect_schema(avro)
    assert schema and schema["name"] == "shop.t.Envelope"
    assert applied(record(Part(schema, {"op": "t"})), {"type": EXTRACT}) is None


def test_documents_and_other_records_stay_as_they_are() -> None:
    document = struct({"after": TEXT, "op": TEXT, "source": SOURCE}, name="m.Envelope")
    given = record(Part(document, {"after": '{"_id": 1}', "op": "c", "source": None}))
    made = applied(given, {"type": EXTRACT})
    assert made and made.value == (TEXT, '{"_id": 1}')
    with pytest.raises(NoValue, match="which is no row"):
        applied(given, {"type": EXTRACT, "add.fields": "op"})
    for value in (plain(op="c", id=1), Part(ROW, {"id": 1, "name": None}), Part(TEXT, "x")):
        assert applied(record(value), {"type": EXTRACT}) == record(value)


@pytest.mark.parametrize("schema", [True, False])
def test_tables_share_a_topic(schema: bool) -> None:
    step = {"type": f"{DEBEZIUM}ByLogicalTableRouter", "topic.regex": r"shop\.(.)", "topic.replacement": "all"}
    made = applied(event("c", None, {"id": 1, "name": "a"}, schema=schema), step)
    assert made and made.topic == "all"
    assert made.key.value == {"id": 1, "__dbz__physicalTableIdentifier": "shop.t"}
    if schema:
        assert made.key.schema and made.value.schema
        assert (made.key.schema["name"], made.value.schema["name"]) == ("all.Key", "all.Envelope")
        assert [field.get("name") for field in made.value.schema["fields"]][:2] == ["all.Value", "all.Value"]


@pytest.mark.parametrize("schema", [True, False])
def test_cells_of_scylladbs_events_become_values(schema: bool) -> None:
    cell = {**struct({"value": TEXT}, name="t.name.Cell"), "optional": True}
    image = {**struct({"id": ID, "name": cell, "free": cell}, name="t.Value"), "optional": True}
    envelope = struct({"before": image, "after": image, "source": SOURCE, "op": TEXT}, name="t.Envelope")
    row = {"id": 1, "name": {"value": "a"}, "free": None}
    body = {"before": None, "after": row, "source": {}, "op": "c"}
    given = record(Part(envelope if schema else None, body))
    flat = {"id": 1, "name": "a", "free": None}
    made = applied(given, {"type": f"{SCYLLA}ScyllaExtractNewRecordState"})
    assert made and made.value.value == flat
    left = applied(given, {"type": f"{SCYLLA}ScyllaExtractNewRecordState", "cdc.output.format": "advanced"})
    assert left and left.value.value == row
    opened = applied(given, {"type": f"{SCYLLA}ScyllaFlattenColumns"})
    assert opened and opened.value.value == {**body, "after": flat}
    if schema:
        assert made.value.schema == struct({"id": ID, "name": TEXT, "free": TEXT}, name="t.Value")


# Configurations.


@pytest.mark.parametrize(
    ("step", "name", "said"),
    [
        (kafka("InsertField$Value"), "type", "No field insertion configured"),
        (kafka("Cast$Value", spec="a:date"), "spec", "Invalid type"),
        (kafka("RegexRouter", regex="(", replacement="x"), "regex", "Invalid regex"),
        (kafka("RegexRouter", regex=r"\p{InGreek}", replacement="x"), "regex", r"\p{InGreek} is not supported"),
        (kafka("RegexRouter", regex="(?U)a", replacement="x"), "regex", "the flag U is not supported"),
        (kafka("RegexRouter", regex="a", replacement="$1"), "type", "has no group 1"),
        (kafka("RegexRouter", regex="a", replacement="$"), "type", "for a dollar sign"),
        (kafka("TimestampConverter$Value", target_type="string", format="Y"), "format", "Y is not supported"),
        (
            {"type": f"{DEBEZIUM}ByLogicalTableRouter", "topic.regex": "a", "topic.replacement": "${x}"},
            "type",
            "no group x",
        ),
        ({"type": "Unknown"}, "type", "could not be found"),
        ({**kafka("Filter"), "predicate": "p"}, "predicate", "No predicate has this alias"),
    ],
)
def test_wrong_options_are_reported_at_their_property(step: dict[str, str], name: str, said: str) -> None:
    found = errors(step)
    assert list(found) == [f"transforms.t0.{name}"]
    assert said in found[f"transforms.t0.{name}"][0]


def test_what_only_a_sink_knows_may_be_required() -> None:
    assert errors(kafka("InsertField$Value", offset_field="o!", partition_field="p!", timestamp_field="t!")) == {}


@pytest.mark.parametrize("text", ["2024", "13:00", "x", "", "2024-02-29T00:", "99999999999-01-01T00:00"])
def test_text_that_is_no_time_is_a_bad_record(text: str) -> None:
    with pytest.raises(NoValue):
        DateFormat("yyyy-MM-dd'T'HH:mm").parse(text)


def test_a_pattern_is_read_as_by_java() -> None:
    assert java_regex.compiled(r"\Qa.b\E(?<n>\d)\k<n>\z").fullmatch("a.b77")
    assert not java_regex.compiled(r"\d").fullmatch("\u0663")
    assert java_regex.compiled(r"[(?<a>\]]+").fullmatch("(?<a>]")
