"""The metadata of a cluster, without a cluster, for the driver's own token map."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from cassandra.connection import DefaultEndPoint
from cassandra.metadata import Metadata
from cassandra.policies import SimpleConvictionPolicy
from cassandra.pool import Host

from penstock.database.access import Access
from penstock.database.token_ring import owners

TOKENS = {
    "10.0.0.1": ["-9000000000000000000", "100"],
    "10.0.0.2": ["-3000000000000000000", "5000000000000000000"],
    "10.0.1.1": ["0", "9000000000000000000"],
}
ONE_COPY = {"class": "SimpleStrategy", "replication_factor": "1"}


class Cluster:
    """The metadata of a cluster, without a cluster: its nodes, and a keyspace's replication."""

    def __init__(self, local_dc: str = "", nodes: int = 3, replication: dict[str, str] | None = ONE_COPY) -> None:
        self.access, self.rings = Access("x", local_dc=local_dc), dict[str, Any]()
        self.replication, self.asked = replication, 0
        self.rows = SimpleNamespace(execute=self._execute)
        self.reached = set[Host]()
        self.pages = SimpleNamespace(get_pools=lambda: [SimpleNamespace(host=host) for host in self.reached])
        self.cluster = SimpleNamespace(metadata=Metadata(), protocol_version=0)
        self.hosts = {address: self._host(address) for address in list(TOKENS)[:nodes]}
        self.reached.update(self.hosts.values())
        self.rebuild()

    def rebuild(self) -> None:
        tokens = {host: TOKENS[address] for address, host in self.hosts.items()}
        self.cluster.metadata.rebuild_token_map("org.apache.cassandra.dht.Murmur3Partitioner", tokens)

    def owners(self, *partitions: bytes) -> list[str | None]:
        link: Any = self
        return [host and host.address for host in owners(link, "ks", partitions)]

    def _host(self, address: str) -> Host:
        host = Host(DefaultEndPoint(address), SimpleConvictionPolicy, host_id=uuid4())
        host.set_location_info("near" if address.startswith("10.0.0") else "far", "rack")
        host.set_up()
        return host

    def _execute(self, text: str, values: tuple[str]) -> Any:
        assert values == ("ks",)
        self.asked += 1
        return SimpleNamespace(one=lambda: self.replication and (self.replication,))

    def connect(self, monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
        """Make this cluster the one to which the modules connect."""
        for module in modules:
            monkeypatch.setattr(module, "connection", lambda access: self)
