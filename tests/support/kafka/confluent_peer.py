"""confluent-kafka (librdkafka) as a peer."""

from __future__ import annotations

import uuid

from confluent_kafka import Producer
from kafka_topics import messages
from peer_records import PARTITIONS, Part, Record


def read(servers: str, topic: str, *, isolation: str = "read_committed") -> list[Record]:
    """All records up to the ends of the partitions."""
    return [
        Record(one.partition(), one.key(), one.value(), one.headers() or [], one.timestamp()[1])
        for one in messages(servers, topic, PARTITIONS, isolation)
    ]


def write(servers: str, topic: str, parts: list[Part]) -> None:
    """Each part is written by its own producer with the part's compression."""
    for codec, end, records in parts:
        # Without idempotence it repeats batches that a new leader refuses, after the batches that it accepted.
        options = {"transactional.id": uuid.uuid4().hex} if end else {"enable.idempotence": True}
        producer = Producer({"bootstrap.servers": servers, "compression.type": codec, "linger.ms": 100, **options})
        if end:
            producer.init_transactions(20)
            producer.begin_transaction()
        for one in records:
            named = {"key": one.key, "headers": one.headers, "partition": one.partition, "timestamp": one.timestamp}
            producer.produce(topic, one.value, **named)
        assert producer.flush(20) == 0
        if end:
            producer.commit_transaction(20) if end == "commit" else producer.abort_transaction(20)
