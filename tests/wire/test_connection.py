"""One connection to a broker that answers as it should not, and what a cluster makes of brokers that fail."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from penstock.wire import transport
from penstock.wire.broker_connection import BrokerConnection, Link
from penstock.wire.cluster import Cluster
from penstock.wire.errors import (
    ConnectionLost,
    KafkaError,
    MalformedResponse,
    NotLeaderOrFollower,
    RequestTimeout,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
    UnsupportedBroker,
)
from penstock.wire.protocol import frames
from penstock.wire.protocol.frames import Api

Answers = Callable[[Api, int, int], bytes | None]
"""The bytes of the answer to a request of this API, version and number; None for none."""
ALL = [{"api_key": api.key, "min_version": 0, "max_version": 99} for api in frames.APIS.values()]
LINK, HASTY = Link(request_timeout=10.0), Link(request_timeout=1.0)
PAUSES = 0.001, 0.002


def answer(api: Api, version: int, number: int, body: dict[str, Any]) -> bytes:
    return b"".join(frames.encode_response(api, version, number, body))


def versions(number: int, version: int = frames.API_VERSIONS.versions[1], **more: Any) -> bytes:
    """The answer of a broker that supports all versions."""
    return answer(frames.API_VERSIONS, version, number, {"error_code": 0, "api_keys": ALL} | more)


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(20):
            await work()

    asyncio.run(within())


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[int]:
    """A port whose connections `serve` gets; they have ended afterwards."""
    ended: list[asyncio.Future[None]] = []
    writers: list[asyncio.StreamWriter] = []

    async def work(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        ended.append(asyncio.get_running_loop().create_future())
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await serve(reader, writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        ended[writers.index(writer)].set_result(None)

    async with await asyncio.start_server(work, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
        for writer in writers:
            writer.transport.abort()
        await asyncio.gather(*ended)


@asynccontextmanager
async def broker(answers: Answers, seen: list[tuple[str, int]] | None = None) -> AsyncIterator[int]:
    """A port where each request gets the answer of `answers`; `seen` gets its API and version."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
            api, version, number, _, _ = frames.decode_request(frame)
            if seen is not None:
                seen.append((api.name, version))
            if (found := answers(api, version, number)) is not None:
                writer.write(found)
                await writer.drain()

    async with serving(serve) as port:
        yield port


@asynccontextmanager
async def connected(answers: Answers, link: Link = LINK) -> AsyncIterator[BrokerConnection]:
    """A connection to a broker that answers ApiVersions well, and other requests with `answers`."""

    def all_answers(api: Api, version: int, number: int) -> bytes | None:
        return versions(number) if api is frames.API_VERSIONS else answers(api, version, number)

    async with broker(all_answers) as port:
        connection = await BrokerConnection.open("127.0.0.1", port, link)
        try:
            yield connection
        finally:
            await connection.close()


METADATA = {"topics": None}


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        (lambda number: b"\xff\xff\xff\xff", "announced an answer of -1 bytes"),
        (lambda number: b"\0\0\0\3" + b"abc", "announced an answer of 3 bytes"),
        (lambda number: b"HTTP/1.1 400 Bad Request\r\n", "announced an answer of 1213486160 bytes"),
        (lambda number: (4).to_bytes(4, "big") + (number + 1).to_bytes(4, "big"), "which is not the next request"),
        (lambda number: (5).to_bytes(4, "big") + number.to_bytes(4, "big") + b"\0", "Metadata response, version"),
    ],
    ids=["negative", "short", "http", "another request", "cut"],
)
def test_an_answer_that_is_not_kafkas_ends_the_connection(sent: Callable[[int], bytes], problem: str) -> None:
    async def work() -> None:
        async with connected(lambda api, version, number: sent(number)) as connection:
            first, second = (connection.post(frames.METADATA, METADATA) for _ in range(2))
            with pytest.raises(ConnectionLost, match=problem):
                await connection.wait(first, frames.METADATA)
            with pytest.raises(ConnectionLost, match=problem):
                await second
            assert connection.closed
            with pytest.raises(ConnectionLost, match="is closed"):
                connection.post(frames.METADATA, METADATA)

    run(work)


def test_an_answer_nobody_asked_for_ends_the_connection() -> None:
    async def work() -> None:
        def twice(api: Api, version: int, number: int) -> bytes:
            return 2 * answer(api, version, number, {"cluster_id": "c"})

        async with connected(twice) as connection:
            assert (await connection.ask(frames.METADATA, METADATA))["cluster_id"] == "c"
            with pytest.raises(ConnectionLost):
                while True:
                    await connection.ask(frames.METADATA, METADATA)

    run(work)


