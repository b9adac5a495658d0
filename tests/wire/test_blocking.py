"""The producer for threads, against a real broker."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from datetime import timedelta

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from kafka_topics import new_topic
from waiting import PATIENCE

from penstock.local.services import Services
from penstock.wire import BlockingProducer, RecordMetadata
from penstock.wire.errors import MessageTooLarge, ProducerClosed


@pytest.fixture
def topic(services: Services) -> Iterator[str]:
    """A new topic of one partition."""
    with new_topic(services.kafka, "threads", 1) as name:
        yield name


def read(servers: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": uuid.uuid4().hex, "fetch.wait.max.ms": 10})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        found: list[bytes] = []
        while len(found) < count:
            message = consumer.poll(10)
            assert message is not None, f"{len(found)} of {count} came"
            found.append(message.value())
        assert consumer.poll(0.1) is None
        return found
    finally:
        consumer.close()


def test_threads_share_one_producer(services: Services, topic: str) -> None:
    threads, each = 4, 5_000
    futures: dict[int, list[Future[RecordMetadata]]] = {}
    with BlockingProducer(services.kafka, buffer_memory=300_000) as producer:

        def work(thread: int) -> None:
            futures[thread] = [producer.send(topic, b"%d-%05d" % (thread, n)) for n in range(each)]

        workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        producer.flush()
        assert all(future.done() for of_thread in futures.values() for future in of_thread)
        assert producer.stats().topics[topic].records == threads * each
    found = read(services.kafka, topic, threads * each)
    for thread, of_thread in futures.items():
        sent = [b"%d-%05d" % (thread, n) for n in range(each)]
        assert [value for value in found if value.startswith(b"%d-" % thread)] == sent
        assert [found[future.result().offset] for future in of_thread] == sent


def test_tables_and_errors_come_back(services: Services, topic: str) -> None:
    with BlockingProducer(services.kafka, linger=timedelta(0)) as producer:
        assert producer.send_table(topic, pa.table({"value": [b"a", b"b"]})).offsets == {0: [(0, 1)]}
        with pytest.raises(MessageTooLarge, match=f"topic {topic}, partition 0"):
            producer.send(topic, bytes(3_000_000)).result(30)
        with pytest.raises(TypeError, match="value must be bytes"):
            producer.send(topic, "text").result(30)  # type: ignore[arg-type]
    with pytest.raises(ProducerClosed):
        producer.send(topic, b"late")
    with pytest.raises(ProducerClosed):
        producer.flush()
    assert read(services.kafka, topic, 2) == [b"a", b"b"]


def test_a_transaction_of_threads(services: Services, topic: str) -> None:
    with BlockingProducer(services.kafka, transactional_id=topic) as producer:
        with pytest.raises(RuntimeError), producer.transaction():
            producer.send(topic, b"dropped")
            raise RuntimeError
        with producer.transaction():
            producer.send(topic, b"kept")
    # The aborted record may have an offset, and each transaction ends with a marker.
    assert read(services.kafka, topic, 1) == [b"kept"]


def test_closed_while_a_thread_sends_each_record_is_told_its_fate(services: Services, topic: str) -> None:
    producer, under_way = BlockingProducer(services.kafka), threading.Event()
    futures: list[Future[RecordMetadata]] = []

    def work() -> None:
        with pytest.raises(ProducerClosed):
            while True:
                futures.append(producer.send(topic, b"%d" % len(futures)))
                if len(futures) == 11_000:  # more than may wait to be accepted
                    under_way.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert under_way.wait(PATIENCE)
    producer.close()
    thread.join(PATIENCE)
    producer.close()
    assert [future.result(30).offset for future in futures] == list(range(len(futures)))
    assert read(services.kafka, topic, len(futures)) == [b"%d" % n for n in range(len(futures))]
