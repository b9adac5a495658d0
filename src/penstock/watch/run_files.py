"""How commands find each other: each with a metrics server has a file that says where, while it runs.

A file is `<runs>/<pid>.json`; the folder is `$PENSTOCK_RUNS`, else `penstock/runs` below `$XDG_STATE_HOME` or
`~/.local/state`. The file of a process that was killed stays, and readers delete it: a later process with the same pid
began at another time.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import psutil

log = logging.getLogger(__name__)

MOST_BYTES = 64 << 10
"""Larger files are not read."""
SAME = 2.0
"""Seconds between two readings of the time at which the same process began, at most. A boot has whole seconds."""


def _created() -> float:
    return float(psutil.Process().create_time())


@dataclass(frozen=True)
class RunFile:
    """A running command: `url` is that of its metrics server; `created` is when its process began (Unix seconds).

    `boot` is when the machine started, by its clock then: setting the clock moves both, but not the time between them.
    `checkpoint` is the folder of a pipeline's checkpoint, `servers` the Kafka that the command works with; None if
    there is none.
    """

    kind: str
    name: str
    url: str
    command: str
    checkpoint: str | None = None
    servers: str | None = None
    folder: str = field(default_factory=os.getcwd)
    pid: int = field(default_factory=os.getpid)
    created: float = field(default_factory=_created)
    boot: float | None = field(default_factory=psutil.boot_time)


TYPES = {
    "pid": int,
    "created": (int, float),
    "boot": (int, float, type(None)),
    "checkpoint": (str, type(None)),
    "servers": (str, type(None)),
}
"""The types of the fields that are not always a string."""


def folder() -> Path:
    """The folder of the run files of this user."""
    if path := os.environ.get("PENSTOCK_RUNS"):
        return Path(path)
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local/state") / "penstock/runs"


@contextmanager
def written(file: RunFile) -> Iterator[None]:
    """Keep the file of this process while the code inside runs; a file that cannot be written is a warning."""
    path: Path | None = None
    try:
        path = folder() / f"{file.pid}.json"
        _write(path, json.dumps(asdict(file)))
    except (OSError, RuntimeError) as error:
        step = f"status and console do not find this run; they take its address, {file.url}"
        log.warning("the run file %s cannot be written: %s. Next: %s", path or "of this run", error, step)
    try:
        yield
    finally:
        if path is not None:
            with suppress(OSError):
                path.unlink(missing_ok=True)


def _write(path: Path, text: str) -> None:
    """Write a file that only this user may read; it is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = path.with_suffix(".new")
    try:
        fresh.touch(0o600)
        fresh.write_text(text)
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def running() -> list[RunFile]:
    """The commands that run now, in the order of their start; deletes the files of processes that are gone."""
    files = []
    with suppress(OSError, RuntimeError):
        for path in sorted(folder().glob("*.json")):
            file = _read(path)
            if file is None:
                continue
            if _lives(file):
                files.append(file)
            else:
                path.unlink(missing_ok=True)
    return sorted(files, key=lambda file: (file.created, file.pid))


def _read(path: Path) -> RunFile | None:
    """The file; None if it is not a run file, which stays where it is."""
    try:
        with path.open("rb") as opened:
            text = opened.read(MOST_BYTES + 1)
        content = json.loads(text) if len(text) <= MOST_BYTES else None
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or not all(
        _fits(content.get(field.name), field.name) for field in fields(RunFile)
    ):
        return None
    return RunFile(**{field.name: content.get(field.name) for field in fields(RunFile)})  # type: ignore[arg-type]


def _fits(value: Any, name: str) -> bool:
    return isinstance(value, TYPES.get(name, str)) and not isinstance(value, bool)  # type: ignore[arg-type]


def _lives(file: RunFile) -> bool:
    try:
        created = psutil.Process(file.pid).create_time()
        # None: written before there was this field.
        moved = 0.0 if file.boot is None else psutil.boot_time() - file.boot
        return bool(abs(created - file.created - moved) < SAME)
    except psutil.AccessDenied:
        return True
    except (psutil.Error, ValueError, OverflowError):
        return False
