"""What an earlier demo with `--keep` has left: a running pipeline, and files."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import time
from pathlib import Path

from penstock.errors import PenstockError
from penstock.local.process import POLL

PATIENCE = 60.0


def stop(checkpoints: Path) -> None:
    """Stop the pipelines that hold the locks on these checkpoints, if any, and wait until they are gone."""
    for path in checkpoints.glob("*.lock"):
        _stop(path)


def _stop(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    with path.open() as file:
        asked = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                pass
            if not asked:
                os.kill(pid(path), signal.SIGTERM)
                asked = True
            if time.monotonic() > deadline:
                raise PenstockError(
                    f"the pipeline of an earlier demo does not stop (pid {pid(path)})",
                    where=str(path),
                    next=f"end it with: kill -9 {pid(path)}",
                )
            time.sleep(POLL)


def pid(lock: Path) -> int:
    """The process that holds the lock of a pipeline's checkpoints."""
    return int(json.loads(lock.read_text())["pid"])


def remove(path: Path) -> None:
    """Delete a file or a folder if it exists."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
