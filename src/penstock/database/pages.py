"""A page of a CQL result as bytes of the protocol."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Page:
    """Rows of a result: the bytes of their cells, the number of rows, and whether this is the last page."""

    data: bytes
    rows: int
    final: bool
