"""Kafka Connect's converters, by class name: which of our codecs each is."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.codec.json import Json
from penstock.codec.records import Codec, Side
from penstock.codec.text import Text
from penstock.connect.definition import Property

JSON = "org.apache.kafka.connect.json.JsonConverter"
STRING = "org.apache.kafka.connect.storage.StringConverter"
Options = Mapping[str, str]

CONVERTERS: dict[str, Callable[[Options], Codec]] = {
    JSON: lambda options: Json(options.get("schemas.enable", "true").strip().lower() == "true"),
    STRING: lambda options: Text(),
}
_SCHEMAS = "Whether each record carries its schema."


def converter(side: Side, config: Mapping[str, str]) -> Codec:
    """The codec that a configuration names for its keys or values."""
    prefix = f"{side}.converter"
    options = {name.removeprefix(f"{prefix}."): text for name, text in config.items() if name.startswith(f"{prefix}.")}
    return CONVERTERS[config[prefix]](options)


def definitions(config: Mapping[str, str]) -> list[Property]:
    """The properties of the converters that a configuration names."""
    found = []
    for side in ("key", "value"):
        if config.get(f"{side}.converter") == JSON:
            name = f"{side}.converter.schemas.enable"
            found.append(Property(name, "BOOLEAN", True, _SCHEMAS, None, "HIGH", "Converters"))
    return found
