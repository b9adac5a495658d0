"""Markers: a sink stores, together with the rows, which batch of a query it wrote last.

Only the last batch can come again. A batch with the marker's number was written before if it covers the same offsets
in the same number of tasks. Anything else means that checkpoint and sink are from different times, for example after
one of them was restored from a backup. The query then ends with an error, because it would skip rows or write them
twice.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from penstock.errors import PenstockError
from penstock.query.query import Batch

SHOWN = 300
"""Most characters of a batch's offsets in a message."""
AGAIN = (
    "restore the newest checkpoint; or read again from a time before the gap with "
    "`penstock checkpoints set NAME --to TIME`, or everything with `penstock checkpoints reset NAME`: rows since then "
    "that the sink already has are written again"
)


@dataclass(frozen=True)
class Marker:
    """A batch: its number, its offsets (`digest`, "" if unknown), and its number of tasks (0 if unknown)."""

    batch: int
    digest: str = ""
    tasks: int = 0

    @classmethod
    def for_batch(cls, batch: Batch, tasks: int = 0) -> Marker:
        return cls(batch.number, digest(batch), tasks)

    @classmethod
    def read(cls, batch: int, text: str | None) -> Marker:
        """The marker of this batch, with the details in `text` if it has any: earlier builds wrote only numbers."""
        try:
            details = json.loads(text or "{}")
            marker = cls(int(details["batch"]), str(details["offsets"]), int(details["tasks"]))
        except (ValueError, KeyError, TypeError):
            return cls(batch)
        return marker if marker.batch == batch else cls(batch)

    def text(self) -> str:
        return json.dumps({"batch": self.batch, "offsets": self.digest, "tasks": self.tasks}, separators=(",", ":"))


def digest(batch: Batch) -> str:
    """Sixteen characters that identify the batch's start and end offsets; "" if they are not known."""
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
            f"continues with batch {batch.number}, whose rows would be skipped{_place(batch)}. Was an older "
            "checkpoint restored, or did it lose its last files?",
            where=_where(batch),
            next=AGAIN,
        )
    if marker.digest and batch.end and marker.digest != digest(batch):
        raise PenstockError(
            f"{sink} has another batch {batch.number} of this query, with other offsets: the rows of this batch would "
            f"be skipped{_place(batch)}. Was an older checkpoint restored, or did it lose its last files?",
            where=_where(batch),
            next=AGAIN,
        )
    if marker.tasks and tasks and marker.tasks != tasks:
        raise PenstockError(
            f"batch {batch.number} was written, perhaps in part, by {marker.tasks} tasks, and is run again with "
            f"{tasks}: rows would be skipped or written twice",
            where=_where(batch),
            next="run it once with the earlier settings, such as --cores or spark.sql.shuffle.partitions, that gave "
            f"{marker.tasks} tasks; after this batch any number works",
        )
    return True


def require_next(marker: Marker | None, batch: Batch, sink: str, *, next: str) -> None:
    """Raise `PenstockError` if the sink lacks batches before the checkpoint's; `next` says how to accept that."""
    if marker is None or not marker.digest or not batch.end or marker.batch >= batch.number - 1:
        return
    raise PenstockError(
        f"{sink} is older than the checkpoint: it has batches up to {marker.batch} of this query, and the checkpoint "
        f"continues with batch {batch.number}: the rows between are missing. Was the sink restored from a backup?",
        where=_where(batch),
        next="read again from the time of the backup with `penstock checkpoints set NAME --to TIME`, or restore the "
        f"checkpoint of that time; {next}",
    )


def _where(batch: Batch) -> str:
    return f"query {batch.query}, batch {batch.number}"


def _place(batch: Batch) -> str:
    if not batch.end:
        return ""
    return f" (from {_cut(batch.start or 'the start')} to {_cut(batch.end)})"


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
