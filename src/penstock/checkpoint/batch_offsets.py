"""The offsets of a batch in all sources, and when it was planned: of a query that runs, or in a checkpoint's files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import UUID

from pyspark.sql import SparkSession

COUNTS_ONLY = '"logOffset"'
"""Marks offsets of Spark's file sources, which only count batches: two of them differ only in the planning time."""


def batch_offsets(spark: SparkSession, query: str, number: int) -> tuple[str, str]:
    """The start and end offsets of a batch in all sources; "" if no running query has this id."""
    log = _offset_log(spark, query)
    if log is None:
        return "", ""
    end = _text(log, number)
    if COUNTS_ONLY in end:
        end = _planned(end, batch_millis(spark, query, number))
    return _text(log, number - 1) if number else "", end


def newest_in_checkpoint(checkpoint: str) -> tuple[int, str, str]:
    """The newest batch in the files of a checkpoint, with its start and end offsets.

    The number is -1 if there is no batch, or the checkpoint is not a folder on this machine; offsets that cannot be
    read are "".
    """
    address = urlsplit(checkpoint)
    folder = Path(unquote(address.path) if address.scheme else checkpoint) / "offsets"
    if not checkpoint or address.scheme not in ("", "file") or not folder.is_dir():
        return -1, "", ""
    number = max((int(path.name) for path in folder.iterdir() if path.name.isdigit()), default=-1)
    end, millis = _of_file(folder / str(number))
    if COUNTS_ONLY in end:
        end = _planned(end, millis)
    return number, _of_file(folder / str(number - 1))[0] if number > 0 else "", end


def batch_millis(spark: SparkSession, query: str, number: int) -> int | None:
    """When a batch was planned, in milliseconds since 1970; None if no running query has this id or this batch."""
    log = _offset_log(spark, query)
    if log is None:
        return None
    about = log.offsetSeqMetadataForBatchId(number)
    return int(about.get().batchTimestampMs()) if about.isDefined() else None


def _offset_log(spark: SparkSession, query: str) -> Any:
    """Spark's log of a query that runs in any session, as a batch's own session does not know it; None if none does."""
    try:
        UUID(query)
    except ValueError:
        return None
    jvm: Any = spark.sparkContext._jvm
    session: Any = spark._jsparkSession
    running = session.sharedState().activeStreamingQueries().get(jvm.java.util.UUID.fromString(query))
    return None if running is None else running.offsetLog()


def _text(log: Any, number: int) -> str:
    offsets = log.get(number)
    return str(offsets.get().toString()) if offsets.isDefined() else ""


def _of_file(path: Path) -> tuple[str, int | None]:
    """The offsets in Spark's string form, and when the batch was planned.

    The file has the version, the batch's settings, then a line for each source.
    """
    try:
        version, settings, *lines = path.read_text().splitlines()
        millis = int(json.loads(settings)["batchTimestampMs"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", None
    return (f"[{', '.join(lines)}]", millis) if version == "v1" else ("", None)


def _planned(end: str, millis: int | None) -> str:
    return f"{end} planned at {millis} ms"
