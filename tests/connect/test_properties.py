"""Properties: how values are read from strings, the connector's own properties, and rules between properties."""

from __future__ import annotations

import re
from typing import Any

import pytest
from connect_memory import JSON, RIGHT
from hypothesis import given, strategies as st

from penstock.codec.avro import Avro
from penstock.codec.protobuf import Protobuf
from penstock.codec.registry import Registry, Subjects
from penstock.codec.text_formats import Json, JsonSchema, Text
from penstock.connect.definition import REQUIRED, Property, Type, as_text, at_least, full_name, read_all
from penstock.connect.records import converters
from penstock.connect.records.converters import CONVERTERS, converter
from penstock.connect.source import database, task
from penstock.connect.source.properties import properties
from penstock.connect.worker.checks import CheckedConfig, check
from penstock.connect.worker.providers import Provided
from penstock.errors import PenstockError

PROVIDED = Provided({}, {"key.converter": JSON, "value.converter": JSON})
AVRO = "io.confluent.connect.avro.AvroConverter"


def checked(**changes: str | None) -> CheckedConfig:
    """The result of checking a right configuration with these changes; `_` stands for a dot, `__` for `_`."""
    named = {re.sub("(?<!_)_(?!_)", ".", key).replace("__", "_"): text for key, text in changes.items()}
    whole = {**RIGHT, "name": "c", **named}
    return check({name: text for name, text in whole.items() if text is not None}, PROVIDED, ask=False)


def values(**changes: str) -> dict[str, Any]:
    found = checked(**changes)
    assert not found.messages, found.messages
    return found.values


def of(kind: Type, default: Any = None, **options: Any) -> Property:
    return Property("p", kind, default, "A property.", **options)


@given(st.integers(-(2**63), 2**63 - 1), st.sampled_from(["", " ", "\t", "\n"]))
def test_whole_numbers_are_read_as_they_are_written(number: int, space: str) -> None:
    text = f"{space}{number}{space}"
    assert of("LONG").read(text) == number
    if -(2**31) <= number < 2**31:
        assert of("INT").read(text) == number
    else:
        with pytest.raises(ValueError, match=r"Not a number of type INT; give a whole number from -2147483648"):
            of("INT").read(text)


@pytest.mark.parametrize(
    "text", ["", "1.0", "1e3", "0x10", "1_0", "٣", "+-1", "1 0", "--1", "9" * 30, "-9223372036854775809", "9" * 5000]
)
def test_what_java_does_not_read_as_a_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^Invalid value .*for configuration p: Not a number of type LONG"):
        of("LONG").read(text)
    assert of("LONG").read("+7") == 7 and of("LONG").read("007") == 7


@given(st.lists(st.text(st.characters(exclude_characters=",", exclude_categories=["Cs"]), min_size=1).map(str.strip)))
def test_lists_are_read_as_they_are_written(items: list[str]) -> None:
    items = [item for item in items if item]
    assert of("LIST").read(as_text(items)) == items
    assert of("LIST").read(" , ".join(items)) == items


def test_a_list_keeps_empty_items_and_an_empty_string_is_an_empty_list() -> None:
    assert of("LIST").read("") == [] == of("LIST").read("  ")
    assert of("LIST").read("a,,b,") == ["a", "", "b", ""]


@pytest.mark.parametrize(("text", "value"), [("true", True), (" TRUE ", True), ("False", False)])
def test_booleans_are_read_in_any_case(text: str, value: bool) -> None:
    assert of("BOOLEAN").read(text) is value
    assert as_text(value) == text.strip().lower()


@pytest.mark.parametrize("text", ["", "yes", "1", "t", "true false"])
def test_other_words_are_not_booleans(text: str) -> None:
    with pytest.raises(ValueError, match="Expected value to be true or false"):
        of("BOOLEAN").read(text)


def test_a_property_without_a_value_has_its_default_and_a_required_one_is_an_error() -> None:
    assert of("INT", 5).read(None) == 5 and of("STRING").read(None) is None
    with pytest.raises(ValueError, match=r'^Missing required configuration "p" which has no default value.$'):
        of("INT", REQUIRED).read(None)
    wanted = [of("INT", 5), Property("q", "INT", REQUIRED, ""), Property("r", "STRING", "x", "")]
    found, errors = read_all(wanted, {"p": "five", "r": " y ", "other": "z"})
    # A wrong value is replaced by the default, so that checks between properties still run.
    assert found == {"p": 5, "q": None, "r": "y"}
    assert list(errors) == ["p", "q"]


