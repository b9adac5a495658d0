"""What the checkpoint of a running query tells of a batch: its place in the sources, and when it was planned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import UUID

from pyspark.sql import SparkSession

COUNTS_ONLY = '"logOffset"'
"""In offsets of Spark's sources of files, which count batches: only the time of planning tells two of them apart."""


def offsets(spark: SparkSession, query: str, number: int) -> tuple[str, str]:
    """The offsets at which a batch begins and ends, of all sources; empty when no running query has this id."""
    running = _running(spark, query)
    if running is None:
        return "", ""
    log = running.offsetLog()
    end = _text(log, number)
    if COUNTS_ONLY in end:
        end = _planned(end, batch_millis(spark, query, number))
    return _text(log, number - 1) if number else "", end


def offsets_in(checkpoint: str, number: int) -> tuple[str, str]:
    """The same from the files of a checkpoint; empty when it is in no folder of this machine."""
    address = urlsplit(checkpoint)
    if not checkpoint or address.scheme not in ("", "file"):
        return "", ""
    folder = Path(unquote(address.path) if address.scheme else checkpoint) / "offsets"
    end, millis = _of_file(folder / str(number))
    if COUNTS_ONLY in end:
        end = _planned(end, millis)
    return _of_file(folder / str(number - 1))[0] if number else "", end


def batch_millis(spark: SparkSession, query: str, number: int) -> int | None:
    """When a batch was planned, in milliseconds since 1970; None if no running query has this id, or no such batch."""
    running = _running(spark, query)
    if running is None:
        return None
    kept = running.offsetLog().offsetSeqMetadataForBatchId(number)
    return int(kept.get().batchTimestampMs()) if kept.isDefined() else None


def _text(log: Any, number: int) -> str:
    found = log.get(number)
    return str(found.get().toString()) if found.isDefined() else ""


def _of_file(path: Path) -> tuple[str, int | None]:
    """As Spark shows them: a line for each source behind the version and the settings of the batch."""
    try:
        version, settings, *lines = path.read_text().splitlines()
        millis = int(json.loads(settings)["batchTimestampMs"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", None
    return (f"[{', '.join(lines)}]", millis) if version == "v1" else ("", None)


def _planned(end: str, millis: int | None) -> str:
    return f"{end} planned at {millis} ms"


def _running(spark: SparkSession, query: str) -> Any:
    """Spark's own object of the query with this id, of whatever session: a batch has one that knows no query."""
    try:
        UUID(query)
    except ValueError:
        return None
    session = spark._jsparkSession
    return session.sharedState().activeStreamingQueries().get(spark._jvm.java.util.UUID.fromString(query))  # type: ignore[union-attr]
