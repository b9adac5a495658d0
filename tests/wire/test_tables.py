"""Tables of every form and type of Arrow reach the broker, and each row reaches its topic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from kafka_topics import new_topic

from penstock.local.services import Services
from penstock.native.text_slices import Texts, column
from penstock.wire import BlockingProducer, Producer, Reader, TableFailed
from penstock.wire.producer.table_receipts import Receipt
from penstock.wire.records.batch_header import stamp
from penstock.wire.records.compression import NONE
from penstock.wire.records.record_decoder import decode
from penstock.wire.records.record_encoder import TableEncoder

ROWS = 1_000


@pytest.fixture
def topics(services: Services) -> Iterator[list[str]]:
    """Three new topics of one partition."""
    with ExitStack() as stack:
        yield [stack.enter_context(new_topic(services.kafka, "tables", 1)) for _ in range(3)]


def read(services: Services, topic: str) -> list[bytes]:
    async def work() -> list[bytes]:
        async with Reader(services.kafka) as reader:
            start, end = await reader.earliest(topic), await reader.latest(topic)
            parts = [table["value"].to_pylist() async for _, table in reader.read(topic, start=start, end=end)]
            return [value for part in parts for value in part]

    return asyncio.run(work())


def send(services: Services, topic: str, table: Any) -> None:
    async def work() -> None:
        async with Producer(services.kafka) as producer:
            receipt = await producer.send_table(topic, table)
            assert (receipt.rows, receipt.offsets) == (ROWS, {0: [(0, ROWS - 1)]})

    asyncio.run(work())
    assert read(services, topic) == VALUES


VALUES = [b"%d" % n for n in range(ROWS)]
TABLE = pa.table({"value": VALUES})

FORMS: dict[str, Callable[[], Any]] = {
    "table": lambda: TABLE,
    "chunks": lambda: pa.concat_tables([TABLE.slice(0, 10), TABLE.slice(10)]),
    "record batch": lambda: pa.record_batch({"value": VALUES}),
    "slice": lambda: pa.record_batch({"value": [b"before", *VALUES, b"after"]}).slice(1, ROWS),
    "reader": lambda: TABLE.to_reader(max_chunksize=300),
    "generator": lambda: (batch for batch in TABLE.to_batches(max_chunksize=300)),
    "list": lambda: TABLE.to_batches(max_chunksize=300),
}


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_of_tables(services: Services, topics: list[str], form: str) -> None:
    send(services, topics[0], FORMS[form]())


TYPES = [pa.string(), pa.large_string(), pa.large_binary(), pa.string_view(), pa.binary_view()]


@pytest.mark.parametrize("kind", [*TYPES, pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_all_types_of_values(services: Services, topics: list[str], kind: pa.DataType) -> None:
    array = pa.array([value.decode() for value in VALUES]).cast(kind)
    send(services, topics[0], pa.table({"key": array, "value": array}))


@pytest.mark.parametrize("kind", [*TYPES[:-1], pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_each_row_goes_to_its_topic(services: Services, topics: list[str], kind: pa.DataType) -> None:
    named = pa.array([topics[n % 3] for n in range(ROWS)]).cast(kind)
    table = pa.table({"topic": named, "value": VALUES})
    with BlockingProducer(services.kafka) as producer:
        receipts = producer.send_tables(table.to_reader(max_chunksize=300))
    assert {topic: receipt.rows for topic, receipt in receipts.items()} == dict(
        zip(topics, [ROWS // 3 + 1, ROWS // 3, ROWS // 3], strict=True)
    )
    for n, topic in enumerate(topics):
        assert read(services, topic) == VALUES[n::3]


def test_batches_with_their_topics_go_there(services: Services, topics: list[str]) -> None:
    parts = [(topic, pa.record_batch({"value": [topic.encode()]})) for topic in topics] * 2
    acknowledged: list[tuple[int, list[int]]] = []

    def note(number: int, rows: Iterable[int]) -> None:
        acknowledged.append((number, list(rows)))

    with BlockingProducer(services.kafka) as producer:
        assert {receipt.rows for receipt in producer.send_tables(parts, acknowledged=note).values()} == {2}
    assert sorted(acknowledged) == [(number, [0]) for number in range(len(parts))]
    for topic in topics:
        assert read(services, topic) == [topic.encode()] * 2


def test_values_in_pieces_of_memory_are_written_in_their_order(services: Services, topics: list[str]) -> None:
    whole = b"-".join(VALUES)
    ends = [len(b"-".join(VALUES[: n + 1])) for n in range(ROWS)]
    lengths = np.array([len(value) for value in VALUES])
    places = Texts(whole, np.array(ends) - lengths, lengths)
    parts = [Texts(whole, places.starts[a:b], places.lengths[a:b]) for a, b in ((0, 1), (1, 600), (600, ROWS))]

    async def work(topic: str, **options: Any) -> Receipt:
        async with Producer(services.kafka, **options) as producer:
            return await producer.send_values(topic, parts)

    # As one batch; in smaller batches; and with each row in its own partition.
    ways: list[dict[str, Any]] = [{"compression": "lz4"}, {"batch_size": 500}, {"partitioner": "round-robin"}]
    for topic, options in zip(topics, ways, strict=True):
        receipt = asyncio.run(work(topic, **options))
        assert (receipt.rows, receipt.offsets) == (ROWS, {0: [(0, ROWS - 1)]})
        assert read(services, topic) == VALUES


@given(st.lists(st.lists(st.none() | st.binary(max_size=200), max_size=4), min_size=1, max_size=4))
def test_values_from_where_they_lie_are_the_records_of_their_column(pieces: list[list[bytes | None]]) -> None:
    parts, encoder = [Texts.of(piece) for piece in pieces], TableEncoder(1, batch_size=100_000, compression=NONE)
    assert column(parts).to_pylist() == [value for piece in pieces for value in piece]
    if not encoder.joins(parts):
        assert not any(pieces)
        return
    joined = decode(stamped(encoder.join(parts).data))
    (whole,) = encoder.encode(pa.record_batch({"value": column(parts)}))
    expected = decode(stamped(whole.data))
    for name in ("offset", "key", "value", "headers"):
        assert joined[name] == expected[name]


def stamped(data: memoryview) -> memoryview:
    stamp(data, producer_id=-1, producer_epoch=-1, base_sequence=-1)
    return data


def test_topics_that_fail_and_those_that_do_not_are_told(services: Services, topics: list[str]) -> None:
    values = [bytes(3_000_000), b"small", bytes(3_000_000)]
    with BlockingProducer(services.kafka) as producer, pytest.raises(TableFailed) as failed:
        producer.send_tables(pa.table({"topic": topics, "value": values}))
    assert failed.value.topic == topics[0]
    (note,) = failed.value.__notes__
    assert topics[2] in note
    assert read(services, topics[1]) == [b"small"]


def test_a_row_without_topic_is_told(services: Services) -> None:
    with BlockingProducer(services.kafka) as producer:
        with pytest.raises(ValueError, match="row 1 of a batch has no topic; fill the column topic"):
            producer.send_tables(pa.table({"topic": ["a", None], "value": [b"v", b"w"]}))
        with pytest.raises(ValueError, match=r"no column topic among \['value'\]; add it, or name one topic for all"):
            producer.send_tables(TABLE)
