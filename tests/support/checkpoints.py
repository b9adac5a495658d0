"""Checkpoints of streaming queries, as crashes leave them."""

from __future__ import annotations

from pathlib import Path


def forget_last_commit(checkpoint: Path) -> None:
    """As if the driver had died after the last task's commit, and before its own."""
    last = max((path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()), key=lambda p: int(p.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
