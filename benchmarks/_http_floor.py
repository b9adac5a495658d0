"""Our Kafka client alone, with the events of `_http_load` put together as the server does: what no server can beat.

python benchmarks/_http_floor.py '{"servers": "localhost:9092", "topic": "clicks", "seconds": 8}'
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import uvloop

from _http_load import events
from penstock.ingest.events import TopicFormat
from penstock.wire import Producer

BATCH, TOGETHER, AT_ONCE = 100, 32, 2
"""Events of a request, requests of a table, and tables under way."""


async def send(servers: str, topic: str, seconds: float) -> dict[str, Any]:
    reading = TopicFormat(None, (), 1_000_000, 10_000)
    lot = [reading.read(events(n, BATCH), lines=True, key=None)[0].values for n in range(TOGETHER)]
    sent = 0

    async def run() -> None:
        nonlocal sent
        while time.perf_counter() < began + seconds:
            await producer.send_values(topic, lot)
            sent += TOGETHER

    async with Producer(servers, compression="lz4") as producer:
        await producer.send_values(topic, lot)
        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(run() for _ in range(AT_ONCE)))
        took = time.perf_counter() - began
        return {"requests": sent, "seconds": took, "cpu_seconds": time.process_time() - cpu}


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(send(**json.loads(sys.argv[1])))))
