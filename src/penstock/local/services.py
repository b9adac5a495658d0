"""Starts and stops the local services, and knows them again: `up`, `down`, `status`."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import PenstockError
from penstock.local import cql_node, kafka_broker, ports, postgres_server, registry_server, start
from penstock.local.service import Service, ServiceFolder
from penstock.local.service_records import Record, load, locked, save
from penstock.local.start import Say

# The slowest first: it is already starting while the others prepare.
USUAL = (cql_node.SERVICE, kafka_broker.SERVICE)
EXTRA = (registry_server.SERVICE, postgres_server.SERVICE)
"""Services that start only when asked for."""
ALL = (*USUAL, *EXTRA)
ROOT = Path(".penstock")


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


@dataclass(frozen=True)
class Services:
    """The services that run under a root."""

    root: Path
    records: dict[str, Record]

    @property
    def kafka(self) -> str:
        return self._address(kafka_broker.SERVICE)

    @property
    def cql(self) -> str:
        return self._address(cql_node.SERVICE)

    @property
    def registry(self) -> str:
        return f"http://{self._address(registry_server.SERVICE)}{registry_server.API}"

    @property
    def postgres(self) -> str:
        self._address(postgres_server.SERVICE)  # raises if it does not run
        return postgres_server.url(
            ServiceFolder(self.root / postgres_server.SERVICE.name, self.records[postgres_server.SERVICE.name].ports)
        )

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
    postgres_port: int | None = None,
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
    given = {"kafka": kafka_port, "cassandra": cql_port, "registry": registry_port, "postgres": postgres_port}
    root = root.absolute()
    with locked(root):
        records = load(root)
        if clean:
            start.stop(records.values())
            for folder in filter(Path.exists, (root / service.name for service in ALL)):
                shutil.rmtree(folder)
        started: list[Record] = []
        try:
            for service in wanted:
                record = records.setdefault(service.name, Record())
                if not start.runs_already(service, record, root, given[service.name]):
                    started.append(record)
                    start.start(service, records, root, given[service.name], say)
            for service in wanted:
                if not start.serves(service, records[service.name], root):
                    raise start.failed(service, records[service.name], root)
        except BaseException:
            start.stop(started)
            save(root, records)
            raise
        return Services(root, {name: record for name, record in records.items() if record.alive})


def down(root: Path = ROOT) -> list[str]:
    """Stop the services that `up` started under this root; their names."""
    root = root.absolute()
    if not root.exists():
        return []
    with locked(root):
        records = load(root)
        names = [name for name, record in records.items() if record.alive]
        start.stop(records.values())
        save(root, records)
    return names


def status(root: Path = ROOT) -> list[Status]:
    """How each service is: the usual ones whether or not they were ever started, others until they are stopped."""
    root = root.absolute()
    records = load(root)
    found = {service: records.get(service.name, Record()) for service in ALL}
    return [_status(s, record, root) for s, record in found.items() if s in USUAL or record.process]


def _start_again(service: Service) -> str:
    return "run: penstock up" + (f" --with {service.name}" if service in EXTRA else "")


def _status(service: Service, record: Record, root: Path) -> Status:
    log = ServiceFolder(root / service.name, record.ports).log
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
