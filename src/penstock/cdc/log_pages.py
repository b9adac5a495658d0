"""Fetches the pages of one SELECT in order; prefetches the next page and requests a lost page again.

Rows of the log are requested from the node that owns their streams, so no node has to forward rows of another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from cassandra import InvalidRequest

from penstock.cdc.cdc_options import CdcSettings
from penstock.cdc.generations import Span, upper_bound
from penstock.database import Page
from penstock.database.access import Access
from penstock.database.cql_connection import CqlConnection, connection
from penstock.database.cql_types import LOG_SUFFIX, CqlTable
from penstock.database.retrying import retrying
from penstock.database.table_catalog import split_name, token_of_key
from penstock.database.token_ring import Ring, Token, known_ring, owners, ring
from penstock.errors import PenstockError, SchemaChanged
from penstock.native import Array

T = TypeVar("T")

IN_SPAN = '"cdc$stream_id" IN ? AND "cdc$time" > ? AND "cdc$time" <= ?'
"""Selects the rows of a span; `span_queries` gives its values."""
PARTITIONER = "SELECT partitioner FROM system_schema.scylla_tables WHERE keyspace_name = %s AND table_name = %s"
CDC_PARTITIONER = "com.scylladb.dht.CDCPartitioner"
STREAMS_PER_QUERY = 32
"""Streams read by one SELECT: enough to save round trips, few enough to keep the result small."""


def span_queries(chosen: CdcSettings, span: Span) -> list[tuple[list[bytes], Any, Any]]:
    """The values of the SELECTs that read a span; the streams of each SELECT are owned by one node."""
    keyspace, _ = split_name(chosen.table)
    known = known_ring(chosen.access, keyspace, chosen.patience)
    parts = _by_owner(known, span.streams, _token(chosen) if known.hosts else None)
    bounds = upper_bound(span.after), upper_bound(span.until)
    return [
        (streams[i : i + STREAMS_PER_QUERY], *bounds)
        for streams in parts
        for i in range(0, len(streams), STREAMS_PER_QUERY)
    ]


def in_range(table: CqlTable, filter: str) -> str:
    """The condition that selects the rows of a token range, with the filter if there is one.

    The filter stands before the range, so that it is one condition for the database, too: a LIMIT at its end would
    leave rows out.
    """
    key = token_of_key(table)
    tokens = f"{key} > ? AND {key} <= ?"
    return f"{filter} AND {tokens} ALLOW FILTERING" if filter else tokens


@lru_cache(maxsize=64)
def _by_owner(ring: Ring, streams: tuple[bytes, ...], token: Token | None) -> list[list[bytes]]:
    """Split the streams by owner; cached, because a reader asks for the same streams each time."""
    return ring.parted(streams, streams, token) if ring.hosts else [list(streams)]


def _token(chosen: CdcSettings) -> Token | None:
    """The token of a stream id in the log, None if the cluster's partitioner makes it."""
    return retrying(
        lambda: _token_of(chosen.access, *split_name(chosen.table)),
        what="looking up the partitioner of the change log",
        where=chosen.access.hosts,
        patience=chosen.patience,
    )


@lru_cache(maxsize=256)
def _token_of(access: Access, keyspace: str, table: str) -> Token | None:
    try:
        row = connection(access).rows.execute(PARTITIONER, (keyspace, table + LOG_SUFFIX)).one()
    except InvalidRequest:
        # Only ScyllaDB has this table.
        return None
    return stream_token if row and row[0] == CDC_PARTITIONER else None


def stream_token(stream: bytes) -> int:
    """The token of a stream id by ScyllaDB's partitioner of logs, which puts a log beside the rows that it is about."""
    return int.from_bytes(stream[:8], "big", signed=True)


def pages_of_log(chosen: CdcSettings, text: str, values: tuple[Any, ...]) -> Iterator[Page]:
    """Request the first page of a SELECT whose first value is streams of one node.

    Yields its pages, each when the next one is requested, and requests a lost page again.
    """
    return _Request(chosen, text, values, stream=values[0][0]).pages()


def pages_of_table(chosen: CdcSettings, text: str, values: tuple[Any, ...]) -> Iterator[Page]:
    """The same for a SELECT of the table itself, which any node answers."""
    return _Request(chosen, text, values, stream=None).pages()


_ID = np.dtype([("length", ">i4"), ("id", "V16")])
_IDS = np.dtype([("stream", _ID), ("time", _ID)])


def id_cells(page: Page, *, where: str) -> Array:
    """The stream id and timeuuid of each row (32 bytes) of a page that has only these two columns.

    Raises PenstockError if one is missing or has another length.
    """
    if page.rows >= 0 and len(page.data) == page.rows * _IDS.itemsize:
        rows = np.frombuffer(page.data, _IDS)
        if all((rows[name]["length"] == 16).all() for name in ("stream", "time")):
            cells = np.frombuffer(page.data, np.uint8).reshape(page.rows, 2, _ID.itemsize)[:, :, 4:]
            return cells.reshape(page.rows, 32)
    raise PenstockError(
        f"a page of {page.rows} stream ids and times has {len(page.data)} bytes, not {_IDS.itemsize} for each row",
        where=where,
        next="look at the log with penstock cql: each row needs cdc$stream_id and cdc$time of 16 bytes",
    )


class _Request:
    """The request for one page of one SELECT, to the owner of `stream`, or to any node if it is None."""

    def __init__(self, chosen: CdcSettings, text: str, values: tuple[Any, ...], stream: bytes | None) -> None:
        self.chosen, self.text, self.values, self.stream = chosen, text, values, stream
        self.state: bytes | None = None
        self.asked = 0
        self.future: Any = None

    def pages(self) -> Iterator[Page]:
        """Request the first page; the iterator requests each further one when it has one."""
        self._send(None)
        return self._received()

    def _send(self, state: bytes | None) -> None:
        self.state = state
        self.future = self._retrying(self._execute)

    def _received(self) -> Iterator[Page]:
        while True:
            page, state = self._retrying(self._wait)
            if state is None:
                yield page
                return
            self._send(state)
            yield page

    def _wait(self) -> tuple[Page, bytes | None]:
        # After a failure the future is gone, so that a retry sends the request again.
        future, self.future = self.future or self._execute(), None
        result = future.result()
        return replace(result.current_rows[0], asked=self.asked), result.paging_state

    def _execute(self) -> Any:
        link = connection(self.chosen.access)
        bound = link.prepare(self.text).bind(self.values)
        bound.fetch_size = self.chosen.page_size
        self.asked = int(time.time())
        return link.pages.execute_async(bound, paging_state=self.state, host=self._owner(link))

    def _owner(self, link: CqlConnection) -> Any:
        if self.stream is None:
            return None
        keyspace, table = split_name(self.chosen.table)
        token = _token_of(self.chosen.access, keyspace, table) if ring(link, keyspace).hosts else None
        return owners(link, keyspace, [self.stream], token)[0]

    def _retrying(self, call: Callable[[], T]) -> T:
        where = f"{self.chosen.table} at {self.chosen.access.hosts}"
        what = "table" if self.stream is None else "change log"
        try:
            return retrying(call, what=f"reading the {what}", where=where, patience=self.chosen.patience)
        except InvalidRequest as error:
            raise SchemaChanged(
                f"the {what} cannot be read with the columns known when the query started: {error}",
                where=where,
                next="restart the query: it reads the same rows with the columns that the table has now",
            ) from error
