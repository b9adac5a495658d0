"""Collects the records of each topic until they are a batch, within the producer's memory.

Records wait until they fill a batch or have waited `linger`, and while all brokers are busy. Then they are encoded
together, as columns, and go to the sender. They take memory until they are settled; who finds too little of it left
waits in `reserve`, behind those who wait already.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count

from penstock.wire.errors import KafkaError, TransactionAbortable
from penstock.wire.net.cluster import Cluster, patiently
from penstock.wire.producer.open_batch import Pending
from penstock.wire.producer.partition_queue import Outcome, ProducerBatch, Settle
from penstock.wire.producer.sender import Sender
from penstock.wire.producer.transactions import Transactions
from penstock.wire.records.record_encoder import Encoded, TableEncoder


class Accumulator:
    """What `Producer.send` fills: it reads and changes the attributes itself, which for each record saves a call."""

    def __init__(
        self,
        encoders: Encoders,
        sender: Sender,
        transactions: Transactions | None,
        *,
        memory: int,
        linger: float,
        patience: float,
    ) -> None:
        """`memory` is bytes, `linger` seconds, and `patience` those until a batch that is not acknowledged fails."""
        self.pending: dict[str, Pending] = {}
        """The open batch of each topic."""
        self.memory = self.free = memory
        """Bytes in all, and those left: fewer than none while a batch is on its way that is larger than all."""
        self.waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._encoders, self._sender, self._transactions = encoders, sender, transactions
        self._linger, self._patience = linger, patience
        self._numbers = count()
        self._open: dict[int, None] = {}
        """The numbers of batches that are not settled, oldest first."""
        self._settled = asyncio.Event()

    def begin(self, topic: str) -> Pending:
        """An open batch for a topic that has none."""
        pending = self.pending[topic] = Pending(topic)
        asyncio.get_running_loop().call_later(self._linger, self._lingered, pending)
        return pending

    def encode(self, pending: Pending) -> None:
        """Hand the records of an open batch to the sender, unless that was done."""
        if self.pending.get(pending.topic) is not pending:
            return
        del self.pending[pending.topic]
        self.free += pending.size
        try:
            encoder = self._encoders.current(pending.topic, self._encoders[pending.topic])
            for one in encoder.encode(pending.columns()):
                self.free -= len(one.data)
                self.add(pending.topic, one, partial(pending.settle, one))
        except Exception as error:
            pending.fail(error)
            if self._transactions and not self._transactions.failure:
                self._transactions.failure = TransactionAbortable(f"not sent: {error!r}", topic=pending.topic)

    def encode_all(self) -> None:
        """Hand all open batches to the sender."""
        for pending in list(self.pending.values()):
            self.encode(pending)

    def add(self, topic: str, one: Encoded, settle: Settle) -> None:
        """Hand a batch to the sender for which memory is reserved; `settle` is told what became of each part of it."""
        number = next(self._numbers)
        self._open[number] = None
        deadline, left = time.monotonic() + self._patience, one.count

        def settled(outcome: Outcome, part: slice) -> None:
            nonlocal left
            settle(outcome, part)
            left -= part.stop - part.start
            if left:
                return
            self.free += len(one.data)
            del self._open[number]
            self._settled.set()

        self._sender.add(topic, one.partition, ProducerBatch(one.data, one.count, deadline, settled))

    async def flush(self) -> None:
        """Hand over all open batches, and wait until these and all before are settled."""
        self.encode_all()
        last = next(self._numbers)
        while next(iter(self._open), last) < last:
            self._settled.clear()
            await self._settled.wait()

    async def drop(self, error: KafkaError) -> None:
        """Fail all that is not in flight, and wait for the answers to the rest."""
        self.encode_all()
        while self._open:
            self._sender.drop(error)
            if self._sender.in_flight:
                await self._sender.answered()

    async def reserve(self, size: int) -> None:
        """Wait, behind those who wait already, until so many bytes fit; one that is larger than all waits for none."""
        if not self.waiting and self._fits(size):
            self.free -= size
            return
        self.encode_all()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and not turn.exception():
                self.give_back(size)
            raise

    def give_back(self, size: int) -> None:
        """Free what was reserved and is not used."""
        self.free += size
        self.has_room()  # no request comes back for it that would let the next one in

    def refuse(self, error: KafkaError) -> None:
        """Fail those who wait in `reserve`."""
        while self.waiting:
            _, turn = self.waiting.popleft()
            if not turn.done():
                turn.set_exception(error)

    def has_room(self) -> None:
        """A request came back: let waiting senders in, and send what had waited for a free broker."""
        while self.waiting and self._fits(self.waiting[0][0]):
            size, turn = self.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self.free -= size
        for pending in [one for one in self.pending.values() if one.due]:
            self.encode(pending)

    def _fits(self, size: int) -> bool:
        return size <= self.free or self.free == self.memory

    def _lingered(self, pending: Pending) -> None:
        pending.due = True
        if self._sender.has_capacity():
            self.encode(pending)


# The encoder of each topic that a producer knows, which goes by the number of the topic's partitions.


class Encoders(dict[str, TableEncoder]):
    """By topic; those of topics not met yet, or after `clear`, come from `learn`."""

    def __init__(
        self,
        cluster: Cluster,
        make: Callable[[int], TableEncoder],
        require_open: Callable[[str], None],
        *,
        patience: float,
        pauses: tuple[float, float],
    ) -> None:
        """`make` gives the encoder for a number of partitions; `require_open` raises once nothing is sent any more."""
        super().__init__()
        self.renews = True
        """Whether metadata that grow old are read again."""
        self._cluster, self._make, self._require_open = cluster, make, require_open
        self._patience, self._pauses = patience, pauses

    async def learn(self, topic: str) -> TableEncoder:
        """The topic's encoder from metadata read now; waits for them as long as for a delivery."""

        async def attempt() -> None:
            self._require_open(topic)
            await self._cluster.refresh(topic)

        await patiently(attempt, patience=self._patience, pauses=self._pauses)
        self._require_open(topic)  # it may have been closed meanwhile
        return self._new(topic)

    def current(self, topic: str, encoder: TableEncoder) -> TableEncoder:
        """This encoder, or a new one if the topic has grown; has metadata that grow old read again, and never waits."""
        if not self.renews:
            return encoder
        self._cluster.renew(topic)
        grown = len(self._cluster.topics[topic].leaders) != encoder.partitions
        return self._new(topic) if grown else encoder

    def _new(self, topic: str) -> TableEncoder:
        encoder = self[topic] = self._make(len(self._cluster.topics[topic].leaders))
        return encoder
