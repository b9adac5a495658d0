"""A compacted topic that this process follows: it is read to its end at the start, and every record after that.

What is written is seen here before `put` returns: whoever writes reads its own records.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import aclosing, suppress
from datetime import timedelta
from typing import Any

from penstock.connect.worker.connector_store import require_order
from penstock.errors import PenstockError
from penstock.process.log_lines import quoted
from penstock.wire import BlockingProducer, Reader
from penstock.wire.admin import Admin
from penstock.wire.errors import KafkaError
from penstock.wire.fetcher import RecordsTooLarge
from penstock.wire.producer.accumulator import RecordMetadata

log = logging.getLogger(__name__)

# Callers of the REST API wait during this time.
PATIENCE = timedelta(seconds=30)
LOOK = 0.1
"""Seconds between two looks whether the thread has ended."""
PAUSE = 1.0
"""Seconds until the topic is read again after a failure."""
Seen = Callable[[str, bytes | None, int], None]
"""Gets the key, the value (None for a tombstone) and the offset of each record, in a thread of the topic's."""


class NotInTime(PenstockError):
    """A record was not written, or the topic was not read, in time; trying again can help."""

    retriable = True


class Lags(NotInTime):
    """All that was in the topic was not read in time: what is known here may be old."""


class ReadBeyondEnd(PenstockError):
    """The topic ends before what was read of it: it was made again, or has lost records, and waiting does not help."""


class CompactedTopic:
    """The topic `name`, created with `partitions` if it is missing; `security` are the client's options.

    With `ordered`, a topic with several partitions is refused: its records would have no order.
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
        ordered: bool = False,
    ) -> None:
        self.name, self._servers, self._seen, self._security = name, servers, seen, dict(security)
        self._partitions, self._replication, self._max_decompressed = partitions, replication, max_decompressed
        self._ordered = ordered
        self._at: dict[int, int] = {}
        self._moved = threading.Condition()
        self._first = Future[None]()
        self._closing, self._follows = threading.Event(), threading.Event()
        self._reading: tuple[asyncio.AbstractEventLoop, Reader, asyncio.Task[None]] | None = None
        self._thread = threading.Thread(target=self._run, name=f"follows {name}", daemon=True)
        self._producer: BlockingProducer | None = None
        self.cluster_id = ""

    def start(self) -> None:
        """Read all records, and follow the topic from then on; raises PenstockError if that is not possible."""
        self._thread.start()
        try:
            self._first.result()
        except KafkaError as error:
            raise self._unreadable(error) from error
        self._producer = BlockingProducer(self._servers, delivery_timeout=PATIENCE, **self._security)
        self._follows.wait()

    def send(self, key: str, value: bytes | None) -> Future[RecordMetadata]:
        """Write a record in the background; a failure is told in the log, too."""
        sent = self._send(key, value)
        sent.add_done_callback(lambda result: self._tell(key, result))
        return sent

    def put(self, key: str, value: bytes | None) -> None:
        """Write a record, and wait until it is seen here; raises PenstockError if it is not written in time."""
        self.put_all({key: value})

    def put_all(self, records: Mapping[str, bytes | None]) -> None:
        """Write records, and wait until they are seen here; raises PenstockError if that takes too long."""
        sent = [self._send(key, value) for key, value in records.items()]
        try:
            written = [one.result() for one in sent]
        except KafkaError as error:
            raise NotInTime(
                f"a record was not written: {error}", where=self._where, next="check that Kafka is up, and try again"
            ) from error
        ends = {one.partition: one.offset for one in written}
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

        Raises NotInTime if Kafka does not answer, Lags if it is not read in time, and ReadBeyondEnd.
        """
        deadline = time.monotonic() + patience.total_seconds()
        with self._moved:
            before = dict(self._at)
        ends = self._ends(patience)
        for partition, end in ends.items():
            if before.get(partition, 0) > end:
                raise ReadBeyondEnd(
                    f"partition {partition} ends at offset {end}, and was read up to {before[partition]}",
                    where=self._where,
                    next="see whether the topic was deleted, and start this worker again: it reads the topic anew",
                )
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

    def _ends(self, patience: timedelta) -> dict[int, int]:
        assert self._reading, "call start() first"
        loop, reader, _ = self._reading
        try:
            return asyncio.run_coroutine_threadsafe(reader.latest(self.name), loop).result(patience.total_seconds())
        except (KafkaError, RuntimeError, TimeoutError, CancelledError) as error:
            raise NotInTime(
                f"the topic cannot be read now: {error or type(error).__name__}",
                where=self._where,
                next="check that Kafka is up, and try again",
            ) from error

    def close(self) -> None:
        """Stop following the topic; all records that were sent are written first."""
        self._closing.set()
        while self._thread.is_alive():
            if self._reading:
                loop, _, task = self._reading
                with suppress(RuntimeError):  # it has ended meanwhile
                    loop.call_soon_threadsafe(task.cancel)
            self._thread.join(LOOK)
        if self._producer:
            self._producer.close()

    def _send(self, key: str, value: bytes | None) -> Future[RecordMetadata]:
        assert self._producer, "call start() first"
        return self._producer.send(self.name, value, key=key.encode())

    def _tell(self, key: str, result: Future[RecordMetadata]) -> None:
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
            asyncio.run(self._begin())
        except BaseException as error:
            self._first.set_exception(error)
            return
        self._first.set_result(None)
        while not self._closing.is_set():
            try:
                asyncio.run(self._follow())
            except KafkaError as error:
                log.warning("%s", self._unreadable(error))
                self._closing.wait(PAUSE)
            except Exception:
                log.exception("%s is read again", self._where)
                self._closing.wait(PAUSE)

    async def _begin(self) -> None:
        """Make the topic if need be, and read it to its end."""
        async with Admin(self._servers, patience=PATIENCE, **self._security) as admin:
            self.cluster_id = await admin.cluster_id()
            await admin.create_topic(
                self.name,
                partitions=self._partitions,
                replication=self._replication,
                configs={"cleanup.policy": "compact"},
            )
        async with self._reader() as reader:
            if self._ordered:
                require_order(await reader.partitions(self.name), self._where)
            start, end = await reader.earliest(self.name), await reader.latest(self.name)
            await self._read(reader, start, end)
            self._at = {partition: max(at, self._at.get(partition, 0)) for partition, at in end.items()}

    async def _follow(self) -> None:
        async with self._reader() as reader:
            reading = asyncio.create_task(self._read(reader, dict(self._at), None))
            self._reading = asyncio.get_running_loop(), reader, reading
            self._follows.set()
            with suppress(asyncio.CancelledError):
                await reading

    def _reader(self) -> Reader:
        return Reader(self._servers, patience=PATIENCE, **self._security)

    async def _read(self, reader: Reader, start: Mapping[int, int], end: Mapping[int, int] | None) -> None:
        most = self._max_decompressed
        tables = reader.read(self.name, start=start, end=end, max_decompressed_bytes=most, reached=self._reached)
        async with aclosing(tables):
            async for partition, table in tables:
                columns = (table[name].to_pylist() for name in ("key", "value", "offset"))
                for key, value, offset in zip(*columns, strict=True):
                    if key is not None:
                        self._seen(key.decode(errors="replace"), value, offset)
                    self._reached(partition, offset + 1)

    def _reached(self, partition: int, offset: int) -> None:
        with self._moved:
            self._at[partition] = max(self._at.get(partition, 0), offset)
            self._moved.notify_all()
