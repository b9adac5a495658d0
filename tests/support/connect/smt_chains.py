"""Chains of transforms on events of hand-made change frames, with the records that Kafka Connect would send."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from change_frames import Table
from event_records import events
from pyspark.sql import SparkSession

from penstock.connect.definition import read_all
from penstock.connect.transforms.source_chain import chain, definitions

KAFKA = "org.apache.kafka.connect.transforms."
DEBEZIUM = "io.debezium.transforms."
SCYLLA = "com.scylladb.cdc.debezium.connector.transforms."
EXTRACT = {"type": f"{DEBEZIUM}ExtractNewRecordState"}
TOMBSTONE = {"type": f"{KAFKA}predicates.RecordIsTombstone"}


@dataclass(frozen=True)
class Sent:
    """A record: its parts as in JSON, with their schemas."""

    topic: str
    key: Any
    value: Any
    headers: list[tuple[str, str | None]]
    key_schema: dict[str, Any] | None
    value_schema: dict[str, Any] | None

    @property
    def types(self) -> dict[str, str]:
        """The fields of the value, each with its type or logical name."""
        assert self.value_schema
        return {field["field"]: field.get("name", field["type"]) for field in self.value_schema["fields"]}


def config_of(*steps: dict[str, str], **predicates: dict[str, str]) -> dict[str, str]:
    """A connector's properties: transforms t0, t1, ... with these options, and predicates by alias."""
    config = {"transforms": ",".join(f"t{i}" for i in range(len(steps))), "predicates": ",".join(predicates)}
    for i, step in enumerate(steps):
        config |= {f"transforms.t{i}.{name}": value for name, value in step.items()}
    for alias, options in predicates.items():
        config |= {f"predicates.{alias}.{name}": value for name, value in options.items()}
    return config


def errors(config: dict[str, str]) -> dict[str, list[str]]:
    """The errors of a configuration, by property."""
    return read_all(definitions(config), config)[1]


def sent(
    spark: SparkSession, table: Table, rows: Sequence[dict[str, Any]], config: dict[str, str], **options: Any
) -> list[Sent]:
    """The records that a chain makes from the changes."""
    assert errors(config) == {}
    made = events(spark, table, rows, schemas=True, transforms=chain(config), **options)
    return [Sent(row.topic, *_opened(row, "payload"), _headers(row), *_opened(row, "schema")) for row in made]


def _opened(row: Any, part: str) -> tuple[Any, Any]:
    key, value = (None if text is None else json.loads(text)[part] for text in (row.key, row.value))
    return key, value


def _headers(row: Any) -> list[tuple[str, str | None]]:
    found = row.headers if "headers" in row.asDict() else []
    return [(header.key, None if header.value is None else bytes(header.value).decode()) for header in found]