def test_allowed_values_have_the_case_of_their_definition() -> None:
    level = of("STRING", "QUORUM", allowed=("ONE", "QUORUM"))
    assert level.read(" quorum ") == "QUORUM" and level.read("One") == "ONE"
    with pytest.raises(ValueError, match=r"^Invalid value two for configuration p: it must be one of ONE, QUORUM$"):
        level.read("two")
    # With a check of its own, `allowed` only recommends.
    free = of("STRING", None, allowed=("ONE",), check=lambda value: "too long" if len(value) > 3 else None)
    assert free.read("one") == "one" and free.read("two") == "two"
    with pytest.raises(ValueError, match="for configuration p: too long"):
        free.read("four")


def test_a_definition_is_described_as_in_connect() -> None:
    described = of("LIST", ["a", "b"], importance="LOW", group="G", display="The P").described(3)
    assert (described["default_value"], described["required"], described["display_name"]) == ("a,b", False, "The P")
    assert (described["order"], described["group"], described["importance"]) == (3, "G", "LOW")
    required = of("INT", REQUIRED).described(1)
    assert (required["default_value"], required["required"], required["display_name"]) == (None, True, "p")
    assert of("BOOLEAN", False).described(1)["default_value"] == "false"
    assert of("INT", 0).described(1)["default_value"] == "0"


def test_classes_are_known_by_their_short_names() -> None:
    assert full_name("AvroConverter", CONVERTERS) == AVRO == full_name(" Avro ", CONVERTERS)
    assert full_name(AVRO, CONVERTERS) == AVRO
    for name in ("avro", "connect.avro.AvroConverter", "", None):
        assert full_name(name, CONVERTERS) == (name or "")
    assert at_least(1)(1) is None and at_least(1)(0) == "Value must be at least 1"


def test_each_property_has_a_default_that_it_accepts_and_a_sentence() -> None:
    with_default = [one for one in properties() if one.default is not REQUIRED and one.default is not None]
    assert [one.name for one in with_default if one.read(as_text(one.default)) != one.default] == []
    assert [one.name for one in properties() if one.doc.strip() != one.doc or not one.doc.endswith(".")] == []


def test_properties_have_different_names() -> None:
    names = [one.name for one in properties()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "hosts", ["h:1", "h:65535", "10.0.0.1:9042,[::1]:9042", "[2001:db8::1]:9042", " a:1 , b.example.org:2 ", "a_b:1"]
)
def test_nodes_are_names_or_addresses_with_ports(hosts: str) -> None:
    assert checked(scylla_cluster_ip_addresses=hosts).messages == []


@pytest.mark.parametrize(
    "hosts", ["", "h", "h:", ":9042", "h:0", "h:65536", "h:123456", "::1:9042", "[::1]", "a b:1", "h:1,", "h:-1", "h:x"]
)
def test_other_addresses_are_refused(hosts: str) -> None:
    (error,) = checked(scylla_cluster_ip_addresses=hosts).errors["scylla.cluster.ip.addresses"]
    assert re.search("<host>:<port>|from 1 to 65535|Host specification is required", error)


@pytest.mark.parametrize("tables", ["a.b", 'a."B c"', '"a.b"."c"', '"a""b".c', "a.*", "*.t_?", "a.b , c.d", "1.2"])
def test_tables_are_names_quoted_names_or_patterns(tables: str) -> None:
    assert checked(scylla_table_names=tables).messages == []


@pytest.mark.parametrize(
    "tables", ["", "a", "a.b.c", ".b", "a.", "a-b.c", 'a."b', 'a."', "a.b,", "a b.c", f"a.{'b' * 49}"]
)
def test_other_tables_are_refused(tables: str) -> None:
    (error,) = checked(scylla_table_names=tables).errors["scylla.table.names"]
    assert re.search("<keyspace name>.<table name>|at least one table is required", error)


