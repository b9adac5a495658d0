"""A complete table in the memory of each Python worker, updated by a thread that follows its changes.

A worker reads the table to its current end before its first lookup, then continues: lookups see a change of a compacted
topic some milliseconds after Kafka has it. A replica belongs to a process, so each core has one.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import PenstockError
from penstock.table.json_rows import decoded
from penstock.table.latest_rows import InMemory, LatestRows, OnDisk
from penstock.wire import Reader

PATIENCE = 300.0
"""Seconds for the first read of a table."""

Put = Callable[[pa.Array, pa.Array], None]
"""Takes keys and values, newest last; a null value deletes its key."""


class Feed(Protocol):
    """The source of a table; hashable and pickled to the workers. Above `memory` bytes the table goes to `folder`."""

    @property
    def name(self) -> str: ...

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def memory(self) -> int: ...

    @property
    def folder(self) -> str: ...

    def decode(self, values: pa.Array, schema: pa.Schema) -> tuple[pa.Table, Any]:
        """The values as rows: see `latest_rows.Decode`."""

    def follow(self, put: Put, loaded: Callable[[], None]) -> None:
        """Put all rows, call `loaded`, then put changes; after it returns, the table is read again."""


@dataclass(frozen=True)
class CompactedTopic:
    """A compacted topic of JSON objects with string keys."""

    topic: str
    servers: str
    schema: pa.Schema
    memory: int
    folder: str
    max_decompressed_bytes: int | None = None

    @property
    def name(self) -> str:
        return f"topic {self.topic}"

    def decode(self, values: pa.Array, schema: pa.Schema) -> tuple[pa.Table, Any]:
        return decoded(values, schema)

    def follow(self, put: Put, loaded: Callable[[], None]) -> None:
        asyncio.run(self._read(put, loaded))

    async def _read(self, put: Put, loaded: Callable[[], None]) -> None:
        """Read the topic to its end, then follow it forever."""
        async with Reader(self.servers) as reader:
            start, end = await reader.earliest(self.topic), await reader.latest(self.topic)
            most = self.max_decompressed_bytes
            async for _, table in reader.read(self.topic, start=start, end=end, max_decompressed_bytes=most):
                _put(put, table)
            loaded()
            async for _, table in reader.read(self.topic, start=end, max_decompressed_bytes=most):
                _put(put, table)


def _put(put: Put, records: pa.Table) -> None:
    records = records.filter(pc.is_valid(records["key"])).combine_chunks()
    for batch in records.select(["key", "value"]).to_batches():
        put(batch.column(0), batch.column(1))


class Replica:
    """The table of one feed in this process."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._rows: LatestRows = InMemory(feed.schema, feed.decode)
        self._lock, self._loaded = threading.Lock(), threading.Event()
        self.failed: BaseException | None = None
        threading.Thread(target=self._follow, name=f"replica of {feed.name}", daemon=True).start()

    def get(self, keys: pa.Array) -> tuple[Any, pa.Table]:
        """A mask of the keys in the table, and their rows; waits for the first read of the table."""
        if not self._loaded.wait(PATIENCE):
            raise PenstockError(f"{self._feed.name} was not read within {PATIENCE:g} s", next="check its size")
        if self.failed:
            raise self.failed
        with self._lock:
            return self._rows.get(keys)

    def _follow(self) -> None:
        rows: LatestRows = self._rows
        try:
            while True:
                try:
                    self._keep(rows)
                    rows = self._empty(rows)
                except _TooLarge:
                    # Until it is on disk, lookups use the table as it was.
                    rows = OnDisk(self._feed.schema, self._feed.folder, self._feed.decode)
        except BaseException as error:
            self.failed = error
            self._loaded.set()

    def _empty(self, rows: LatestRows) -> LatestRows:
        if isinstance(rows, InMemory):
            return InMemory(self._feed.schema, self._feed.decode)
        return OnDisk(self._feed.schema, self._feed.folder, self._feed.decode)

    def _keep(self, rows: LatestRows) -> None:
        """Follow the table with `rows`, which replace the rows before once they are complete."""

        def put(keys: pa.Array, values: pa.Array) -> None:
            with self._lock:
                rows.put(keys, values)
            if isinstance(rows, InMemory) and rows.nbytes > self._feed.memory:
                raise _TooLarge

        def loaded() -> None:
            with self._lock:
                self._rows = rows
            self._loaded.set()

        self._feed.follow(put, loaded)


class _TooLarge(Exception):
    """The table exceeds its memory limit."""


_REPLICAS: dict[tuple[int, Feed], Replica] = {}


def replica(feed: Feed) -> Replica:
    """The replica of this process, started by the first call. Raises the error that ended it; the next call restarts
    it."""
    # A forked process has the dictionary but not the thread.
    place = (os.getpid(), feed)
    if place not in _REPLICAS:
        _REPLICAS[place] = Replica(feed)
    if failed := _REPLICAS[place].failed:
        del _REPLICAS[place]
        raise failed
    return _REPLICAS[place]
