"""Plans a snapshot: the rows that a table already holds, read before its changes, some token ranges per batch.

After all rows, changes are read from a point L before the first row was read (`confidence` before the first plan). So
every change that a row does not show comes after the row. Changes since L that a row does show would come a second
time, after the row: the task that reads the rows of a range therefore reads the range's log since L afterwards, and
leaves values that these changes carry to the changes (`snapshot_read`). This is the watermark of DBLog (Andreakis and
Papapanagiotou, 2020), with one low watermark for all chunks, because a log can be read again from any point.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.cdc.generations import FIRST_TOKEN, Position
from penstock.cdc.planner import Planner
from penstock.cdc.timeuuid import now_micros
from penstock.database.table_catalog import base_name, quoted
from penstock.schema import CqlTable

LAST_TOKEN = 2**63 - 1
SAMPLE = 1000
"""Rows whose tokens are used to estimate how far `max_rows` rows reach."""


@dataclass(frozen=True)
class TokenRange:
    """Rows with a token in (after, until], the streams of their changes, and the start `low` of these changes."""

    after: int
    until: int
    streams: tuple[bytes, ...]
    low: int
    planned: int


def token_of_key(table: CqlTable) -> str:
    return f"token({', '.join(quoted(c.name) for c in table.partition_key)})"


class Snapshot:
    """Plans the batches of a snapshot without state: an offset's `snapshot` is the token up to which rows are read."""

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        key = token_of_key(planner.table)
        self.sample = f"SELECT {key} FROM {base_name(planner.table)} WHERE {key} > %s LIMIT %s"

    def next(self, at: Position, most: int) -> Position:
        """Where the batch after `at` ends: after about `most` rows, or at the end of the snapshot."""
        assert at.snapshot is not None
        self.planner.check_schema()
        count = min(SAMPLE, most)
        rows = list(self.planner.generations.session.execute(self.sample, (at.snapshot, count)))
        until: int | None = None
        if len(rows) == count:
            last = max(token for (token,) in rows)
            reach = at.snapshot + (last - at.snapshot) * most // count
            until = reach if reach < LAST_TOKEN else None
        return replace(at, snapshot=until, planned=now_micros())

    def ranges(self, begin: Position, until: Position) -> list[TokenRange]:
        """The token ranges of a batch's tasks."""
        first = FIRST_TOKEN if begin.snapshot is None else begin.snapshot
        end = LAST_TOKEN if until.snapshot is None else until.snapshot
        # The end's time: the start of the first batch is in no checkpoint, and is later when that batch runs again.
        low = until.time
        size = -(-(end - first) // self.planner.tasks(until))
        found = []
        for after in range(first, end, size):
            last = min(after + size, end)
            streams = self.planner.generations.streams_within(low, after, last)
            found.append(TokenRange(after, last, streams, low, until.planned))
        return found
