"""Starts a service and waits until it is ready; stops services; and keeps the ports and the process of each.

`<root>/services.json` has them. It is written while a service still starts, so that every started process is recorded.
A file lock lets only one `up` or `down` work on a root.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from penstock.errors import PenstockError
from penstock.local import ports, process
from penstock.local.process import Process
from penstock.local.service import Service, ServiceFolder
from penstock.process.paths import opened, usable

SPACE = 512 << 20  # bytes that must be free before a service starts
PATIENCE = 180.0  # seconds for a start
STOP_PATIENCE = 20.0

Say = Callable[[str], None]


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
    file = root / "services.json"
    with usable(root):
        try:
            text = file.read_bytes()
        except FileNotFoundError:
            return {}
    try:
        return {
            name: Record(entry["ports"], Process(**entry["process"]) if entry["process"] else None)
            for name, entry in json.loads(text).items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PenstockError(
            "the record of the services is damaged",
            where=str(file),
            next="end the services that run below this folder, for example with kill, and delete the file",
        ) from error


def save(root: Path, records: dict[str, Record]) -> None:
    """Write the record of the services; raises PenstockError if that is impossible, for example on a full disk."""
    fresh = root / "services.json.new"
    with usable(fresh, "the record of the services cannot be written", "free some space, or give another --root"):
        fresh.write_text(json.dumps({name: asdict(record) for name, record in records.items()}, indent=1) + "\n")
        fresh.replace(root / "services.json")


def runs_already(service: Service, record: Record, root: Path, port: int | None) -> bool:
    if port is not None and record.alive and record.ports["client"] != port:
        raise PenstockError(
            f"{service.name} already runs on port {record.ports['client']}, not {port}",
            next="run: penstock down, then penstock up again",
        )
    serving = serves(service, record, root)
    if record.alive and not serving:
        raise failed(service, record, root)
    return serving


def start(service: Service, records: dict[str, Record], root: Path, port: int | None, say: Say) -> None:
    """Choose a service's ports, write its files, and start its process."""
    _require_space(root)
    record, launch = records[service.name], service.prepare(say)
    if port is not None:
        ports.require_free(port, service.name, service.option)
        record.ports["client"] = port
    for name in service.ports:
        if name not in record.ports or not ports.becomes_free(record.ports[name]):
            record.ports[name] = ports.free({port for other in records.values() for port in other.ports.values()})
    say(f"starting {service.name} with {launch.what}")
    place = ServiceFolder(root / service.name, record.ports)
    place.data.mkdir(parents=True, exist_ok=True)
    command = launch.command(place)
    with process.uninterrupted():
        record.process = process.start(command, place.log, os.environ, service.stop)
        save(root, records)


def serves(service: Service, record: Record, root: Path) -> bool:
    """Wait until a service is ready; False if its process ends or it takes longer than `PATIENCE`."""
    place = ServiceFolder(root / service.name, record.ports)
    deadline = time.monotonic() + PATIENCE
    while record.alive and time.monotonic() < deadline:
        if service.ready(place):
            return True
        time.sleep(process.POLL)
    return False


def failed(service: Service, record: Record, root: Path) -> PenstockError:
    log = ServiceFolder(root / service.name, record.ports).log
    what = f"was not ready within {PATIENCE:.0f} s" if record.alive else "ended while it started"
    return PenstockError(
        f"{service.name} {what}; its log ends with\n{process.tail(log)}\n",
        where=str(log),
        next="fix the problem that the log shows and run again, or delete the old data with: penstock up --clean",
    )


def stop(records: Iterable[Record]) -> None:
    records = list(records)
    process.stop((record.process for record in records if record.process), STOP_PATIENCE)
    for record in records:
        record.process = None


def _require_space(root: Path) -> None:
    available = shutil.disk_usage(root).free
    if available < SPACE:
        raise PenstockError(
            f"No disk space: {available >> 20} MiB are free and the services need {SPACE >> 20} MiB",
            where=str(root),
            next="free some space, or choose another folder with --root",
        )
