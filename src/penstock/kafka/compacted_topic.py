"""A compacted topic that this process follows: it is read to its end at the start, and every record after that.

`follow` is the reading alone, for those that only read. `CompactedTopic` follows in a thread, and writes: what is
written is seen here before `put` returns, so whoever writes reads its own records.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import aclosing, suppress
from datetime import timedelta
from functools import partial
from typing import Any

import pyarrow as pa

from penstock.errors import PenstockError
from penstock.process.log_lines import quoted
from penstock.wire import BlockingProducer, Reader
from penstock.wire.admin import Admin
from penstock.wire.errors import KafkaError, UnknownTopicOrPartition
from penstock.wire.fetcher import Reached, RecordsTooLarge
from penstock.wire.producer.accumulator import RecordMetadata

log = logging.getLogger(__name__)

# Callers of the REST API wait during this time.
PATIENCE = timedelta(seconds=30)
LOOK = 0.1
"""Seconds between two looks whether a new topic is known."""
PAUSE = 1.0
"""Seconds until the topic is read again after a failure."""
Put = Callable[[int, pa.Table], None]
"""Gets a partition, and a table of its next records as `Reader.read` gives it."""
Seen = Callable[[str, bytes | None, int], None]
"""Gets the key, the value (None for a tombstone) and the offset of each record, in a thread of the topic's."""


async def follow(
    reader: Reader,
    topic: str,
    put: Put,
    loaded: Callable[[Mapping[int, int]], None],
    *,
    start: Mapping[int, int] | None = None,
    max_decompressed_bytes: int | None = None,
    reached: Reached | None = None,
) -> None:
    """Read the topic to its end, call `loaded` with the ends, then follow it forever.

    `put` gets a partition and a table of its next records; the other arguments are those of `Reader.read`. With `start`
    the topic is followed from these offsets, and `loaded` is not called.
    """
    read = partial(reader.read, topic, max_decompressed_bytes=max_decompressed_bytes, reached=reached)
    if start is None:
        earliest, start = await reader.earliest(topic), await reader.latest(topic)
        await _each(read(start=earliest, end=start), put)
        loaded(start)
    await _each(read(start=start), put)


async def _each(tables: AsyncGenerator[tuple[int, pa.Table], None], put: Put) -> None:
    async with aclosing(tables):
        async for partition, table in tables:
            put(partition, table)


class NotInTime(PenstockError):
    """A record was not written, or the topic was not read, in time; trying again can help."""

    retriable = True


class Lags(NotInTime):
    """All that was in the topic was not read in time: what is known here may be old."""


class ReadBeyondEnd(PenstockError):
    """The topic ends before what was read: it was created again, or has lost records, and waiting does not help."""


