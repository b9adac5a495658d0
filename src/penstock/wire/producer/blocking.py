"""The producer for threads: the same calls without `await`, safe from any thread, on its own event loop.

    with BlockingProducer("localhost:9092") as producer:
        future = producer.send("clicks", b"value", key=b"user-1")
        print(future.result().offset)

`send` hands records over in groups, so that a call does not cost a thread switch. It waits when `WAITING` records are
not accepted yet because memory is full.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Coroutine, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, TypeVar, Unpack

import pyarrow as pa

from penstock.border.public import public
from penstock.wire.errors import ProducerClosed
from penstock.wire.producer.accumulator import Headers, RecordMetadata
from penstock.wire.producer.producer import Producer, ProducerOptions
from penstock.wire.producer.stats import Stats
from penstock.wire.producer.table_receipts import Acknowledged, Receipt, Tabular
from penstock.wire.producer.transactions import Transactions

WAITING = 10_000

T = TypeVar("T")


class _Call(NamedTuple):
    topic: str
    value: bytes | None
    options: dict[str, Any]
    future: Future[RecordMetadata]


@public("wire.BlockingProducer")
class BlockingProducer:
    """A producer for threads, with the options of `Producer`; its thread ends with `close`.

    Methods raise `ProducerClosed` after `close` and in a forked process.
    """

    def __init__(self, servers: str, **options: Unpack[ProducerOptions]) -> None:
        self._producer = Producer(servers, **options)
        self._calls: deque[_Call] = deque()
        self._taken = threading.Condition()
        self._draining: asyncio.Task[None] | None = None
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="penstock-producer", daemon=True)
        self._thread.start()

    def __enter__(self) -> BlockingProducer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Future[RecordMetadata]:
        """Hand over a record, as `Producer.send` does; all errors, also of wrong arguments, are in the future."""
        self._require_open()
        options = {"key": key, "headers": headers, "partition": partition, "timestamp": timestamp}
        call = _Call(topic, value, options, Future())
        with self._taken:
            while len(self._calls) >= WAITING:
                self._taken.wait()
            self._require_open()  # it may have been closed meanwhile
            self._calls.append(call)
            if len(self._calls) == 1:
                self._loop.call_soon_threadsafe(self._drain)
        return call.future

    def send_table(self, topic: str, table: Tabular | Iterable[pa.RecordBatch]) -> Receipt:
        """Write all rows and wait for the brokers, as `Producer.send_table` does."""
        return self._run(self._producer.send_table(topic, table))

    def send_tables(
        self, parts: Tabular | Iterable[tuple[str, pa.RecordBatch]], *, acknowledged: Acknowledged | None = None
    ) -> dict[str, Receipt]:
        """Write rows to several topics and wait for the brokers, as `Producer.send_tables` does."""
        return self._run(self._producer.send_tables(parts, acknowledged=acknowledged))

    def flush(self) -> None:
        """Wait until each record that was handed over before is acknowledged or has failed."""
        self._run(self._flush())

    @contextmanager
    def transaction(self) -> Iterator[Transactions]:
        """A transaction as in `Producer.transaction`; records that any thread sends meanwhile belong to it."""
        inside = self._producer.transaction()
        transactions = self._run(inside.__aenter__())
        how: tuple[Any, Any, Any] = None, None, None
        try:
            yield transactions
        except BaseException as error:
            how = type(error), error, error.__traceback__
            raise
        finally:
            # Records that were handed over belong to this transaction, also if it is aborted, and not to the next one.
            self._run(self._drained())
            self._run(inside.__aexit__(*how))

    def stats(self) -> Stats:
        """The producer's statistics so far."""

        async def ask() -> Stats:
            return self._producer.stats()

        return self._run(ask())

    def close(self) -> None:
        """Flush, close the connections, end the thread; does nothing the second time, or in a forked process."""
        if self._closed or self._producer.is_copy:
            return
        with self._taken:
            self._closed = True
        try:
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            self._require_open()
        except ProducerClosed:
            work.close()
            raise
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _require_open(self) -> None:
        self._producer.require_open()
        if self._closed:
            raise ProducerClosed

    def _drain(self) -> None:
        if self._draining is None or self._draining.done():
            self._draining = self._loop.create_task(self._take())

    async def _take(self) -> None:
        while self._calls:
            topic, value, options, outer = self._calls[0]
            try:
                inner = await self._producer.send(topic, value, **options)
            except Exception as error:
                outer.set_exception(error)
            else:
                inner.add_done_callback(partial(_pass_on, outer))
            with self._taken:
                self._calls.popleft()
                if len(self._calls) == WAITING - 1:
                    self._taken.notify_all()

    async def _drained(self) -> None:
        self._drain()
        assert self._draining
        await self._draining

    async def _close(self) -> None:
        await self._drained()
        await self._producer.close()

    async def _flush(self) -> None:
        await self._drained()
        await self._producer.flush()


def _pass_on(outer: Future[RecordMetadata], inner: asyncio.Future[RecordMetadata]) -> None:
    if not outer.set_running_or_notify_cancel():
        return
    if error := inner.exception():
        outer.set_exception(error)
    else:
        outer.set_result(inner.result())
