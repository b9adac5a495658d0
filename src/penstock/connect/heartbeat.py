"""Heartbeats: a record to `<prefix of heartbeat topics>.<prefix>` now and then, written as the connector's events are.

They tell consumers that the connector lives although nothing changes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from penstock.codec.connect_schema import Schema, topic_name
from penstock.codec.records import Part, Records
from penstock.connect.converters import converter
from penstock.connect.task import Setup
from penstock.errors import PenstockError

log = logging.getLogger(__name__)

_PACKAGE = "io.debezium.connector.common"


def _schema(name: str, field: str, kind: str) -> Schema:
    fields = [{"type": kind, "optional": False, "field": field}]
    return {"type": "struct", "fields": fields, "optional": False, "name": f"{_PACKAGE}.{name}", "version": 1}


KEY, VALUE = _schema("ServerNameKey", "serverName", "string"), _schema("Heartbeat", "ts_ms", "int64")


class Heartbeats:
    """A thread that beats until `stop`."""

    def __init__(self, spark: SparkSession, setup: Setup) -> None:
        self._spark, self._setup = spark, setup
        self._pause = setup.values["heartbeat.interval.ms"] / 1000
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{setup.connector}-heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._pause):
            try:
                beat(self._spark, self._setup, time.time_ns() // 1_000_000)
            except (PenstockError, PySparkException) as error:
                # Changes matter more: their own queries tell whether Kafka is away.
                log.warning("no heartbeat of %s: %s", self._setup.connector, str(error).splitlines()[0])


def topic(values: Mapping[str, Any]) -> str:
    """The topic of a connector's heartbeats."""
    return topic_name(f"{values['heartbeat.topics.prefix']}{values['topic.delimiter']}{values['topic.prefix']}")


def beat(spark: SparkSession, setup: Setup, millis: int) -> None:
    """Write one heartbeat."""
    frame = spark.range(1).select(F.lit(setup.values["topic.prefix"]).alias("server"), F.lit(millis).alias("at"))
    key = Part(F.struct(F.col("server").alias("serverName")), KEY)
    value = Part(F.struct(F.col("at").cast("long").alias("ts_ms")), VALUE)
    records = Records(frame, topic(setup.values), key, (value,))
    setup.sink("at-least-once").save(records.encoded(converter("key", setup.config), converter("value", setup.config)))
