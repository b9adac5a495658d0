"""The encoder of each topic that a producer knows, which goes by the number of the topic's partitions."""

from __future__ import annotations

from collections.abc import Callable

from penstock.wire.cluster import Cluster
from penstock.wire.columns import TableEncoder
from penstock.wire.retry import patiently


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