@pytest.mark.parametrize(
    ("changes", "blamed"),
    [
        ({"scylla_user": "a", "scylla_password": "b"}, []),
        ({"scylla_user": "a"}, ["scylla.password"]),
        ({"scylla_password": "b"}, ["scylla.user"]),
        ({"cdc_include_before": "full"}, ["cdc.include.before"]),
        ({"cdc_include_before": "full", "cdc_output_format": "advanced"}, []),
        ({"cdc_include_after": "only-updated", "cdc_output_format": "extended"}, []),
        ({"experimental_preimages_enabled": "true"}, []),
        (
            {"experimental_preimages_enabled": "true", "cdc_output_format": "extended"},
            ["experimental.preimages.enabled"],
        ),
        # The order of the places does not matter.
        ({"cdc_include_primary-key_placement": "payload-before,kafka-key,payload-after"}, []),
        ({"cdc_include_primary-key_placement": "kafka-key"}, ["cdc.include.primary-key.placement"]),
        ({"cdc_include_primary-key_placement": "", "cdc_output_format": "advanced"}, []),
        ({"scylla_ssl_keystore_path": "/no/such"}, ["scylla.ssl.keystore.path"]),
        ({"scylla_ssl_truststore_path": "/"}, ["scylla.ssl.truststore.path"]),
        ({"scylla_ssl_openssl_keyCertChain": __file__, "scylla_ssl_openssl_privateKey": __file__}, []),
        ({"producer_override_linger_ms": "5"}, []),
        ({"producer_override_acks": "1"}, ["producer.override.acks"]),
        ({"producer_override_acks": "all", "producer_override_enable_idempotence": "True"}, []),
        ({"producer_override_acks": "-1"}, []),
        ({"producer_override_linger_sm": "5"}, ["producer.override.linger.sm"]),
        # Transactions are sent by Penstock's own client, which knows its settings.
        ({"producer_override_linger_ms": "soon", "exactly_once_support": "required"}, ["producer.override.linger.ms"]),
        ({"producer_override_no_such": "x", "exactly_once_support": "required"}, ["producer.override.no.such"]),
        ({"producer_override_linger_ms": "9", "exactly_once_support": "required"}, []),
        # A property with an error of its own gets no second one.
        ({"cdc_include_before": "all"}, ["cdc.include.before"]),
    ],
    ids=str,
)  # fmt: skip
def test_properties_must_fit_each_other(changes: dict[str, str], blamed: list[str]) -> None:
    found = checked(**changes)
    assert list(found.errors) == blamed
    assert all(len(messages) == 1 for messages in found.errors.values())
    for name in blamed:
        assert found.errors[name][0].startswith(f"Invalid value {found.shown.get(name)} for configuration {name}: ")


def test_an_unknown_property_gets_the_name_that_was_probably_meant() -> None:
    found = checked(**{"scylla.usr": "a", "tasks.maximum": "1", "zzz": "1", "topic.creation.x.y": "1", "signal.x": "1"})
    unknown = found.unknown
    assert unknown["scylla.usr"].endswith("Did you mean scylla.user?")
    assert unknown["zzz"] == "Unknown property, without effect."
    assert checked(**{"scylla.name": "shop"}).unknown["scylla.name"].startswith("The old name of topic.prefix, ")
    made = checked(**{"topic.prefix": None, "scylla.name": "shop"})
    assert not made.errors and made.values["topic.prefix"] == "shop"
    # Names that users or Kafka continue are not unknown.
    assert set(unknown) == {"scylla.usr", "tasks.maximum", "zzz"}


@pytest.mark.parametrize(
    ("name", "codec"),
    [(AVRO, Avro), ("Protobuf", Protobuf), ("JsonSchemaConverter", JsonSchema)],
)
def test_converters_of_registries_have_their_login_and_their_subjects(name: str, codec: Any) -> None:
    url = "http://r1:8081,http://r2:8081"
    options = {"value.converter": name, "value.converter.schema.registry.url": url}
    assert converter("value", options) == codec(Subjects(Registry(url), "topic"))
    options |= {
        "value.converter.basic.auth.credentials.source": "user_info",
        "value.converter.basic.auth.user.info": "ann:a:b",
        "value.converter.auto.register.schemas": "false",
        "value.converter.value.subject.name.strategy": "io.confluent.kafka.serializers.subject.RecordNameStrategy",
        "key.converter.schema.registry.url": "http://other:8081",
    }
    assert converter("value", options) == codec(
        Subjects(Registry(url, user="ann", password="a:b", register=False), "record")
    )


def test_a_login_counts_only_with_its_source() -> None:
    options = {"value.converter": AVRO, "value.converter.schema.registry.url": "http://ann:b@r:8081"}
    options["value.converter.basic.auth.user.info"] = "eve:c"
    made = converter("value", options)
    assert isinstance(made, Avro)
    assert (made.subjects.registry.user, made.subjects.registry.password) == ("ann", "b")


def test_converters_without_a_registry_have_few_options() -> None:
    assert converter("key", {"key.converter": "StringConverter", "key.converter.schemas.enable": "x"}) == Text()
    assert converter("key", {"key.converter": "Json"}) == Json(True)
    names = [each.name for each in converters.definitions({"key.converter": "String", "value.converter": AVRO})]
    assert names == [
        f"value.converter.{name}"
        for name in (
            "schema.registry.url",
            "basic.auth.credentials.source",
            "basic.auth.user.info",
            "auto.register.schemas",
            "value.subject.name.strategy",
        )
    ]
    assert converters.definitions({}) == [] == converters.definitions({"key.converter": "org.example.None"})


