"""Folders for what a process need not keep: it removes them, or if it was killed, the next that makes one does."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

PREFIX = "penstock-replica-"


@dataclass(frozen=True)
class Folder:
    """A folder of this process, as long as its lock is open."""

    path: Path
    lock: int
    process: int

    def remove(self) -> None:
        # A forked process has the object too.
        if os.getpid() == self.process:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self.lock)


def claimed(parent: str) -> Folder:
    """A new folder below `parent`, which is the system's for temporary files if empty."""
    place = Path(parent or tempfile.gettempdir())
    for left in place.glob(f"{PREFIX}*"):
        if found := _locked(left):
            found.remove()
    while True:
        made = _locked(Path(tempfile.mkdtemp(prefix=PREFIX, dir=place)))
        # Before it had its lock, another process may have taken it for one that was left.
        if made and made.path.exists():
            return made
        if made:
            made.remove()


def _locked(path: Path) -> Folder | None:
    """The folder, if no process has it."""
    try:
        lock = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return Folder(path, lock, os.getpid())
