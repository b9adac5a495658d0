"""Properties of transforms and predicates: their definitions and errors."""

from __future__ import annotations

import pytest
from smt_chains import DEBEZIUM, EXTRACT, KAFKA, SCYLLA, TOMBSTONE, config_of, errors

from penstock.connect.definition import REQUIRED
from penstock.connect.transforms.definitions import CLASSES
from penstock.connect.transforms.fields import path_steps
from penstock.connect.transforms.source_chain import chain, definitions
from penstock.errors import PenstockError


def test_a_configuration_without_transforms_has_two_properties_and_no_chain() -> None:
    assert [(each.name, each.group) for each in definitions({})] == [
        ("transforms", "Transforms"),
        ("predicates", "Predicates"),
    ]
    assert chain({}) == []


def test_each_alias_brings_its_class_s_options_in_a_group() -> None:
    router = {"type": f"{KAFKA}RegexRouter", "regex": "a", "replacement": "b", "predicate": "p"}
    found = definitions(config_of(router, p=TOMBSTONE))
    assert [(each.name, each.group) for each in found[2:]] == [
        *(
            (f"transforms.t0.{name}", "Transforms: t0")
            for name in ("type", "predicate", "negate", "regex", "replacement")
        ),
        ("predicates.p.type", "Predicates: p"),
    ]
    assert {each.name for each in found if each.default is REQUIRED} == {
        "transforms.t0.type",
        "transforms.t0.regex",
        "transforms.t0.replacement",
        "predicates.p.type",
    }


def test_plugins_are_listed_and_known_by_their_short_names() -> None:
    names = {each["class"] for each in CLASSES if each["type"] == "transformation"}
    assert {f"{KAFKA}Cast$Key", f"{DEBEZIUM}ByLogicalTableRouter", f"{SCYLLA}ScyllaFlattenColumns"} <= names
    assert {each["class"] for each in CLASSES if each["type"] == "predicate"} == {
        f"{KAFKA}predicates.{name}" for name in ("TopicNameMatches", "HasHeaderKey", "RecordIsTombstone")
    }
    assert errors(config_of({"type": "Flatten$Value"})) == {}


def of(name: str, **options: str) -> dict[str, str]:
    return config_of({"type": KAFKA + name, **{key.replace("_", "."): value for key, value in options.items()}})


WRONG = [
    (config_of({"type": "no.Such"}), "type", "Class no.Such could not be found. Known classes: com.scylladb"),
    (config_of({}), "type", 'Missing required configuration "transforms.t0.type" which has no default value.'),
    (of("Cast"), "type", r"Did you mean .*Cast\$Key, .*Cast\$Value\?"),
    (of("predicates.RecordIsTombstone"), "type", "could not be found. Known classes:"),
    (config_of({**EXTRACT, "predicate": "p"}), "predicate", "No predicate has this alias"),
    (config_of({**EXTRACT, "negate": "true"}), "type", "no config 'transforms.t0.predicate' defining a predicate"),
    (
        config_of({**EXTRACT, "predicate": "p", "negate": "maybe"}, p=TOMBSTONE),
        "negate",
        "Expected value to be true or false",
    ),
    (of("RegexRouter", replacement="x"), "regex", "Missing required configuration"),
    (of("RegexRouter", regex=".*", replacement="$1"), "type", "has no group 1"),
    (of("RegexRouter", regex="(?<a>.*)", replacement="${b}"), "type", "has no group b"),
    (of("InsertField$Value"), "type", "No field insertion configured"),
    (of("InsertField$Value", static_field="a"), "type", "No value specified for static field: a"),
    (of("InsertField$Value", offset_field="a"), "offset.field", "only a sink connector"),
    (of("InsertField$Value", timestamp_field="a!"), "timestamp.field", "have no timestamp yet when transforms run"),
    (of("ReplaceField$Value", renames="a"), "renames", "Invalid rename mapping: a"),
    (of("MaskField$Value", fields=""), "fields", "Empty list"),
    (of("SetSchemaMetadata$Key"), "type", "Neither schema name nor version configured"),
    (of("SetSchemaMetadata$Key", schema_version="x"), "schema.version", "Not a number of type INT"),
    (of("ExtractField$Key", field="`a", field_syntax_version="V2"), "type", "Incomplete backtick pair in path"),
    (of("Cast$Key", spec=""), "spec", "Must specify at least one field to cast"),
    (of("Cast$Key", spec="a:bytes"), "spec", "Invalid type found in casting spec: bytes; supported types are int8"),
    (of("Cast$Key", spec="int8,a:int8"), "spec", "may only have a single cast"),
    (of("TimestampConverter$Value", field="a", target_type="date"), "target.type", "String must be one of: string"),
    (of("TimestampConverter$Value", field="a", target_type="string"), "type", "requires format option"),
    (of("TimestampRouter", timestamp_format="YYYY"), "timestamp.format", "YYYY is not supported; use G y"),
    (of("TimestampRouter", timestamp_format="yyyy'T"), "timestamp.format", "Unterminated quote"),
    (of("HeaderFrom$Key", fields="a,b", headers="c", operation="move"), "type", "same number of elements"),
    (of("HeaderFrom$Key", fields="a", headers="c", operation="take"), "operation", "must be one of: move, copy"),
    (config_of({**EXTRACT, "delete.handling.mode": "keep"}), "delete.handling.mode", "one of drop, rewrite, none"),
    (config_of({**EXTRACT, "add.fields": "a:b:c"}), "add.fields", "Unexpected field name: a:b:c"),
    (
        config_of(
            {
                "type": f"{DEBEZIUM}ByLogicalTableRouter",
                "topic.regex": "a",
                "topic.replacement": "b",
                "key.field.regex": "c",
            }
        ),
        "type",
        "key.field.replacement must be non-empty if key.field.regex is set",
    ),
]


@pytest.mark.parametrize(("config", "option", "message"), WRONG)
def test_wrong_options_are_told_at_their_property(config: dict[str, str], option: str, message: str) -> None:
    found = errors(config)
    assert list(found) == [f"transforms.t0.{option}"]
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(found[f"transforms.t0.{option}"][0])


def test_aliases_are_given_once_and_predicates_have_known_classes() -> None:
    config = {"transforms": "a,a", "transforms.a.type": EXTRACT["type"], "predicates": "p", "predicates.p.type": "x.Y"}
    found = errors(config)
    assert found["transforms"] == ["Invalid value a,a for configuration transforms: Duplicate alias provided."]
    assert "Class x.Y could not be found. Known classes: org.apache.kafka" in found["predicates.p.type"][0]


def test_paths_of_version_2_have_dots_and_backticks() -> None:
    assert path_steps("a.b", "V1") == ["a.b"]
    assert path_steps("a.b.", "v2") == ["a", "b", ""]
    assert path_steps("`a.b`.c", "V2") == ["a.b", "c"]
    assert path_steps(r"`a`b\`.c`.d", "V2") == ["a`b`.c", "d"]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"transforms": "a", "transforms.a.type": "Nope"}, r"Class Nope could not be found.*\(transforms.a.type\)"),
        ({"transforms": "a"}, r"Missing required configuration \"transforms.a.type\""),
        ({"transforms": "a", "transforms.a.type": "ValueToKey"}, r"Missing.*\(transforms.a.fields\)"),
    ],
)
def test_a_chain_of_wrong_properties_is_refused_in_python_too(config: dict[str, str], said: str) -> None:
    with pytest.raises(PenstockError, match=said):
        chain(config)
