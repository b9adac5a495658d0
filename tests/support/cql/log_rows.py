"""Compares the rows of a change log with the rows a vector expects.

Both sides are converted to one notation. Values that JSON lacks are `{"$set": [...]}`, `{"$map": [[key, value], ...]}`,
`{"$list": [...]}`, `{"$udt": {field: value}}` and `{"$listmap": [["$k0", value], ...]}`, a list's elements by their
time UUIDs. Labels of UUIDs and numbers of groups are assigned in the order of appearance, so only their identity
matters.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping
from typing import Any
from uuid import UUID

Row = Mapping[str, Any]

STREAM, TIME, SEQUENCE = "cdc$stream_id", "cdc$time", "cdc$batch_seq_no"
GROUP, MICROSECONDS = "time_group", "time_us"
EPOCH = 0x01B21DD213814000  # 100 ns steps from the start of UUID time to 1970


class Numbers:
    """Numbers values in the order in which they first appear."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def of(self, thing: Hashable) -> int:
        return self._numbers.setdefault(thing, len(self._numbers))


def microseconds(time: UUID) -> int:
    return (time.time - EPOCH) // 10


def partitions(rows: Iterable[Row], key: list[str]) -> dict[str, list[Row]]:
    """The rows by partition key of the base table."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(json.dumps([plain(row[name]) for name in key]), []).append(row)
    return found


def found_rows(rows: Iterable[Row], base_time: int, like: list[str], key: list[str]) -> list[dict[str, Any]]:
    """The log's rows in the notation of vectors, partitions in the order of the keys `like`, then any others."""
    by_key = partitions(rows, key)
    ordered = [row for name in {**dict.fromkeys(like), **by_key} for row in sorted(by_key.get(name, []), key=_place)]
    return canonical([_as_vector(row, base_time) for row in ordered])


def _place(row: Row) -> tuple[int, bytes, int]:
    return row[TIME].time, row[TIME].bytes[8:], row[SEQUENCE]


def _as_vector(row: Row, base_time: int) -> dict[str, Any]:
    values = {name: plain(value) for name, value in row.items() if name not in (STREAM, TIME)}
    shift = microseconds(row[TIME]) - base_time
    return values | {GROUP: str(row[TIME]), MICROSECONDS: f"T{shift:+d}" if shift else "T"}


def expected_rows(rows: Iterable[Row]) -> list[dict[str, Any]]:
    return canonical([dict(row) for row in rows])


def matching(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The found rows without the microseconds that the expected row leaves open."""
    open_rows = [row for row, pattern in zip(found, expected, strict=False) if MICROSECONDS not in pattern]
    for row in [*open_rows, *found[len(expected) :]]:
        del row[MICROSECONDS]
    return found


def canonical(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Number labels and groups in order of appearance; sort columns by name, and sets and maps."""
    labels, groups = Numbers(), Numbers()
    return [
        {name: groups.of(row[name]) if name == GROUP else _canonical(row[name], labels) for name in sorted(row)}
        for row in rows
    ]


def _canonical(value: Any, labels: Numbers) -> Any:
    if isinstance(value, str) and value.startswith("$k"):
        return f"$k{labels.of(value)}"
    if isinstance(value, list):
        return [_canonical(item, labels) for item in value]
    if isinstance(value, dict):
        return {_kind(name): _in_order(name, _canonical(item, labels)) for name, item in value.items()}
    return value


def _kind(name: str) -> str:
    # In the log a list is a map; the keys show whether it is a list.
    return "$map" if name == "$listmap" else name


def _in_order(kind: str, value: Any) -> Any:
    return sorted(value, key=json.dumps) if kind in ("$set", "$map", "$listmap") else value


def plain(value: Any) -> Any:
    """A value of the driver in the notation of vectors."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, UUID):
        return f"$k{value}"
    if isinstance(value, bytes):
        return "0x" + value.hex()
    if isinstance(value, Mapping):
        return {"$map": [[plain(key), plain(item)] for key, item in value.items()]}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {"$udt": {name: plain(item) for name, item in zip(value._fields, value, strict=True)}}
    if isinstance(value, list | tuple):
        return {"$list": [plain(item) for item in value]}
    if hasattr(value, "isdisjoint"):
        return {"$set": [plain(item) for item in value]}
    return str(value)