def test_a_silent_broker_fails_all_requests_when_the_first_is_late() -> None:
    async def work() -> None:
        async with connected(lambda api, version, number: None, HASTY) as connection:
            late, other = (connection.post(frames.METADATA, METADATA) for _ in range(2))
            with pytest.raises(RequestTimeout, match=r"127.0.0.1:\d+ did not answer Metadata within 1 s"):
                await connection.wait(late, frames.METADATA)
            with pytest.raises(ConnectionLost, match="did not answer Metadata"):
                await other

    run(work)


def test_answers_go_to_their_requests_in_order_and_abandoned_ones_are_dropped() -> None:
    async def work() -> None:
        def named(api: Api, version: int, number: int) -> bytes:
            return answer(api, version, number, {"cluster_id": str(number)})

        async with connected(named) as connection:
            posted = [connection.post(frames.METADATA, METADATA) for _ in range(5)]
            posted[2].cancel()
            found = await asyncio.gather(*posted, return_exceptions=True)
            numbers = [int(one["cluster_id"]) for one in found if isinstance(one, dict)]
            assert numbers == [numbers[0], numbers[0] + 1, numbers[0] + 3, numbers[0] + 4]
            assert not connection.closed

    run(work)


def test_a_request_without_an_answer_is_done_when_it_is_sent() -> None:
    async def work() -> None:
        async with connected(lambda api, version, number: None) as connection:
            body = {"acks": 0, "timeout_ms": 1, "topic_data": []}
            assert await connection.post(frames.PRODUCE, body, answered=False) == {}
            assert not connection.closed

    run(work)


def test_versions_are_agreed_with_an_older_broker() -> None:
    """A broker that does not support this version of ApiVersions answers in version 0, with its own (KIP-511)."""
    seen: list[tuple[str, int]] = []

    def older(api: Api, version: int, number: int) -> bytes:
        if version > 2:
            spoken = [{"api_key": frames.API_VERSIONS.key, "min_version": 0, "max_version": 2}]
            return versions(number, 0, error_code=35, api_keys=spoken)
        oldest = [{"api_key": frames.METADATA.key, "min_version": 1, "max_version": 5}]
        return versions(number, version, api_keys=oldest)

    async def work() -> None:
        async with broker(older, seen) as port:
            connection = await BrokerConnection.open("127.0.0.1", port, LINK)
            assert connection.version(frames.METADATA) == 5
            assert connection.version(frames.METADATA, at_most=4) == 4
            with pytest.raises(UnsupportedBroker, match="does not offer Produce"):
                connection.version(frames.PRODUCE)
            with pytest.raises(UnsupportedBroker, match="supports Metadata in versions 1 to 5"):
                connection.version(frames.METADATA, at_most=0)
            await connection.close()

    run(work)
    assert seen == [("ApiVersions", frames.API_VERSIONS.versions[1]), ("ApiVersions", 2)]


def test_a_broker_that_refuses_to_say_its_versions_is_left() -> None:
    async def work() -> None:
        async with broker(lambda api, version, number: versions(number, error_code=42)) as port:
            with pytest.raises(MalformedResponse, match="answered ApiVersions with error 42"):
                await BrokerConnection.open("127.0.0.1", port, LINK)

    run(work)


def test_a_server_that_hangs_up_may_be_none_of_kafka() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None: ...

    async def work() -> None:
        async with serving(hang_up) as port:
            with pytest.raises(
                ConnectionLost,
                match=r"Kafka at \S+ does not answer as a broker: it closed .* with this security protocol",
            ):
                await BrokerConnection.open("127.0.0.1", port, LINK)

    run(work)


# The streams below.


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


@asynccontextmanager
async def stream(serve: Serve) -> AsyncIterator[transport.Stream]:
    async with serving(serve) as port:
        found = await transport.connect("127.0.0.1", port, patience=5, tls=None)
        try:
            yield found
        finally:
            found.close()
            found.close()  # a second time, too


def test_chunks_of_any_size_arrive_in_order() -> None:
    chunks = [bytes([n]) * size for n, size in enumerate((1, 0, 3_000_000, 7, 500_000))]

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(sum(map(len, chunks))))
        await writer.drain()

    async def work() -> None:
        async with stream(echo) as found:
            await found.send([memoryview(chunk) for chunk in chunks])
            assert bytes(await found.receive(0)) == b""
            assert bytes(await found.receive(1)) == chunks[0]
            assert bytes(await found.receive(len(b"".join(chunks)) - 1)) == b"".join(chunks)[1:]
            with pytest.raises(ConnectionLost, match=r"127.0.0.1:\d+ closed the connection"):
                await found.receive(1)

    run(work)


def test_a_closed_stream_neither_sends_nor_receives() -> None:
    async def work() -> None:
        async with stream(silent) as found:
            found.close()
            for use in (found.receive(1), found.send([b"x"])):
                with pytest.raises(ConnectionLost, match=r"the connection to 127.0.0.1:.* broke"):
                    await use

    run(work)


