"""How long an event takes through a job: a process writes at a steady rate, a consumer here reads the results."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, Producer, TopicPartition

from _stream_data import PAD, PARTITIONS
from _stream_jobs import Topics

TIME = re.compile(rb'"ts":(\d+)')
WARM_UP = 20.0
"""Seconds of results that are not counted."""
TICK = 0.01


def delays(topics: Topics, rate: int, seconds: float) -> list[float]:
    """Milliseconds from before the write to the poll of the result, sorted."""
    consumer = Consumer({"bootstrap.servers": topics.servers, "group.id": topics.results, "fetch.wait.max.ms": 5})
    consumer.assign([TopicPartition(topics.results, number, 0) for number in range(PARTITIONS)])
    found: list[float] = []
    with _feeding(topics, rate, WARM_UP + seconds):
        began: float | None = None
        while began is None or time.monotonic() < began + WARM_UP + seconds - 2:
            some = consumer.consume(10_000, timeout=0.02)
            now = time.time() * 1000
            if some and began is None:
                began = time.monotonic()
            if began is not None and time.monotonic() > began + WARM_UP:
                times = (TIME.search(one.value()) for one in some if not one.error())
                found += [now - int(at[1]) for at in times if at]
    consumer.close()
    return sorted(found)


@contextmanager
def _feeding(topics: Topics, rate: int, seconds: float) -> Iterator[None]:
    command = [sys.executable, __file__, topics.servers, topics.events, str(rate), str(seconds + 60)]
    with subprocess.Popen(command) as feeder:
        try:
            yield
        finally:
            feeder.kill()


def feed(servers: str, topic: str, rate: int, seconds: float) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 2, "compression.type": "lz4"})
    start, sent = time.monotonic(), 0
    while (passed := time.monotonic() - start) < seconds:
        for number in range(sent, int(passed * rate)):
            user = f"u{number * 7919 % 10_000:08d}"
            at = int(time.time() * 1000)
            rest = f'"page":"/p/{number % 1000}","price":12.50,"ts":{at},"agent":"{PAD}"'
            producer.produce(topic, f'{{"id":{number},"user":"{user}",{rest}}}', key=user)
        sent = max(sent, int(passed * rate))
        producer.poll(0)
        time.sleep(TICK)
    producer.flush(10)


if __name__ == "__main__":
    feed(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
