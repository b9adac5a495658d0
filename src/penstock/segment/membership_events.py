"""Membership events on their way out of the stage with the state: packed as bytes, then rows again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from penstock.segment.record_layout import ENTER, PROLONG
from penstock.segment.record_store import Changes

SCHEMA = "person string, segment string, event string, at timestamp, until timestamp, ttl int, `to` string"
KINDS = pa.array([None, "enter", "prolong", "leave", "expire"])
_TIME = pa.timestamp("us", "UTC")
_ROWS = pa.schema(
    {
        "person": pa.string(),
        "segment": pa.string(),
        "event": pa.string(),
        "at": _TIME,
        "until": _TIME,
        "ttl": pa.int32(),
        "to": pa.string(),
    }
)
_SECOND = 1000


def as_bytes(changes: Sequence[Changes], now: int | None) -> bytes | None:
    """The events as an Arrow stream, None if there are none; `ttl` counts from `now` or, if None, from the event's
    time."""
    batches = [_batch(some, now) for some in changes if len(some.rows)]
    if not batches:
        return None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _ROWS, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Unpack the events; for `mapInArrow` with `SCHEMA`."""
    for batch in batches:
        for piece in batch.column(0):
            yield from pa.ipc.open_stream(piece.as_buffer())


def _batch(changes: Changes, now: int | None) -> pa.RecordBatch:
    _, rule, kind, at, until = changes.rows.T
    member = (kind == ENTER) | (kind == PROLONG)
    left = until - (at if now is None else now)
    names = pa.array([rule.name for rule in changes.source])
    topics = pa.array([rule.to for rule in changes.source])
    columns = [
        pa.array(changes.ids, pa.binary()).cast(pa.string()),
        names.take(pa.array(rule)),
        KINDS.take(pa.array(kind)),
        _times(at),
        _times(until),
        pa.array(np.where(member, np.maximum(1, -(-left // _SECOND)), 0).astype(np.int32)),
        topics.take(pa.array(rule)),
    ]
    return pa.record_batch(columns, schema=_ROWS)


def _times(ms: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> pa.Array:
    return pa.array(ms * 1000, pa.int64()).cast(_TIME)
