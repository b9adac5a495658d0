"""The `/status` of a command as the console takes it: nothing is believed, since any program may listen at an address.

Each field has a shape. A value of another type is left out, as is a field that is not known; strings and lists are cut
to a largest length. So a page may show each field without a check.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

Shape = Callable[[Any], Any]
"""A function that returns the value as it is taken, or None."""

WORD, LINE, TRACE = 256, 4096, 64 << 10
"""The longest name, message and traceback in characters."""


def text(most: int) -> Shape:
    return lambda value: value[:most] if isinstance(value, str) else None


def number(value: Any) -> float | int | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if abs(value) < 1 << 63 and math.isfinite(value) else None


def flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def one_of(*words: str) -> Shape:
    return lambda value: value if isinstance(value, str) and value in words else None


def list_of(shape: Shape, most: int, *, newest: bool = False) -> Shape:
    """At most `most` values, the first or the newest."""

    def taken(value: Any) -> Any:
        if not isinstance(value, list):
            return None
        some = value[-most:] if newest else value[:most]
        return [checked for checked in map(shape, some) if checked is not None]

    return taken


def map_of(shape: Shape, most: int) -> Shape:
    def taken(value: Any) -> Any:
        if not isinstance(value, dict):
            return None
        some = ((name[:WORD], shape(inner)) for name, inner in list(value.items())[:most])
        return {name: inner for name, inner in some if inner is not None}

    return taken


def record(fields: Mapping[str, Shape], *needed: str) -> Shape:
    """The known fields; None without those that are needed."""

    def taken(value: Any) -> Any:
        if not isinstance(value, dict):
            return None
        checked = {name: shape(value[name]) for name, shape in fields.items() if name in value}
        checked = {name: inner for name, inner in checked.items() if inner is not None}
        return checked if all(name in checked for name in needed) else None

    return taken


NAME, MESSAGE = text(WORD), text(LINE)
COUNTS = map_of(number, 200)
STATES = one_of("starting", "running", "waiting", "failed", "stopping", "stopped")
POINT = record(
    {
        "at": NAME,
        "phases": COUNTS,
        **dict.fromkeys(("seconds", "rows", "lag_records", "lag_seconds", "delay_p99"), number),
    },
    "at",
)
SOURCE = record(
    {
        "name": NAME,
        "node": NAME,
        "bad_records": COUNTS,
        **dict.fromkeys(("lag_records", "lag_seconds", "retention_left_seconds", "rows_total", "other_nodes"), number),
    },
    "name",
)
DELAY = record(
    {
        "bounds": list_of(number, 64),
        "buckets": list_of(number, 64),
        "unknown": MESSAGE,
        **dict.fromkeys(("p50", "p95", "p99", "sum"), number),
    }
)
SINK = record(
    {
        "name": NAME,
        "node": NAME,
        "failures": COUNTS,
        "dead_letters": COUNTS,
        "delay": DELAY,
        **dict.fromkeys(("rows_total", "bytes_total", "retries_total", "other_nodes"), number),
    },
    "name",
)
OPERATOR = record(
    {"operator": NAME, **dict.fromkeys(("rows", "memory_bytes", "disk_bytes", "late_rows_total"), number)}, "operator"
)
LOOKUP = record({"name": NAME, **dict.fromkeys(("rows_total", "hits_total", "wait_seconds_total"), number)}, "name")
QUERY = {
    **dict.fromkeys(("name", "pipeline", "node", "every", "last_commit", "watermark"), NAME),
    **dict.fromkeys(("waits_for", "problem", "next"), MESSAGE),
    "state": STATES,
    "starts": COUNTS,
    "phases": COUNTS,
    "sources": list_of(SOURCE, 200),
    "sinks": list_of(SINK, 200),
    "states": list_of(OPERATOR, 200),
    "lookups": list_of(LOOKUP, 200),
    **dict.fromkeys(
        ("target_seconds", "batch", "batches_total", "rows_total", "rows_per_second", "last_batch_seconds"), number
    ),
}
NODE = record({"id": NAME, "kind": NAME, "name": NAME, "system": NAME, "address": NAME}, "id", "kind", "name")
EDGE = record({"source": NAME, "target": NAME}, "source", "target")
TASK = record(
    {"state": NAME, "trace": text(TRACE), **dict.fromkeys(("id", "records_total", "dead_letters_total"), number)},
    "id",
    "state",
)
ERROR = record(
    {"at": NAME, "query": NAME, "what": MESSAGE, "where": MESSAGE, "next": MESSAGE, "trace": text(TRACE)}, "what"
)
CELL: Shape = lambda value: next((v for v in (flag(value), number(value), MESSAGE(value)) if v is not None), None)  # noqa: E731
CELLS = map_of(CELL, 100)


def ingest(value: Any) -> Any:
    """The numbers of a server that takes events, and its requests by HTTP status."""
    cells = CELLS(value)
    statuses = COUNTS(value.get("statuses")) if cells is not None else None
    return cells if statuses is None else cells | {"statuses": statuses}


STATUS = {
    **dict.fromkeys(("version", "name", "started", "now"), NAME),
    **dict.fromkeys(("command", "waits_for"), MESSAGE),
    "kind": one_of("run", "connect", "ingest", "segment", "state"),
    "pid": number,
    "state": STATES,
    "graph": record({"nodes": list_of(NODE, 2000), "edges": list_of(EDGE, 8000)}, "nodes", "edges"),
    "connectors": list_of(record({"name": NAME, "state": NAME, "tasks": list_of(TASK, 100)}, "name"), 500),
    "ingest": ingest,
    "errors": list_of(ERROR, 20, newest=True),
    "jvm": record({"used_bytes": number, "max_bytes": number}),
}
QUERIES = 500
POINTS = 900

_short = record({**STATUS, "queries": list_of(record(QUERY, "name", "state"), QUERIES)}, "kind", "name", "state")
_whole = record(
    {
        **STATUS,
        "queries": list_of(record({**QUERY, "history": list_of(POINT, POINTS, newest=True)}, "name", "state"), QUERIES),
    },
    "kind",
    "name",
    "state",
)


def taken(status: Any, *, history: bool = False) -> dict[str, Any] | None:
    """What is known and right of a parsed `/status`, by default without its history; None if it is not a status."""
    checked: dict[str, Any] | None = (_whole if history else _short)(status)
    if checked is not None:
        checked.setdefault("queries", [])
        checked.setdefault("errors", [])
        checked.setdefault("graph", {"nodes": [], "edges": []})
    return checked
