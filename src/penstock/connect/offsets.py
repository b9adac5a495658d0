"""A connector's positions by table: reads them from its checkpoints, sets them, or removes them.

A table's checkpoint is a folder of Spark's; its position is the end of the last committed batch. A position that a
user sets is kept beside it; a query without a checkpoint starts there.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from penstock.database.table_catalog import split_name
from penstock.serve.rest_errors import RestError

EXAMPLE = (
    '{"offsets": [{"partition": {"keyspace_name": "shop", "table_name": "orders"}, '
    '"offset": {"time": "2026-01-31T12:00:00Z"}}]}'
)


class Offsets:
    """The positions of a connector, below `root`."""

    def __init__(self, root: Path, connector: str) -> None:
        # Names of dots only would be other folders; quote() does not encode dots.
        self.folder = root / (quote(connector, safe="") if connector.strip(".") else connector.replace(".", "%2E"))

    def read(self) -> list[dict[str, Any]]:
        """All known positions as in Connect's REST API."""
        tables = {path.name for path in self.folder.glob("*") if path.is_dir()} | set(self.starts())
        return [
            {"partition": _partition(table), "offset": offset}
            for table in sorted(tables)
            if (offset := self._of(table))
        ]

    def read_to(self) -> int | None:
        """The time in microseconds since 1970 up to which the slowest table was read; None before the first batch."""
        found = [each["offset"] for each in self.read() if "planned" in each["offset"]]
        return min((max(offset["time"], offset.get("fresh", 0)) for offset in found), default=None)

    def starts(self) -> dict[str, str]:
        """The times that users have set, by table."""
        files = (path for path in self.folder.glob("*.start") if path.is_file())  # a table may have the name "start"
        return {path.name.removesuffix(".start"): path.read_text() for path in files}

    def alter(self, offsets: Iterable[Any], tables: Iterable[str]) -> None:
        """Set positions of some of `tables` to a time, or remove them with None.

        Raises RestError (400), before any change, if one is wrong.
        """
        known = {split_name(table): table for table in tables}
        changes = [_change(entry, known) for entry in offsets]
        self.folder.mkdir(parents=True, exist_ok=True)
        for table, start in changes:
            self._forget(table)
            if start is not None:
                (self.folder / f"{table}.start").write_text(start)

    def forget(self) -> None:
        """Remove the positions of all tables."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _forget(self, table: str) -> None:
        shutil.rmtree(self.folder / table, ignore_errors=True)
        (self.folder / f"{table}.start").unlink(missing_ok=True)

    def _of(self, table: str) -> dict[str, Any] | None:
        committed = [int(path.name) for path in (self.folder / table / "commits").glob("[0-9]*")]
        if committed:
            lines = (self.folder / table / "offsets" / str(max(committed))).read_text().splitlines()
            found: dict[str, Any] = json.loads(lines[-1])
            return found
        start = self.starts().get(table)
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
    """An offset's time as ISO 8601; given as ISO 8601 or in microseconds since 1970."""
    time = offset.get("time") if isinstance(offset, dict) else None
    try:
        if isinstance(time, int) and not isinstance(time, bool):
            return datetime.fromtimestamp(time / 1_000_000, UTC).isoformat()
        return datetime.fromisoformat(str(time)).isoformat()
    except (ValueError, OverflowError):
        raise RestError(
            400,
            f"{offset!r} is not a position: give a time in ISO 8601 or in microseconds since 1970; example: {EXAMPLE}",
        ) from None
