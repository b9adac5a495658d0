"""A group's topic that a worker follows: what `refresh` promises, against a broker that is slow to give records."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import requests
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from fault_proxy import FaultProxy, Request
from kafka_topics import create_topics, new_topic
from waiting import PATIENCE, until
from worker_group import DEFAULTS, member_of, new_group

from penstock.connect.group import group_herder as group_worker
from penstock.connect.worker.connector_store import STOPPED
from penstock.connect.worker.providers import Provided
from penstock.kafka.compacted_topic import CompactedTopic, Lags, NotInTime, ReadBeyondEnd
from penstock.local.services import Services
from penstock.wire.errors import UnknownTopicOrPartition
from penstock.wire.protocol import frames

SOON = timedelta(seconds=1)
NOTHING = {"throttle_time_ms": 0, "error_code": 0, "session_id": 0, "responses": []}


@contextmanager
def proxy_of(servers: str) -> Iterator[FaultProxy]:
    """A proxy to the broker, in a thread of its own."""
    loop, proxy = asyncio.new_event_loop(), FaultProxy(servers)
    loop.run_until_complete(proxy.start("127.0.0.1", 0, name=""))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield proxy
    finally:
        asyncio.run_coroutine_threadsafe(proxy.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def without_records(proxy: FaultProxy) -> Iterator[None]:
    """A broker that throttles leaves the partitions out of its answers; it tells their ends meanwhile."""
    throttled = threading.Event()

    def ask(request: Request) -> Request | bytes:
        if request.api is not frames.FETCH:
            return request
        throttled.set()
        return request.answer(NOTHING)

    before, proxy.ask, proxy.pause = proxy.ask, ask, 0.05
    # A request from before still waits for records at the broker.
    assert throttled.wait(PATIENCE)
    yield
    proxy.ask, proxy.pause = before, 0.0


def write(servers: str, topic: str, *keys: str, transaction: bool = False) -> None:
    producer = Producer({"bootstrap.servers": servers} | ({"transactional.id": topic} if transaction else {}))
    if transaction:
        producer.init_transactions()
        producer.begin_transaction()
    for key in keys:
        producer.produce(topic, b"{}", key)
    if transaction:
        producer.commit_transaction()
    assert producer.flush(30) == 0


@contextmanager
def followed(servers: str, name: str) -> Iterator[tuple[CompactedTopic, list[str]]]:
    seen: list[str] = []
    topic = CompactedTopic(servers, name, lambda key, value, offset: seen.append(key), security={})
    topic.start()
    try:
        yield topic, seen
    finally:
        topic.close()


def test_a_refresh_has_read_all_or_says_that_it_lags(services: Services) -> None:
    with ExitStack() as stack:
        proxy = stack.enter_context(proxy_of(services.kafka))
        name = stack.enter_context(new_topic(services.kafka, "followed", 1))
        topic, seen = stack.enter_context(followed(proxy.servers, name))
        with without_records(proxy):
            write(services.kafka, name, "a", "b")
            with pytest.raises(Lags, match="partition 0 up to offset 0 of 2") as error:
                topic.refresh(SOON)
            assert isinstance(error.value, NotInTime) and error.value.retriable
        topic.refresh()
        assert seen == ["a", "b"]
        # The last offset is that of the end of a transaction, which no record has.
        write(services.kafka, name, "c", transaction=True)
        topic.refresh()
        assert seen == ["a", "b", "c"]


def test_a_topic_that_a_broker_does_not_know_yet_is_waited_for(services: Services) -> None:
    name, unknown = f"new-{uuid.uuid4().hex}", 0

    def ask(request: Request) -> Request | bytes:
        nonlocal unknown
        if request.api is frames.METADATA and [topic["name"] for topic in request.body["topics"]] == [name]:
            unknown += 1
            if unknown < 3:
                return request.answer({"topics": [{"name": name, "error_code": UnknownTopicOrPartition.code}]})
        return request

    with proxy_of(services.kafka) as proxy:
        proxy.ask = ask
        with followed(proxy.servers, name) as (topic, seen):
            topic.put("a", b"{}")
            assert seen == ["a"] and unknown >= 3


def delete(servers: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    (deleted,) = admin.delete_topics([topic]).values()
    deleted.result()
    until(lambda: topic not in admin.list_topics(timeout=PATIENCE).topics, "end of the topic")


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        pytest.param("d", "ends at offset 1, and was read up to 3", id="fewer records"),
        pytest.param("defg", "was created again since it was read", id="more records"),
    ],
)
def test_a_topic_that_was_created_again_is_another_error(services: Services, keys: str, why: str) -> None:
    with new_topic(services.kafka, "again", 1) as name:
        write(services.kafka, name, "a", "b", "c")
        with followed(services.kafka, name) as (topic, seen):
            assert seen == ["a", "b", "c"]
            delete(services.kafka, name)
            with pytest.raises(NotInTime, match="cannot be read now"):
                topic.refresh(SOON)
            create_topics(AdminClient({"bootstrap.servers": services.kafka}), [NewTopic(name, 1, 1)])
            write(services.kafka, name, *keys)
            with pytest.raises(ReadBeyondEnd, match=why) as error:
                topic.refresh()
            assert not error.value.retriable and "start this worker again" in str(error.value)
            assert seen == ["a", "b", "c"]


def test_a_topic_that_is_closed_cannot_be_refreshed(services: Services) -> None:
    with new_topic(services.kafka, "closed", 1) as name:
        with followed(services.kafka, name) as (topic, _):
            topic.refresh()
        with pytest.raises(NotInTime, match="cannot be read now"):
            topic.refresh(SOON)


def test_a_worker_that_lags_does_not_say_that_a_connector_is_not_there(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, provided = new_group(), Provided({}, DEFAULTS)
    spark = cast(Any, None)  # nothing runs
    config = {"connector.class": "FileStreamSink", "topics": "t", "file": str(tmp_path / "out")}
    with ExitStack() as stack:
        proxy = stack.enter_context(proxy_of(services.kafka))
        slow = stack.enter_context(member_of(group, spark, proxy.servers, tmp_path, provided))
        other = stack.enter_context(member_of(group, spark, services.kafka, tmp_path, provided))
        body = {"name": "new", "config": config, "initial_state": STOPPED}
        monkeypatch.setattr(group_worker, "PATIENCE", SOON)
        place = f"{slow.connect.url}/connectors/new"
        with without_records(proxy):
            other.connect.create_connector(body)
            for answer in (requests.get(place, timeout=PATIENCE), requests.put(f"{place}/pause", timeout=PATIENCE)):
                assert answer.status_code == 503, answer.text
                assert "has not read all of the topic yet" in answer.json()["message"]
                assert "try again in a moment" in answer.json()["message"]
        monkeypatch.undo()
        assert requests.get(place, timeout=PATIENCE).json()["name"] == "new"
        assert requests.get(f"{slow.connect.url}/connectors/none", timeout=PATIENCE).status_code == 404
