"""Kafka Connect's converters by class name: their codecs and options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from penstock.codec.avro import Avro
from penstock.codec.protobuf import Protobuf
from penstock.codec.registry import Registry, Subjects
from penstock.codec.text_formats import Json, JsonSchema, Text
from penstock.codec.typed_records import Codec, Side
from penstock.connect.definition import REQUIRED, Property, full_name, read_all
from penstock.errors import PenstockError

JSON = "org.apache.kafka.connect.json.JsonConverter"
TEXT = "org.apache.kafka.connect.storage.StringConverter"
AVRO = "io.confluent.connect.avro.AvroConverter"
PROTOBUF = "io.confluent.connect.protobuf.ProtobufConverter"
JSON_SCHEMA = "io.confluent.connect.json.JsonSchemaConverter"
OF_WORKER = {"key.converter": JSON, "value.converter": JSON}
"""The converters of a worker whose file names none. Headers have one without a name."""
STRATEGIES = {
    "io.confluent.kafka.serializers.subject.TopicNameStrategy": "topic",
    "io.confluent.kafka.serializers.subject.RecordNameStrategy": "record",
    "io.confluent.kafka.serializers.subject.TopicRecordNameStrategy": "topic-record",
}
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Converter:
    """A converter class: its options, with `{side}` for key or value in their names, and the function for its codec."""

    options: tuple[Property, ...]
    make: Callable[[Values, Side], Codec]


def _urls(values: list[str]) -> str | None:
    wrong = [url for url in values or [""] if not _is_registry(url)]
    return f"{', '.join(wrong) or 'it'} is not a registry's address, such as http://127.0.0.1:8081" if wrong else None


def _is_registry(url: str) -> bool:
    try:
        # A port is read, and checked, only on demand.
        return bool(Registry(url)) and urlsplit(url).port != 0
    except (PenstockError, ValueError):
        return False


REGISTRY = (
    Property("schema.registry.url", "LIST", REQUIRED, "The schema registry.", _urls, "HIGH"),
    Property(
        "basic.auth.credentials.source",
        "STRING",
        "URL",
        "Where the user and the password are given.",
        importance="MEDIUM",
        allowed=("URL", "USER_INFO"),
    ),
    Property("basic.auth.user.info", "PASSWORD", None, "User and password, separated by a colon."),
    Property("auto.register.schemas", "BOOLEAN", True, "Register new schemas; otherwise they must be registered."),
    Property(
        "{side}.subject.name.strategy",
        "CLASS",
        next(iter(STRATEGIES)),
        "The naming strategy of the schemas' subjects.",
        allowed=tuple(STRATEGIES),
    ),
)


def registry_of(values: Values) -> Registry:
    """The registry of a converter's options."""
    user, _, password = (values["basic.auth.user.info"] or "").partition(":")
    login = {"user": user, "password": password} if values["basic.auth.credentials.source"] == "USER_INFO" else {}
    return Registry(",".join(values["schema.registry.url"]), register=values["auto.register.schemas"], **login)


UNIONS = (
    Property("flatten.unions", "BOOLEAN", False, "Of sinks: members of a oneof are fields beside the others."),
    Property(
        "generate.index.for.unions", "BOOLEAN", True, "Of sinks: the struct of a oneof has its number in its name."
    ),
    Property("int.for.enums", "BOOLEAN", False, "Of sinks: enums are numbers, not names."),
)


def _registered(codec: Callable[[Subjects], Codec], *more: Property) -> Converter:
    def make(values: Values, side: Side) -> Codec:
        return codec(Subjects(registry_of(values), STRATEGIES[values[f"{side}.subject.name.strategy"]]))

    return Converter((*REGISTRY, *more), make)


CONVERTERS: dict[str, Converter] = {
    JSON: Converter(
        (Property("schemas.enable", "BOOLEAN", True, "Include the schema in each record.", importance="HIGH"),),
        lambda values, side: Json(values["schemas.enable"]),
    ),
    TEXT: Converter((), lambda values, side: Text()),
    AVRO: _registered(Avro),
    PROTOBUF: _registered(Protobuf, *UNIONS),
    JSON_SCHEMA: _registered(JsonSchema),
}


def converter(side: Side, config: Mapping[str, str]) -> Codec:
    """The codec of a valid configuration for its keys or values."""
    name, values = options_of(side, config)
    return CONVERTERS[name].make(values, side)


def options_of(side: str, config: Mapping[str, str]) -> tuple[str, Values]:
    """The full name of a valid configuration's converter of this side, and its options; none of an unknown class."""
    name, prefix = full_name(config[f"{side}.converter"], CONVERTERS), f"{side}.converter."
    if name not in CONVERTERS:
        return name, {}
    return name, read_all(_options(CONVERTERS[name], side), own_options(prefix, config))[0]


def own_options(prefix: str, config: Mapping[str, str]) -> dict[str, str]:
    """The properties of a configuration that begin so, by the rest of their names."""
    return {name.removeprefix(prefix): text for name, text in config.items() if name.startswith(prefix)}


def definitions(config: Mapping[str, str]) -> list[Property]:
    """The properties of a configuration's converters."""
    properties = []
    for side in ("key", "value", "header"):
        if chosen := CONVERTERS.get(full_name(config.get(f"{side}.converter"), CONVERTERS)):
            properties += [
                replace(option, name=f"{side}.converter.{option.name}", group="Converters")
                for option in _options(chosen, side)
            ]
    return properties


def _options(chosen: Converter, side: str) -> tuple[Property, ...]:
    return tuple(replace(option, name=option.name.replace("{side}", side)) for option in chosen.options)
