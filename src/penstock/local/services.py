"""Starts and stops the local services, and reports their state: `up`, `down`, `status`."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from penstock.border.public import public
from penstock.errors import PenstockError
from penstock.local import cql_node, kafka_broker, ports, postgres_server, registry_server, start
from penstock.local.service import Service, ServiceFolder
from penstock.local.start import Record, Say, load, locked, save

# The slowest first: it starts while the others prepare.
USUAL = (cql_node.SERVICE, kafka_broker.SERVICE)
EXTRA = (registry_server.SERVICE, postgres_server.SERVICE)
"""Services that start only on request."""
ALL = (*USUAL, *EXTRA)
ROOT = Path(".penstock")


def _silent(line: str) -> None:
    pass


@dataclass(frozen=True)
class Status:
    """The current state of a service: "running", "stopped" or "died" (it ended without `down`)."""

    name: str
    state: str
    address: str | None
    pid: int | None
    memory: int | None
    log: Path


@dataclass(frozen=True)
class Services:
    """The running services of a root; an address raises PenstockError if its service does not run."""

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


@public("local.services.up")
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
    """Start the services that do not run yet, and return when all are ready.

    `only` names the services to start instead of Kafka and Cassandra, `also` names further ones. A service keeps the
    ports of its last start if they are free. Data is kept between starts; `clean` stops all services and deletes it.
    Raises PenstockError if a service does not start; services that this call started are stopped then.
    """
    wanted = _named([service.name for service in USUAL] if only is None else only, also)
    port_by_service = {"kafka": kafka_port, "cassandra": cql_port, "registry": registry_port, "postgres": postgres_port}
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
                if not start.runs_already(service, record, root, port_by_service[service.name]):
                    started.append(record)
                    start.start(service, records, root, port_by_service[service.name], say)
            for service in wanted:
                if not start.serves(service, records[service.name], root):
                    raise start.failed(service, records[service.name], root)
        except BaseException:
            start.stop(started)
            # The first error reports a full disk. The old record is of processes that have ended, which it shows.
            with suppress(PenstockError):
                save(root, records)
            raise
        return Services(root, {name: record for name, record in records.items() if record.alive})


@public("local.services.down")
def down(root: Path = ROOT) -> list[str]:
    """Stop the services that `up` started under this root; returns their names."""
    root = root.absolute()
    if not root.exists():
        return []
    with locked(root):
        records = load(root)
        names = [name for name, record in records.items() if record.alive]
        start.stop(records.values())
        save(root, records)
    return names


@public("local.services.status")
def status(root: Path = ROOT) -> list[Status]:
    """The state of Kafka and Cassandra, even if never started, and of other services until they are stopped."""
    root = root.absolute()
    records = load(root)
    record_by_service = {service: records.get(service.name, Record()) for service in ALL}
    return [_status(s, record, root) for s, record in record_by_service.items() if s in USUAL or record.process]


def _start_again(service: Service) -> str:
    return "run: penstock up" + (f" --with {service.name}" if service in EXTRA else "")


def _status(service: Service, record: Record, root: Path) -> Status:
    log = ServiceFolder(root / service.name, record.ports).log
    if record.process is None:
        return Status(service.name, "stopped", None, None, None, log)
    address = f"{ports.HOST}:{record.ports['client']}"
    # The pid of a service that died may be another program's.
    state, memory = ("running", record.process.memory()) if record.alive else ("died", None)
    return Status(service.name, state, address, record.process.pid, memory, log)


def _named(only: Iterable[str], also: Iterable[str]) -> list[Service]:
    known = [service.name for service in ALL]
    names = {*only, *also}
    if unknown := names.difference(known):
        raise PenstockError(f"No service {', '.join(sorted(unknown))}", next=f"choose from: {', '.join(known)}")
    return [service for service in ALL if service.name in names]
