"""Admin requests: topics and their configurations, consumer groups, the cluster's id.

async with Admin("localhost:9092") as admin:
    await admin.create_topic("settings", partitions=1, configs={"cleanup.policy": "compact"})
    print(await admin.groups.offsets("shop"))
"""

from __future__ import annotations

import ssl
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any

from penstock.border.public import public
from penstock.durations import Duration, duration
from penstock.wire.broker_connection import BrokerConnection, Link
from penstock.wire.cluster import Cluster
from penstock.wire.errors import (
    ConnectionLost,
    MalformedResponse,
    NotController,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
    UnsupportedBroker,
    error_of,
)
from penstock.wire.groups import Groups
from penstock.wire.protocol import frames
from penstock.wire.protocol.frames import Api, Message
from penstock.wire.sasl import Authenticate

PAUSES = 0.1, 1.0
LARGEST_ANSWER = 64 << 20
"""Bytes of an answer: about 100 000 partitions or groups."""
TOPIC = 2
"""The type of a resource with configurations."""
SET, DELETE = 0, 1
SOURCES = {1: "topic", 2: "broker", 3: "brokers", 4: "broker's file", 5: "default", 6: "default"}
"""Where the value of a configuration is set; KIP-226 has the numbers."""
DEFAULT = "default"


@dataclass(frozen=True)
class PartitionInfo:
    """A partition and the nodes of its replicas; `leader` is -1 while there is none."""

    partition: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...]


@dataclass(frozen=True)
class TopicInfo:
    """A topic; `id` is in hex, "" from brokers without ids."""

    name: str
    id: str
    internal: bool
    partitions: tuple[PartitionInfo, ...]


@dataclass(frozen=True)
class ConfigEntry:
    """A configuration of a topic; `value` is None if it is secret, `source` one of SOURCES."""

    name: str
    value: str | None
    source: str
    read_only: bool


