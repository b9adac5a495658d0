"""Starts and stops the local services, and knows them again: `up`, `down`, `status`.

`<root>/services.json` remembers each service's ports and process. It is written before a service has finished its
start, so that nothing started is ever forgotten; one file lock lets only one `up` or `down` work on a root.
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
from penstock.local import cql, java, kafka, ports, process, registry
from penstock.local.process import Process
from penstock.local.service import Place, Service

# The slowest first: it is already starting while the others prepare.
USUAL = (cql.SERVICE, kafka.SERVICE)
EXTRA = (registry.SERVICE,)
"""Services that start only when asked for."""
ALL = (*USUAL, *EXTRA)
ROOT = Path(".penstock")
SPACE = 512 << 20  # bytes that must be free before a service starts
PATIENCE = 180.0  # seconds for a start
STOP_PATIENCE = 20.0

Say = Callable[[str], None]


def _silent(line: str) -> None:
    pass


@dataclass(frozen=True)
class Status:
    """One service as it is now; `state` is "running", "stopped" or "died" (it ended without `down`)."""

    name: str
    state: str
    address: str | None
    pid: int | None
    memory: int | None
    log: Path


@dataclass
class Record:
    """What services.json keeps of one service."""

    ports: dict[str, int] = field(default_factory=dict)
    process: Process | None = None

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.alive()


@dataclass(frozen=True)
class Services:
    """The services that run under a root."""

    root: Path
    records: dict[str, Record]

    @property
    def kafka(self) -> str:
        return self._address(kafka.SERVICE)

    @property
    def cql(self) -> str:
        return self._address(cql.SERVICE)

    @property
    def registry(self) -> str:
        return f"http://{self._address(registry.SERVICE)}{registry.API}"

    @property
    def pids(self) -> dict[str, int]:
        return {name: record.process.pid for name, record in self.records.items() if record.process}

    def _address(self, service: Service) -> str:
        if service.name not in self.records:
            raise PenstockError(f"{service.name} is not running", where=str(self.root), next=_start_again(service))
        return f"{ports.HOST}:{self.records[service.name].ports['client']}"


def up(
    root: Path = ROOT,
    *,
    kafka_port: int | None = None,
    cql_port: int | None = None,
    registry_port: int | None = None,
    clean: bool = False,
    only: Iterable[str] | None = None,
    also: Iterable[str] = (),
    say: Say = _silent,
) -> Services:
    """Start what does not run yet and return when all serve; if one fails, those that this call started are stopped.

    `only` names what to start instead of the usual services, `also` what to start besides. Ports are those of the last
    start, or free ones. Data stay between starts unless `clean` is set.
    """
    wanted = _named([service.name for service in USUAL] if only is None else only, also)
    given = {"kafka": kafka_port, "cassandra": cql_port, "registry": registry_port}
    root = root.absolute()
    with _locked(root):
        records = _load(root)
        if clean:
            _stop(records.values())
            for folder in filter(Path.exists, (root / service.name for service in ALL)):
                shutil.rmtree(folder)
        started: list[Record] = []
        try:
            for service in wanted:
                record = records.setdefault(service.name, Record())
                if not _runs_already(service, record, root, given[service.name]):
                    started.append(record)
                    _start(service, records, root, given[service.name], say)
            for service in wanted:
                if not _serves(service, records[service.name], root):
                    raise _failed(service, records[service.name], root)
        except BaseException:
            _stop(started)
            _save(root, records)
            raise
        return Services(root, {name: record for name, record in records.items() if record.alive})


def down(root: Path = ROOT) -> list[str]:
    """Stop the services that `up` started under this root; their names."""
    root = root.absolute()
    if not root.exists():
        return []
    with _locked(root):
        records = _load(root)
        names = [name for name, record in records.items() if record.alive]
        _stop(records.values())
        _save(root, records)
    return names


def status(root: Path = ROOT) -> list[Status]:
    """How each service is: the usual ones whether or not they were ever started, others until they are stopped."""
    root = root.absolute()
    records = _load(root)
    found = {service: records.get(service.name, Record()) for service in ALL}
    return [_status(s, record, root) for s, record in found.items() if s in USUAL or record.process]


def _start_again(service: Service) -> str:
    return "run: penstock up" + (f" --with {service.name}" if service in EXTRA else "")


def _status(service: Service, record: Record, root: Path) -> Status:
    log = Place(root / service.name, record.ports).log
    if record.process is None:
        return Status(service.name, "stopped", None, None, None, log)
    address = f"{ports.HOST}:{record.ports['client']}"
    state = "running" if record.alive else "died"
    return Status(service.name, state, address, record.process.pid, record.process.memory(), log)


def _named(only: Iterable[str], also: Iterable[str]) -> list[Service]:
    known = [service.name for service in ALL]
    names = {*only, *also}
    if unknown := names.difference(known):
        raise PenstockError(f"No service {', '.join(sorted(unknown))}", next=f"choose of {', '.join(known)}")
    return [service for service in ALL if service.name in names]


def _runs_already(service: Service, record: Record, root: Path, port: int | None) -> bool:
    if port is not None and record.alive and record.ports["client"] != port:
        raise PenstockError(
            f"{service.name} already runs on port {record.ports['client']}, not {port}",
            next="run: penstock down, and then up again",
        )
    serves = _serves(service, record, root)
    if record.alive and not serves:
        raise _failed(service, record, root)
    return serves


def _start(service: Service, records: dict[str, Record], root: Path, port: int | None, say: Say) -> None:
    """Give a service its ports and files, and start its process."""
    _require_space(root)
    record, runtime, classpath = records[service.name], java.find(service.java), service.jars(say)
    if port is not None:
        ports.require_free(port, service.name, service.option)
        record.ports["client"] = port
    for name in service.ports:
        if name not in record.ports or not ports.becomes_free(record.ports[name]):
            record.ports[name] = ports.free({port for other in records.values() for port in other.ports.values()})
    say(f"starting {service.name} with Java {runtime.version}")
    place = Place(root / service.name, record.ports)
    place.data.mkdir(parents=True, exist_ok=True)
    command = service.command(runtime, classpath, place)
    with process.uninterrupted():
        record.process = process.start(command, place.log, os.environ)
        _save(root, records)


def _serves(service: Service, record: Record, root: Path) -> bool:
    """Wait until a service serves, or until it is clear that it will not."""
    place = Place(root / service.name, record.ports)
    deadline = time.monotonic() + PATIENCE
    while record.alive and time.monotonic() < deadline:
        if service.ready(place):
            return True
        time.sleep(process.POLL)
    return False


def _failed(service: Service, record: Record, root: Path) -> PenstockError:
    log = Place(root / service.name, record.ports).log
    what = f"did not serve within {PATIENCE:.0f} s" if record.alive else "ended while it started"
    return PenstockError(
        f"{service.name} {what}; its log ends with\n{process.tail(log)}\n",
        where=str(log),
        next="correct what the log says and run again; penstock up --clean starts without the old data",
    )


def _stop(records: Iterable[Record]) -> None:
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
            next="free some space or give another folder with --root",
        )


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    root.mkdir(parents=True, exist_ok=True)
    with (root / "lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _load(root: Path) -> dict[str, Record]:
    try:
        content = json.loads((root / "services.json").read_text())
    except FileNotFoundError:
        return {}
    return {
        name: Record(entry["ports"], Process(**entry["process"]) if entry["process"] else None)
        for name, entry in content.items()
    }


def _save(root: Path, records: dict[str, Record]) -> None:
    fresh = root / "services.json.new"
    fresh.write_text(json.dumps({name: asdict(record) for name, record in records.items()}, indent=1) + "\n")
    fresh.replace(root / "services.json")
