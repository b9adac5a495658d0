"""Ad-hoc snapshots: rows that a running query reads again on request, in chunks between the batches of its log.

A chunk is one token range. It is read after a batch that ended at the time E, and its rows are those as of E: the log
of the range is read after the rows, and a row that changed since E is left to its change (`partition_read`), which a
later batch brings. So a row is never older than what came before it, nor newer than what comes after it. This is the
incremental snapshot of DBLog (Andreakis and Papapanagiotou, 2020); E is its low watermark.

What is asked for comes from a file, {"signals": [...]}, each with a greater `number` than the one before. Which of them
were taken, and how far a snapshot has come, is part of the query's offset: a query that starts again goes on there, and
takes no signal twice.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock.cdc.generations import FIRST_TOKEN, LAST_TOKEN
from penstock.cdc.log_pages import in_range
from penstock.database.cql_types import CqlTable
from penstock.database.retrying import REFUSED
from penstock.database.table_catalog import base_name, token_of_key
from penstock.process.log_lines import quoted

log = logging.getLogger(__name__)

EXECUTE, STOP, PAUSE, RESUME = "execute-snapshot", "stop-snapshot", "pause-snapshot", "resume-snapshot"
"""Debezium's types of signals that concern snapshots."""
MOST_QUEUED = 10
"""Snapshots of one table that may wait; each reads the whole table."""
KEY = "ad_hoc"
"""The member of an offset."""


@dataclass(frozen=True)
class Wanted:
    """A snapshot that the signal `id` asks for; `filter` is a condition of CQL that its rows fulfil."""

    id: str
    filter: str = ""


@dataclass(frozen=True)
class Chunk:
    """Rows with a token in (after, until], read since `planned` (microseconds)."""

    after: int
    until: int
    planned: int
    filter: str = ""


@dataclass(frozen=True)
class AdHoc:
    """The snapshots of one table: the first in `queue` has been read up to `token`.

    `seen` is the number of the last signal that was taken. `chunk` is what the batch that ends here reads; such a batch
    reads nothing else.
    """

    seen: int = 0
    queue: tuple[Wanted, ...] = ()
    token: int = FIRST_TOKEN
    paused: bool = False
    chunk: Chunk | None = None

    @property
    def runs(self) -> bool:
        """Whether a chunk can be read."""
        return bool(self.queue) and not self.paused

    def taken(self, signal: Mapping[str, Any], table: str) -> AdHoc:
        """What a signal makes of it; signals of other tables change nothing."""
        seen = replace(self, seen=signal["number"], chunk=None)
        if table not in signal["tables"]:
            return seen
        if signal["type"] == EXECUTE:
            wanted = Wanted(signal["id"], signal["tables"][table])
            if len(self.queue) >= MOST_QUEUED:
                log.warning(
                    "%s: ignored the signal %s: %d snapshots of this table wait already",
                    table,
                    quoted(wanted.id),
                    MOST_QUEUED,
                )
                return seen
            return replace(seen, queue=(*self.queue, wanted))
        if signal["type"] == STOP:
            return replace(seen, queue=(), token=FIRST_TOKEN, paused=False)
        # As in Debezium, only a snapshot that runs can pause.
        return replace(seen, paused=signal["type"] == PAUSE and bool(self.queue))

    def read(self, until: int | None, planned: int) -> AdHoc:
        """After one more chunk, up to this token, or up to the end of the table."""
        first, *others = self.queue
        chunk = Chunk(self.token, LAST_TOKEN if until is None else until, planned, first.filter)
        if until is None:
            return replace(self, queue=tuple(others), token=FIRST_TOKEN, chunk=chunk)
        return replace(self, token=until, chunk=chunk)

    def without_first(self) -> AdHoc:
        """The first snapshot is given up."""
        return replace(self, queue=self.queue[1:], token=FIRST_TOKEN)

    def offset(self) -> dict[str, Any]:
        """Its member of a Spark offset; none if there is nothing to keep."""
        if self == AdHoc():
            return {}
        kept_state: dict[str, Any] = {"signal": self.seen}
        if self.queue:
            kept_state["snapshots"] = [
                {"id": wanted.id} | ({"filter": wanted.filter} if wanted.filter else {}) for wanted in self.queue
            ]
            kept_state["token"] = self.token
        if self.paused:
            kept_state["paused"] = True
        if chunk := self.chunk:
            kept_state["chunk"] = [chunk.after, chunk.until, chunk.planned, chunk.filter]
        return {KEY: kept_state}

    @classmethod
    def of(cls, offset: Mapping[str, Any]) -> AdHoc:
        """That of a Spark offset."""
        kept_state = offset.get(KEY)
        if not kept_state:
            return cls()
        queue = tuple(Wanted(wanted["id"], wanted.get("filter", "")) for wanted in kept_state.get("snapshots", ()))
        chunk = Chunk(*kept_state["chunk"]) if "chunk" in kept_state else None
        return cls(
            int(kept_state["signal"]),
            queue,
            int(kept_state.get("token", FIRST_TOKEN)),
            bool(kept_state.get("paused")),
            chunk,
        )


class Requests:
    """The file of signals, which others write; read again when it has changed."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._known: object = None
        self._signals: list[Mapping[str, Any]] = []

    def after(self, number: int) -> list[Mapping[str, Any]]:
        """The signals with a greater number, in their order."""
        try:
            about = self._path.stat()
            version = about.st_mtime_ns, about.st_size, about.st_ino
            if version != self._known:
                self._signals = json.loads(self._path.read_text())["signals"]
                self._known = version
        except FileNotFoundError:
            return []
        return [signal for signal in self._signals if signal["number"] > number]


def filter_problem(session: Any, table: CqlTable, filter: str) -> str | None:
    """What the database says against a filter, or None; raises what the driver raises if it does not answer."""
    key = token_of_key(table)
    try:
        select = session.prepare(f"SELECT {key} FROM {base_name(table)} WHERE {in_range(table, filter)}")
    except REFUSED as error:
        return quoted(error)  # which repeats parts of the filter
    return None if len(select.column_metadata) == 2 else "it has a ? without a value"
