"""Under which subject of a registry a schema goes, and the frame of a record that carries its id."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from penstock.codec.connect_schema import Schema
from penstock.codec.records import Side
from penstock.codec.registry import Registry
from penstock.errors import PenstockError

MAGIC = 0
"""The first byte of Confluent's wire format, which has four bytes of the schema's id behind it."""


def _by_topic(topic: str, side: Side, record: str) -> str:
    return f"{topic}-{side}"


def _by_record(topic: str, side: Side, record: str) -> str:
    return record


def _by_both(topic: str, side: Side, record: str) -> str:
    return f"{topic}-{record}"


STRATEGIES: dict[str, Callable[[str, Side, str], str]] = {
    "topic": _by_topic,
    "record": _by_record,
    "topic-record": _by_both,
}


@dataclass(frozen=True)
class Subjects:
    """A registry and the rule that names subjects in it: "topic" (`<topic>-key`, `<topic>-value`), "record" (the
    name of the record's schema) or "topic-record"; Confluent's TopicName-, RecordName- and TopicRecordNameStrategy.
    """

    registry: Registry
    strategy: str = "topic"

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise PenstockError(
                f"unknown rule for subjects {self.strategy!r}",
                where="registry",
                next=f"use {' or '.join(map(repr, STRATEGIES))}",
            )

    def framed(self, encoded: Column, text: str, kind: str, *, topic: str, side: Side, schema: Schema) -> Column:
        """The record's bytes behind the id of its schema, whose text is registered; null stays null.

        Records whose topic differs from row to row go by the name of their schema.
        """
        name = STRATEGIES[self.strategy if topic else "record"]
        subject = name(topic, side, schema.get("name") or topic or "penstock")
        frame = struct.pack(">bI", MAGIC, self.registry.id(subject, text, kind))
        return F.concat(F.lit(frame), encoded)
