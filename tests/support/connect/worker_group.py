"""Workers of one group in this process, each with its own REST API."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kafka_connect import KafkaConnect
from pyspark.sql import SparkSession

from penstock.connect.group.group_herder import GroupHerder
from penstock.connect.group.group_settings import GroupSettings, group_settings
from penstock.connect.worker.api import application
from penstock.connect.worker.context import WorkerContext
from penstock.connect.worker.providers import Provided
from penstock.serve.rest_server import RestServer, address_of, bind
from penstock.wire.broker_connection import BrokerConnection
from penstock.wire.cluster import Broker, Cluster
from penstock.wire.errors import ConnectionLost
from penstock.wire.group_member import Membership

JSON = "org.apache.kafka.connect.json.JsonConverter"
DEFAULTS = {
    f"{side}.converter{part}": text
    for side in ("key", "value")
    for part, text in (("", JSON), (".schemas.enable", "false"))
}
"""The converters of the workers."""


@dataclass(frozen=True)
class Member:
    """A worker, and another project's client of its REST API."""

    worker: GroupHerder
    connect: KafkaConnect

    @property
    def running(self) -> set[tuple[str, int]]:
        """The tasks that run here."""
        return {(id.connector, id.number) for id, one in self.worker.work.running.items() if one.task}


def new_group(configs: str = "", **properties: str) -> GroupSettings:
    """A group with topics of its own, or this one of configurations, with these properties of a worker's file."""
    name = f"group-{uuid.uuid4().hex[:8]}"
    given = {
        "group.id": name,
        "offset.storage.topic": f"{name}-offsets",
        "offset.storage.partitions": "2",
        "status.storage.topic": f"{name}-status",
        "session.timeout.ms": "6000",
        "heartbeat.interval.ms": "200",
    }
    made = group_settings(given | properties, configs or f"{name}-configs", None, "a test")
    assert made
    return made


@contextmanager
def member_of(
    group: GroupSettings,
    spark: SparkSession,
    servers: str,
    folder: Path,
    provided: Provided,
    before: Path | None = None,
) -> Iterator[Member]:
    """A worker in the group; it leaves at the end."""
    bound = bind("127.0.0.1", 0)
    context = WorkerContext(spark, servers, folder / uuid.uuid4().hex, provided)
    topics, joins = group.topics(servers, {}), group.member(servers, {})
    worker = GroupHerder(context, topics, address_of(bound), joins, before)
    worker.start()
    server = RestServer(application(worker), bound)
    try:
        yield Member(worker, KafkaConnect(f"http://{worker.address}"))
    finally:
        server.close()
        worker.close()


def cut_off(member: Membership) -> None:
    """Let no request of this member reach a broker any more; call it in the event loop."""
    for cluster in member._clusters:
        _cut(cluster)


def _cut(cluster: Cluster) -> None:
    async def connect(broker: Broker) -> BrokerConnection:
        raise ConnectionLost("the network is down")

    cluster.connect = connect  # type: ignore[method-assign]
    for peer in cluster._peers.values():
        if peer.connection:
            peer.connection._break(ConnectionLost("the network is down"))


@contextmanager
def without_positions(member: Member) -> Iterator[None]:
    """Let this worker read nothing of the topic of positions meanwhile."""
    topic = member.worker._topics.positions._topic
    loop, cluster = topic._loop, topic._reader._cluster
    assert loop
    loop.call_soon_threadsafe(_cut, cluster)
    yield
    loop.call_soon_threadsafe(delattr, cluster, "connect")
