"""The properties that all sink connectors have, which are those of Kafka Connect 4.3 for sinks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from typing import Any

from penstock.connect.definition import Check, Property, at_least, of_file
from penstock.connect.java.date_time_formatter import zone_of
from penstock.connect.java.regex_check import regex_check
from penstock.connect.records.sink_converters import converter_check, header_converter_check
from penstock.connect.source.properties import CHECKS
from penstock.extras import install
from penstock.wire.topic_names import is_topic_name

FREE = ("consumer.override.", "header.converter.", "errors.deadletterqueue.")
"""Prefixes of properties whose names continue with Kafka's names."""
COMPILED = "Protobuf"
"""In the names of converters whose schemas are compiled."""
Problems = Iterator[tuple[str, str]]
"""Names of properties, and what is wrong with them."""


def _topics(values: list[str]) -> str | None:
    wrong = [name for name in values if not is_topic_name(name)]
    return f"{wrong[0]!r} is not the name of a topic" if wrong else None


def _zone(text: str) -> str | None:
    try:
        zone_of(text)
    except ValueError as error:
        return str(error)
    return None


SINK_CHECKS: dict[str, Check] = {
    **CHECKS,
    "converter": converter_check,
    "header_converter": header_converter_check,
    "zone": _zone,
    "topics": _topics,
    "regex": regex_check,
    "from_minus_1": at_least(-1),
    "port": lambda value: None if 0 < value < 65536 else "it must be a port number from 1 to 65535",
}
"""The checks of all classes of sinks."""


@cache
def of_connect(names: tuple[str, ...]) -> tuple[Property, ...]:
    """Those that every sink of Kafka Connect has, for a connector with these names of its class."""
    checks = SINK_CHECKS | {"connector_class": lambda value: None if value in names else f"this is not {names[0]}"}
    return of_file("penstock.connect.sinks", "properties.toml", checks)


def of_any_sink(values: Mapping[str, Any], config: Mapping[str, str]) -> Problems:
    """Errors between Kafka Connect's properties of sinks."""
    if bool(values["topics"]) == bool(values["topics.regex"]):
        yield "topics", "give the topics to read, or topics.regex" + (", not both" if values["topics"] else "")
    if values["errors.deadletterqueue.topic.name"] in values["topics"]:
        yield "errors.deadletterqueue.topic.name", "it is one of the topics that are read; give another one"
    for side in ("key.converter", "value.converter"):
        if values.get(f"{side}.quote") and values[f"{side}.quote"] == values[f"{side}.delimiter"]:
            yield f"{side}.quote", "it is the delimiter: give another character"
        if COMPILED in (values[side] or "") and find_spec("grpc_tools") is None:
            yield (
                side,
                f"reading Protobuf needs a compiler of its schemas, on the workers too; run: {install('protobuf')}",
            )
