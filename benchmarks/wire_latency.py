"""How long a single record takes to be acknowledged at a steady rate: our producer beside confluent-kafka.

    python benchmarks/wire_latency.py --rate 10000

Both with acks=all, idempotent, without lingering; latency is from the call of send to the caller's callback, in
milliseconds, the medians of all rounds. `ratio` is ours over confluent-kafka's P99: below 1 is faster.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

from confluent_kafka import Producer as Librdkafka

from _kafka_clients import TOPIC, fresh_topic
from _measure import tell, turns
from penstock.wire import Producer
from wire import PARTITIONS, cluster

TICK = 0.001  # seconds between the bursts that make up the rate
VALUE = b"x" * 100

Latencies = list[float]
Subject = Callable[[str, int, float], Latencies]


def penstock(servers: str, rate: int, seconds: float) -> Latencies:
    taken: Latencies = []

    def done(began: float, answer: asyncio.Future[object]) -> None:
        answer.result()
        taken.append(time.perf_counter() - began)

    async def work() -> None:
        async with Producer(servers, linger=timedelta()) as producer:
            await (await producer.send(TOPIC, VALUE))
            start = time.perf_counter()
            for tick in range(int(seconds / TICK)):
                await asyncio.sleep(max(0.0, start + tick * TICK - time.perf_counter()))
                for _ in range(int(rate * TICK)):
                    began = time.perf_counter()
                    (await producer.send(TOPIC, VALUE)).add_done_callback(partial(done, began))

    asyncio.run(work())
    return taken


def confluent(servers: str, rate: int, seconds: float) -> Latencies:
    taken: Latencies = []
    producer = Librdkafka(
        {"bootstrap.servers": servers, "linger.ms": 0, "acks": "all", "enable.idempotence": True, "log_level": 3}
    )

    def done(began: float, error: object, message: object) -> None:
        if error:
            raise RuntimeError(str(error))
        taken.append(time.perf_counter() - began)

    producer.produce(TOPIC, VALUE)
    producer.flush()
    start = time.perf_counter()
    for tick in range(int(seconds / TICK)):
        producer.poll(0)
        # It waits whole milliseconds, and less is no wait: as asyncio, which takes the next one.
        while (left := start + tick * TICK - time.perf_counter()) > 0:
            producer.poll(max(left, TICK))
        for _ in range(int(rate * TICK)):
            producer.produce(TOPIC, VALUE, on_delivery=partial(done, time.perf_counter()))
    producer.flush()
    return taken


SUBJECTS: dict[str, Subject] = {"penstock": penstock, "confluent-kafka": confluent}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rate", type=int, default=10_000, help="records a second (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a run (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in SUBJECTS}
    with cluster(1) as servers:
        for number, name in turns(SUBJECTS, options.rounds + 1):
            gc.collect()
            gc.freeze()
            with fresh_topic(servers, PARTITIONS, 1):
                taken = sorted(SUBJECTS[name](servers, options.rate, options.seconds))
            if number:  # the first round warms up the broker
                found[name].append((taken[len(taken) // 2] * 1000, taken[int(len(taken) * 0.99)] * 1000))
    medians = {name: [statistics.median(values) for values in zip(*each, strict=True)] for name, each in found.items()}
    peer = medians["confluent-kafka"][1]
    case = f"latency/{options.rate}"
    rows = [
        {"case": case, "subject": name, "p50_ms": round(p50, 2), "p99_ms": round(p99, 2), "ratio": round(p99 / peer, 2)}
        for name, (p50, p99) in medians.items()
    ]
    tell(rows, options.json)


if __name__ == "__main__":
    main()
