"""Stages that wait for event time do not follow one another in a query.

Spark's watermark is the least of all that a query has. A window sends its rows when the watermark has passed them: had
their time a watermark of its own, it would wait for rows that wait for it, without an error and for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from penstock.errors import PenstockError
from penstock.keyed_state.buckets import BLOB

STAGE, TIMED = "TransformWithStateInPySpark", "EventTime"


def require_no_window(frame: DataFrame, where: str) -> None:
    """Refuse a stream that has a window of ours in it, whatever came after that."""
    # The plan knows, whatever became of the columns: they may be computed anew, renamed or dropped.
    if frame.isStreaming and any(map(_is_window, _nodes(frame._jdf.queryExecution().analyzed()))):
        raise PenstockError(
            "these rows are made of a window's, and a window over windows would wait for ever",
            where=where,
            next="write the first window's rows to a topic, and read that in another query",
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
