"""A cluster of real Cassandra nodes with the plugin, told apart by ports: they join one by one, and can be killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cassandra import DriverException, RequestExecutionException
from cassandra.cluster import Cluster, NoHostAvailable
from waiting import PATIENCE, until

from penstock.local import cql_node, ports, process
from penstock.local.process import Process
from penstock.local.service import ServiceFolder

LOST = (DriverException, RequestExecutionException, NoHostAvailable)
"""What a client gets for a write that a dying node did not acknowledge."""
JOIN_PATIENCE = 180.0  # seconds for a start with streaming
# In six seconds every node hears of another, also on a busy machine: one that hears of no seed in that time ends.
# Tables that all share have three copies.
SHARED = {"cassandra.system_distributed.default_rf": "3", "cassandra.ring_delay_ms": "6000"}


class CqlCluster:
    """Nodes 0, 1, ...; made by `cql_cluster`."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._places = folder, list[ServiceFolder]()
        self._datacenters: list[str] = []
        self._processes: dict[int, Process] = {}

    @property
    def addresses(self) -> list[str]:
        return [f"{ports.HOST}:{place.ports['client']}" for place in self._places]

    def join(self, datacenter: str = "") -> int:
        """Start one node more and wait until it serves; its number. All nodes have a datacenter, or none has."""
        number = len(self._places)
        taken = {port for place in self._places for port in place.ports.values()}
        found: dict[str, int] = {}
        for name in cql_node.SERVICE.ports:
            found[name] = ports.free(taken | set(found.values()))
        place = ServiceFolder(self._folder / f"node-{number}", found)
        place.data.mkdir(parents=True)
        self._places.append(place)
        self._datacenters.append(datacenter)
        self.start(number)
        return number

    def start(self, number: int) -> None:
        place = self._places[number]
        with process.uninterrupted():
            self._processes[number] = process.start(self._command(number), place.log, os.environ)
        until(lambda: self._serves(number), f"node {number}", JOIN_PATIENCE)

    def kill(self, number: int) -> None:
        """kill -9."""
        os.kill(self._processes[number].pid, signal.SIGKILL)
        until(lambda: not self._processes[number].alive(), "end of the killed node")

    def pid(self, number: int) -> int:
        """Of a node, which may have ended."""
        return self._processes[number].pid

    @property
    def alive(self) -> list[int]:
        return [number for number, one in self._processes.items() if one.alive()]

    def connect(self, number: int = 0) -> Cluster:
        host, port = self.addresses[number].split(":")
        return Cluster([host], port=int(port), connect_timeout=PATIENCE)

    def stop(self) -> None:
        process.stop(self._processes.values(), 0)

    def _serves(self, number: int) -> bool:
        place = self._places[number]
        assert self._processes[number].alive(), process.tail(place.log)
        return cql_node.SERVICE.ready(place)

    def _command(self, number: int) -> list[str]:
        place = self._places[number]
        command = cql_node.SERVICE.prepare(lambda line: None).command(place)
        file = place.folder / "conf/cassandra.yaml"
        settings = json.loads(file.read_text())
        seed = f"{ports.HOST}:{self._places[0].ports['storage']}"
        settings["seed_provider"][0]["parameters"] = [{"seeds": seed}]
        settings["auto_bootstrap"] = number > 0
        if datacenter := self._datacenters[number]:
            settings["endpoint_snitch"] = "GossipingPropertyFileSnitch"
            place.write("cassandra-rackdc.properties", f"dc={datacenter}\nrack=one\n")
            # The snitch looks for the file on the class path.
            at = command.index("-cp") + 1
            command[at] = f"{file.parent}{os.pathsep}{command[at]}"
        file.write_text(json.dumps(settings))
        return [_shared(word) for word in command]


def _shared(word: str) -> str:
    """A word of a node's command line, as a node of a cluster has it."""
    name, _, _ = word.removeprefix("-D").partition("=")
    return f"-D{name}={SHARED[name]}" if name in SHARED else word


@contextmanager
def cql_cluster(folder: Path) -> Iterator[CqlCluster]:
    """A cluster without a node yet; all are stopped in the end."""
    cluster = CqlCluster(folder)
    try:
        yield cluster
    finally:
        cluster.stop()
