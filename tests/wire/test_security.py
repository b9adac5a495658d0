"""TLS and SASL against a broker that requires them: who is admitted, and the errors of those who are not."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_cluster import KafkaCluster
from kafka_topics import create_topics
from secure_kafka import PASSWORD, certificate, secure_kafka
from waiting import PATIENCE, patience

from penstock.wire import sasl
from penstock.wire.broker_connection import BrokerConnection
from penstock.wire.errors import AuthenticationFailed, ConnectionLost
from penstock.wire.producer.producer import Producer
from penstock.wire.sasl import Authenticate


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, trusted: tuple[Path, Path]) -> Iterator[KafkaCluster]:
    with secure_kafka(tmp_path_factory.mktemp("broker"), trusted[1]) as made:
        yield made


@pytest.fixture
def topic(broker: KafkaCluster) -> str:
    name = f"wire-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker.servers})
    create_topics(admin, [NewTopic(name, 1, 1)])
    return name


@pytest.fixture
def tls(trusted: tuple[Path, Path]) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(trusted[0]))


async def token(**claims: object) -> str:
    """An unsecured JWS (RFC 7515, appendix A.5), which Kafka accepts for tests unless an issuer is configured."""
    told = {"sub": "cid", "iat": time.time() - 1, "exp": time.time() + 600} | claims
    parts = [json.dumps(part).encode() for part in ({"alg": "none"}, told)]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts) + "."


WAYS = {
    "plain": sasl.plain("ann", PASSWORD),
    "scram-sha-256": sasl.scram("bob", PASSWORD, digest="sha256"),
    "scram-sha-512": sasl.scram("bob", PASSWORD),
    "oauthbearer": sasl.oauth_bearer(token),
}


def send(servers: str, topic: str, authenticate: Authenticate | None = None, tls: ssl.SSLContext | None = None) -> None:
    """A small record and one that needs many TLS records."""

    async def work() -> None:
        async with Producer(
            servers, authenticate=authenticate, tls=tls, delivery_timeout=timedelta(seconds=20)
        ) as producer:
            for value in b"small", bytes(900_000):
                await (await producer.send(topic, value, timestamp=0))

    asyncio.run(work())


def received(broker: KafkaCluster, topic: str, count: int) -> list[bytes | None]:
    """`count` values, or fewer if the others did not come in time."""
    consumer = Consumer({"bootstrap.servers": broker.servers, "group.id": uuid.uuid4().hex, "fetch.wait.max.ms": 10})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return [one.value() for one in consumer.consume(count, timeout=PATIENCE)]
    finally:
        consumer.close()


def assert_sent(broker: KafkaCluster, topic: str) -> None:
    assert received(broker, topic, 2) == [b"small", bytes(900_000)]


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The brokers that connections were opened to."""
    opened: list[str] = []
    real = BrokerConnection.open

    async def counted(host: str, port: int, link: object) -> BrokerConnection:
        opened.append(f"{host}:{port}")
        return await real(host, port, link)  # type: ignore[arg-type]

    monkeypatch.setattr(BrokerConnection, "open", staticmethod(counted))
    return opened


@pytest.mark.parametrize("way", WAYS)
def test_each_mechanism_lets_us_in(broker: KafkaCluster, topic: str, way: str) -> None:
    send(broker.address(1, "SASL"), topic, WAYS[way])
    assert_sent(broker, topic)


def test_tls_carries_records(broker: KafkaCluster, topic: str, tls: ssl.SSLContext) -> None:
    send(broker.address(1, "TLS"), topic, tls=tls)
    assert_sent(broker, topic)


def test_a_password_over_tls(broker: KafkaCluster, topic: str, tls: ssl.SSLContext) -> None:
    send(broker.address(1, "BOTH"), topic, WAYS["plain"], tls)
    assert_sent(broker, topic)


@pytest.mark.parametrize(
    ("way", "says"),
    [
        (sasl.plain("ann", "wrong"), "Authentication failed: Invalid username or password"),
        (sasl.plain("nobody", PASSWORD), "Authentication failed: Invalid username or password"),
        (sasl.scram("bob", "wrong", digest="sha256"), "Authentication failed during authentication due to invalid"),
        (sasl.scram("bob", "wrong"), "Authentication failed during authentication due to invalid"),
        (sasl.scram("nobody", PASSWORD), "Authentication failed during authentication due to invalid"),
        (sasl.oauth_bearer(lambda: token(exp=1)), "refused the token: .*invalid_token"),
    ],
    ids=["plain", "plain-user", "scram-sha-256", "scram-sha-512", "scram-user", "oauthbearer"],
)
def test_who_is_not_known_is_told_at_once(
    broker: KafkaCluster, topic: str, tries: list[str], way: Authenticate, says: str
) -> None:
    address = broker.address(1, "SASL")
    with pytest.raises(AuthenticationFailed, match=f"{address}.*{says}") as refused:
        send(address, topic, way)
    assert not refused.value.retriable
    assert tries == [address]


def test_a_mechanism_that_the_broker_does_not_speak(broker: KafkaCluster, topic: str, tries: list[str]) -> None:
    async def other(connection: BrokerConnection) -> None:
        await sasl._handshake(connection, "GSSAPI")

    address = broker.address(1, "SASL")
    spoken = r"(?=.*\bPLAIN\b)(?=.*\bSCRAM-SHA-256\b)(?=.*\bSCRAM-SHA-512\b)(?=.*\bOAUTHBEARER\b)"
    with pytest.raises(AuthenticationFailed, match=f"{address} does not support GSSAPI, only {spoken}"):
        send(address, topic, other)
    assert tries == [address]


def test_a_certificate_of_an_unknown_issuer(broker: KafkaCluster, topic: str, tries: list[str], tmp_path: Path) -> None:
    address = broker.address(1, "TLS")
    other = ssl.create_default_context(cafile=str(certificate(tmp_path)[0]))
    with pytest.raises(AuthenticationFailed, match=f"the certificate of {address} is not accepted: self.signed"):
        send(address, topic, tls=other)
    assert tries == [address]


def test_a_certificate_of_another_host(broker: KafkaCluster, topic: str, tries: list[str], tls: ssl.SSLContext) -> None:
    address = broker.address(1, "TLS").replace("127.0.0.1", "localhost")
    mismatch = f"the certificate of {address} is not accepted: .*Hostname mismatch.*'localhost'"
    with pytest.raises(AuthenticationFailed, match=mismatch):
        send(address, topic, tls=tls)
    assert tries == [address]


@pytest.mark.slow
def test_the_wrong_protocol_for_a_port(broker: KafkaCluster, topic: str, tls: ssl.SSLContext) -> None:
    async def work(listener: str, tls: ssl.SSLContext | None) -> None:
        limit = timedelta(seconds=patience(2))
        async with Producer(broker.address(1, listener), tls=tls, delivery_timeout=limit) as producer:
            await producer.send(topic, b"")

    with pytest.raises(ConnectionLost, match="with this security protocol"):
        asyncio.run(work("TLS", None))
    with pytest.raises(ConnectionLost, match=f"{broker.address(1)} cannot be reached"):
        asyncio.run(work("PLAINTEXT", tls))


def test_nothing_is_left_behind_by_a_producer_that_does_not_wait_for_answers(
    broker: KafkaCluster, topic: str, tls: ssl.SSLContext
) -> None:
    count, value = 200, bytes(50_000)

    async def work() -> None:
        async with Producer(broker.address(1, "TLS"), tls=tls, acks=0) as producer:
            for _ in range(count):
                await producer.send(topic, value)

    asyncio.run(work())
    assert len(received(broker, topic, count)) == count
