"""Heartbeats: records to `<prefix of heartbeat topics>.<prefix>`, with the converters of the connector's events.

They show consumers that the connector runs, also if nothing changes. In the format `extended` they have `lag_ms`: the
time between now and the position of the slowest table's log, null before that is known.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, functions as F

from penstock.codec.connect_schema import Schema
from penstock.codec.typed_records import RecordPart, TypedRecords
from penstock.connect.records.converters import converter
from penstock.connect.source.task import Setup
from penstock.errors import PenstockError, first_line
from penstock.wire.topic_names import topic_name

log = logging.getLogger(__name__)

_PACKAGE = "io.debezium.connector.common"


def _field(name: str, kind: str, optional: bool = False) -> Schema:
    return {"type": kind, "optional": optional, "field": name}


def _schema(name: str, *fields: Schema) -> Schema:
    return {"type": "struct", "fields": [*fields], "optional": False, "name": f"{_PACKAGE}.{name}", "version": 1}


KEY, VALUE = _schema("ServerNameKey", _field("serverName", "string")), _schema("Heartbeat", _field("ts_ms", "int64"))
EXTENDED = _schema("Heartbeat", _field("ts_ms", "int64"), _field("lag_ms", "int64", optional=True))


class Heartbeats:
    """A thread that writes heartbeats until `stop`; `read_to` returns the microsecond that was read up to, or None."""

    def __init__(self, spark: SparkSession, setup: Setup, read_to: Callable[[], int | None]) -> None:
        self._spark, self._setup, self._read_to = spark, setup, read_to
        self._pause = setup.values["heartbeat.interval.ms"] / 1000
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{setup.connector}-heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        created = False
        while not self._stop.wait(self._pause):
            try:
                if not created:
                    self._setup.create(topic(self._setup.values))
                    created = True
                beat(self._spark, self._setup, time.time_ns() // 1_000_000, self._read_to())
            except (PenstockError, PySparkException) as error:
                # Not fatal: the queries of the tables report it if Kafka does not answer.
                log.warning("no heartbeat from %s: %s", self._setup.connector, first_line(error))


def topic(values: Mapping[str, Any]) -> str:
    """The topic of a connector's heartbeats."""
    return topic_name(f"{values['heartbeat.topics.prefix']}{values['topic.delimiter']}{values['topic.prefix']}")


def beat(spark: SparkSession, setup: Setup, millis: int, read_to: int | None) -> None:
    """Write one heartbeat."""
    members = {"ts_ms": F.lit(millis).cast("long")}
    extended = setup.values["cdc.output.format"] == "extended"
    if extended:
        members["lag_ms"] = F.lit(None if read_to is None else millis - read_to // 1000).cast("long")
    frame = spark.range(1).select(
        F.lit(setup.values["topic.prefix"]).alias("server"),
        F.struct(*(column.alias(name) for name, column in members.items())).alias("value"),
    )
    key = RecordPart(F.struct(F.col("server").alias("serverName")), KEY)
    records = TypedRecords(
        frame, topic(setup.values), key, (RecordPart(F.col("value"), EXTENDED if extended else VALUE),)
    )
    setup.sink("at-least-once").save(records.encoded(converter("key", setup.config), converter("value", setup.config)))
