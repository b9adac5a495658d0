"""Reading from a replica in the reader's rack (KIP-392), on three brokers with a rack each."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_cluster import KafkaCluster
from kafka_topics import create_topics
from waiting import patience

from penstock.kafka.kafka_settings import KafkaSettings
from penstock.wire import fetcher
from penstock.wire.broker_connection import BrokerConnection
from penstock.wire.producer.producer import Producer
from penstock.wire.protocol import frames
from penstock.wire.topic_records import Reader

COUNT = 2000
SHORT = timedelta(milliseconds=100)


@pytest.fixture
def topic(admin: AdminClient) -> Iterator[str]:
    """A topic with all brokers as replicas."""
    name = f"racks-{uuid.uuid4().hex[:8]}"
    create_topics(admin, [NewTopic(name, 1, 3)])
    yield name
    admin.delete_topics([name])[name].result()


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Answers with records, by the address of the broker that gave them."""
    found: Counter[str] = Counter()
    ask = BrokerConnection.ask

    async def counted(self: BrokerConnection, api: Any, body: Any, **more: Any) -> Any:
        answer = await ask(self, api, body, **more)
        if api is frames.FETCH:
            found[self.peer] += any(one["records"] for each in answer["responses"] for one in each["partitions"])
        return answer

    monkeypatch.setattr(BrokerConnection, "ask", counted)
    return found


async def write(servers: str, topic: str, numbers: range) -> None:
    async with Producer(servers) as producer:
        await asyncio.gather(*[await producer.send(topic, b"%d" % number) for number in numbers])


async def read(reader: Reader, topic: str, count: int) -> list[int]:
    found: list[int] = []
    async for _, table in reader.read(topic, start={0: 0}, max_bytes=20_000, max_wait=SHORT):
        found += map(int, table["value"].to_pylist())
        if len(found) >= count:
            break
    return found


def brokers(cluster: KafkaCluster, admin: AdminClient, topic: str) -> tuple[int, int]:
    """The leader, and another broker that a test may kill."""
    leader = admin.list_topics(topic).topics[topic].partitions[0].leader
    return leader, next(number for number in (3, 2) if number != leader)


def test_records_come_from_the_replica_in_the_rack(
    cluster: KafkaCluster, admin: AdminClient, topic: str, served: Counter[str]
) -> None:
    leader, near = brokers(cluster, admin, topic)

    async def check() -> None:
        await write(cluster.servers, topic, range(COUNT))
        for rack, number in ((f"rack-{near}", near), ("", leader), ("another", leader)):
            served.clear()
            async with Reader(cluster.servers, rack=rack) as reader:
                assert await read(reader, topic, COUNT) == [*range(COUNT)]
            assert {peer for peer, count in served.items() if count} == {cluster.address(number)}

    asyncio.run(asyncio.wait_for(check(), patience(60)))


def test_the_leader_is_asked_again_after_a_while(
    cluster: KafkaCluster, admin: AdminClient, topic: str, served: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "REPLICA_AGE", 0.0)
    leader, near = brokers(cluster, admin, topic)

    async def check() -> None:
        await write(cluster.servers, topic, range(COUNT))
        async with Reader(cluster.servers, rack=f"rack-{near}") as reader:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(read(reader, topic, COUNT), 1)
        assert served.keys() == {cluster.address(leader)} and not served.total()

    asyncio.run(asyncio.wait_for(check(), patience(60)))


def test_a_query_takes_the_rack_of_its_option_or_of_the_machine(
    cluster: KafkaCluster, admin: AdminClient, topic: str, served: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, near = brokers(cluster, admin, topic)
    given = {"servers": cluster.servers, "topic": topic}
    monkeypatch.setenv("PENSTOCK_RACK", f"rack-{near}")

    async def check() -> None:
        await write(cluster.servers, topic, range(COUNT))
        for options, number in ((given, near), (given | {"kafka.client.rack": f"rack-{leader}"}, leader)):
            served.clear()
            async with KafkaSettings.of(options).reader() as reader:
                assert await read(reader, topic, COUNT) == [*range(COUNT)]
            assert {peer for peer, count in served.items() if count} == {cluster.address(number)}

    asyncio.run(asyncio.wait_for(check(), patience(60)))


@pytest.mark.kill
@pytest.mark.slow
def test_a_killed_replica_is_left_for_the_leader(
    cluster: KafkaCluster, admin: AdminClient, topic: str, served: Counter[str]
) -> None:
    leader, near = brokers(cluster, admin, topic)

    async def check() -> None:
        await write(cluster.servers, topic, range(COUNT))
        found: list[int] = []
        async with Reader(cluster.servers, rack=f"rack-{near}") as reader:
            async for _, table in reader.read(topic, start={0: 0}, max_bytes=20_000, max_wait=SHORT):
                if not found:
                    cluster.kill(near)
                    await write(cluster.address(leader), topic, range(COUNT, 2 * COUNT))
                found += map(int, table["value"].to_pylist())
                if len(found) >= 2 * COUNT:
                    break
        assert found == [*range(2 * COUNT)]
        assert served[cluster.address(near)] and served[cluster.address(leader)]

    asyncio.run(asyncio.wait_for(check(), patience(120)))
