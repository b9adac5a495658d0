"""What a table has that reads do not show, in the form of `expect.hidden` of the vectors in replication.json."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from itertools import product
from typing import Any, TypeAlias

from penstock.cdc.generations import FIRST_TOKEN, LAST_TOKEN
from penstock.replicate.clustering_order import position
from penstock.replicate.fragment_reader import FragmentReader
from penstock.replicate.hidden_comparison import hidden_scans
from penstock.replicate.hidden_differences import HiddenScans, described
from penstock.replicate.hidden_state import (
    CELL,
    COLLECTION,
    ELEMENT,
    MARKER,
    PARTITION,
    RANGE,
    Path,
    WantedFacts,
    WriteFacts,
    facts,
)
from penstock.replicate.table_scan import Side, scans

POINTS = range(8)
"""Values of clustering columns for which deleted ranges are compared."""
Entry: TypeAlias = tuple[Any, ...]


def hidden_scans_of(source: Side, target: Side) -> HiddenScans:
    both = scans(source, target, 3, patience=timedelta(minutes=1), page_size=100)
    return hidden_scans(both, patience=timedelta(minutes=1), page_size=3)[0]


def differences(found: HiddenScans) -> list[Any]:
    table = found.source.table
    return [
        described(table, key, path, both)
        for key, unlike in found.differing(FIRST_TOKEN, LAST_TOKEN)
        for path, both in unlike.items()
    ]


def entries(reader: FragmentReader, shape: WantedFacts, now: int, base_time: int) -> set[Entry]:
    """The facts of a table, with times relative to `base_time`."""
    found: set[Entry] = set()
    for part in reader.partitions(FIRST_TOKEN, LAST_TOKEN):
        pk = int.from_bytes(part.key[0], "big", signed=True)
        for path, written in facts(part.sources or [], shape, now):
            # Values that expire are in the rows; an expired marker is left out, as in the vectors.
            if written.expires is not None and (path.kind != MARKER or written.dead):
                continue
            found |= set(_entries(shape, pk, path, written, base_time))
    return found


def _entries(shape: WantedFacts, pk: int, path: Path, written: WriteFacts, base_time: int) -> Iterator[Entry]:
    time = written.time - base_time
    if path.kind == RANGE:
        for point in product(POINTS, repeat=len(shape.clustering)):
            if _inside(shape, path, point):
                yield pk, "range", point, time
        return
    ck = "static" if path.row is None else tuple(int.from_bytes(cell, "big", signed=True) for cell in path.row)
    yield pk, path.kind, ck if path.kind != PARTITION else (), path.column, path.element, time


def _inside(shape: WantedFacts, path: Path, point: tuple[int, ...]) -> bool:
    def place(values: Any, weight: int) -> Any:
        return position(shape.clustering, values, weight)

    here = place([value.to_bytes(4, "big") for value in point], 0)
    return bool(place(path.row, path.weight) < here < place(*path.end))


def expected(hidden: list[dict[str, Any]], table: str, clustering: tuple[str, ...]) -> set[Entry]:
    """The entries that a vector expects, but for lists."""
    found: set[Entry] = set()
    ranges: dict[tuple[int, tuple[int, ...]], int] = {}
    for one in hidden:
        if one["table"] != table or one.get("column") == "l":
            continue
        pk = one["pk"]
        if "range_deletion" in one:
            for point in _points(one["range_deletion"], clustering):
                ranges[pk, point] = max(one["ts"], ranges.get((pk, point), one["ts"]))
            continue
        ck = one.get("ck", ())
        row = ck if ck == "static" else tuple(ck)
        found |= {(pk, *entry) for entry in _expected(one, row)}
    return found | {(pk, "range", point, time) for (pk, point), time in ranges.items()}


def _expected(one: dict[str, Any], row: Any) -> Iterator[Entry]:
    if one.get("marker"):
        yield MARKER, row, "", "", one["marker"]["ts"]
    for name, kind in (("partition_deletion", PARTITION), ("row_deletion", 2), ("collection_deletion", COLLECTION)):
        if name in one:
            yield kind, row, one.get("column", ""), "", one[name]
    if "deleted" in one:
        yield (ELEMENT if "element" in one else CELL), row, one["column"], one.get("element", ""), one["deleted"]


def _points(condition: str, clustering: tuple[str, ...]) -> Iterator[tuple[int, ...]]:
    text = re.sub(r"(?<![<>])=", "==", condition.replace("AND", "and"))
    for point in product(POINTS, repeat=len(clustering)):
        if eval(text, {}, dict(zip(clustering, point, strict=True))):  # the vectors' own text
            yield point
