"""Batches that the broker refuses as too large are split and sent again: in order, once, each record at its offset."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from kafka_topics import new_topic
from wire_rows import Row, batch_of

from penstock.local.services import Services
from penstock.wire import Producer, Reader, RecordMetadata, TableFailed
from penstock.wire.cluster import Backoff
from penstock.wire.errors import MessageTooLarge
from penstock.wire.producer.partition_queue import SEQUENCES, Outcome, PartitionQueue, ProducerBatch, ProducerId
from penstock.wire.producer.produce_responses import halves, parted
from penstock.wire.records.batch_header import stamp
from penstock.wire.records.compression import CODECS, Compression
from penstock.wire.records.record_decoder import decode

LIMIT = 20_000
COUNT = 3_000


@pytest.fixture
def topic(services: Services) -> Iterator[str]:
    """A topic of two partitions that accepts batches of 20 000 bytes."""
    with new_topic(services.kafka, "large", 2, {"max.message.bytes": str(LIMIT)}) as name:
        yield name


def value(n: int) -> bytes:
    """About 100 bytes that do not compress much."""
    return b"%d " % n + b"".join(b"%x" % (n * k * 7919 % 65_521) for k in range(1, 25))


def read(services: Services, topic: str) -> dict[int, dict[int, bytes]]:
    """All committed values by partition and offset."""

    async def work() -> dict[int, dict[int, bytes]]:
        found: dict[int, dict[int, bytes]] = {0: {}, 1: {}}
        async with Reader(services.kafka) as reader:
            # A transaction's end is confirmed before its markers are everywhere: read what is there, and wait for them.
            async with Reader(services.kafka, committed=False) as whole:
                start, end = await whole.earliest(topic), await whole.latest(topic)
            async for partition, table in reader.read(topic, start=start, end=end):
                found[partition] |= zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True)
        return found

    return asyncio.run(work())


def assert_placed(found: dict[int, dict[int, bytes]], told: list[RecordMetadata], sent: Callable[[int], bytes]) -> None:
    """Each record is at its reported offset, none is twice, and a partition has them in order."""
    assert len(told) == len({(one.partition, one.offset) for one in told})
    for n, one in enumerate(told):
        assert found[one.partition][one.offset] == sent(n)
    for p in found:
        offsets = [one.offset for one in told if one.partition == p]
        assert offsets == sorted(offsets)


async def send(producer: Producer, topic: str, sent: Callable[[int], bytes]) -> list[RecordMetadata]:
    futures = [await producer.send(topic, sent(n), partition=n % 2) for n in range(COUNT)]
    return list(await asyncio.gather(*futures))


@pytest.mark.parametrize("compression", ["none", "lz4"])
@pytest.mark.parametrize("options", [{}, {"acks": 1, "in_flight": 1}, {"transactional_id": "large"}], ids=str)
def test_all_arrive_in_order(services: Services, topic: str, compression: Compression, options: dict[str, Any]) -> None:
    async def work() -> list[RecordMetadata]:
        # Some batches fit and most do not.
        async with Producer(services.kafka, compression=compression, batch_size=90_000, **options) as producer:
            async with producer.transaction() if "transactional_id" in options else nullcontext():
                told = await send(producer, topic, value)
            assert producer.stats().buffer_used == 0
            assert producer.stats().topics[topic].retries > 0
            return told

    told = asyncio.run(work())
    found = read(services, topic)
    assert sum(map(len, found.values())) == COUNT
    assert_placed(found, told, value)


def test_others_may_write_between_the_parts(services: Services, topic: str) -> None:
    def others(n: int) -> bytes:
        return b"other " + value(n)

    async def work() -> list[list[RecordMetadata]]:
        one, other = (Producer(services.kafka, batch_size=200_000, linger=timedelta(0)) for _ in range(2))
        async with one, other:
            return list(await asyncio.gather(send(one, topic, value), send(other, topic, others)))

    ours, theirs = asyncio.run(work())
    found = read(services, topic)
    assert sum(map(len, found.values())) == 2 * COUNT
    assert_placed(found, ours, value)
    assert_placed(found, theirs, others)


def test_a_table_arrives_but_for_the_record_that_alone_is_too_large(services: Services, topic: str) -> None:
    rows = [value(n) for n in range(COUNT)]
    rows[1_234] = bytes(LIMIT)

    async def work() -> None:
        async with Producer(services.kafka, batch_size=500_000) as producer:
            await producer.send_table(topic, pa.table({"value": rows, "partition": [n % 2 for n in range(COUNT)]}))

    with pytest.raises(TableFailed) as failed:
        asyncio.run(work())
    ((first, last, error),) = failed.value.failed
    assert (first, last) == (1_234, 1_234)
    assert isinstance(error, MessageTooLarge)
    for said in (f"topic {topic}, partition 0", "raise its max.message.bytes", "one record of 200", "200", "as sent"):
        assert said in str(error)
    receipt, found = failed.value.receipt, read(services, topic)
    del rows[1_234]
    assert receipt.rows == len(rows)
    assert receipt.offsets == {0: [(0, COUNT // 2 - 2)], 1: [(0, COUNT // 2 - 1)]}
    sent = {p: [value(n) for n in range(p, COUNT, 2) if n != 1_234] for p in range(2)}
    assert {p: list(of.values()) for p, of in found.items()} == sent


def test_a_batch_larger_than_a_segment_is_cut_too(services: Services) -> None:
    segments = {"segment.bytes": str(1 << 20), "max.message.bytes": str(1 << 22)}
    with new_topic(services.kafka, "segments", 2, segments) as topic:

        async def work() -> list[RecordMetadata]:
            async with Producer(services.kafka, batch_size=3_000_000, linger=timedelta(seconds=1)) as producer:
                futures = [await producer.send(topic, b"%d" % n * 1_000, partition=0) for n in range(1_000)]
                told = list(await asyncio.gather(*futures))
                assert producer.stats().topics[topic].retries > 0
                return told

        assert [one.offset for one in asyncio.run(work())] == list(range(1_000))
        assert list(read(services, topic)[0].values()) == [b"%d" % n * 1_000 for n in range(1_000)]


ROWS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=5),
        st.none() | st.binary(max_size=300),
        st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2),
        st.integers(0, 2**41),
    ),
    min_size=2,
    max_size=40,
)


@given(rows=ROWS, codec=st.sampled_from(list(CODECS.values())))
def test_halves_have_all_records_in_order(rows: list[Row], codec: int) -> None:
    whole = stamped(batch_of(rows, codec))
    made = list(halves(whole, None))
    assert len(made) >= 2
    table = pa.concat_tables([decode(stamped(one.data)) for one in made])
    assert table.drop_columns(["offset"]).to_pylist() == decode(whole).drop_columns(["offset"]).to_pylist()


@given(rows=ROWS, codec=st.sampled_from(list(CODECS.values())), data=st.data())
def test_parts_have_their_records_in_order(rows: list[Row], codec: int, data: st.DataObject) -> None:
    whole = stamped(batch_of(rows, codec))
    bad = data.draw(st.sets(st.integers(0, len(rows) - 1), min_size=1, max_size=len(rows) - 1))
    parts = [np.array([n for n in range(len(rows)) if n not in bad]), np.array(sorted(bad))]
    records = decode(whole).drop_columns(["offset"])
    for one, of in zip(parted(whole, parts, None), parts, strict=True):
        assert decode(stamped(one.data)).drop_columns(["offset"]).to_pylist() == records.take(of).to_pylist()


def test_a_part_may_take_more_bytes_than_the_whole() -> None:
    """Its first record has another time, from which all other times count."""
    late: list[Row] = [(None, b"", [], 1 << 40)] * 9
    rows: list[Row] = [late[0], (None, b"", [], 0), *late]
    whole = stamped(batch_of(rows))
    first, others = np.arange(1), np.arange(1, len(rows))
    good, bad = parted(whole, [others, first], None)
    assert (good.count, bad.count) == (len(others), 1)
    assert len(good.data) > len(whole)


def stamped(batch: memoryview) -> memoryview:
    stamp(batch, producer_id=-1, producer_epoch=-1, base_sequence=-1)
    return batch


def test_parts_share_the_numbers_of_the_whole() -> None:
    """The batches after it keep their numbers, also past the largest number."""
    queue, told = PartitionQueue("t", 0, Backoff(0.0, 0.0)), list[tuple[int, slice]]()
    for _ in range(2):
        data = batch_of([(None, bytes(100), [], 0)] * 8)
        queue.add(ProducerBatch(data, 8, 1e9, lambda outcome, part: told.append((outcome.offset, part))))
    queue.restart(ProducerId(7, 0))
    queue._next = SEQUENCES - 10
    whole, behind = queue.take(1), queue.take(1)
    queue.split(whole, halves(whole.data, None))
    assert not queue.is_first(behind)
    queue.again(behind)
    left, right, last = queue.take(1), queue.take(1), queue.take(1)
    assert (last, last.sequence) == (behind, SEQUENCES - 2)
    assert (left.sequence, left.count, right.sequence, right.count) == (SEQUENCES - 10, 4, SEQUENCES - 6, 4)
    # A part may be too large again, and the next part may come back before it.
    queue.again(right)
    queue.split(left, halves(left.data, None))
    queue.again(last)
    order = [queue.take(1) for _ in range(4)]
    assert [one.sequence % SEQUENCES for one in order] == [SEQUENCES - n for n in (10, 8, 6, 2)]
    for offset, one in enumerate(order):
        assert decode(one.data).num_rows == one.count  # with its checksum
        one.finish(Outcome(offset, -1, None))
    assert told == [(0, slice(0, 2)), (1, slice(2, 4)), (2, slice(4, 8)), (3, slice(0, 8))]
