"""Tables that every worker holds completely, from a topic or a CQL table: lookups need no shuffle and no state.

A worker reads the table to its current end before its first lookup. A thread then follows its changes: lookups see a
change of a compacted topic some milliseconds after Kafka has it. A replica belongs to a process, so each core has one.
While its source is away it keeps the rows that it has, and says so.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, functions as F, types as st
from pyspark.sql.pandas.functions import arrow_udf

from penstock.border.public import public
from penstock.codec.decode_columns import struct_of
from penstock.codec.decode_json import EPOCHS, Epoch
from penstock.errors import PenstockError
from penstock.kafka import compacted_topic
from penstock.kafka.security import require_servers
from penstock.keyed_state.arrow_keys import arrow_schema
from penstock.process.waits import Failing, Wait, noted
from penstock.table.json_rows import decoded, unreadable
from penstock.table.latest_rows import InMemory, OnDisk
from penstock.wire import Reader

log = logging.getLogger(__name__)

FOUND = "_penstock_found"
"""The column that holds what was found as a struct, until it becomes columns: the row of the table, and these two."""
IS_THERE, STALE = "_penstock_is_there", "_penstock_stale_ms"
"""Whether the table has the key, and how long the replica has not been able to follow the table."""
_NUMBERS = count(1)
"""Of the joins with global tables in this process."""
PATIENCE = 300.0
"""Seconds for the first read of a table."""

PAUSE, LONGEST = 1.0, 60.0
"""Seconds until a source that is away is asked again, and the most of them."""

Put = Callable[[pa.Array, pa.Array], None]
"""Takes keys and values, newest last; a null value deletes its key."""


@dataclass(frozen=True)
class GlobalTable:
    """A table for `join.enrich`, created by `table.global_table` and `cql.global_table`."""

    source: Feed
    schema: st.StructType

    def enrich(self, frame: DataFrame, *, on: str, how: str, name: str) -> DataFrame:
        """See `join.enrich`."""
        if twice := sorted(set(frame.columns) & set(self.schema.names)):
            raise PenstockError(
                f"both sides have a column {', '.join(twice)}", where=f"join {name}", next="rename it in the frame"
            )
        key = F.col(on).cast("string").cast("binary")
        rows = frame.withColumn(FOUND, _looked_up(self.source, self.schema)(key))
        # Spark takes each name once in a query, and `name` may be that of a reader or of another join too.
        stale = F.max(F.col(FOUND)[STALE]).alias("stale_ms")
        rows = rows.observe(f"global table {next(_NUMBERS)}", stale, F.max(F.lit(name)).alias("table"))
        if how == "inner":
            rows = rows.where(F.col(FOUND)[IS_THERE])
        values = (F.col(FOUND)[field.name].alias(field.name) for field in self.schema)
        return rows.select("*", *values).drop(FOUND)


@public("table.global_table")
def global_table(
    topic: str,
    *,
    servers: str,
    schema: str | st.StructType,
    memory: int = 512 << 20,
    folder: str = "",
    max_decompressed_bytes: int | None = None,
    epoch: Epoch = "seconds",
) -> GlobalTable:
    """A topic of JSON objects with string keys as a table for `join.enrich`: the newest record of each key.

    `schema` names the members that become columns. Each Python worker (one per core) reads the whole topic before its
    first lookup and then follows it. A table larger than `memory` bytes is kept in RocksDB under `folder` (default: the
    system's folder for temporary files), which needs the extra `rocksdb`. A number in a timestamp column counts
    `epoch` since 1970: "seconds", "millis" (as in events of Penstock and Debezium) or "micros". Records that cannot be
    read are skipped; the worker's log has their number. A record batch larger than `max_decompressed_bytes` (default
    116 MB) when decompressed is an error. A lookup depends on its time: a batch that runs again may find newer rows.

    Raises PenstockError for invalid `servers`, `schema` or `epoch`, and for column types that cannot be read from JSON.
    """
    where = f"table.global_table of {topic}"
    require_servers(servers, where, next="fix servers=")
    kind = struct_of(schema, where)
    if epoch not in EPOCHS:
        next = f"use {' or '.join(map(repr, EPOCHS))}"
        raise PenstockError(f"unknown epoch {epoch!r}", where=where, next=next)
    for field in kind:
        if wrong := unreadable(field.dataType):
            raise PenstockError(
                f"the column {field.name} is {wrong.simpleString()}, which cannot be read here",
                where=where,
                next="declare it as string to get its JSON, and parse that after the join",
            )
    source = GlobalTopic(topic, servers, arrow_schema(kind), memory, folder, max_decompressed_bytes, epoch)
    return GlobalTable(source, kind)


@dataclass(frozen=True)
class _Enrich:
    """What the table has for keys, as structs; the fields of its columns are null for keys that are not in it."""

    source: Feed
    output: pa.DataType

    def enrich(self, keys: pa.Array) -> pa.Array:
        table = replica(self.source)
        present, values = table.get(keys)
        fields = list(self.output)
        arrays = [values[field.name].combine_chunks().cast(field.type) for field in fields[:-2]]
        row = pa.StructArray.from_arrays(arrays, fields=fields[:-2], mask=pa.array(~present)).flatten()
        stale = pa.array(np.full(len(present), table.stale_ms))
        return pa.StructArray.from_arrays([*row, pa.array(present), stale], fields=fields)


def _looked_up(source: Feed, schema: st.StructType) -> Callable[[Column], Column]:
    kind = st.StructType([st.StructField(field.name, field.dataType) for field in schema])
    kind.add(IS_THERE, st.BooleanType()).add(STALE, st.LongType())
    # Not a stage of its own: that would take all columns of the frame to Python and back.
    look_up: Any = arrow_udf(_Enrich(source, pa.struct(arrow_schema(kind))).enrich, kind)  # type: ignore[call-overload]
    # A key is looked up once: not again for each use of its columns.
    return look_up.asNondeterministic()  # type: ignore[no-any-return]


# The copy of a table in a process.


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
class GlobalTopic:
    """A compacted topic of JSON objects with string keys."""

    topic: str
    servers: str
    schema: pa.Schema
    memory: int
    folder: str
    max_decompressed_bytes: int | None = None
    epoch: Epoch = "seconds"

    @property
    def name(self) -> str:
        return f"topic {self.topic}"

    def decode(self, values: pa.Array, schema: pa.Schema) -> tuple[pa.Table, Any]:
        return decoded(values, schema, self.epoch)

    def follow(self, put: Put, loaded: Callable[[], None]) -> None:
        asyncio.run(self._follow(put, loaded))

    async def _follow(self, put: Put, loaded: Callable[[], None]) -> None:
        async with Reader(self.servers) as reader:
            await compacted_topic.follow(
                reader,
                self.topic,
                lambda partition, records: _put(put, records),
                lambda ends: loaded(),
                max_decompressed_bytes=self.max_decompressed_bytes,
            )


def _put(put: Put, records: pa.Table) -> None:
    records = records.filter(pc.is_valid(records["key"])).combine_chunks()
    for batch in records.select(["key", "value"]).to_batches():
        put(batch.column(0), batch.column(1))


class Replica:
    """The table of one feed in this process."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._rows: InMemory | OnDisk = InMemory(feed.schema, feed.decode)
        self._lock, self._loaded = threading.Lock(), threading.Event()
        self._away: Wait | None = None
        self._failing = Failing()
        """Attempts to follow the table that failed, before the feed gives up."""
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

    @property
    def stale_ms(self) -> int:
        """How long ago the source went away, in milliseconds: its first request failed; 0 while it is there."""
        away = self._away
        since = away.since if away else self._failing.since
        return 0 if since is None else int((time.monotonic() - since) * 1000)

    def _follow(self) -> None:
        with noted(self._failing):
            self._follow_for_ever()

    def _follow_for_ever(self) -> None:
        rows, pause = self._rows, PAUSE
        try:
            while True:
                try:
                    self._keep(rows)
                except _TooLarge:
                    # Until it is on disk, lookups use the table as it was.
                    rows = OnDisk(self._feed.schema, self._feed.folder, self._feed.decode)
                    continue
                except Exception as error:
                    if not self._loaded.is_set() or not getattr(error, "retriable", False):
                        raise
                    if self._away is None:
                        since = self._failing.since or time.monotonic()
                        self._away, pause = Wait(self._feed.name, patience=None, since=since), PAUSE
                    self._failing.clear()
                    self._away.failed(f"{error}; lookups use its rows as they were")
                    time.sleep(pause)
                    pause = min(pause * 2, LONGEST)
                rows = self._empty(rows)
        except BaseException as error:
            self.failed = error
            self._loaded.set()

    def _empty(self, rows: InMemory | OnDisk) -> InMemory | OnDisk:
        if isinstance(rows, InMemory):
            return InMemory(self._feed.schema, self._feed.decode)
        return OnDisk(self._feed.schema, self._feed.folder, self._feed.decode)

    def _keep(self, rows: InMemory | OnDisk) -> None:
        """Follow the table with `rows`, which replace the rows before once they are complete."""

        reported = 0

        def put(keys: pa.Array, values: pa.Array) -> None:
            nonlocal reported
            with self._lock:
                rows.put(keys, values)
            if rows.bad > 2 * reported:
                reported = rows.bad
                log.warning("%s: %d records cannot be read and are left out; see its schema", self._feed.name, reported)
            if isinstance(rows, InMemory) and rows.nbytes > self._feed.memory:
                raise _TooLarge

        def loaded() -> None:
            with self._lock:
                self._rows = rows
            self._loaded.set()
            if self._away:
                self._away.over()
                self._away = None

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
