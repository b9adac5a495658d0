"""A connector's positions by table: reads them, sets them, or removes them.

`KeptInFolder` has them in checkpoints. A table's checkpoint is a folder of Spark's; its position is the end of the last
committed batch. A position that a user sets is kept beside it; a query without a checkpoint starts there.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Set
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from penstock.checkpoint.checkpoint_folder import Local
from penstock.database.table_catalog import split_name
from penstock.serve.json_bodies import whole_number
from penstock.serve.rest_errors import RestError

SIGNALS, ASKED = "signals.json", ".signal"
"""The file of signals for queries, and the end of the name of one that came over the REST API."""
FURTHEST = (1 << 63) - 1
"""Microseconds from 1970 that a position may have at most; a date has fewer."""
EXAMPLE = (
    '{"offsets": [{"partition": {"keyspace_name": "shop", "table_name": "orders"}, '
    '"offset": {"time": "2026-01-31T12:00:00Z"}}]}'
)


class KeptPositions(Protocol):
    """Where the positions of one connector are, by what its queries read: tables, or topics."""

    def begun(self) -> Set[str]:
        """What has been read from, at least in part."""

    def end(self, part: str) -> dict[str, Any] | None:
        """The end of the last finished batch, as in Spark's checkpoint; None before the first."""

    def starts(self) -> dict[str, str]:
        """Where users have set a start instead."""

    def set_start(self, part: str, start: str) -> None:
        """Let a query begin there, instead of where it was."""

    def forget(self, part: str) -> None:
        """Let a query begin as if nothing had been read."""

    def forget_all(self) -> None:
        """Remove all positions, and all signals."""

    def signals(self) -> dict[str, Any] | None:
        """The signals that not all queries have taken yet (see `signal_watch`); None before the first."""

    def keep_signals(self, about: Mapping[str, Any]) -> None:
        """Store them, for the queries to read."""

    def asked(self) -> dict[str, dict[str, Any]]:
        """The signals that came over the REST API, by an id, oldest first."""

    def ask(self, id: str, about: Mapping[str, Any]) -> None:
        """Store a signal of the REST API, until it is looked at."""

    def forget_asked(self, id: str) -> None:
        """It was looked at."""


class KeptInFolder:
    """In the checkpoints below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begun(self) -> Set[str]:
        return {path.name for path in self.folder.glob("*") if path.is_dir()}

    def end(self, part: str) -> dict[str, Any] | None:
        committed = [int(path.name) for path in (self.folder / part / "commits").glob("[0-9]*")]
        if not committed:
            return None
        lines = (self.folder / part / "offsets" / str(max(committed))).read_text().splitlines()
        return _object(lines[-1])

    def starts(self) -> dict[str, str]:
        files = (path for path in self.folder.glob("*.start") if path.is_file())  # a table may have the name "start"
        return {path.name.removesuffix(".start"): path.read_text() for path in files}

    def set_start(self, part: str, start: str) -> None:
        self.forget(part)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"{part}.start").write_text(start)

    def forget(self, part: str) -> None:
        shutil.rmtree(self.folder / part, ignore_errors=True)
        (self.folder / f"{part}.start").unlink(missing_ok=True)

    def forget_all(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def signals(self) -> dict[str, Any] | None:
        text = Local(self.folder).read(SIGNALS)
        return None if text is None else _object(text)

    def keep_signals(self, about: Mapping[str, Any]) -> None:
        Local(self.folder).write(SIGNALS, json.dumps(about))

    def asked(self) -> dict[str, dict[str, Any]]:
        files = [path for path in self.folder.glob(f"*{ASKED}") if path.is_file()]
        files.sort(key=lambda path: path.stat().st_mtime_ns)
        return {path.name.removesuffix(ASKED): _object(path.read_text()) for path in files}

    def ask(self, id: str, about: Mapping[str, Any]) -> None:
        Local(self.folder).write(f"{id}{ASKED}", json.dumps(about))

    def forget_asked(self, id: str) -> None:
        (self.folder / f"{id}{ASKED}").unlink(missing_ok=True)


def _object(text: str) -> dict[str, Any]:
    position_or_signals: dict[str, Any] = json.loads(text)
    return position_or_signals


def folder_of(root: Path, connector: str) -> Path:
    """The folder of a connector's checkpoints."""
    # Names of dots only would be other folders; quote() does not encode dots.
    return root / (quote(connector, safe="") if connector.strip(".") else connector.replace(".", "%2E"))


class Offsets:
    """The positions of a connector, in the form of Kafka Connect's REST API."""

    def __init__(self, positions: KeptPositions) -> None:
        self.positions = positions

    def read(self) -> list[dict[str, Any]]:
        """All known positions."""
        tables = self.positions.begun() | set(self.positions.starts())
        return [
            {"partition": _partition(table), "offset": offset}
            for table in sorted(tables)
            if (offset := self._of(table))
        ]

    def read_to(self) -> int | None:
        """The time in microseconds since 1970 up to which the slowest table was read; None before the first batch."""
        offsets = [each["offset"] for each in self.read() if "planned" in each["offset"]]
        return min((max(offset["time"], offset.get("fresh", 0)) for offset in offsets), default=None)

    def alter(self, offsets: Iterable[Any], tables: Iterable[str]) -> None:
        """Set positions of some of `tables` to a time, or remove them with None.

        Raises RestError (400), before any change, if one is wrong.
        """
        known = {split_name(table): table for table in tables}
        changes = [_change(entry, known) for entry in offsets]
        for table, start in changes:
            if start is None:
                self.positions.forget(table)
            else:
                self.positions.set_start(table, start)

    def _of(self, table: str) -> dict[str, Any] | None:
        if (end := self.positions.end(table)) is not None:
            return end
        start = self.positions.starts().get(table)
        return None if start is None else {"time": start}


def _partition(table: str) -> dict[str, str]:
    keyspace, name = split_name(table)
    return {"keyspace_name": keyspace, "table_name": name}


def _change(entry: Any, known: Mapping[tuple[str, str], str]) -> tuple[str, str | None]:
    """The table and its new start."""
    try:
        partition, offset = entry["partition"], entry["offset"]
        table = known.get((partition["keyspace_name"], partition["table_name"]))
    except (KeyError, TypeError):
        raise RestError(400, f"Offsets do not have the required form; example: {EXAMPLE}") from None
    if table is None:
        raise RestError(400, f"The connector does not read the table {partition}; it reads {', '.join(known.values())}")
    if offset is None:
        return table, None
    return table, _time(offset)


def _time(offset: Any) -> str:
    """An offset's time as ISO 8601, from a time in ISO 8601 or in microseconds since 1970."""
    time = offset.get("time") if isinstance(offset, dict) else None
    try:
        if (micros := whole_number(time, -FURTHEST, FURTHEST)) is not None:
            return datetime.fromtimestamp(micros / 1_000_000, UTC).isoformat()
        return datetime.fromisoformat(str(time)).isoformat()
    except (ValueError, OverflowError):
        raise RestError(
            400,
            f"{offset!r} is not a position: give a time in ISO 8601 or in microseconds since 1970; example: {EXAMPLE}",
        ) from None
