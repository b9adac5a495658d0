"""Each default that a table of the docs prints is a value that the option takes, and its real default."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from datetime import timedelta
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from penstock.cdc import cdc_options
from penstock.durations import duration
from penstock.kafka import kafka_sink
from penstock.kafka.kafka_settings import KafkaSettings
from penstock.wire import Producer

DOCS = Path(__file__).parents[1] / "docs"
VALUE = re.compile(r"`[^`]+`|\d[\w. ]*|true|false|none|earliest|safe|stop|QUORUM")
"""A default that can be typed; other words say where one comes from."""


def defaults(page: str) -> list[tuple[str, str]]:
    """The options of a page's tables `| option | default |`, each with its default as it is printed."""
    return [*_defaults((DOCS / page).read_text())]


def _defaults(text: str) -> Iterator[tuple[str, str]]:
    for table in re.findall(r"^\| option \| default \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.M):
        for row in table.splitlines():
            names, printed = (cell.strip() for cell in row.split("|")[1:3])
            options = re.findall(r"`([\w.]+)`", names.split(" (")[0])
            values = [value.strip() for value in printed.split(",")]
            if len(options) == len(values):
                yield from (
                    (name, value) for name, value in zip(options, values, strict=True) if VALUE.fullmatch(value)
                )


def plain(printed: str) -> str:
    return printed.strip("`\"'")


def typed(printed: str) -> Any:
    """What a user types for an argument of Python: code as it is, and text otherwise."""
    return ast.literal_eval(printed.strip("`")) if printed.startswith("`") or printed.isdecimal() else printed


OF_PRODUCER = {name: value for name, value in defaults("wire.md") if value != "none"}


@pytest.mark.parametrize(("name", "printed"), OF_PRODUCER.items())
def test_the_producer_takes_its_documented_defaults(name: str, printed: str) -> None:
    default = signature(Producer).parameters[name].default
    taken = typed(printed)
    Producer("localhost:9092", **{name: taken})
    assert (duration(taken, name=name) if isinstance(default, timedelta) else taken) == default


@pytest.mark.parametrize(
    # Without a value, an option is left out.
    ("name", "printed"),
    [(name, value) for name, value in defaults("cdc.md") if name == "images" or value != "none"],
)
def test_the_source_of_changes_takes_its_documented_defaults(name: str, printed: str) -> None:
    required = {"table": "a.b", "hosts": "localhost"}
    names = ("before", "after") if name == "images" else (name,)
    given = cdc_options.settings(required | dict.fromkeys(names, plain(printed)))
    assert given == cdc_options.settings(required)


@pytest.mark.parametrize(("name", "printed"), defaults("streams.md"))
def test_the_source_of_topics_takes_its_documented_defaults(name: str, printed: str) -> None:
    required = {"servers": "localhost:9092", "topic": "a"}
    assert KafkaSettings.of(required | {name: plain(printed)}) == KafkaSettings.of(required)


@pytest.mark.parametrize(("name", "printed"), defaults("delivery.md"))
def test_the_sink_of_topics_takes_its_documented_defaults(name: str, printed: str) -> None:
    kafka_sink.require_options({name: plain(printed)})


def test_the_tables_have_defaults() -> None:
    counts = [len(defaults(page)) for page in ("wire.md", "cdc.md", "streams.md", "delivery.md")]
    assert counts >= [14, 22, 5, 3]
