"""A page of a CQL result as it came from the wire."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Page:
    """Rows of a result: the bytes of their cells, how many rows, and whether they are the query's last."""

    data: bytes
    rows: int
    final: bool
