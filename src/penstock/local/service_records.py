"""`<root>/services.json`: the ports and the process of each service.

It is written while a service still starts, so that every started process is recorded. A file lock lets only one `up`
or `down` work on a root.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from penstock.local.process import Process
from penstock.paths import opened, usable


@dataclass
class Record:
    """The ports and the process of a service."""

    ports: dict[str, int] = field(default_factory=dict)
    process: Process | None = None

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.alive()


@contextmanager
def locked(root: Path) -> Iterator[None]:
    with opened(root / "lock") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def load(root: Path) -> dict[str, Record]:
    with usable(root):
        try:
            content = json.loads((root / "services.json").read_text())
        except FileNotFoundError:
            return {}
    return {
        name: Record(entry["ports"], Process(**entry["process"]) if entry["process"] else None)
        for name, entry in content.items()
    }


def save(root: Path, records: dict[str, Record]) -> None:
    fresh = root / "services.json.new"
    fresh.write_text(json.dumps({name: asdict(record) for name, record in records.items()}, indent=1) + "\n")
    fresh.replace(root / "services.json")
