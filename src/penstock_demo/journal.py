"""The load's journal: a JSON line for each acknowledged write, with every event that it must become.

A line is `{"events": [...], "stamps": [...], "late": false}`. `stamps` are the timestamps of all attempts; only the
last attempt was acknowledged, so the events of the others may be in the log or not. An event is
`{"table", "key", "op", "before", "after", "range", "also"}`; `also` lists further (before, after) that are right if
there was more than one attempt. The proof keeps only a digest of each event: for an example it reads the line again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from penstock_demo.model import Event, Image
from penstock_demo.shop import TABLES, Table

Identity = tuple[str, tuple[Any, ...], int, str]
"""Table, primary key (None where an event has none), write time in microseconds, op: unique for each event."""


class Expected(NamedTuple):
    """An event that must come (if `certain`) or may come; without `digests`, any content is right."""

    identity: Identity
    digests: tuple[int, ...]
    tombstone: bool
    certain: bool
    line: int


def line(table: Table, events: list[Event], stamps: list[int], *, late: bool, also: list[list[Any]]) -> bytes:
    """The journal's line for a write; `also` has a list of (before, after) for each event, or is empty."""
    described = [
        {
            "table": table.name,
            "key": event.key,
            "op": event.op,
            "before": event.before,
            "after": event.after,
            "range": event.range,
            "also": more,
        }
        for event, more in zip(events, also or [[]] * len(events), strict=True)
    ]
    return orjson.dumps({"events": described, "stamps": stamps, "late": late}, option=orjson.OPT_APPEND_NEWLINE)


def digest(table: Table, before: Image | None, after: Image | None, range: Image | None) -> int:
    """A number that is equal for equal content, in any order of fields, set elements and map entries.

    Valid only within a process.
    """
    content = [_ordered(table, before), _ordered(table, after), range]
    return hash(orjson.dumps(content, option=orjson.OPT_SORT_KEYS))


def _ordered(table: Table, image: Image | None) -> Image | None:
    if image is None or not table.unordered:
        return image
    filled = [column for column in table.unordered if image.get(column)]
    return image | {column: sorted(image[column], key=orjson.dumps) for column in filled}


def has_tombstone(op: str, key: tuple[Any, ...]) -> bool:
    """Whether a tombstone follows: after the delete of a row, but not of a range or a partition of rows."""
    return op == "d" and None not in key


def expected(lines: Iterable[bytes], *, cluster: bool = False) -> Iterator[Expected]:
    """The events of a journal, in the order in which they were acknowledged.

    In a `cluster` the events of late writes are not certain, because no reader promises them. A node that hung may also
    run an unanswered attempt much later: its images then show the row at that time.
    """
    for number, text in enumerate(lines):
        write = orjson.loads(text)
        for event in write["events"]:
            yield from _attempts(event, write["stamps"], number, cluster=cluster, late=write["late"])


def _attempts(event: dict[str, Any], stamps: list[int], line: int, *, cluster: bool, late: bool) -> Iterator[Expected]:
    table, op = TABLES[sys.intern(event["table"])], sys.intern(event["op"])
    key = tuple(event["key"][column] for column in table.key)
    images = [(event["before"], event["after"]), *event["also"]]
    digests = tuple(digest(table, before, after, event["range"]) for before, after in images)
    for stamp in stamps:
        identity = (table.name, key, stamp, op)
        answered = stamp == stamps[-1]
        seen = digests if answered or not cluster else ()
        yield Expected(identity, seen, has_tombstone(op, key), answered and not (cluster and late), line)


def read(*paths: Path) -> Iterator[bytes]:
    """The lines of several journals, one file after the other."""
    for path in paths:
        with path.open("rb") as file:
            yield from file
