"""Markers: what a sink keeps, together with the rows, of the last batch that it has of a query.

Only the last batch can come again: one whose number is the marker's was written before, if it covers the same offsets
in as many tasks. Anything else means that checkpoint and sink are not of one time, as when either was restored from a
backup. Then the query ends with an error: rows would be skipped or written twice.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from penstock.errors import PenstockError
from penstock.query import Batch

SHOWN = 300
"""Characters of a batch's offsets in a message."""
AGAIN = (
    "put the newest checkpoint back; or read again from a time before the gap with "
    "`penstock checkpoints set NAME --to TIME`, or all with `penstock checkpoints reset NAME`: rows since then that "
    "the sink has are written once more"
)


@dataclass(frozen=True)
class Marker:
    """The batch by its number, by its offsets (`digest`), and in how many tasks it was written; each if it is known."""

    batch: int
    digest: str = ""
    tasks: int = 0

    @classmethod
    def for_batch(cls, batch: Batch, tasks: int = 0) -> Marker:
        return cls(batch.number, digest(batch), tasks)

    @classmethod
    def read(cls, batch: int, text: str | None) -> Marker:
        """The marker of this batch, of which `text` may tell more: earlier builds wrote numbers only."""
        try:
            found = json.loads(text or "{}")
            told = cls(int(found["batch"]), str(found["offsets"]), int(found["tasks"]))
        except (ValueError, KeyError, TypeError):
            return cls(batch)
        return told if told.batch == batch else cls(batch)

    def text(self) -> str:
        return json.dumps({"batch": self.batch, "offsets": self.digest, "tasks": self.tasks}, separators=(",", ":"))


def digest(batch: Batch) -> str:
    """Sixteen characters for where the batch begins and ends; none if that is not known."""
    return hashlib.sha256(repr((batch.start, batch.end)).encode()).hexdigest()[:16] if batch.end else ""


def is_written(marker: Marker | None, batch: Batch, sink: str, *, tasks: int = 0) -> bool:
    """Whether the sink has this batch.

    Raises `PenstockError` if the sink is ahead of the checkpoint, or has another batch under this number.
    """
    if marker is None or marker.batch < batch.number:
        return False
    if marker.batch > batch.number:
        raise PenstockError(
            f"{sink} is ahead of the checkpoint: it has batches up to {marker.batch} of this query, and the checkpoint "
            f"goes on with batch {batch.number}, whose rows would be skipped{_place(batch)}. Was an older checkpoint "
            "put back, or did it lose its last files?",
            where=_where(batch),
            next=AGAIN,
        )
    if marker.digest and batch.end and marker.digest != digest(batch):
        raise PenstockError(
            f"{sink} has another batch {batch.number} of this query: one of other offsets, so the rows of this one "
            f"would be skipped{_place(batch)}. Was an older checkpoint put back, or did it lose its last files?",
            where=_where(batch),
            next=AGAIN,
        )
    if marker.tasks and tasks and marker.tasks != tasks:
        raise PenstockError(
            f"batch {batch.number} was written, perhaps in part, by {marker.tasks} tasks, and comes again in {tasks}: "
            "rows would be skipped or written twice",
            where=_where(batch),
            next=f"run it once with the settings of before, such as --cores or spark.sql.shuffle.partitions, that gave "
            f"{marker.tasks} tasks; when it is through, any number will do",
        )
    return True


def require_next(marker: Marker | None, batch: Batch, sink: str, *, next: str) -> None:
    """Raise `PenstockError` if the sink lacks batches that the checkpoint has done; `next` is how to accept that."""
    if marker is None or not marker.digest or not batch.end or marker.batch >= batch.number - 1:
        return
    raise PenstockError(
        f"{sink} is older than the checkpoint: it has batches up to {marker.batch} of this query, and the checkpoint "
        f"goes on with batch {batch.number}: the rows between are missing. Was the sink restored from a backup?",
        where=_where(batch),
        next="read again from the time of the backup with `penstock checkpoints set NAME --to TIME`, or put the "
        f"checkpoint of that time back; {next}",
    )


def _where(batch: Batch) -> str:
    return f"query {batch.query}, batch {batch.number}"


def _place(batch: Batch) -> str:
    if not batch.end:
        return ""
    return f" (from {_cut(batch.start or 'the start')} to {_cut(batch.end)})"


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
