"""Reading spans of time out of log streams: pages in order, the next one under way while one is decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pyarrow as pa
from cassandra import InvalidRequest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.errors import SchemaChanged
from penstock.schema import Table
from penstock.source import cql
from penstock.source.cdc_changes import ChangeDecoder, decode_log
from penstock.source.cdc_frame import Layout, layout
from penstock.source.cdc_generations import Span
from penstock.source.cdc_options import Settings
from penstock.source.cdc_tables import log_name, quoted
from penstock.source.pages import Page

T = TypeVar("T")

IN_SPAN = '"cdc$stream_id" IN ? AND "cdc$time" > ? AND "cdc$time" <= ?'
"""The rows of a span, whose `queries` are the values."""


def select(columns: Layout) -> str:
    """The SELECT of these columns of a span."""
    names = ", ".join(quoted(name) for name in columns.names)
    return f"SELECT {names} FROM {log_name(columns.table)} WHERE {IN_SPAN}"


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
        decoder = ChangeDecoder(columns, chosen.images, arrow, span.planned)
        for page in pages:
            batch = decoder.decode(page)
            if batch is not None:
                yield batch


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
        """The page, and the state to ask for the next one with; None if it is the last."""
        return self._retrying(self._wait)

    def _wait(self) -> tuple[Page, bytes | None]:
        # A request that failed is not waited for twice, but sent anew.
        future, self.future = self.future or self._execute(), None
        result = future.result()
        return result.current_rows[0], result.paging_state

    def _execute(self) -> Any:
        link = cql.connection(self.chosen.access)
        bound = link.prepare(self.text).bind(self.values)
        bound.fetch_size = self.chosen.page_size
        return link.pages.execute_async(bound, paging_state=self.state)

    def _retrying(self, call: Callable[[], T]) -> T:
        where = f"{self.chosen.table} at {self.chosen.access.hosts}"
        try:
            return cql.retrying(call, what="reading the change log", where=where, patience=self.chosen.patience)
        except InvalidRequest as error:
            raise SchemaChanged(
                f"the change log cannot be read as it was described: {error}",
                where=where,
                next="restart the query: it reads the same rows with the columns that the table has now",
            ) from error
