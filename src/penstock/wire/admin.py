"""Admin requests of a program that writes its own topics: create a topic, and read the cluster's id.

async with Admin("localhost:9092") as admin:
    await admin.create_topic("settings", partitions=1, configs={"cleanup.policy": "compact"})
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from datetime import timedelta
from types import TracebackType

from penstock.wire.broker_connection import Link
from penstock.wire.cluster import Cluster
from penstock.wire.errors import TopicAlreadyExists, error_of
from penstock.wire.protocol import messages
from penstock.wire.protocol.frames import Message
from penstock.wire.sasl import Authenticate

PAUSES = 0.1, 1.0


class Admin:
    """Sends admin requests; retriable errors are retried until `patience` is over."""

    def __init__(
        self,
        servers: str,
        *,
        request_timeout: timedelta = timedelta(seconds=30),
        patience: timedelta = timedelta(minutes=1),
        tls: ssl.SSLContext | None = None,
        authenticate: Authenticate | None = None,
    ) -> None:
        timeout = request_timeout.total_seconds()
        link = Link(client_id="penstock", request_timeout=timeout, tls=tls, authenticate=authenticate)
        self._cluster = Cluster(servers, link, pauses=PAUSES, create=False, patience=patience.total_seconds())
        self._patience = patience.total_seconds()

    async def __aenter__(self) -> Admin:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._cluster.close()

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
        body = {"topics": [topic], "timeout_ms": int(self._patience * 1000), "validate_only": False}

        async def attempt() -> Message:
            answer = await self._cluster.ask(messages.CREATE_TOPICS, body)
            made: Message = answer["topics"][0]
            if code := made["error_code"]:
                raise error_of(code)(topic=name, detail=made["error_message"] or "")
            return made

        try:
            await self._cluster.patiently(attempt, self._patience)
        except TopicAlreadyExists:
            return False
        return True

    async def cluster_id(self) -> str:
        """The cluster's id."""
        body = {"include_cluster_authorized_operations": False}
        answer = await self._cluster.ask(messages.DESCRIBE_CLUSTER, body)
        found: str = answer["cluster_id"]
        return found
