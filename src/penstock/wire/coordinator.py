"""Requests to the broker that coordinates a transactional id or a group, wherever it is by now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.wire import protocol
from penstock.wire.cluster import Broker, Cluster
from penstock.wire.errors import CoordinatorNotAvailable, KafkaError, NotCoordinator, error_of
from penstock.wire.protocol import Api, Message
from penstock.wire.retry import patiently

GROUP, TRANSACTION = 0, 1


class Coordinator:
    """The coordinator of one key; found at the first request, and again when it has moved or broken."""

    def __init__(self, cluster: Cluster, kind: int, key: str, *, patience: float, pauses: tuple[float, float]) -> None:
        self._cluster, self._kind, self._key = cluster, kind, key
        self._patience, self._pauses = patience, pauses
        self._broker: Broker | None = None

    async def ask(
        self,
        api: Api,
        body: dict[str, Any],
        *,
        at_most: int | None = None,
        errors: Callable[[Message], KafkaError | None] | None = None,
    ) -> Message:
        """An answer without error; `errors` finds the one in it. What is retriable is tried until patience is out."""

        async def attempt() -> Message:
            try:
                return await self._once(api, body, at_most, errors or _top_level)
            except KafkaError as error:
                if error.refresh_metadata or isinstance(error, NotCoordinator | CoordinatorNotAvailable):
                    self._broker = None
                raise

        return await patiently(attempt, patience=self._patience, pauses=self._pauses)

    async def _once(
        self, api: Api, body: dict[str, Any], at_most: int | None, errors: Callable[[Message], KafkaError | None]
    ) -> Message:
        if self._broker is None:
            self._broker = await self._find()
        connection = await self._cluster.connect(self._broker)
        found = await connection.ask(api, body, version=connection.version(api, at_most=at_most))
        if error := errors(found):
            raise error
        return found

    async def _find(self) -> Broker:
        connection = await self._cluster.any_connection()
        version = connection.version(protocol.FIND_COORDINATOR)
        keys = {"coordinator_keys": [self._key]} if version >= 4 else {"key": self._key}
        body = keys | {"key_type": self._kind}
        found = await connection.ask(protocol.FIND_COORDINATOR, body, version=version)
        one = found["coordinators"][0] if version >= 4 else found
        if one["error_code"]:
            raise error_of(one["error_code"])(f"the coordinator of {self._key!r}: {one['error_message'] or ''}")
        return Broker(one["node_id"], one["host"], one["port"])


def _top_level(found: Message) -> KafkaError | None:
    return error_of(found["error_code"])() if found["error_code"] else None
