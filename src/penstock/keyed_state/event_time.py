"""Refuses a stage that waits for event time after a window.

A query's watermark is the lowest of all its watermarks. A window emits its rows when the watermark has passed them. If
these rows had a watermark of their own, it would wait for rows that wait for it: forever, and without an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from penstock.errors import PenstockError
from penstock.keyed_state.buckets import BLOB

STAGE, TIMED = "TransformWithStateInPySpark", "EventTime"


def require_no_window(frame: DataFrame, where: str) -> None:
    """Raise PenstockError for a stream that contains a window or another stage of `buckets` over event time."""
    # The plan shows it even if the columns were recomputed, renamed or dropped.
    if frame.isStreaming and any(map(_is_window, _nodes(frame._jdf.queryExecution().analyzed()))):
        raise PenstockError(
            "these rows come from a window, and a window over windows would wait forever",
            where=where,
            next="write the first window's rows to a topic, and read it in another query",
        )


def _is_window(node: Any) -> bool:
    if node.nodeName() != STAGE or node.timeMode().toString() != TIMED:
        return False
    return BLOB in [str(column.name()) for column in _each(node.output())]


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in _each(plan.children()):
        yield from _nodes(child)


def _each(found: Any) -> Iterator[Any]:
    items = found.iterator()
    while items.hasNext():
        yield items.next()
