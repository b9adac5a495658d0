"""`cdc.read`: the changes of a ScyllaDB or Cassandra table as a streaming frame."""

from __future__ import annotations

from datetime import datetime, timedelta

from pyspark.sql import DataFrame, SparkSession

from penstock.cdc.cdc_options import settings
from penstock.cdc.planner import describe
from penstock.config import duration, duration_text
from penstock.errors import PenstockError


def read(
    spark: SparkSession,
    table: str,
    *,
    hosts: str,
    name: str,
    images: str | tuple[str, str] = "none",
    start: str | datetime = "earliest",
    confidence: timedelta | str = timedelta(seconds=30),
    fail_on_data_loss: bool = True,
    bad_values: str = "stop",
    **options: str | int | timedelta,
) -> DataFrame:
    """The changes of `table` ("keyspace.table"), one row a change; docs/cdc.md describes its columns.

    `images` asks for the row before and after each change: "none", "full", or a pair (before, after). `start` may be
    a time, UTC unless it has a zone. What was written less than `confidence` ago is left for a later batch. When rows
    have expired before they were read, or the table was dropped and made again, the query stops; with
    `fail_on_data_loss` false it logs what is missing, and goes on with what there is. With `bad_values` "stop" a cell
    that cannot be read ends the query with an error that names it; with "problem" it is null, and its row has a
    `problem`: `cdc.events` leaves such rows out, and `kafka.dead_letters` takes them. `options` are the other fields
    of the source's `Settings`, such as `user`, `consistency` or `max_rows`. Wrong settings, a missing table or one
    without a change log raise here. Changes of one primary key arrive in order, each once in every run of a batch.
    """
    before, after = _pair(images)
    given = {
        "table": table,
        "hosts": hosts,
        "name": name,
        "before": before,
        "after": after,
        "start": start.isoformat() if isinstance(start, datetime) else start,
        "confidence": duration_text(duration(confidence, name="confidence")),
        "failOnDataLoss": str(fail_on_data_loss).lower(),
        "bad_values": bad_values,
        "partitions": str(spark.sparkContext.defaultParallelism),
        **{key: _option(key, value) for key, value in options.items()},
    }
    if not name:
        raise PenstockError("cdc.read needs a name", where=table, next='give the source one, such as name="orders"')
    describe(settings(given))
    return spark.readStream.format("scylla-cdc").options(**given).load()


def _pair(images: str | tuple[str, str]) -> tuple[str, str]:
    if isinstance(images, str):
        return images, images
    if not isinstance(images, (tuple, list)) or len(images) != 2:
        raise PenstockError(
            f"images cannot be {images!r}", where="cdc.read", next='use "none", "full" or a pair of these'
        )
    return images[0], images[1]


def _option(key: str, value: str | int | timedelta) -> str:
    return duration_text(duration(value, name=key)) if isinstance(value, timedelta) else str(value)
