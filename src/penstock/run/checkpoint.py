"""The lock of a checkpoint folder, which refuses a second run.

The operating system holds the lock, on `<name>.lock` beside the checkpoint, and releases it however the process ends.
The file has the pids of the process and of its JVM, because the JVM of a killed run keeps working for some seconds, and
the name of their machine: other machines may share the folder.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

from penstock.errors import PenstockError
from penstock.process.paths import opened, usable

# Measured on a busy machine: a Spark JVM ended within 3 s of its driver's death.
ORPHAN_PATIENCE = timedelta(seconds=30)
HERE = socket.gethostname()


@contextmanager
def lock(checkpoint: Path) -> Iterator[Callable[[int], None]]:
    """Lock the checkpoint; yields a function that records the pid of the run's JVM.

    Raises PenstockError if another process holds the lock, or the JVM of a killed run does not end.
    """
    with opened(lock_file(checkpoint)) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _in_use(checkpoint, _read(file)) from None
        before = _read(file)
        if _is_here(before):
            _outlive(checkpoint, before.get("jvm"))
        _write(file, pid=os.getpid())
        yield lambda jvm: _write(file, pid=os.getpid(), jvm=jvm)
        _write(file)


def holder(checkpoint: Path) -> int | None:
    """The pid of the process that holds this checkpoint, or None."""
    try:
        with lock_file(checkpoint).open() as file:
            noted = _read(file)
            pid: int | None = noted.get("pid")
            # Lock only if a process may hold it: a run that starts now must not be refused because of this check.
            if pid is None or (_is_here(noted) and not _lives(pid)):
                return None
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return pid
    except OSError:
        return None
    return None


def lock_file(checkpoint: Path) -> Path:
    """The file beside the folder itself, also if the path is a link to it: each path would have a lock of its own."""
    whole = checkpoint.resolve()
    return whole.with_name(f"{whole.name}.lock")


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _is_here(noted: Mapping[str, Any]) -> bool:
    """Whether the pids are of this machine; earlier builds did not note it."""
    return bool(noted.get("host", HERE) == HERE)


def _in_use(checkpoint: Path, noted: Mapping[str, Any]) -> PenstockError:
    pid, machine = noted.get("pid"), "" if _is_here(noted) else f" on {noted['host']}"
    return PenstockError(
        f"process {pid}{machine} already runs this pipeline",
        where=f"checkpoint {checkpoint}",
        next=f"stop it with `kill {pid}`{machine}, or run with another --checkpoints folder",
    )


def _outlive(checkpoint: Path, jvm: int | None) -> None:
    """Wait for the JVM of a killed run: until it ends, it may still write the batch in flight."""
    deadline = time.monotonic() + ORPHAN_PATIENCE.total_seconds()
    while jvm is not None and _is_java(jvm):
        if time.monotonic() > deadline:
            raise PenstockError(
                f"process {jvm}, the Spark JVM of a killed run, still runs",
                where=f"checkpoint {checkpoint}",
                next=f"end it with `kill -9 {jvm}`, then start again",
            )
        time.sleep(0.2)


def _is_java(pid: int) -> bool:
    """Whether this process runs and is Java: another program may have the pid now."""
    listed = subprocess.run(["ps", "-o", "args=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return "java" in listed.stdout.split(" ", 1)[0]


def _read(file: TextIO) -> dict[str, Any]:
    file.seek(0)
    try:
        content = json.loads(file.read() or "{}")
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _write(file: TextIO, **pids: int) -> None:
    # Past the buffer: on a full disk its bytes would fail again when the file is closed.
    with usable(Path(file.name), "the lock cannot be written", "free some space, or give another --checkpoints folder"):
        os.ftruncate(file.fileno(), 0)
        if pids:
            os.write(file.fileno(), json.dumps({**pids, "host": HERE}).encode())
