"""Planning a snapshot: the rows that a table holds already, read before its changes, some token ranges a batch.

Changes are read from a point L before the first row is read (`confidence` before the first plan), once all rows are.
So every change that a row does not show comes after it. Changes since L that a row does show would come once more,
behind it: the task that reads the rows of a range therefore looks into the range's log since L afterwards, and leaves
to the changes what they tell themselves (`snapshot_read`). This is the watermark of DBLog (Andreakis and
Papapanagiotou, 2020), with one low watermark for all chunks, since a log can be read again from any point.
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
"""Rows whose tokens tell how far `max_rows` rows reach."""


@dataclass(frozen=True)
class TokenRange:
    """Rows with a token in (after, until], the streams of their changes, the time from which these are read."""

    after: int
    until: int
    streams: tuple[bytes, ...]
    low: int
    planned: int


def token_of_key(table: CqlTable) -> str:
    return f"token({', '.join(quoted(c.name) for c in table.partition_key)})"


class Snapshot:
    """Plans the batches of a snapshot; keeps nothing: an offset's `snapshot` is the token up to which rows are read."""

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        key = token_of_key(planner.table)
        self.sample = f"SELECT {key} FROM {base_name(planner.table)} WHERE {key} > %s LIMIT %s"

    def next(self, at: Position, most: int) -> Position:
        """Where the batch after `at` ends: after about `most` rows, or where the changes begin."""
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
        # The end's: the beginning of the first batch is in no checkpoint, and a later one when that batch is run again.
        low = until.time
        size = -(-(end - first) // self.planner.tasks(until))
        found = []
        for after in range(first, end, size):
            last = min(after + size, end)
            streams = self.planner.generations.streams_within(low, after, last)
            found.append(TokenRange(after, last, streams, low, until.planned))
        return found
