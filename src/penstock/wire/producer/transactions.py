"""Transactions of one transactional id (KIP-98): all of a transaction's records become visible, or none.

A producer that starts with an id fences the previous producer with that id. Partitions are added to the transaction
before the first batch goes to them. After an abort the epoch is raised, so that no late batch of the aborted
transaction becomes part of the next one. Requests to the coordinator go one after the other: a request that arrives
with an old epoch would fence this producer for good. The requests are those of transaction.version 1, which every
broker since 0.11 supports: to a broker, later versions of Produce and EndTxn mean the protocol of KIP-890.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from penstock.wire.cluster import Cluster
from penstock.wire.coordinator import GROUP, TRANSACTION, Committed, Coordinator, error_of_offsets
from penstock.wire.errors import InvalidProducerEpoch, InvalidTxnState, KafkaError, ProducerFenced, error_of
from penstock.wire.producer.partition_queue import PartitionQueue, ProducerId
from penstock.wire.protocol import frames
from penstock.wire.protocol.frames import Api, Message

FENCED = (ProducerFenced, InvalidProducerEpoch)
PRODUCE_AT_MOST, END_AT_MOST, OFFSETS_AT_MOST, ADD_AT_MOST = 11, 4, 4, 3


class Transactions:
    """The state of one transactional id; `begin` and `end` enclose each transaction."""

    def __init__(self, cluster: Cluster, id: str, *, timeout: float, patience: float) -> None:
        """`timeout` is the transaction's, `patience` the longest time for a request with its retries, in seconds."""
        self.id = id
        self.identity: ProducerId | None = None
        self.is_open = False
        self.failure: KafkaError | None = None
        """Why the open transaction cannot be committed any more; None if it can."""
        self.fenced: KafkaError | None = None
        """The error that says a newer producer has this id; no request can succeed after it."""
        self._cluster, self._timeout, self._patience = cluster, timeout, patience
        self._coordinator = Coordinator(cluster, TRANSACTION, id, patience)
        self._joined: set[PartitionQueue] = set()
        self._touched = False
        self._asking = asyncio.Lock()

    async def begin(self) -> None:
        async with self._asking:
            if self.fenced:
                raise self.fenced
            if self.is_open:
                raise InvalidTxnState("a transaction is open; end it before you begin the next one")
            if self.identity is None:
                await self._identify(ProducerId(-1, -1))
            self.is_open, self.failure, self._touched = True, None, False

    def has(self, queue: PartitionQueue) -> bool:
        return queue in self._joined

    async def join(self, queues: Iterable[PartitionQueue]) -> None:
        """Add the partitions with waiting batches to the transaction."""
        async with self._asking:
            # An abort may have dropped the waiting batches meanwhile.
            new = [queue for queue in queues if queue.waiting and queue not in self._joined]
            if not new:
                return
            identity = self._require_open()
            body = _partitions(self.id, identity, new)
            await self._ask(frames.ADD_PARTITIONS_TO_TXN, body, at_most=ADD_AT_MOST, errors=_error_of_partitions)
            self._touched = True
            if not self.is_open:
                return
            for queue in new:
                if queue.identity != identity:
                    queue.restart(identity)
            self._joined.update(new)

    async def add_offsets(self, group: str, offsets: Mapping[tuple[str, int], Committed]) -> None:
        """Commit a group's offsets, by (topic, partition), as part of the transaction; raises `KafkaError`."""
        async with self._asking:
            who = self._who(self._require_open()) | {"group_id": group}
            await self._ask(frames.ADD_OFFSETS_TO_TXN, who)
            self._touched = True
            topics: dict[str, list[dict[str, object]]] = defaultdict(list)
            for (topic, partition), (offset, metadata) in offsets.items():
                topics[topic].append(
                    {"partition_index": partition, "committed_offset": offset, "committed_metadata": metadata}
                )
            body = who | {"topics": [{"name": name, "partitions": all} for name, all in topics.items()]}
            coordinator = Coordinator(self._cluster, GROUP, group, self._patience)
            await coordinator.ask(frames.TXN_OFFSET_COMMIT, body, at_most=OFFSETS_AT_MOST, errors=error_of_offsets)

    async def committed(self, group: str, topic: str, partition: int) -> Committed | None:
        """A group's offset of one partition, after every transaction that may change it has ended; None if not set."""
        wanted = [{"name": topic, "partition_indexes": [partition]}]
        return (await self._committed(group, wanted, stable=True)).get((topic, partition))

    async def all_committed(self, group: str, topic: str) -> dict[int, Committed]:
        """A group's offsets in a topic by partition, from transactions that have ended by now."""
        committed = await self._committed(group, None, stable=False)
        return {partition: offset for (name, partition), offset in committed.items() if name == topic}

    async def partitions(self, topic: str) -> int:
        """The number of partitions of a topic; waits for a topic that the brokers are creating."""

        async def attempt() -> int:
            return len((await self._cluster.topic(topic)).leaders)

        return await self._cluster.patiently(attempt, self._patience)

    async def _committed(
        self, group: str, wanted: list[dict[str, Any]] | None, *, stable: bool
    ) -> dict[tuple[str, int], Committed]:
        coordinator = Coordinator(self._cluster, GROUP, group, self._patience)
        return await coordinator.offsets(wanted, stable=stable)

    async def end(self, *, commit: bool) -> None:
        """Commit or abort; no batch may be in flight.

        If this raises, it is not known how the transaction ended; the next `begin` completes or aborts it first.
        """
        last, self.identity, self.is_open = self.identity, None, False
        assert last
        self._joined.clear()
        async with self._asking:
            if self.fenced:
                raise self.fenced
            if self._touched:
                await self._ask(frames.END_TXN, self._who(last) | {"committed": commit}, at_most=END_AT_MOST)
            if commit:
                self.identity = last
            else:
                await self._identify(last)

    def _require_open(self) -> ProducerId:
        if not self.is_open:
            raise InvalidTxnState("the transaction has ended; begin another")
        assert self.identity
        return self.identity

    async def _ask(self, api: Api, body: dict[str, Any], **options: Any) -> Message:
        """Send a request to the transaction's coordinator; after it says that this producer is fenced, send no more.

        Before version 3 of InitProducerId, an abort would take the id back from the newer producer.
        """
        try:
            return await self._coordinator.ask(api, body, **options)
        except FENCED as error:
            self.fenced = error
            raise

    def _who(self, identity: ProducerId) -> dict[str, Any]:
        return {"transactional_id": self.id, "producer_id": identity.id, "producer_epoch": identity.epoch}

    async def _identify(self, last: ProducerId) -> None:
        body = self._who(last) | {"transaction_timeout_ms": int(self._timeout * 1000)}
        # A new producer id each time if the broker cannot raise the epoch of a given id (before version 3, KIP-360).
        connection = await self._cluster.patiently(self._cluster.any_connection, self._patience)
        if connection.version(frames.INIT_PRODUCER_ID) < 3:
            body |= {"producer_id": -1, "producer_epoch": -1}
        response = await self._ask(frames.INIT_PRODUCER_ID, body)
        self.identity = ProducerId(response["producer_id"], response["producer_epoch"])


def _partitions(id: str, identity: ProducerId, queues: Iterable[PartitionQueue]) -> dict[str, Any]:
    topics: dict[str, list[int]] = defaultdict(list)
    for queue in queues:
        topics[queue.topic].append(queue.partition)
    return {
        "v3_and_below_transactional_id": id,
        "v3_and_below_producer_id": identity.id,
        "v3_and_below_producer_epoch": identity.epoch,
        "v3_and_below_topics": [{"name": name, "partitions": all} for name, all in topics.items()],
    }


def _error_of_partitions(response: Message) -> KafkaError | None:
    for topic in response["results_by_topic_v3_and_below"]:
        for partition in topic["results_by_partition"]:
            # 55, OPERATION_NOT_ATTEMPTED, comes together with the error of another partition.
            if partition["partition_error_code"] not in (0, 55):
                where = {"topic": topic["name"], "partition": partition["partition_index"]}
                return error_of(partition["partition_error_code"])(**where)
    return None
