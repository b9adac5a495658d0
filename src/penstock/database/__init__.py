"""Access to ScyllaDB and Cassandra, shared by sources, streams and sinks: connections, tables, values on the wire."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Page:
    """Rows of a result: the protocol's bytes of their cells, the number of rows, and whether this is the last page."""

    data: bytes
    rows: int
    final: bool
