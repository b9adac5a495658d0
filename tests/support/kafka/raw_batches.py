"""Raw record batches, sent to a broker: batches that no current client writes, but brokers accept."""

from __future__ import annotations

import asyncio

from wire_rows import Row, batch_of

from penstock.wire.broker_connection import Link
from penstock.wire.cluster import Cluster
from penstock.wire.protocol import frames
from penstock.wire.records.batch_header import stamp
from penstock.wire.records.compression import NONE


def raw_batch(rows: list[Row], codec: int = NONE) -> bytearray:
    """A batch without a producer, with its checksum."""
    made = bytearray(batch_of(rows, codec))
    return stamped(made)


def stamped(batch: bytearray) -> bytearray:
    """The batch with the checksum of its current bytes."""
    stamp(memoryview(batch), producer_id=-1, producer_epoch=-1, base_sequence=-1)
    return batch


def send_batch(servers: str, topic: str, batch: bytes | bytearray) -> int:
    """Write it to partition 0; the broker's error code."""
    body = {
        "acks": -1,
        "timeout_ms": 10_000,
        "topic_data": [{"name": topic, "partition_data": [{"index": 0, "records": bytes(batch)}]}],
    }

    async def work() -> int:
        cluster = Cluster(servers, Link(), create=False)
        try:
            connection = await cluster.connection((await cluster.topic(topic)).leaders[0])
            version = connection.version(frames.PRODUCE, at_most=12)
            answer = await connection.ask(frames.PRODUCE, body, version=version)
        finally:
            await cluster.close()
        code: int = answer["responses"][0]["partition_responses"][0]["error_code"]
        return code

    return asyncio.run(work())
