"""When rows of a table were inserted: reads their markers beside the rows, in the same order.

CQL shows a row that an INSERT made and one that only UPDATEs made alike, but the second one is gone with its last
value. Nodes show the difference among what they have stored (`fragment_reader`). Both are read at different times, and
may differ by the writes in between.

Only a Cassandra with the plugin is asked, which takes ranges of tokens: ScyllaDB takes one partition a request, and a
copy of many small ones would wait for each.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from functools import lru_cache
from typing import Any

from penstock.database.access import Access
from penstock.database.clustering_order import position
from penstock.database.cql_types import CqlTable
from penstock.database.fragment_reader import Fragment, FragmentReader, Key, fragments_shown, token_of
from penstock.database.hidden_state import MARKER, WantedFacts, WriteFacts, facts

_NO_DELETIONS = 2**63 - 1


class RowMarkers:
    """The markers of the rows with the tokens (after, until]."""

    def __init__(self, reader: FragmentReader, after: int, until: int) -> None:
        self.key = reader.table.clustering_key
        nothing = frozenset[str]()
        self._shape = WantedFacts(self.key, nothing, nothing, nothing, _NO_DELETIONS)
        self._markers = self._read(reader, after, until)
        self._next = next(self._markers, None)

    def of(self, rows: Iterable[tuple[Key, Key]]) -> Iterator[WriteFacts | None]:
        """The marker of each row, None if it has none.

        Rows are the cells of their partition keys and clustering keys, in the order of the table; calls go on in it.
        """
        for partition, clustering in rows:
            place = self._place(token_of(partition), partition, clustering)
            while self._next and self._next[0] < place:
                self._next = next(self._markers, None)
            yield self._next[1] if self._next and self._next[0] == place else None

    def _read(self, reader: FragmentReader, after: int, until: int) -> Iterator[tuple[Any, WriteFacts]]:
        for partition in reader.partitions(after, until):
            sources = [map(_without_columns, source) for source in partition.sources or []]
            for path, written in facts(sources, self._shape, int(time.time())):
                if path.kind == MARKER and not written.dead:
                    yield self._place(partition.token, partition.key, path.row or ()), written

    def _place(self, token: int, partition: Key, clustering: Key) -> tuple[Any, ...]:
        return token, partition, position(self.key, clustering, 0)


def _without_columns(fragment: Fragment) -> Fragment:
    """A row without its cells, which are most of what there is to parse; the plugin writes them last."""
    before, columns, _ = fragment.metadata.partition('"columns":')
    return fragment._replace(metadata=f"{before}{columns}{{}}}}") if columns else fragment


def row_markers(
    access: Access, table: CqlTable, tokens: tuple[int, int], *, patience: timedelta, page_size: int
) -> RowMarkers | None:
    """The markers of the rows with the tokens (after, until]; None if the nodes do not show them by ranges."""
    reader = _reader(access, table, patience, page_size)
    return None if reader is None else RowMarkers(reader, *tokens)


@lru_cache(maxsize=64)
def _reader(access: Access, table: CqlTable, patience: timedelta, page_size: int) -> FragmentReader | None:
    # A node that is down is not waited for: the rows are read without it, too.
    reader = fragments_shown(access, table, patience=patience, page_size=page_size, every_node=False)
    return None if reader is None or reader.by_key else reader
