"""The broker that currently coordinates a group or a transactional id, and the offsets of a group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from penstock.wire.cluster import Broker, Cluster
from penstock.wire.errors import CoordinatorNotAvailable, KafkaError, NotCoordinator, error_of
from penstock.wire.protocol import frames
from penstock.wire.protocol.frames import Api, Message

GROUP, TRANSACTION = 0, 1
# From version 10 on, OffsetFetch names topics by ids, which a group need not have.
FETCH_AT_MOST = 9


class Committed(NamedTuple):
    """An offset of a group, and its metadata string."""

    offset: int
    metadata: str = ""


class Coordinator:
    """The coordinator of one key; looked up at the first request, and again after it moved or failed."""

    def __init__(self, cluster: Cluster, kind: int, key: str, patience: float) -> None:
        self._cluster, self._kind, self._key, self._patience = cluster, kind, key, patience
        self._broker: Broker | None = None

    async def ask(
        self,
        api: Api,
        body: dict[str, Any],
        *,
        at_most: int | None = None,
        errors: Callable[[Message], KafkaError | None] | None = None,
        final: tuple[type[KafkaError], ...] = (),
    ) -> Message:
        """The answer without an error; `errors` finds the error in an answer.

        Retries until `patience` is over, except after errors of the classes `final`.
        """

        async def attempt() -> Message:
            try:
                return await self._once(api, body, at_most, errors or _top_level)
            except KafkaError as error:
                if error.refresh_metadata or isinstance(error, NotCoordinator | CoordinatorNotAvailable):
                    self._broker = None
                raise

        return await self._cluster.patiently(attempt, self._patience, final=final)

    async def offsets(
        self, wanted: list[dict[str, Any]] | None = None, *, stable: bool = False
    ) -> dict[tuple[str, int], Committed]:
        """The offsets of the group by (topic, partition); `wanted` names partitions as OffsetFetch does, None is all.

        `stable` waits for transactions that may change them.
        """
        connection = await self._cluster.patiently(self._cluster.any_connection, self._patience)
        many = connection.version(frames.OFFSET_FETCH, at_most=FETCH_AT_MOST) >= 8
        of_group = {"group_id": self._key, "topics": wanted}
        body = ({"groups": [of_group]} if many else of_group) | {"require_stable": stable}
        response = await self.ask(frames.OFFSET_FETCH, body, at_most=FETCH_AT_MOST, errors=_error_of_group)
        return {
            (topic["name"], partition["partition_index"]): Committed(
                partition["committed_offset"], partition["metadata"] or ""
            )
            for topic in _group(response)["topics"]
            for partition in topic["partitions"]
            if partition["committed_offset"] >= 0
        }

    async def _once(
        self, api: Api, body: dict[str, Any], at_most: int | None, errors: Callable[[Message], KafkaError | None]
    ) -> Message:
        if self._broker is None:
            self._broker = await self._find()
        connection = await self._cluster.connect(self._broker)
        response = await connection.ask(api, body, version=connection.version(api, at_most=at_most))
        if error := errors(response):
            raise error
        return response

    async def _find(self) -> Broker:
        connection = await self._cluster.any_connection()
        version = connection.version(frames.FIND_COORDINATOR)
        keys = {"coordinator_keys": [self._key]} if version >= 4 else {"key": self._key}
        body = keys | {"key_type": self._kind}
        response = await connection.ask(frames.FIND_COORDINATOR, body, version=version)
        coordinator = response["coordinators"][0] if version >= 4 else response
        if coordinator["error_code"]:
            raise error_of(coordinator["error_code"])(
                f"the coordinator of {self._key!r}: {coordinator['error_message'] or ''}"
            )
        return Broker(coordinator["node_id"], coordinator["host"], coordinator["port"])


def _top_level(response: Message) -> KafkaError | None:
    return error_of(response["error_code"])() if response["error_code"] else None


def error_of_offsets(response: Message) -> KafkaError | None:
    """The first error of a partition in an answer about offsets."""
    for topic in response["topics"]:
        for partition in topic["partitions"]:
            if partition["error_code"]:
                return error_of(partition["error_code"])(topic=topic["name"], partition=partition["partition_index"])
    return None


def _group(response: Message) -> Message:
    return response["groups"][0] if response["groups"] else response


def _error_of_group(response: Message) -> KafkaError | None:
    code = _group(response)["error_code"]
    return error_of(code)() if code else error_of_offsets(_group(response))
