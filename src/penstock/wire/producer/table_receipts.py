"""The input and result of `send_table`: batches, and the rows' delivery as ranges instead of a list of offsets."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.native import Array
from penstock.wire.errors import KafkaError
from penstock.wire.producer.partition_queue import Outcome
from penstock.wire.records.record_encoder import Encoded

Item = TypeVar("Item")

Tabular: TypeAlias = pa.Table | pa.RecordBatch | pa.RecordBatchReader
Acknowledged: TypeAlias = Callable[[int, "range | Array"], None]
"""Called with the number of an Arrow batch, from 0, and those of its rows that the brokers have acknowledged now."""


@dataclass(frozen=True)
class Receipt:
    """`offsets[p]` are the ranges (first, last) of the offsets of the rows in partition p, in the rows' order.

    `rows` is the number of written rows. A range is (-1, -1) if the broker already had the rows and did not return
    their offset, and with acks=0.
    """

    topic: str
    rows: int
    offsets: dict[int, list[tuple[int, int]]]


class TableFailed(KafkaError):
    """Some rows were not written: `failed` has (first row, last row, error), `receipt` has the other rows."""

    name = "TABLE_FAILED"
    says = "some rows were not written"

    def __init__(self, receipt: Receipt, failed: list[tuple[int, int, KafkaError]]) -> None:
        rows = sum(last - first + 1 for first, last, _ in failed)
        first, last, error = failed[0]
        super().__init__(topic=receipt.topic, detail=f"{rows} rows failed, the first at {first} to {last}: {error}")
        self.receipt, self.failed = receipt, failed

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.receipt, self.failed)


class TableDelivery:
    """Counts the records of one table until each is settled; `acknowledged` is called for those that are written."""

    def __init__(self, topic: str, acknowledged: Acknowledged | None = None) -> None:
        self._topic, self._acknowledged = topic, acknowledged
        self._first_row = self._rows = self._open = 0
        self._offsets: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._failed: list[tuple[int, int, KafkaError]] = []
        self._changed = asyncio.Event()

    def expect(self, encoded: Encoded, number: int = 0) -> Callable[[Outcome, slice], None]:
        """The callback for the outcomes of this batch, whose row numbers count within the current Arrow batch.

        `number` is the Arrow batch's number for `acknowledged`.
        """
        self._open += encoded.count
        return partial(self._settle, encoded, self._first_row, number)

    def next_batch(self, rows: int) -> None:
        self._first_row += rows

    async def receipt(self) -> Receipt:
        """Wait for all outcomes; raises `TableFailed` if rows failed."""
        while self._open:
            self._changed.clear()
            await self._changed.wait()
        receipt = Receipt(self._topic, self._rows, dict(self._offsets))
        if self._failed:
            raise TableFailed(receipt, sorted(self._failed, key=lambda failed: failed[0]))
        return receipt

    def _settle(self, encoded: Encoded, first_row: int, number: int, outcome: Outcome, part: slice) -> None:
        rows = encoded.rows[part]
        self._open -= len(rows)
        self._changed.set()
        if outcome.error is not None:
            self._failed += [(a + first_row, b + first_row, outcome.error) for a, b in ranges(rows)]
            return
        self._rows += len(rows)
        if self._acknowledged:
            self._acknowledged(number, rows)
        _join(self._offsets[encoded.partition], outcome.offset, len(rows))


def ranges(rows: range | Array) -> Iterator[tuple[int, int]]:
    """Ascending row numbers as ranges [first, last]."""
    if isinstance(rows, range):
        yield rows.start, rows.stop - 1
        return
    breaks = np.flatnonzero(np.diff(rows) != 1)
    for first, last in zip([0, *breaks + 1], [*breaks, len(rows) - 1], strict=True):
        yield int(rows[first]), int(rows[last])


def _join(known: list[tuple[int, int]], offset: int, count: int) -> None:
    """Add [offset, offset + count) to the ranges; extends the last range if it continues there."""
    if offset < 0:
        known.append((-1, -1))
    elif known and known[-1][1] == offset - 1 and known[-1][0] >= 0:
        known[-1] = known[-1][0], offset + count - 1
    else:
        known.append((offset, offset + count - 1))


async def receipts(deliveries: Iterable[TableDelivery]) -> dict[str, Receipt]:
    """Wait for all outcomes of all topics; if several topics failed, the first error has the others as notes."""
    receipt_by_topic, failures = {}, []
    for delivery in deliveries:
        try:
            receipt = await delivery.receipt()
            receipt_by_topic[receipt.topic] = receipt
        except TableFailed as error:
            failures.append(error)
    if failures:
        for other in failures[1:]:
            failures[0].add_note(str(other))
        raise failures[0]
    return receipt_by_topic


async def following(items: Iterator[Item], *, here: bool) -> Item | None:
    """The next item, None after the last; computed in another thread unless `here`."""
    if here:
        return next(items, None)
    return await asyncio.get_running_loop().run_in_executor(None, next, items, None)


def record_batches(table: Tabular | Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    """The Arrow batches of a table, reader or iterable."""
    if isinstance(table, pa.RecordBatch):
        return [table]
    return table.to_batches() if isinstance(table, pa.Table) else table


def by_topic(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each topic in the column `topic`, without that column, in their order; raises ValueError."""
    for batch in batches:
        if "topic" not in batch.schema.names:
            raise ValueError(f"there is no column topic among {batch.schema.names}; add it, or name one topic for all")
        topics, rest = batch.column("topic").cast(pa.string()), batch.drop_columns(["topic"])
        if topics.null_count:
            raise ValueError(f"row {topics.is_null().index(True)} of a batch has no topic; fill the column topic")
        for topic in pc.unique(topics).to_pylist():
            yield topic, rest.filter(pc.equal(topics, topic))