@pytest.mark.parametrize(
    "url", ["", "r:8081", "ftp://r", "http://r:8081,r2:8081", "http://", "http://r:99999", "http://["]
)
def test_an_address_that_is_not_a_registry_s_is_refused(url: str) -> None:
    found = checked(value_converter=AVRO, value_converter_schema_registry_url=url)
    (error,) = found.errors["value.converter.schema.registry.url"]
    assert "registry" in error


def test_the_database_is_reached_as_the_connector_s_driver_does() -> None:
    plain = database.access(values(scylla_cluster_ip_addresses="a:1, [::1]:2"))
    assert (plain.hosts, plain.user, plain.password, plain.tls) == ("a:1,[::1]:2", "", "", False)
    assert (plain.consistency, plain.local_dc) == ("QUORUM", "")
    secure = database.access(
        values(
            scylla_user="ann",
            scylla_password="pw",
            scylla_local_dc="dc1",
            scylla_consistency_level="local_one",
            scylla_ssl_enabled="true",
            scylla_ssl_openssl_keyCertChain=__file__,
            scylla_ssl_openssl_privateKey=__file__,
        )
    )
    assert (secure.user, secure.password, secure.local_dc, secure.consistency) == ("ann", "pw", "dc1", "LOCAL_ONE")
    # Like the Java driver: certificates are checked, names of hosts are not.
    assert (secure.tls, secure.verify_hostname, secure.ca) == (True, False, "")
    assert (secure.certificate, secure.key) == (__file__, __file__)
    # Files without scylla.ssl.enabled have no effect.
    assert not database.access(values(scylla_ssl_openssl_keyCertChain=__file__)).tls


@pytest.mark.parametrize(
    ("changes", "read", "written"),
    [
        ({}, ("none", "none"), {"format": "legacy"}),
        ({"experimental_preimages_enabled": "true"}, ("full", "none"), {"format": "legacy"}),
        (
            {"cdc_output_format": "advanced", "cdc_include_before": "only-updated"},
            ("full", "none"),
            {
                "format": "advanced",
                "images": ("only-updated", "none"),
                "placement": ["kafka-key", "payload-after", "payload-before"],
                "payload_key_name": "key",
            },
        ),
        (
            {
                "cdc_output_format": "extended",
                "cdc_include_after": "full",
                "cdc_include_primary-key_placement": "payload-key",
                "cdc_include_primary-key_payload-key-name": "pk",
            },
            ("none", "full"),
            {
                "format": "extended",
                "images": ("none", "full"),
                "placement": ["payload-key"],
                "payload_key_name": "pk",
            },
        ),
    ],
)
def test_images_are_read_as_the_format_needs_them(
    changes: dict[str, str], read: tuple[str, str], written: dict[str, Any]
) -> None:
    found = values(**changes)
    assert task.read_images(found) == read
    assert task.shape(found) == written


def test_a_connector_without_positions_starts_where_its_properties_say() -> None:
    assert task.start(values()) == "earliest"
    assert task.start(values(penstock_snapshot="initial", scylla_initial_lookback_ms="5")) == "snapshot"
    first, second = task.start(values(scylla_initial_lookback_ms="3600000")), task.start(values())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00", first) and second == "earliest"


def setup(config: dict[str, str], **producer: str) -> task.Setup:
    whole = check({**RIGHT, "name": "c", **config}, PROVIDED, ask=False)
    named = {name.replace("_", "."): text for name, text in producer.items()}
    return task.Setup("c", "localhost:9092", whole.values, whole.config, named)


def test_topics_are_named_as_debezium_names_them() -> None:
    assert setup({}).topic("ks.t") == "p.ks.t"
    assert setup({"topic.delimiter": "_"}).topic('ks."Größe 1"') == "p_ks_Gr__e_1"


def test_a_connector_overrides_the_worker_s_producer() -> None:
    config = {"producer.override.linger.ms": "7", "exactly.once.support": "required"}
    made = setup(config, linger_ms="5", compression_type="zstd")
    assert made.settings == {"linger.ms": "7", "compression.type": "zstd"}
    assert (made.sink().delivery, made.sink("at-least-once").delivery) == ("exactly-once", "at-least-once")
    assert setup({}).sink().delivery == "at-least-once"
    with pytest.raises(PenstockError, match="acks"):
        setup({}, acks="1").sink()
