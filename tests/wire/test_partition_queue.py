"""When a partition's batches may be in flight together."""

from __future__ import annotations

import pyarrow as pa

from penstock.wire.cluster import Backoff
from penstock.wire.producer.partition_queue import Lane, ProducerBatch, ProducerId
from penstock.wire.records.compression import NONE
from penstock.wire.records.record_encoder import TableEncoder


def lane_of(batches: int) -> Lane:
    lane = Lane("t", 0, Backoff(0.0, 0.0))
    for _ in range(batches):
        (made,) = TableEncoder(1, batch_size=1_000, compression=NONE).encode(pa.record_batch({"value": [b"v"]}))
        lane.add(ProducerBatch(made.data, made.count, 1e9, lambda outcome, part: None))
    return lane


def test_the_first_batch_of_an_identity_goes_alone() -> None:
    """A leader that was not ready for the first would accept the second, because it has no numbers to compare with."""
    lane = lane_of(4)
    for identity in ProducerId(1, 0), ProducerId(2, 0):
        lane.restart(identity)
        first = lane.take(1)
        assert not lane.sendable(5, 0.0)
        lane.again(first)
        assert lane.sendable(5, 0.0) and lane.take(1) is first
        assert not lane.sendable(5, 0.0)
        lane.settled(first)
        assert lane.sendable(5, 0.0)
        lane.settled(lane.take(1))


def test_without_an_identity_there_is_no_first_batch() -> None:
    lane = lane_of(2)
    lane.take(1)
    assert lane.sendable(5, 0.0)
