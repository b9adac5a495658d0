"""The open batch of a topic: records are appended one by one and encoded together as columns."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from itertools import repeat
from typing import NamedTuple, TypeVar

import pyarrow as pa

from penstock.native import Array
from penstock.wire.producer.partition_queue import Outcome
from penstock.wire.records.record_encoder import Encoded

OVERHEAD = 100
"""Bytes of memory that a record takes in addition to its key and value."""

Headers = Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]

Item = TypeVar("Item")

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class RecordMetadata(NamedTuple):
    """The position of a written record; `timestamp` is in milliseconds since 1970.

    `offset` is -1 with acks=0, or if the broker already had the record and did not return its offset.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int


class Pending:
    """The open batch of one topic."""

    __slots__ = ("due", "futures", "headers", "keys", "partitions", "size", "timestamps", "topic", "values")

    def __init__(self, topic: str) -> None:
        self.topic, self.size, self.due = topic, 0, False
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.headers: dict[int, list[tuple[str, bytes | None]]] = {}
        self.partitions: dict[int, int] = {}
        self.timestamps: list[int] = []
        self.futures: list[asyncio.Future[RecordMetadata]] = []

    def columns(self) -> pa.RecordBatch:
        """The records as columns; a column that no record has is left out."""
        rows = range(len(self.values))
        columns = {
            "value": pa.array(self.values, pa.large_binary()),
            "timestamp": pa.array(self.timestamps, pa.int64()),
        }
        if self.keys.count(None) < len(self.keys):
            columns["key"] = pa.array(self.keys, pa.large_binary())
        if self.headers:
            columns["headers"] = pa.array([_named(self.headers.get(row)) for row in rows], HEADERS)
        if self.partitions:
            columns["partition"] = pa.array([self.partitions.get(row) for row in rows], pa.int32())
        return pa.RecordBatch.from_pydict(columns)

    def detail(self, partition: int | None, headers: Headers | None) -> None:
        """Set the partition and headers, which few records have, of the newest record."""
        row = len(self.values) - 1
        if partition is not None:
            self.partitions[row] = partition
        if headers:
            pairs = headers.items() if isinstance(headers, Mapping) else headers
            self.headers[row] = [(str(key), as_bytes("a header", value)) for key, value in pairs]

    def settle(self, one: Encoded, outcome: Outcome, part: slice) -> None:
        """Set the futures of these rows of this batch."""
        rows = one.rows[part]
        futures, sent_at = _of(self.futures, rows), _of(self.timestamps, rows)
        if outcome.error is not None:
            _refuse(futures, outcome.error)
            return
        first = outcome.offset
        offsets: Iterable[int] = range(first, first + len(rows)) if first >= 0 else repeat(-1)
        times = sent_at if outcome.append_time < 0 else repeat(outcome.append_time)
        told = zip(repeat(self.topic), repeat(one.partition), offsets, times, strict=False)
        # A named tuple's own constructor is a Python function, which costs three times as much.
        for future, metadata in zip(futures, map(tuple.__new__, repeat(RecordMetadata), told), strict=False):
            if not future.done():  # its owner may have cancelled it
                future.set_result(metadata)

    def fail(self, error: Exception) -> None:
        """Fail all futures: none of the records was sent."""
        _refuse(self.futures, error)


def _of(items: list[Item], rows: range | Array) -> list[Item]:
    """The items of these rows."""
    if isinstance(rows, range):
        return items[rows.start : rows.stop]
    return [items[row] for row in rows.tolist()]


def _refuse(futures: Iterable[asyncio.Future[RecordMetadata]], error: Exception) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)


def as_bytes(what: str, value: object) -> bytes | None:
    """A value to send, as bytes; raises TypeError here, where the traceback shows the caller's line."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"{what} must be bytes or None, not {type(value).__name__}; encode it first")


def _named(headers: list[tuple[str, bytes | None]] | None) -> list[dict[str, object]]:
    return [{"key": key, "value": value} for key, value in headers or ()]