class CompactedTopic:
    """The topic `name`, created with `partitions` if it is missing; `security` are the client's options.

    `require` gets the topic's partitions before it is read, and raises PenstockError if they do not fit.
    """

    def __init__(
        self,
        servers: str,
        name: str,
        seen: Seen,
        *,
        security: Mapping[str, Any],
        partitions: int = 1,
        replication: int = -1,
        max_decompressed: int | None = None,
        require: Callable[[range], None] = lambda partitions: None,
    ) -> None:
        self.name, self._servers, self._seen, self._security = name, servers, seen, dict(security)
        self._partitions, self._replication, self._max_decompressed = partitions, replication, max_decompressed
        self._require = require
        self._at: dict[int, int] = {}
        self._moved = threading.Condition()
        self._started = Future[None]()
        # One loop as long as the thread lives: `refresh` asks in it, also while the topic cannot be followed.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._following: asyncio.Task[None] | None = None
        self._reader = Reader(servers, patience=PATIENCE, **self._security)
        self._thread = threading.Thread(target=self._run, name=f"follows {name}", daemon=True)
        self._producer: BlockingProducer | None = None
        self._id = ""
        self.cluster_id = ""

    def start(self) -> None:
        """Read all records, and follow the topic from then on; raises PenstockError if that is not possible."""
        self._thread.start()
        try:
            self._started.result()
        except KafkaError as error:
            raise self._unreadable(error) from error
        self._producer = BlockingProducer(self._servers, delivery_timeout=PATIENCE, **self._security)

    def send(self, key: str, value: bytes | None) -> Future[RecordMetadata]:
        """Write a record in the background; a failure is logged, too."""
        sent = self._send(key, value)
        sent.add_done_callback(lambda result: self._log_failure(key, result))
        return sent

    def put(self, key: str, value: bytes | None) -> None:
        """Write a record, and wait until it is seen here; raises PenstockError if it is not written in time."""
        self.put_all({key: value})

    def put_all(self, records: Mapping[str, bytes | None]) -> None:
        """Write records, and wait until they are seen here; raises PenstockError if that takes too long."""
        sent = [self._send(key, value) for key, value in records.items()]
        try:
            written = [future.result() for future in sent]
        except KafkaError as error:
            raise NotInTime(
                f"a record was not written: {error}", where=self._where, next="check that Kafka is up, and try again"
            ) from error
        ends = {metadata.partition: metadata.offset for metadata in written}
        with self._moved:
            reached = self._moved.wait_for(
                lambda: all(self._at.get(partition, 0) > offset for partition, offset in ends.items()),
                PATIENCE.total_seconds(),
            )
        if not reached:
            raise NotInTime(
                f"what was written was not read within {PATIENCE.total_seconds():g} s",
                where=self._where,
                next="check that Kafka is up, and look whether the change has come",
            )

    def refresh(self, patience: timedelta = PATIENCE) -> None:
        """Wait until all is seen that anybody has written so far.

        Raises NotInTime if Kafka does not answer, Lags if it is not read in time, and ReadBeyondEnd if the topic was
        created again, or ends before what was read.
        """
        deadline = time.monotonic() + patience.total_seconds()
        with self._moved:
            before = dict(self._at)
        ends, topic_id = self._ask(patience)
        for partition, end in ends.items():
            if before.get(partition, 0) > end:
                raise self._beyond_end(
                    f"partition {partition} ends at offset {end}, and was read up to {before[partition]}"
                )
        self._require_same(topic_id)
        with self._moved:
            if not self._moved.wait_for(lambda: not self._unseen(ends), max(0.0, deadline - time.monotonic())):
                raise self._lags(ends)

    def _unseen(self, ends: Mapping[int, int]) -> list[int]:
        """The partitions that are not read up to these ends; the caller has the lock."""
        return [partition for partition, end in sorted(ends.items()) if self._at.get(partition, 0) < end]

    def _lags(self, ends: Mapping[int, int]) -> Lags:
        first, *more = self._unseen(ends)
        others = f", and {len(more)} more partitions" if more else ""
        return Lags(
            "this worker has not read all of the topic yet: "
            f"partition {first} up to offset {self._at.get(first, 0)} of {ends[first]}{others}",
            where=self._where,
            next="try again in a moment, or ask another worker",
        )

    def _ask(self, patience: timedelta) -> tuple[dict[int, int], str]:
        """The ends of the partitions, and the topic's id."""
        assert self._loop, "call start() first"
        asking = self._ends_and_id()
        try:
            answer = asyncio.run_coroutine_threadsafe(asking, self._loop)
        except RuntimeError as error:  # the topic is closed meanwhile
            asking.close()
            raise self._cannot_be_read(error) from error
        try:
            return answer.result(patience.total_seconds())
        except (KafkaError, TimeoutError, CancelledError) as error:
            answer.cancel()
            raise self._cannot_be_read(error) from error

    def _cannot_be_read(self, error: BaseException) -> NotInTime:
        return NotInTime(
            f"the topic cannot be read now: {str(error) or type(error).__name__}",
            where=self._where,
            next="check that Kafka is up, and try again",
        )

    async def _ends_and_id(self) -> tuple[dict[int, int], str]:
        return await self._reader.latest(self.name), await self._reader.topic_id(self.name, timedelta(0))

    def _require_same(self, topic_id: str) -> None:
        if topic_id != self._id:
            raise self._beyond_end("the topic was created again since it was read")

    def _beyond_end(self, why: str) -> ReadBeyondEnd:
        return ReadBeyondEnd(
            why,
            where=self._where,
            next="see whether the topic was deleted, and start this worker again: it reads the topic from its start",
        )

    def close(self) -> None:
        """Stop following the topic; all records that were sent are written first."""
        if self._loop and self._following:
            with suppress(RuntimeError):  # the loop has ended already
                self._loop.call_soon_threadsafe(self._following.cancel)
            self._thread.join()
        if self._producer:
            self._producer.close()

    def _send(self, key: str, value: bytes | None) -> Future[RecordMetadata]:
        assert self._producer, "call start() first"
        return self._producer.send(self.name, value, key=key.encode())

    def _log_failure(self, key: str, result: Future[RecordMetadata]) -> None:
        if not result.cancelled() and (error := result.exception()):
            log.warning("the record %s of %s was not written: %s", quoted(key), self._where, error)

    @property
    def _where(self) -> str:
        return f"topic {self.name} at {self._servers}"

    def _unreadable(self, error: KafkaError) -> PenstockError:
        next = "check that Kafka is up, and that this user may create, read and write the topic"
        if isinstance(error, RecordsTooLarge):
            next = "set fetch.max.decompressed.bytes in the worker's file to more bytes"
        return PenstockError(f"the topic cannot be read: {error}", where=self._where, next=next)

    def _run(self) -> None:
        try:
            asyncio.run(self._live())
        except asyncio.CancelledError:
            log.debug("%s is not followed any longer", self._where)
        except Exception as error:
            self._started.set_exception(error)

    async def _live(self) -> None:
        """Follow the topic until the task is cancelled; an error before the first read is complete ends it."""
        self._loop, self._following = asyncio.get_running_loop(), asyncio.current_task()
        await self._create()
        async with self._reader:
            self._require(await self._known_partitions())
            self._id = await self._reader.topic_id(self.name)
            while True:
                try:
                    await self._follow()
                except Exception as error:
                    if not self._started.done():
                        raise
                    self._log_read_again(error)
                await asyncio.sleep(PAUSE)

    def _log_read_again(self, error: Exception) -> None:
        if isinstance(error, KafkaError):
            log.warning("%s", self._unreadable(error))
        elif isinstance(error, ReadBeyondEnd):
            log.warning("%s", error)
        else:
            log.error("%s is read again", self._where, exc_info=error)

    async def _create(self) -> None:
        async with Admin(self._servers, patience=PATIENCE, **self._security) as admin:
            self.cluster_id = await admin.cluster_id()
            await admin.create_topic(
                self.name,
                partitions=self._partitions,
                replication=self._replication,
                configs={"cleanup.policy": "compact"},
            )

    async def _known_partitions(self) -> range:
        """The partitions; a topic that was created a moment ago is not known to all brokers yet."""
        deadline = time.monotonic() + PATIENCE.total_seconds()
        while True:
            try:
                return await self._reader.partitions(self.name)
            except UnknownTopicOrPartition:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(LOOK)

    async def _follow(self) -> None:
        """Read all at the first time, then go on where the last read ended, if it is still the same topic."""
        start = None
        if self._started.done():
            start = dict(self._at)
            self._require_same(await self._reader.topic_id(self.name, timedelta(0)))
        await follow(
            self._reader,
            self.name,
            self._put,
            self._loaded,
            start=start,
            max_decompressed_bytes=self._max_decompressed,
            reached=self._reached,
        )

    def _put(self, partition: int, table: pa.Table) -> None:
        columns = (table[name].to_pylist() for name in ("key", "value", "offset"))
        for key, value, offset in zip(*columns, strict=True):
            if key is not None:
                self._seen(key.decode(errors="replace"), value, offset)
            self._reached(partition, offset + 1)

    def _loaded(self, ends: Mapping[int, int]) -> None:
        for partition, end in ends.items():
            self._reached(partition, end)
        self._started.set_result(None)

    def _reached(self, partition: int, offset: int) -> None:
        with self._moved:
            self._at[partition] = max(self._at.get(partition, 0), offset)
            self._moved.notify_all()
