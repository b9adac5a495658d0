"""Pages of one SELECT, in order: the next one is under way while one is used; a lost one is asked for again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from cassandra import InvalidRequest

from penstock.errors import SchemaChanged
from penstock.source import cql
from penstock.source.cdc_options import Settings
from penstock.source.pages import Page

T = TypeVar("T")

IN_SPAN = '"cdc$stream_id" IN ? AND "cdc$time" > ? AND "cdc$time" <= ?'
"""The rows of a span, whose `queries` are the values."""


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
