"""Access to ScyllaDB and Cassandra, shared by sources, streams and sinks: connections, tables, values on the wire."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Page:
    """Rows of a result: the protocol's bytes of their cells, the number of rows, and whether this is the last page.

    `asked` is the second, since 1970, at which it was requested: what is left of a time to live counts from there, and
    not from when the page is read, which may be much later.
    """

    data: bytes
    rows: int
    final: bool
    asked: int = 0
