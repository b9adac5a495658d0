"""Builds pages of log rows as the database sends them."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from cql_values import to_bytes

from penstock.cdc.cdc_tables import LogLayout
from penstock.cdc.generations import upper_bound
from penstock.database import Page
from penstock.database.cql_types import Column, CqlTable, parse_type


def table(keys: str, clustering: str = "", static: str = "", regular: str = "", **udts: str) -> CqlTable:
    """A table from strings such as "pk int, pk2 text"; `udts` are user types in the same notation."""
    types = {
        name: (tuple(n for n, _ in _pairs(text)), tuple(k for _, k in _pairs(text))) for name, text in udts.items()
    }
    columns = [
        Column(name, parse_type(kind, types), role, position)
        for role, text in (
            ("partition_key", keys),
            ("clustering", clustering),
            ("static", static),
            ("regular", regular),
        )
        for position, (name, kind) in enumerate(_pairs(text))
    ]
    return CqlTable("ks", "t", tuple(sorted(columns, key=lambda c: c.name.encode())))


def _pairs(text: str) -> list[tuple[str, str]]:
    return [(part.split()[0], part.split(maxsplit=1)[1]) for part in text.split("; ") if part]


def log_row(stream: int, micros: int, number: int, operation: int, **values: Any) -> dict[str, Any]:
    """A row of the log; `deleted_x=True` and `deleted_elements_x=[...]` set the `cdc$` columns."""
    prefixed = {f"cdc${k}" if k.startswith("deleted_") else k: v for k, v in values.items() if k != "ttl"}
    fixed = {
        "cdc$stream_id": stream_id(stream),
        "cdc$time": time_of(micros),
        "cdc$batch_seq_no": number,
        "cdc$operation": operation,
        "cdc$ttl": values.get("ttl"),
    }
    return fixed | prefixed


def stream_id(number: int) -> bytes:
    return struct.pack(">qq", number, 1)


def time_of(micros: int) -> uuid.UUID:
    """A timeuuid of this microsecond, like the timeuuids of a server."""
    largest = upper_bound(micros).int
    return uuid.UUID(int=(largest - (9 << 96)) & ~0xFFFFFFFFFFFFFFFF | 0x8123456789ABCDEF)


def page(columns: LogLayout, rows: Sequence[Mapping[str, Any]], *, final: bool = True, asked: int = 0) -> Page:
    cells = [
        to_bytes(kind, row.get(name)) for row in rows for name, kind in zip(columns.names, columns.kinds, strict=True)
    ]
    data = b"".join(struct.pack(">i", -1 if cell is None else len(cell)) + (cell or b"") for cell in cells)
    return Page(data, len(rows), final, asked)
