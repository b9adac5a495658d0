"""What `send_table` returns: ranges of offsets and rows, put together from the outcomes of batches in any order."""

from __future__ import annotations

import asyncio
import pickle
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from penstock.wire.errors import MessageTooLarge, RequestTimeout
from penstock.wire.producer.partition_queue import Outcome
from penstock.wire.producer.table_receipts import (
    Receipt,
    TableDelivery,
    TableFailed,
    by_topic,
    ranges,
    receipts,
    record_batches,
)
from penstock.wire.records.record_encoder import Encoded

LATE = RequestTimeout(topic="t")


def encoded(partition: int, *rows: int) -> Encoded:
    return Encoded(partition, np.array(rows, np.int32), memoryview(b""))


def written(offset: int) -> Outcome:
    return Outcome(offset, -1, None)


@given(st.sets(st.integers(0, 40), min_size=1))
def test_ranges_are_the_rows_and_as_few_as_possible(rows: set[int]) -> None:
    found = list(ranges(np.array(sorted(rows))))
    assert [row for first, last in found for row in range(first, last + 1)] == sorted(rows)
    assert all(later[0] > earlier[1] + 1 for earlier, later in pairwise(found))


def test_a_range_is_one_range() -> None:
    assert list(ranges(range(3, 9))) == [(3, 8)]


def test_offsets_that_follow_are_one_range_of_their_partition() -> None:
    async def work() -> Receipt:
        delivery = TableDelivery("t")
        batches = [encoded(0, 0, 2), encoded(1, 1), encoded(0, 3, 4), encoded(0, 5), encoded(0, 6)]
        settles = [delivery.expect(one) for one in batches]
        for settle, one, offset in zip(settles, batches, (10, 7, 12, 20, 21), strict=True):
            settle(written(offset), slice(0, one.count))
        return await delivery.receipt()

    assert asyncio.run(work()) == Receipt("t", 7, {0: [(10, 13), (20, 21)], 1: [(7, 7)]})


def test_offsets_that_the_broker_did_not_return_are_ranges_of_their_own() -> None:
    async def work() -> Receipt:
        delivery = TableDelivery("t")
        for offset in (-1, -1, 0, 1):
            delivery.expect(encoded(0, 0))(written(offset), slice(0, 1))
        return await delivery.receipt()

    assert asyncio.run(work()).offsets == {0: [(-1, -1), (-1, -1), (0, 1)]}


def test_rows_that_failed_are_counted_through_all_batches_and_sorted() -> None:
    async def work() -> None:
        delivery = TableDelivery("t")
        first = delivery.expect(encoded(0, 0, 1, 2, 3))
        delivery.next_batch(10)
        second = delivery.expect(encoded(1, 4, 6))
        second(Outcome(-1, -1, LATE), slice(0, 2))
        first(written(5), slice(0, 1))
        first(Outcome(-1, -1, MessageTooLarge(topic="t")), slice(1, 3))
        waiting = asyncio.create_task(delivery.receipt())
        await asyncio.sleep(0)
        assert not waiting.done(), "a record is not settled yet"
        first(written(6), slice(3, 4))
        with pytest.raises(TableFailed, match="4 rows failed, the first at 1 to 2: MESSAGE_TOO_LARGE") as caught:
            await waiting
        failed = [(first, last, type(error)) for first, last, error in caught.value.failed]
        assert failed == [(1, 2, MessageTooLarge), (14, 14, RequestTimeout), (16, 16, RequestTimeout)]
        assert caught.value.receipt == Receipt("t", 2, {0: [(5, 6)]})

    asyncio.run(work())


def test_of_several_topics_that_failed_the_first_error_names_the_others() -> None:
    async def work() -> None:
        deliveries = [TableDelivery(topic) for topic in ("good", "bad", "worse")]
        for one, outcome in zip(deliveries, (written(1), Outcome(-1, -1, LATE), Outcome(-1, -1, LATE)), strict=True):
            one.expect(encoded(0, 0))(outcome, slice(0, 1))
        with pytest.raises(TableFailed) as caught:
            await receipts(deliveries)
        assert caught.value.topic == "bad"
        assert [note.partition(":")[0] for note in caught.value.__notes__] == ["TABLE_FAILED (topic worse)"]

    asyncio.run(work())


def test_a_table_that_failed_survives_a_trip_to_another_process() -> None:
    error = TableFailed(Receipt("t", 2, {0: [(5, 6)]}), [(1, 2, LATE)])
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.topic, copy.receipt) == (TableFailed, str(error), "t", error.receipt)
    assert [(first, last, type(why)) for first, last, why in copy.failed] == [(1, 2, RequestTimeout)]
    assert str(error).startswith("TABLE_FAILED (topic t): some rows were not written: 2 rows failed, the first at 1 to")


def test_nothing_to_write_is_an_empty_receipt() -> None:
    assert asyncio.run(TableDelivery("t").receipt()) == Receipt("t", 0, {})
    assert asyncio.run(receipts([])) == {}


TOPICS = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.binary(max_size=3)), max_size=12)


@given(
    TOPICS, st.sampled_from([pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())])
)
def test_rows_of_each_topic_keep_their_order(rows: list[tuple[str, bytes]], kind: pa.DataType) -> None:
    topics = pa.array([topic for topic, _ in rows], pa.string()).cast(kind)
    batch = pa.record_batch({"topic": topics, "value": pa.array([value for _, value in rows], pa.binary())})
    found = {topic: part["value"].to_pylist() for topic, part in by_topic([batch])}
    assert found == {topic: [value for one, value in rows if one == topic] for topic, _ in rows}
    assert all(part.schema.names == ["value"] for _, part in by_topic([batch]))


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"value": [b"v"]}, r"there is no column topic among \['value'\]; add it, or name one topic for all"),
        ({"topic": ["a", None]}, "row 1 of a batch has no topic; fill the column topic"),
    ],
)
def test_rows_without_a_topic_are_refused(columns: dict[str, list[object]], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        list(by_topic([pa.record_batch(columns)]))


def test_tables_batches_and_readers_are_batches() -> None:
    batch = pa.record_batch({"value": [b"v"]})
    table = pa.Table.from_batches([batch, batch])
    for given_table, count in ((batch, 1), (table, 2), (table.to_reader(), 2), ([batch] * 3, 3)):
        assert list(record_batches(given_table)) == [batch] * count