@public("wire.admin.Admin")
class Admin:
    """Sends admin requests; `groups` are those about groups.

    Retriable errors are retried until `patience` is over, then raised as `KafkaError`; a topic or group that does not
    exist is raised at once.
    """

    def __init__(
        self,
        servers: str,
        *,
        request_timeout: Duration = timedelta(seconds=30),
        patience: Duration = timedelta(minutes=1),
        tls: ssl.SSLContext | None = None,
        authenticate: Authenticate | None = None,
    ) -> None:
        timeout = duration(request_timeout, name="request_timeout").total_seconds()
        self._patience = duration(patience, name="patience").total_seconds()
        link = Link(request_timeout=timeout, tls=tls, authenticate=authenticate, largest_answer=LARGEST_ANSWER)
        self._cluster = Cluster(servers, link, pauses=PAUSES, create=False, patience=self._patience)
        self.groups = Groups(self._cluster, self._patience)
        # A broker that needs longer answers with an error instead of an answer that comes too late.
        self._timeout_ms = int(min(timeout, self._patience) * 900)

    async def __aenter__(self) -> Admin:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._cluster.close()

    async def cluster_id(self) -> str:
        """The cluster's id."""
        body = {"include_cluster_authorized_operations": False}
        cluster_id: str = (await self._cluster.ask(frames.DESCRIBE_CLUSTER, body))["cluster_id"]
        return cluster_id

    async def create_topic(
        self, name: str, *, partitions: int = -1, replication: int = -1, configs: Mapping[str, str] | None = None
    ) -> bool:
        """Create a topic; returns False if it exists. -1 uses the cluster's default partitions or replicas."""
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": replication,
            "assignments": [],
            "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
        }
        body = {"topics": [topic], "timeout_ms": self._timeout_ms, "validate_only": False}
        try:
            await self._change(frames.CREATE_TOPICS, body, "topics", name)
        except TopicAlreadyExists:
            return False
        return True

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its records; raises UnknownTopicOrPartition if there is none."""
        body: dict[str, Any] = {"timeout_ms": self._timeout_ms}
        connection = await self._cluster.patiently(self._controller, self._patience)
        names = (
            {"topics": [{"name": name}]} if connection.version(frames.DELETE_TOPICS) >= 6 else {"topic_names": [name]}
        )
        await self._change(frames.DELETE_TOPICS, body | names, "responses", name)

    async def create_partitions(self, name: str, count: int) -> None:
        """Give a topic `count` partitions in all, more than it has; keys may go to other partitions than before."""
        topic = {"name": name, "count": count, "assignments": None}
        body = {"topics": [topic], "timeout_ms": self._timeout_ms, "validate_only": False}
        await self._change(frames.CREATE_PARTITIONS, body, "results", name)

    async def alter_configs(self, topic: str, values: Mapping[str, str | None]) -> None:
        """Set configurations of a topic; None gives one back its default. Others stay as they are."""
        configs = [
            {"name": key, "config_operation": DELETE if value is None else SET, "value": value}
            for key, value in values.items()
        ]
        resource = {"resource_type": TOPIC, "resource_name": topic, "configs": configs}
        body = {"resources": [resource], "validate_only": False}
        await self._change(frames.INCREMENTAL_ALTER_CONFIGS, body, "responses", topic)

    async def configs(self, topic: str) -> list[ConfigEntry]:
        """All configurations of a topic, by name, defaults included."""
        resource = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": None}
        body = {"resources": [resource], "include_synonyms": False}

        async def attempt() -> Message:
            answer = await self._cluster.ask(frames.DESCRIBE_CONFIGS, body)
            return _result(answer["results"], topic)

        described = await self._cluster.patiently(attempt, self._patience, final=(UnknownTopicOrPartition,))
        entries = [
            ConfigEntry(
                config["name"], config["value"], SOURCES.get(config["config_source"], "unknown"), config["read_only"]
            )
            for config in described["configs"]
        ]
        return sorted(entries, key=lambda entry: entry.name)

    async def topics(self) -> dict[str, TopicInfo]:
        """All topics that this user may see, internal ones included, by name."""

        async def attempt() -> Message:
            return await self._cluster.metadata(None)

        response = await self._cluster.patiently(attempt, self._patience)
        return {topic["name"]: _topic(topic) for topic in response["topics"] if not topic["error_code"]}

    async def topic(self, name: str, *, is_new: bool = False) -> TopicInfo:
        """One topic; raises UnknownTopicOrPartition if there is none.

        With `is_new` it waits: brokers confirm a new topic a moment before they know it.
        """

        async def attempt() -> TopicInfo:
            topics = (await self._cluster.metadata([{"name": name}]))["topics"]
            if len(topics) != 1 or topics[0]["name"] != name:
                raise MalformedResponse("an answer about another topic", topic=name)
            if code := topics[0]["error_code"]:
                raise error_of(code)(topic=name)
            return _topic(topics[0])

        final = () if is_new else (UnknownTopicOrPartition,)
        return await self._cluster.patiently(attempt, self._patience, final=final)

    async def sizes(self, topic: TopicInfo) -> dict[int, int]:
        """Bytes on disk of each partition's leader; without those whose leader's broker does not say it."""
        leads: dict[int, list[int]] = defaultdict(list)
        for partition in topic.partitions:
            leads[partition.leader].append(partition.partition)
        await self._cluster.patiently(lambda: self._cluster.metadata([]), self._patience)
        sizes: dict[int, int] = {}
        for node, partitions in leads.items():
            with suppress(ConnectionLost, UnsupportedBroker):
                sizes |= await self._sizes_at(node, topic.name, partitions)
        return dict(sorted(sizes.items()))

    async def _sizes_at(self, node: int, topic: str, partitions: list[int]) -> dict[int, int]:
        body = {"topics": [{"topic": topic, "partitions": partitions}]}
        answer = await self._cluster.ask(frames.DESCRIBE_LOG_DIRS, body, node)
        return {
            partition["partition_index"]: partition["partition_size"]
            for folder in answer["results"]
            for listed in folder["topics"]
            for partition in listed["partitions"]
            if listed["name"] == topic and not partition["is_future_key"]
        }

    async def _controller(self) -> BrokerConnection:
        """The connection to the broker that changes topics; with KRaft each broker passes changes on."""
        node = (await self._cluster.metadata([]))["controller_id"]
        if node < 0:
            raise NotController("the cluster has no controller now")
        return await self._cluster.connection(node)

    async def _change(self, api: Api, body: dict[str, Any], results: str, topic: str) -> None:
        """Ask the controller; `results` is the member of the answer with one result for each topic."""

        async def attempt() -> None:
            connection = await self._controller()
            _result((await connection.ask(api, body))[results], topic)

        await self._cluster.patiently(attempt, self._patience, final=(UnknownTopicOrPartition,))


def _result(results: list[Message], topic: str) -> Message:
    """The only result of an answer; raises its error."""
    if len(results) != 1:
        raise MalformedResponse(f"{len(results)} results for one topic", topic=topic)
    if code := results[0]["error_code"]:
        raise error_of(code)(results[0]["error_message"] or "", topic=topic)
    return results[0]


def _topic(topic: Message) -> TopicInfo:
    partitions = [
        PartitionInfo(
            partition["partition_index"],
            partition["leader_id"],
            tuple(partition["replica_nodes"]),
            tuple(partition["isr_nodes"]),
            tuple(partition["offline_replicas"]),
        )
        for partition in topic["partitions"]
    ]
    id = topic["topic_id"].hex() if any(topic["topic_id"]) else ""
    return TopicInfo(topic["name"], id, topic["is_internal"], tuple(sorted(partitions, key=lambda p: p.partition)))
