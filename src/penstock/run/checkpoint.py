"""Checkpoint folders and the lock that keeps a second run away from one in use.

The lock is the operating system's, on `<name>.lock` beside the checkpoint: it falls with its process, however that
dies. The file names the process and its Java child, because the child of a killed run works on for some seconds.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TextIO

from penstock.errors import PenstockError
from penstock.paths import opened

# A Spark JVM was seen to end within 3 s of its driver's death, on a busy machine.
ORPHAN_PATIENCE = timedelta(seconds=30)


@contextmanager
def lock(checkpoint: Path) -> Iterator[Callable[[int], None]]:
    """Hold the checkpoint alone; gives a function that notes the pid of the run's JVM."""
    with opened(checkpoint.with_name(checkpoint.name + ".lock")) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _in_use(checkpoint, _read(file).get("pid")) from None
        _outlive(checkpoint, _read(file).get("jvm"))
        _write(file, pid=os.getpid())
        yield lambda jvm: _write(file, pid=os.getpid(), jvm=jvm)
        _write(file)


def holder(checkpoint: Path) -> int | None:
    """The process that holds this checkpoint, if one does."""
    try:
        with checkpoint.with_name(checkpoint.name + ".lock").open() as file:
            pid = _read(file).get("pid")
            # A run that starts now must not find the lock taken by this look, so only where a process may have it.
            if pid is None or not _lives(pid):
                return None
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return pid
    except OSError:
        return None
    return None


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _in_use(checkpoint: Path, pid: int | None) -> PenstockError:
    return PenstockError(
        f"process {pid} already runs this pipeline",
        where=f"checkpoint {checkpoint}",
        next=f"stop it with `kill {pid}`, or run with another --checkpoints folder",
    )


def _outlive(checkpoint: Path, jvm: int | None) -> None:
    """Wait for the JVM of a run that was killed: until it ends, it may still write the batch in flight."""
    deadline = time.monotonic() + ORPHAN_PATIENCE.total_seconds()
    while jvm is not None and _is_java(jvm):
        if time.monotonic() > deadline:
            raise PenstockError(
                f"process {jvm}, the Spark JVM of a killed run, still works",
                where=f"checkpoint {checkpoint}",
                next=f"end it with `kill -9 {jvm}`, then start again",
            )
        time.sleep(0.2)


def _is_java(pid: int) -> bool:
    """Whether this process lives and is Java: the number may belong to something else by now."""
    listed = subprocess.run(["ps", "-o", "args=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return "java" in listed.stdout.split(" ", 1)[0]


def _read(file: TextIO) -> dict[str, int]:
    file.seek(0)
    try:
        found = json.loads(file.read() or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _write(file: TextIO, **pids: int) -> None:
    file.seek(0)
    file.truncate()
    json.dump(pids, file)
    file.flush()
