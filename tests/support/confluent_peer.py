"""confluent-kafka (librdkafka) as a peer."""

from __future__ import annotations

import uuid

from confluent_kafka import Consumer, Producer, TopicPartition
from peer_records import PARTITIONS, Part, Record


def read(servers: str, topic: str, *, isolation: str = "read_committed") -> list[Record]:
    """All records up to the ends of the partitions."""
    options = {"group.id": uuid.uuid4().hex, "isolation.level": isolation, "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": servers, "check.crcs": True, **options})
    consumer.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
    found: list[Record] = []
    ended: set[int] = set()
    try:
        while len(ended) < PARTITIONS:
            message = consumer.poll(10)
            assert message is not None, f"{len(found)} records came, then none for 10 s"
            if message.error():
                ended.add(message.partition())
            else:
                (_, time), headers = message.timestamp(), message.headers() or []
                found.append(Record(message.partition(), message.key(), message.value(), headers, time))
        return found
    finally:
        consumer.close()


def write(servers: str, topic: str, parts: list[Part]) -> None:
    """Each part by a producer of its own, which has the part's compression."""
    for codec, end, records in parts:
        # Without idempotence it repeats what a leader just elected refuses, behind what it took.
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
