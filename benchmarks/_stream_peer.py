"""What the jobs of both Python peers share; they run in a Python of their own, which has neither Spark nor Penstock.

Their table is looked up in a dict that is read before the first event: neither has a join of a table by key.
"""

import json
import os
import sys
import time
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, TopicPartition

Event = dict[str, Any]


@dataclass
class Run:
    """The words of the command line, and how many events were seen; a line is printed at each tenth of them."""

    job: str
    servers: str
    source: str
    results: str
    table: str
    events: int
    threads: int
    folder: str
    seen: int = 0

    @classmethod
    def of(cls, words: list[str]) -> "Run":
        job, servers, source, results, table, events, threads, folder = words
        return cls(job, servers, source, results, table, int(events), int(threads), folder)

    def tell(self) -> None:
        """Events, wall clock and CPU of this process in milliseconds."""
        used = os.times()
        print(self.seen, int(time.time() * 1000), int((used.user + used.system) * 1000), flush=True)

    def count(self) -> None:
        self.seen += 1
        if self.seen == 1 or self.seen % max(self.events // 10, 1) == 0:
            self.tell()

    def people(self) -> dict[str, Event]:
        """The whole table of users."""
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": self.folder})
        partitions = consumer.list_topics(self.table).topics[self.table].partitions
        parts = [TopicPartition(self.table, number, 0) for number in partitions]
        left = sum(consumer.get_watermark_offsets(part)[1] for part in parts)
        consumer.assign(parts)
        found: dict[str, Event] = {}
        while len(found) < left:
            found |= {one.key().decode(): json.loads(one.value()) for one in consumer.consume(10_000, timeout=0.1)}
        consumer.close()
        return found


def slim(value: Event, *more: str) -> Event:
    made = {"id": value["id"], "user": value["user"], "cents": round(value["price"] * 100), "ts": value["ts"]}
    return made | {name: value.get(name) for name in more}


run = Run.of(sys.argv[1:])
