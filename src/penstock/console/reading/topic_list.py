"""All topics of a Kafka with their records and rates, and where topics end, by our own Kafka client.

It asks for offsets only, which loads no compiled loops: records are read by a process of their own (`reader_process`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.kafka.brokers import Brokers
    from penstock.wire.topic_records import Reader

PATIENCE, REQUEST = 5.0, 4.0
"""Seconds for an answer with all attempts, and for one request."""
FRESH, FRESH_STARTS = 1.0, 30.0
"""Seconds for which ends and starts of topics are not asked for again."""
AT_ONCE = 16
"""Topics that are asked for at the same time."""
MOST_TOPICS = 2000
CHECK_KAFKA = "check that Kafka runs, and the file of --command-config if it needs TLS or a login"

Offsets = dict[int, int]


class TopicList:
    """Belongs to one event loop; connects at its first use."""

    def __init__(self, brokers: Brokers) -> None:
        self.brokers = brokers
        self._reader: Reader | None = None
        self._busy, self._opening = asyncio.Lock(), asyncio.Lock()
        self.left_out = 0
        """The topics beyond `MOST_TOPICS`, of which nothing is known."""
        self._ends: dict[str, Offsets] = {}
        self._starts: dict[str, Offsets] = {}
        self._rates: dict[str, float] = {}
        self._asked = self._asked_starts = 0.0

    async def listed(self, edges: Mapping[str, tuple[list[str], list[str]]]) -> list[dict[str, Any]]:
        """The first `MOST_TOPICS` topics; `edges` are the names of its writers and readers by topic.

        Compaction and transactions leave gaps in the offsets, so `records` is an upper bound.
        """
        await self._refresh()
        return [
            {
                "name": name,
                "partitions": len(ends),
                "records": sum(max(0, end - self._starts.get(name, {}).get(p, 0)) for p, end in ends.items()),
                "rate": self._rates.get(name),
                "writers": edges.get(name, ([], []))[0],
                "readers": edges.get(name, ([], []))[1],
                "internal": name.startswith("__"),
            }
            for name, ends in sorted(self._ends.items())
        ]

    async def with_records(self) -> dict[str, Offsets]:
        """The ends of the partitions of each topic that is not Kafka's own and has records."""
        listed = await self.listed({})
        return {
            topic["name"]: self._ends[topic["name"]] for topic in listed if not topic["internal"] and topic["records"]
        }

    async def ends(self, topic: str) -> tuple[Offsets, Offsets]:
        """The first offset and the end of each partition of a topic."""
        reader = await self._opened()
        return await reader.earliest(topic), await reader.latest(topic)

    async def close(self) -> None:
        if self._reader is not None:
            await self._reader.close()

    async def _opened(self) -> Reader:
        # Of two callers at the start, each would open a reader.
        async with self._opening:
            if self._reader is None:
                # Loading it takes a tenth of a second, in which the loop must go on.
                self._reader = await asyncio.to_thread(_reader, self.brokers)
            return self._reader

    async def _refresh(self) -> None:
        """Ask for all offsets, unless they are fresh; concurrent callers share one refresh."""
        async with self._busy:
            reader = await self._opened()
            now = time.monotonic()
            if now - self._asked < FRESH:
                return
            every = sorted(await reader.topics())
            names, self.left_out = every[:MOST_TOPICS], max(0, len(every) - MOST_TOPICS)
            if now - self._asked_starts > FRESH_STARTS or set(names) - set(self._starts):
                self._starts, self._asked_starts = await _all(names, reader.earliest), now
            ends = await _all(names, reader.latest)
            passed = now - self._asked
            if self._asked:
                self._rates = {name: _rate(self._ends[name], ends[name], passed) for name in ends if name in self._ends}
            self._ends, self._asked = ends, now


def _reader(kafka: Brokers) -> Reader:
    from penstock.wire.topic_records import Reader

    return Reader(
        kafka.servers, patience=PATIENCE, request_timeout=REQUEST, client_id="penstock-console", **kafka.client()
    )


async def _all(names: list[str], ask: Callable[[str], Any]) -> dict[str, Offsets]:
    """The offsets of each topic; a topic that was deleted meanwhile, or that may not be read, is left out.

    Raises KafkaError if Kafka is away.
    """
    from penstock.wire.errors import ConnectionLost, KafkaError, RequestTimeout

    limit = asyncio.Semaphore(AT_ONCE)

    async def offsets_or_none(name: str) -> Offsets | None:
        async with limit:
            try:
                offsets: Offsets = await ask(name)
                return offsets
            except (ConnectionLost, RequestTimeout):
                raise
            except KafkaError:
                return None

    tasks = [asyncio.create_task(offsets_or_none(name)) for name in names]
    try:
        answers = await asyncio.gather(*tasks)
    finally:
        # After an error: each of the others would wait as long.
        for task in tasks:
            task.cancel()
    return {name: offsets for name, offsets in zip(names, answers, strict=True) if offsets is not None}


def _rate(before: Offsets, now: Offsets, passed: float) -> float:
    """Records a second; a topic that was made again begins at 0."""
    more = sum(end - before.get(p, 0) for p, end in now.items())
    return round(max(0, more) / passed, 3)
