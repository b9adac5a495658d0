"""A partition's leader moves before the old leader has answered: one broker behind two proxies looks like two."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

import pytest
from fault_proxy import Answer, FaultProxy, fault_proxy, quick_producer
from kafka_topics import assert_same, new_topic, stored
from refusals import Refusal

from penstock.local.services import Services
from penstock.wire.errors import NotLeaderOrFollower
from penstock.wire.protocol import frames

OWED = 3
"""Batches that the old leader has written without an answer."""


@pytest.fixture
def topic(services: Services) -> Iterator[str]:
    """A new topic of two partitions."""
    with new_topic(services.kafka, "moved", 2) as name:
        yield name


class Leaders:
    """Metadata: the proxies are brokers 1 and 2, and `of` has the leader of each partition."""

    def __init__(self, *proxies: FaultProxy) -> None:
        self.of = {0: 1, 1: 2}
        self.held = 0
        """Answers to Produce requests that the old leader does not send."""
        self.holds = False
        self._proxies = dict(enumerate(proxies, 1))
        for node, proxy in self._proxies.items():
            proxy.hurt = partial(self._hurt, node)

    def _hurt(self, node: int, answer: Answer) -> bytes:
        if answer.request.api is frames.PRODUCE and node == 1 and self.holds:
            self.held += 1
            return b""
        if answer.request.api is not frames.METADATA:
            return answer.data
        message = answer.request.read(answer.data)
        message["brokers"] = [
            message["brokers"][0] | {"node_id": node, "host": proxy.host, "port": proxy.port}
            for node, proxy in self._proxies.items()
        ]
        for one in message["topics"][0]["partitions"]:
            one["leader_id"] = self.of[one["partition_index"]]
        return answer.request.answer(message)


def test_what_the_old_leader_wrote_and_did_not_answer_for_is_not_written_again(services: Services, topic: str) -> None:
    """A broker knows an idempotent producer's last five batches (KIP-98): it must not get five more meanwhile."""
    values = [b"%d" % n for n in range(1 + OWED + 9)]
    others: list[bytes] = []

    async def work() -> None:
        async with (
            fault_proxy(services.kafka) as old,
            fault_proxy(services.kafka) as new,
            quick_producer(new) as producer,
        ):
            leaders, refusal = Leaders(old, new), Refusal(new)

            async def send_other() -> None:
                others.append(b"%d" % len(others))
                await (await producer.send(topic, others[-1], partition=1))

            await (await producer.send(topic, values[0], partition=0))
            leaders.holds = True
            sent = [await producer.send(topic, value, partition=0) for value in values[1 : 1 + OWED]]
            while leaders.held < OWED:
                await send_other()
            leaders.of[0] = 2
            refusal.once(NotLeaderOrFollower)
            await send_other()  # and so learns of the new leaders
            sent += [await producer.send(topic, value, partition=0) for value in values[1 + OWED :]]
            for _ in range(3 * len(sent)):
                await send_other()
            assert not any(future.done() for future in sent)
            old.cut()
            offsets = [(await future).offset for future in sent]
            assert offsets == list(range(1, len(values)))

    asyncio.run(work())
    assert_same(stored(services.kafka, topic, 2), [values, others])
