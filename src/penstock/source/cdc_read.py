"""Reading spans of time out of log streams: pages in order, the next ones under way while one is decoded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from cassandra import InvalidRequest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.errors import SchemaChanged
from penstock.schema import Table
from penstock.source import cql
from penstock.source.cdc_changes import ChangeDecoder, Layout, decode_log, layout
from penstock.source.cdc_generations import upper_bound
from penstock.source.cdc_options import Settings
from penstock.source.cdc_tables import quoted
from penstock.source.cells import Array, index_cells
from penstock.source.log_groups import micros_of
from penstock.source.pages import Page

STREAMS_PER_QUERY = 32
"""Streams read by one SELECT: enough to spare round trips, few enough that one query's answer stays small."""


@dataclass(frozen=True)
class Span:
    """Some streams of a log, and the time (after, until] in microseconds."""

    streams: tuple[bytes, ...]
    after: int
    until: int

    def queries(self) -> list[tuple[list[bytes], Any, Any]]:
        """The values of the SELECTs that read this span, each for some of the streams."""
        bounds = upper_bound(self.after), upper_bound(self.until)
        return [
            (list(self.streams[i : i + STREAMS_PER_QUERY]), *bounds)
            for i in range(0, len(self.streams), STREAMS_PER_QUERY)
        ]


def read_span(chosen: Settings, table: Table, schema: StructType, span: Span) -> Iterator[pa.RecordBatch]:
    """The span's rows as record batches of `schema`, those of each stream in the log's order."""
    columns = layout(table)
    arrow = to_arrow_schema(schema, timezone="UTC")
    text = select(columns)
    for query in span.queries():
        pages = fetch_pages(chosen, text, query)
        if chosen.rows == "log":
            yield from decode_log(pages, columns, arrow)
            continue
        decoder = ChangeDecoder(columns, chosen.images, arrow)
        for page in pages:
            batch = decoder.decode(page)
            if batch is not None:
                yield batch


def select(columns: Layout) -> str:
    """The SELECT that a span's `queries` are the values of."""
    names = ", ".join(quoted(name) for name in columns.names)
    return f"SELECT {names} FROM {_log(columns.table)} WHERE {_IN_SPAN}"


_IN_SPAN = '"cdc$stream_id" IN ? AND "cdc$time" > ? AND "cdc$time" <= ?'


def _log(table: Table) -> str:
    return f"{quoted(table.keyspace)}.{quoted(table.log_name)}"


def fetch_pages(chosen: Settings, text: str, values: tuple[Any, ...]) -> Iterator[Page]:
    """The pages of one SELECT: the next is asked for before this one is handed out, a lost one asked for again."""
    request = _Request(chosen, text, values)
    request.send(None)
    while True:
        page, state = request.receive()
        if state is None:
            yield page
            return
        request.send(state)
        yield page


class _Request:
    """One page of one SELECT, under way."""

    def __init__(self, chosen: Settings, text: str, values: tuple[Any, ...]) -> None:
        self.chosen, self.text, self.values = chosen, text, values
        self.state: bytes | None = None
        self.future: Any = None

    def send(self, state: bytes | None) -> None:
        self.state = state
        self.future = self._retrying(self._execute)

    def receive(self) -> tuple[Page, bytes | None]:
        self._retrying(self._wait)
        return self.future._final_result[0], self.future._paging_state

    def _wait(self) -> None:
        future, self.future = self.future or self._execute(), None
        future.result()
        self.future = future

    def _execute(self) -> Any:
        link = cql.connection(self.chosen.access)
        bound = link.prepare(self.text).bind(self.values)
        bound.fetch_size = self.chosen.page_size
        return link.pages.execute_async(bound, paging_state=self.state)

    def _retrying(self, call: Any) -> Any:
        where = f"{self.chosen.table} at {self.chosen.access.hosts}"
        try:
            return cql.retrying(call, what="reading the change log", where=where, patience=self.chosen.patience)
        except InvalidRequest as error:
            raise SchemaChanged(
                f"the change log cannot be read as it was described: {error}",
                where=where,
                next="restart the query: it reads the same rows with the table's columns of now",
            ) from error


def last_time_within(chosen: Settings, table: Table, span: Span, most: int) -> int:
    """A point in time up to which the span holds no more than about `most` rows; its end if there are no more.

    Each stream may give an equal share. Asking for no more times than that share tells where a stream would go
    beyond it; the earliest such point ends the batch. At least one row is always within.
    """
    share = max(most // len(span.streams), 1)
    text = f'SELECT "cdc$stream_id", "cdc$time" FROM {_log(table)} WHERE {_IN_SPAN} PER PARTITION LIMIT ?'
    until, first = span.until, span.until
    limit = chosen.max_time.total_seconds() * 1e6
    for query in span.queries():
        ids, times = _ids_and_times(chosen, text, (*query, share))
        if len(times):
            first = min(first, int(times.min()))
            until = min([until, *_ends_of_full(ids, times, share)])
    return min(until, first + int(limit))


def _ids_and_times(chosen: Settings, text: str, values: tuple[Any, ...]) -> tuple[Array, Array]:
    ids, times = [np.empty(0, "V16")], [np.empty(0, np.int64)]
    for page in fetch_pages(chosen, text, values):
        buffer = np.frombuffer(page.data or b"\0", np.uint8)
        starts, lengths = np.empty((page.rows, 2), np.int64), np.empty((page.rows, 2), np.int32)
        index_cells(buffer, page.rows, 2, starts, lengths)
        ids.append(buffer[starts[:, :1] + np.arange(16)].copy().view("V16").ravel())
        times.append(micros_of(buffer, starts))
    return np.concatenate(ids), np.concatenate(times)


def _ends_of_full(ids: Array, times: Array, share: int) -> list[int]:
    """The last time asked for of each stream that gave its whole share."""
    ends = np.flatnonzero(np.append(ids[1:] != ids[:-1], True))
    counts = np.diff(ends, prepend=-1)
    return [int(times[end]) for end in ends[counts >= share]]
