"""When a partition's batches may be in flight together."""

from __future__ import annotations

import pyarrow as pa

from penstock.wire.cluster import Backoff
from penstock.wire.producer.partition_queue import PartitionQueue, ProducerBatch, ProducerId
from penstock.wire.records.compression import NONE
from penstock.wire.records.record_encoder import TableEncoder


def queue_of(batches: int) -> PartitionQueue:
    queue = PartitionQueue("t", 0, Backoff(0.0, 0.0))
    for _ in range(batches):
        (made,) = TableEncoder(1, batch_size=1_000, compression=NONE).encode(pa.record_batch({"value": [b"v"]}))
        queue.add(ProducerBatch(made.data, made.count, 1e9, lambda outcome, part: None))
    return queue


def test_the_first_batch_of_an_identity_goes_alone() -> None:
    """A leader that was not ready for the first would accept the second, because it has no numbers to compare with."""
    queue = queue_of(4)
    for identity in ProducerId(1, 0), ProducerId(2, 0):
        queue.restart(identity)
        first = queue.take(1)
        assert not queue.sendable(5, 0.0)
        queue.again(first)
        assert queue.sendable(5, 0.0) and queue.take(1) is first
        assert not queue.sendable(5, 0.0)
        queue.settled(first)
        assert queue.sendable(5, 0.0)
        queue.settled(queue.take(1))


def test_without_an_identity_there_is_no_first_batch() -> None:
    queue = queue_of(2)
    queue.take(1)
    assert queue.sendable(5, 0.0)
