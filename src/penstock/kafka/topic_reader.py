"""Reads a topic from code outside an event loop: its offsets, and its records between offsets."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import aclosing
from typing import Any, TypeVar

import pyarrow as pa

from penstock.errors import DataLost, PenstockError
from penstock.kafka.kafka_settings import DECOMPRESSED, KafkaSettings
from penstock.wire import Reader
from penstock.wire.errors import KafkaError, OffsetOutOfRange
from penstock.wire.fetcher import RecordsTooLarge, RecordsUnreadable, TopicReplaced, Unreadable

T = TypeVar("T")
Records = tuple[int, pa.Table] | Unreadable
"""A partition and some of its records in the columns of `record_decoder.SCHEMA`, or a batch that cannot be read."""


class BrokersAway(PenstockError):
    """Brokers refused a request that may succeed later, or did not answer for as long as the source waits."""

    retriable = True


class LostWhileRead(DataLost):
    """Data was lost while a task read; a query that may continue without it does so when it is started again."""

    retriable = True


class TopicReader:
    """Our reader of one topic, in its own event loop, which ends with the process."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name=f"reader of {settings.topic}", daemon=True).start()
        self._reader = self._run(self._made())

    def id(self) -> str:
        """The topic's id, at most some seconds old; a topic that is created again has another id."""
        return self._run(self._reader.topic_id(self._settings.topic))

    def at_time(self, ms: int) -> dict[int, int]:
        """The first offset in each partition at or after this time (milliseconds since 1970), or its end."""
        return self._run(self._reader.at_time(self._settings.topic, ms))

    def earliest(self) -> dict[int, int]:
        """The first offset of each partition."""
        return self._run(self._reader.earliest(self._settings.topic))

    def latest(self) -> dict[int, int]:
        """Where each partition ends."""
        return self._run(self._reader.latest(self._settings.topic))

    def read(self, start: Mapping[int, int], end: Mapping[int, int]) -> Iterator[Records]:
        """The records of these partitions, in order within each partition; reads ahead while the caller uses some.

        Batches that cannot be read are among them if the settings are tolerant; otherwise they raise `PenstockError`.
        """
        queue: asyncio.Queue[Records | Exception | None] = asyncio.Queue(1)
        reading = asyncio.run_coroutine_threadsafe(self._fill(queue, start, end), self._loop)
        try:
            while (records := self._run(queue.get())) is not None:
                if isinstance(records, Exception):
                    raise self._explained(records)
                yield records
        finally:
            reading.cancel()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run something else in the reader's loop, in the background."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _made(self) -> Reader:
        return self._settings.reader()

    async def _fill(
        self, queue: asyncio.Queue[Records | Exception | None], start: Mapping[int, int], end: Mapping[int, int]
    ) -> None:
        """Put the records, then None or the error."""
        unreadable: list[Unreadable] = []
        tables = self._reader.read(
            self._settings.topic,
            start=start,
            end=end,
            max_bytes=self._settings.max_bytes,
            max_decompressed_bytes=self._settings.max_decompressed,
            pass_over=unreadable.append if self._settings.tolerant else None,
        )
        try:
            async with aclosing(tables) as reading:
                async for records in reading:
                    while unreadable:
                        await queue.put(unreadable.pop(0))
                    await queue.put(records)
                while unreadable:
                    await queue.put(unreadable.pop(0))
        except Exception as error:
            await queue.put(error)
        else:
            await queue.put(None)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except KafkaError as error:
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> Exception:
        if not isinstance(error, KafkaError):
            return error
        kind: type[PenstockError] = BrokersAway if error.retriable else PenstockError
        if isinstance(error, OffsetOutOfRange | TopicReplaced):
            kind = LostWhileRead if self._settings.lossy else DataLost
        where = f"{self._settings.topic} at {self._settings.servers}"
        return kind(str(error), where=where, next=_next(error, self._settings))


def _next(error: KafkaError, settings: KafkaSettings) -> str:
    if isinstance(error, OffsetOutOfRange | TopicReplaced):
        return "start the query again: it reports the missing offsets, and skips them with fail_on_data_loss=False"
    if not isinstance(error, RecordsUnreadable):
        return error.next
    past = 'skip such batches with options={"failOnUnreadableBatch": "false"}: each becomes a row with a `problem`'
    if not isinstance(error, RecordsTooLarge):
        return past
    more = settings.max_decompressed * 4
    return f'if you trust the producer, give options={{"kafka.{DECOMPRESSED}": "{more}"}}; else {past}'


_topics: dict[tuple[int, KafkaSettings], TopicReader] = {}


def topic(settings: KafkaSettings) -> TopicReader:
    """The process's reader with these settings, so that a task reuses the connections of earlier tasks."""
    # A forked process has the dictionary, but not the reader's thread.
    place = (os.getpid(), settings)
    if place not in _topics:
        _topics[place] = TopicReader(settings)
    return _topics[place]
