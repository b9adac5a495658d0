"""The servers that all rounds of a campaign share: three brokers, three CQL nodes, PostgreSQL, a schema registry.

After a round all of them run again, and the round's tables, schemas and topics are dropped.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from adbc_driver_postgresql import dbapi
from cassandra.cluster import NoHostAvailable
from confluent_kafka.admin import AdminClient
from cql_cluster import CqlCluster, cql_cluster
from kafka_cluster import KafkaCluster, kafka_cluster

from campaign.network import Network, network
from penstock.errors import PenstockError
from penstock.local import services
from penstock.local.process import POLL
from penstock.local.services import Services
from penstock_demo.node import connect

NODES = 3
PATIENCE = 240.0
PROPERTIES = """\
min.insync.replicas=2
transaction.state.log.min.isr=2
offsets.topic.num.partitions=8
log.segment.delete.delay.ms=1000
"""
"""Two of three brokers must have each record; later lines of a properties file replace earlier ones."""
BEREAVED = 'read -r _; for pid in $(cat "$0"); do kill -CONT "$pid"; kill -9 "$pid"; done 2>/dev/null'
"""Reads a pipe from the campaign: if the campaign is killed, this kills all servers."""
DROPPED = ("shop", "adtech")
KEPT = ("__consumer_offsets", "__transaction_state")


@dataclass
class World:
    """The running servers; `pids` has the pid of each process by name."""

    root: Path
    brokers: KafkaCluster
    nodes: CqlCluster
    network: Network
    others: Services

    @property
    def kafka(self) -> str:
        return self.brokers.servers

    @property
    def cql(self) -> str:
        return ",".join(self.nodes.addresses)

    @property
    def postgres(self) -> str:
        return self.others.postgres

    @property
    def registry(self) -> str:
        return self.others.registry

    @property
    def pids(self) -> dict[str, int]:
        brokers = {f"broker {number}": self.brokers.pid(number) for number in self.brokers.alive}
        nodes = {f"cql {number}": self.nodes.pid(number) for number in self.nodes.alive}
        return brokers | nodes | self.others.pids

    def reached(self, part: str, kinds: Collection[str]) -> str:
        """The address of "kafka" or "postgres"; the proxies' address in a round that cuts their connections."""
        if f"cut {part}" not in kinds:
            return self.kafka if part == "kafka" else self.postgres
        if part == "kafka":
            brokers = (self.brokers.address(number, "PROXIED") for number in self.brokers.numbers)
            return ",".join(self.network.address(part, broker) for broker in brokers)
        before, _, after = self.postgres.rpartition("@")
        address, _, name = after.partition("/")
        return f"{before}@{self.network.address(part, address)}/{name}"

    def leader(self, topic: str) -> int:
        """The number of the broker that leads the first partition of a topic."""
        admin = AdminClient({"bootstrap.servers": self.kafka, "log_level": 0})
        found = 0
        while (found := admin.list_topics(topic, timeout=PATIENCE).topics[topic].partitions[0].leader) < 1:
            time.sleep(POLL)
        return found

    def start_again(self, name: str) -> None:
        """Start PostgreSQL or the registry after a kill."""
        started = services.up(self.others.root, only=[name])
        self.others = Services(started.root, self.others.records | started.records)

    def heal(self) -> None:
        """Start and resume all servers, and wait until they are ready and have caught up."""
        self.resume()
        self.network.mend("kafka")
        self.network.mend("postgres")
        for number in range(NODES):
            if number not in self.nodes.alive:
                self.nodes.start(number)
        self.brokers.start_all()
        self.others = services.up(self.others.root, only=("postgres", "registry"))
        self.remember()
        self._until(self._in_sync, "the brokers' replicas do not catch up")
        self._until(self._agreed, "the CQL nodes do not find each other")

    def resume(self) -> None:
        """Resume all paused processes."""
        for pid in self.pids.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def remember(self) -> None:
        """Write the pids that are to be killed if this process is killed."""
        (self.root / "pids").write_text("\n".join(map(str, self.pids.values())))

    def clear(self) -> None:
        """Drop the keyspaces, schemas and topics of a round."""
        with connect(self.cql) as session:
            for keyspace in DROPPED:
                session.execute(f"DROP KEYSPACE IF EXISTS {keyspace}", timeout=PATIENCE)
        with dbapi.connect(self.postgres) as session, session.cursor() as cursor:
            for schema in ("soak", "adtech", "penstock"):
                cursor.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
            session.commit()
        admin = AdminClient({"bootstrap.servers": self.kafka, "log_level": 0})
        if topics := self._topics(admin):
            for done in admin.delete_topics(topics, operation_timeout=60).values():
                done.result()
            self._until(lambda: self._have({}), "topics are not deleted")

    def await_topics(self, topics: Mapping[str, int]) -> None:
        """Wait until each broker knows exactly these topics, with leaders for their numbers of partitions."""
        self._until(lambda: self._have(topics), "the brokers do not get the new topics")

    def _have(self, topics: Mapping[str, int]) -> bool:
        for number in self.brokers.numbers:
            admin = AdminClient({"bootstrap.servers": self.brokers.address(number), "log_level": 0})
            known = admin.list_topics(timeout=PATIENCE).topics
            partitions = {name: topic.partitions.values() for name, topic in known.items() if name not in KEPT}
            led = {name: sum(p.leader > 0 for p in some) for name, some in partitions.items()}
            if led != dict(topics):
                return False
        return True

    def _topics(self, admin: AdminClient) -> list[str]:
        return [name for name in admin.list_topics(timeout=PATIENCE).topics if name not in KEPT]

    def _in_sync(self) -> bool:
        admin = AdminClient({"bootstrap.servers": self.kafka, "log_level": 0})
        topics = admin.list_topics(timeout=PATIENCE).topics.values()
        return all(len(p.isrs) == len(p.replicas) for topic in topics for p in topic.partitions.values())

    def _agreed(self) -> bool:
        """Whether each node reports that all nodes are up, and all have the same schema."""
        versions = set()
        for address in self.nodes.addresses:
            try:
                with connect(address) as session:
                    peers = session.execute("SELECT schema_version FROM system.peers_v2").all()
                    (own,) = session.execute("SELECT schema_version FROM system.local").one()
                    known = session.cluster.metadata.all_hosts()
            except (NoHostAvailable, OSError):
                return False
            versions |= {own, *(version for (version,) in peers)}
            if len(known) < NODES or not all(host.is_up is not False for host in known):
                return False
        return len(versions) == 1

    def _until(self, condition: Callable[[], bool], failure: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                raise PenstockError(failure, where=str(self.root))
            time.sleep(0.2)


@contextmanager
def world(root: Path, say: Callable[[str], None]) -> Iterator[World]:
    """Start the servers, and end them afterwards."""
    root.mkdir(parents=True)
    (root / "pids").touch()
    with ExitStack() as stack:
        watch = ["sh", "-c", BEREAVED, str(root / "pids")]
        stack.enter_context(subprocess.Popen(watch, stdin=subprocess.PIPE, start_new_session=True))
        wires = stack.enter_context(network())

        def advertised(listener: str, port: int) -> int:
            return wires.port("kafka", port) if listener == "PROXIED" else port

        say("starting three brokers")
        listeners = {"PROXIED": "PLAINTEXT"}
        brokers = stack.enter_context(
            kafka_cluster(root / "kafka", listeners=listeners, properties=PROPERTIES, advertised=advertised)
        )
        say("starting PostgreSQL and the schema registry")
        stack.callback(services.down, root / "services")
        others = services.up(root / "services", only=("postgres", "registry"))
        nodes = stack.enter_context(cql_cluster(root / "cql"))
        for number in range(NODES):
            say(f"starting CQL node {number}")
            nodes.join()
        made = World(root, brokers, nodes, wires, others)
        made.remember()
        # A paused process does not handle SIGTERM.
        stack.callback(made.resume)
        yield made
