"""The events of the stream benchmarks: JSON of about 150 bytes, made in columns and written by our own client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.wire import Producer

PARTITIONS = 4
CHUNK = 200_000
START = 1_709_208_000_000
"""Milliseconds: the time of the first event. There are `RATE` in a second of event time."""
RATE = 20_000
PAD = "Mozilla/5.0 (X11; Linux x86_64)"
SCHEMA = "id long, user string, page string, price double, ts long, agent string"


def user(numbers: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise("u", pc.utf8_lpad(numbers.cast(pa.string()), 8, "0"), "")


def events(first: int, count: int, keys: int) -> pa.RecordBatch:
    """Events with the numbers from `first` on, their users drawn from `keys` ones."""
    draw = np.random.default_rng(first)
    ids = pa.array(np.arange(first, first + count))
    users = user(pa.array(draw.integers(0, keys, count)))
    cents = draw.integers(100, 10_000, count)
    text = [
        *('{"id":', ids.cast(pa.string()), ',"user":"', users),
        *('","page":"/p/', pa.array(draw.integers(0, 1000, count)).cast(pa.string())),
        *('","price":', pa.array(cents // 100).cast(pa.string()), "."),
        *(pc.utf8_lpad(pa.array(cents % 100).cast(pa.string()), 2, "0"), ',"ts":'),
        *(pa.array(START + np.arange(first, first + count) * 1000 // RATE).cast(pa.string()), f',"agent":"{PAD}"}}'),
    ]
    values = pc.binary_join_element_wise(*text, "")
    return pa.record_batch({"key": users.cast(pa.binary()), "value": values.cast(pa.binary())})


def people(first: int, count: int) -> pa.RecordBatch:
    """Rows of the table of users."""
    numbers = pa.array(np.arange(first, first + count))
    text = ('{"name":"name of ', user(numbers), '","city":"c', pa.array(np.arange(count) % 500).cast(pa.string()), '"}')
    values = pc.binary_join_element_wise(*text, "")
    return pa.record_batch({"key": user(numbers).cast(pa.binary()), "value": values.cast(pa.binary())})


def fill(servers: str, topic: str, batches: Iterator[pa.RecordBatch]) -> None:
    """Write all rows; equal keys go to the same partition, as with every client."""

    async def write() -> None:
        async with Producer(servers, compression="lz4", batch_size=1_000_000) as producer:
            for batch in batches:
                await producer.send_table(topic, batch)

    asyncio.run(write())


def chunks(total: int) -> Iterator[tuple[int, int]]:
    """First number and size of each chunk."""
    for first in range(0, total, CHUNK):
        yield first, min(CHUNK, total - first)


@contextmanager
def topics(servers: str, names: list[str], partitions: int = PARTITIONS, **config: str) -> Iterator[None]:
    """New topics, deleted afterwards."""
    admin = AdminClient({"bootstrap.servers": servers})
    for done in admin.create_topics([NewTopic(name, partitions, 1, config=config) for name in names]).values():
        done.result()
    try:
        yield
    finally:
        for done in admin.delete_topics(names).values():
            done.result()
