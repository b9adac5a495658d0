"""Spark's files of a streaming query: where each batch ends (`offsets/N`), and which are done (`commits/N`).

    offsets/7    v1                            commits/7    v1
                 {"batchWatermarkMs": 0, ...}               {"nextBatchWatermarkMs": 0}
                 {"generation": ..., ...}      metadata     {"id": "<the query's id>"}

An offsets file has a line for each source, in the order of the query's plan; "-" means no offset yet. A batch is
written before it runs and committed after it. At a start Spark reads the newest offsets file, whose batch it runs again
if it is not committed, and the file before it, where that batch begins.
"""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from penstock.checkpoint.checkpoint_folder import CheckpointFolder
from penstock.errors import PenstockError

OFFSETS, COMMITS, METADATA = "offsets", "commits", "metadata"
VERSION = "v1"
NONE = "-"
"""The line of a source without an offset."""


@dataclass(frozen=True)
class PlannedBatch:
    """A batch as in its offsets file: Spark's metadata, and a line for each source."""

    number: int
    about: dict[str, Any]
    offsets: tuple[str, ...]

    @property
    def at(self) -> float:
        """When it was planned, in seconds since 1970."""
        return float(self.about.get("batchTimestampMs", 0)) / 1000


class CheckpointLog:
    """The files of one checkpoint as they are now."""

    def __init__(self, store: CheckpointFolder) -> None:
        self.store = store
        self.planned, self.committed = store.numbers(OFFSETS), store.numbers(COMMITS)

    @property
    def begun(self) -> bool:
        """Whether any batch was planned; before that a checkpoint has no position."""
        return bool(self.planned or self.committed)

    @property
    def last(self) -> int:
        """The number of the newest batch; -1 if there is none."""
        return max(self.planned[-1:] + self.committed[-1:], default=-1)

    @cached_property
    def query(self) -> str | None:
        """The id of the query, by which sinks know its batches; None if it has none yet."""
        text = self.store.read(METADATA)
        if text is None:
            return None
        try:
            return str(json.loads(text)["id"])
        except (ValueError, KeyError, TypeError):
            raise self._damaged(METADATA, text, "put the folder back from a backup") from None

    def check(self) -> None:
        """Raises `PenstockError` with the name of the file if a query cannot continue from this checkpoint."""
        if not self.begun:
            return
        if self.query is None:
            raise self._missing(METADATA, "sinks know the query's batches by the id in it")
        if not self.planned:
            raise self._missing(f"{OFFSETS}/{self.last}", f"batch {self.last} is committed")
        newest = self.planned[-1]
        committed = self.committed[-1] if self.committed else -1
        if committed > newest:
            raise self._missing(f"{OFFSETS}/{committed}", f"batch {committed} is committed")
        if committed >= 0:
            self.commit(committed)
        self.batch(newest)
        if newest and newest - 1 not in self.planned:
            raise self._missing(f"{OFFSETS}/{newest - 1}", f"batch {newest} continues from it")
        if newest:
            self.batch(newest - 1)
        if committed < newest - 1:
            raise self._missing(f"{COMMITS}/{newest - 1}", f"batch {newest} was planned after it")

    def batch(self, number: int) -> PlannedBatch:
        """A batch as it was planned; raises `PenstockError` if its file is damaged or missing."""
        name = f"{OFFSETS}/{number}"
        text = self.store.read(name)
        if text is None:
            raise self._missing(name, "the query continues from it")
        way_out = self._way_out(number)
        lines = text.splitlines()
        if len(lines) < 3 or not _version(lines[0]):
            raise self._damaged(name, text, way_out)
        try:
            about = json.loads(lines[1])
            for line in lines[2:]:
                # Offsets are usually JSON, but need not be.
                if line[:1] in ("{", "["):
                    json.loads(line)
        except ValueError:
            raise self._damaged(name, text, way_out) from None
        if not isinstance(about, dict):
            raise self._damaged(name, text, way_out)
        return PlannedBatch(number, about, tuple(lines[2:]))

    def commit(self, number: int) -> dict[str, Any]:
        """Spark's metadata of a finished batch; raises `PenstockError` if its file is damaged or missing."""
        name = f"{COMMITS}/{number}"
        text = self.store.read(name)
        if text is None:
            raise self._missing(name, "the batch counts as done")
        try:
            version, line = text.splitlines()
            metadata = json.loads(line)
        except ValueError:
            metadata, version = None, ""
        if not isinstance(metadata, dict) or not _version(version):
            next = (
                f"if batch {number} was written, replace the file's text with the lines {VERSION} and {{}}; "
                "if you do not know, move the file away: the batch runs again"
            )
            raise self._damaged(name, text, next)
        return metadata

    def add(self, offsets: tuple[str, ...]) -> int:
        """Write a finished batch that ends at `offsets`, and return its number. The next batch continues from there.

        Spark's other metadata is copied from the newest readable batch. The query gets a new id: with the old id, sinks
        would take the next batches for written, or miss the added one.
        """
        about, done = self._kept()
        about |= {"batchTimestampMs": int(time.time() * 1000)}
        number = self.last + 1
        if number and number - 1 not in self._whole():
            # Spark also reads the offsets before the newest, though it does not use them.
            self._write(number - 1, about, offsets)
        self._write(number, about, offsets)
        self.store.write(f"{COMMITS}/{number}", f"{VERSION}\n{_line(done)}")
        self._renew()
        return number

    def replace(self, offsets: tuple[str, ...]) -> int:
        """Make the newest batch, which must be committed, end at `offsets`, and return its number. Its state stays.

        The old file stays beside the new one, where Spark does not look. The query gets a new id, as in `add`.
        """
        batch = self.batch(self.planned[-1])
        self.store.write(f"{OFFSETS}/.{batch.number}.before", self.store.read(f"{OFFSETS}/{batch.number}") or "")
        self._write(batch.number, batch.about, offsets)
        self._renew()
        return batch.number

    def _renew(self) -> None:
        self.store.write(METADATA, _line({"id": str(uuid.uuid4())}))

    def _write(self, number: int, about: dict[str, Any], offsets: tuple[str, ...]) -> None:
        self.store.write(f"{OFFSETS}/{number}", "\n".join((VERSION, _line(about), *offsets)))

    def _kept(self) -> tuple[dict[str, Any], dict[str, Any]]:
        for number in reversed(self.planned):
            try:
                about = self.batch(number).about
            except PenstockError:
                continue
            watermark = about.get("batchWatermarkMs", 0)
            return dict(about), {"nextBatchWatermarkMs": watermark}
        return {"batchWatermarkMs": 0, "conf": {}}, {"nextBatchWatermarkMs": 0}

    def _whole(self) -> set[int]:
        """The number of the newest batch if its file is whole; else nothing."""
        try:
            return {self.batch(self.last).number}
        except PenstockError:
            return set()

    def _way_out(self, number: int) -> str:
        if number in self.committed or number != self.last:
            return "put the folder back from a backup"
        return (
            f"move this file away: batch {number} is planned again, and rows that it has already written may be "
            "written again"
        )

    def _damaged(self, name: str, text: str, next: str) -> PenstockError:
        what = "is empty" if not text.strip("\0 \r\n") else f"is cut off or damaged: it begins with {text[:60]!r}"
        return self._broken(f"the checkpoint's file {name} {what}", next)

    def _missing(self, name: str, why: str) -> PenstockError:
        return self._broken(f"the checkpoint's file {name} is missing: {why}", "put the folder back from a backup")

    def _broken(self, what: str, next: str) -> PenstockError:
        return DamagedCheckpoint(
            what,
            where=f"checkpoint {self.store.where}",
            next=f"{next}; or choose where to continue: `penstock checkpoints set NAME --to TIME`",
        )


class DamagedCheckpoint(PenstockError):
    """A checkpoint with a file that is damaged or missing."""


def _version(line: str) -> bool:
    return line[:1] == "v" and line[1:].isdecimal()


def _line(about: dict[str, Any]) -> str:
    return json.dumps(about, separators=(",", ":"))
