"""Checkpoints of streaming queries, as crashes leave them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path


def forget_last_commit(checkpoint: Path) -> None:
    """As if the driver had died after the last task's commit, and before its own."""
    last = max((path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()), key=lambda p: int(p.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


def write_batches(checkpoint: Path, offsets: Sequence[str | Sequence[str]], *, committed: int) -> None:
    """A checkpoint as Spark writes it, with these offsets batch by batch, a line for each source."""
    for folder in ("offsets", "commits"):
        (checkpoint / folder).mkdir(parents=True)
    (checkpoint / "metadata").write_text('{"id":"an-id"}')
    about = '{"batchWatermarkMs":7,"batchTimestampMs":1795371899283,"conf":{"spark.sql.shuffle.partitions":"2"}}'
    for number, lines in enumerate(offsets):
        text = lines if isinstance(lines, str) else "\n".join(lines)
        (checkpoint / "offsets" / str(number)).write_text(f"v1\n{about}\n{text}")
        if number <= committed:
            (checkpoint / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":7}')


def put_back(checkpoint: Path, kept: Path) -> None:
    """As if the checkpoint was restored from a backup."""
    shutil.rmtree(checkpoint)
    shutil.copytree(kept, checkpoint)