@pytest.mark.parametrize("tls", [None, ssl.create_default_context()], ids=["plain", "tls"])
def test_nobody_at_an_address(tls: ssl.SSLContext | None) -> None:
    async def work() -> None:
        with pytest.raises(
            ConnectionLost, match=r"^Kafka at 127.0.0.1:1 cannot be reached: (Connection refused|Multiple exceptions)"
        ):
            await transport.connect("127.0.0.1", 1, patience=5, tls=tls)
        with pytest.raises(
            ConnectionLost, match=r"no-such-host.invalid:1 cannot be reached: no address is known for the host"
        ):
            await transport.connect("no-such-host.invalid", 1, patience=5, tls=tls)

    run(work)


def test_a_server_without_tls_is_not_waited_for_longer_than_the_patience() -> None:
    async def work() -> None:
        async with serving(silent) as port:
            with pytest.raises(ConnectionLost, match=r"did not answer within 0.1 s"):
                await transport.connect("127.0.0.1", port, patience=0.1, tls=ssl.create_default_context())

    run(work)


# Retries, and metadata.


def failing(*errors: KafkaError) -> tuple[Callable[[], Awaitable[int]], list[KafkaError]]:
    """A function that raises these errors, one at each call, then returns 7; and those that are left."""
    left = list(errors)

    async def attempt() -> int:
        if left:
            raise left.pop(0)
        return 7

    return attempt, left


def test_errors_that_may_pass_are_tried_again_and_others_are_not() -> None:
    async def work() -> None:
        attempt, left = failing(NotLeaderOrFollower(), ConnectionLost(), RequestTimeout())
        assert await Cluster("127.0.0.1:1", LINK, pauses=PAUSES).patiently(attempt, 10) == 7
        assert not left
        attempt, left = failing(NotLeaderOrFollower(), TopicAuthorizationFailed(topic="t"), ConnectionLost())
        with pytest.raises(TopicAuthorizationFailed, match="topic t"):
            await Cluster("127.0.0.1:1", LINK, pauses=PAUSES).patiently(attempt, 10)
        assert len(left) == 1

    run(work)


def test_final_errors_are_raised_though_they_may_pass() -> None:
    async def work() -> None:
        attempt, left = failing(UnknownTopicOrPartition(topic="t"), ConnectionLost())
        with pytest.raises(UnknownTopicOrPartition):
            await Cluster("127.0.0.1:1", LINK, pauses=PAUSES).patiently(attempt, 10, final=(UnknownTopicOrPartition,))
        assert len(left) == 1

    run(work)


def test_when_the_patience_is_over_the_last_error_is_raised() -> None:
    async def work() -> None:
        attempt, left = failing(ConnectionLost("first"), *(RequestTimeout(str(n)) for n in range(10_000)))
        with pytest.raises(RequestTimeout):
            await Cluster("127.0.0.1:1", LINK, pauses=PAUSES).patiently(attempt, 0.3)
        assert 1 < 10_001 - len(left) < 10_000

    run(work)


@pytest.mark.parametrize(
    ("partitions", "problem"), [([], r"its partitions are \[\]"), ([0, 2], r"\[0, 2\]"), ([1], r"\[1\]")]
)
def test_metadata_without_all_partitions_is_refused(partitions: list[int], problem: str) -> None:
    def answers(api: Api, version: int, number: int) -> bytes:
        if api is frames.API_VERSIONS:
            return versions(number)
        topic = {"name": "t", "partitions": [{"partition_index": p, "leader_id": 1} for p in partitions]}
        return answer(api, version, number, {"topics": [topic]})

    async def work() -> None:
        async with broker(answers) as port:
            cluster = Cluster(f"127.0.0.1:{port}", LINK, pauses=PAUSES)
            with pytest.raises(MalformedResponse, match=problem):
                await cluster.topic("t")
            with pytest.raises(ConnectionLost, match="broker 5 is not in the cluster's metadata"):
                await cluster.connection(5)
            await cluster.close()

    run(work)


def test_concurrent_reads_of_a_topic_are_one_request_and_a_missing_topic_is_told() -> None:
    seen: list[tuple[str, int]] = []

    def answers(api: Api, version: int, number: int) -> bytes:
        return versions(number) if api is frames.API_VERSIONS else answer(api, version, number, {"topics": []})

    async def work() -> None:
        async with broker(answers, seen) as port:
            cluster = Cluster(f"127.0.0.1:{port}", LINK, pauses=PAUSES)
            found = await asyncio.gather(*(cluster.topic("t") for _ in range(9)), return_exceptions=True)
            assert {str(error) for error in found} == {str(UnknownTopicOrPartition(topic="t"))}
            await cluster.close()

    run(work)
    assert [name for name, _ in seen] == ["ApiVersions", "Metadata"]
