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
    """Read the changes of `table` ("keyspace.table") as a streaming frame with one row per change.

    Changes of one primary key arrive in order, each once in every run of a batch. docs/cdc.md describes the columns:
    `op string` (c, u, d; r in a snapshot), `key struct`, `before struct`, `after struct`, `delta struct`,
    `written array<string>`, `deleted array<string>`, `deleted_elements struct`, `range struct`, `operation tinyint`,
    `ttl bigint` (seconds), `ts timestamp`, `read_ts timestamp`, `stream_id binary`, `time string`, `batch_seq_no int`,
    `end_of_batch boolean`, `keyspace string`, `table string`. A struct that would have no field is left out.

    `images` asks for the row before and after each change: "none", "full", or a pair (before, after). `start` is
    "earliest", "latest", "snapshot" (the rows of the table, then its changes), or a time, UTC unless it has a zone.
    Writes younger than `confidence` are left for a later batch. If rows expired before they were read, or the table was
    dropped and created again, the query stops with `DataLost`; with `fail_on_data_loss=False` it logs what is missing
    and continues. With `bad_values="stop"` a cell that cannot be read ends the query with an error that names it. With
    "problem" the cell is null and the column `problem struct` describes it: `cdc.events` leaves these rows out, and
    `kafka.dead_letters` takes them. `options` are other options of the source, such as `user`, `consistency`,
    `max_rows` or `latency`; docs/cdc.md lists them.

    Raises PenstockError if a setting is not valid, the table does not exist or has no change log, the user may not read
    it, or the log lacks the images; DatabaseUnavailable if no node answers within `patience` (5 minutes).
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
        raise PenstockError("cdc.read needs a name", where=table, next='give the source a name, such as name="orders"')
    describe(settings(given))
    return spark.readStream.format("scylla-cdc").options(**given).load()


def _pair(images: str | tuple[str, str]) -> tuple[str, str]:
    if isinstance(images, str):
        return images, images
    if not isinstance(images, (tuple, list)) or len(images) != 2:
        raise PenstockError(
            f"images cannot be {images!r}", where="cdc.read", next='use "none", "full" or a pair of them'
        )
    return images[0], images[1]


def _option(key: str, value: str | int | timedelta) -> str:
    return duration_text(duration(value, name=key)) if isinstance(value, timedelta) else str(value)
