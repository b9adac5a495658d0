"""The load, a process of its own: trackers that post what visitors do; each tracker sends one request at a time.

Every event has the time of the request that carries it. A request without a good answer is sent again, with a new
time, until it has one: so an event may be stored more than once, always with the same id. Acknowledged requests are
journalled, one per line: `{"stamps": [...], "events": [...]}`, with the times of all attempts in milliseconds.

The load learns from the pipeline's output which persons are known and which batches are finished. The demo commands it
as `penstock_demo.parts` says.
"""

from __future__ import annotations

import argparse
import math
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO

import orjson
from confluent_kafka import Message

from penstock_demo import watch
from penstock_demo.adtech import site
from penstock_demo.adtech.traffic import Event, Traffic
from penstock_demo.parts import LoadStatus, commands

TRACKERS = 4
EVERY = 0.2
"""Seconds between two requests of a tracker."""
STATUS_EVERY = 0.5
BACK_OFF = 0.3
WARM_UP = 0.25
"""The share of the rate at which visitors act before `go`; they sign in at the full rate."""
PATIENCE = site.LATE / 1000 * 0.75
"""Seconds for an answer: a request must not reach Kafka after the rules have stopped waiting for it."""
BAD_EVERY = 40
"""One in this many requests is first sent with a bad event: it must be refused, and none of it stored."""
HEADERS = {"Content-Type": "application/x-ndjson"}
MARGIN = 500
"""Milliseconds, because the ends of a topic's partitions are not read at the same moment."""


@dataclass
class Status(LoadStatus):
    """What the load has done: events acknowledged, requests sent again, requests refused as they should be.

    `acts` are the events besides sign-ins, `warm_up_acts` those before `go`; `able` visitors may act.
    """

    events: int = 0
    acts: int = 0
    warm_up_acts: int = 0
    refused: int = 0
    able: int = 0


class Journal:
    """The acknowledged requests of all trackers."""

    def __init__(self, file: BinaryIO) -> None:
        self.status = Status()
        self._file, self._lock = file, threading.Lock()

    def acknowledged(self, events: list[Event], stamps: list[int]) -> None:
        with self._lock:
            self._file.write(orjson.dumps({"stamps": stamps, "events": events}, option=orjson.OPT_APPEND_NEWLINE))
            self._file.flush()
            self.status.events += len(events)
            self.status.acts += sum(event["event"] != site.SIGN_IN for event in events)

    def count(self, name: str) -> None:
        with self._lock:
            setattr(self.status, name, getattr(self.status, name) + 1)


class Progress:
    """The progress of the segments query, from the changes that it writes.

    A batch has everything that Kafka had when it was planned. So a batch with the change of an event has all events
    that were acknowledged before that event. And it is finished, and does not run again, when a later change follows
    an event that was posted after the batch's changes were seen.
    """

    def __init__(self) -> None:
        self.passed = 0
        """Events that were acknowledged before this time, in milliseconds, are in finished batches."""
        self._told: deque[tuple[int, int]] = deque()

    def saw(self, at: int, now: int) -> None:
        """Call this when a change is seen that follows an event of the time `at`."""
        while self._told and self._told[0][0] < at:
            self.passed = max(self.passed, self._told.popleft()[1])
        if not self._told or now > self._told[-1][0]:
            self._told.append((now, at - MARGIN))


class Answers(watch.TopicWatch):
    """Reads the pipeline's output: the known persons, for their trackers, and the pipeline's progress."""

    def __init__(self, servers: str, trackers: Mapping[str, SimpleQueue[str]], progress: Progress) -> None:
        super().__init__(watch.consumer(servers, dict.fromkeys((site.VISITS, *site.CHANGES), site.PARTITIONS)))
        self._trackers, self._progress = trackers, progress

    def _take(self, message: Message, now: int) -> None:
        told = orjson.loads(message.value())
        if message.topic() == site.VISITS:
            self._trackers[told["id"].partition("-")[0]].put(told["id"])
        elif told["event"] in site.AT_ONCE and told["segment"] != site.BY_TIME:
            self._progress.saw(told["at"], now // 1000)


class Tracker(threading.Thread):
    """Posts what its visitors do; `known` takes the ids of events whose persons the pipeline has reported."""

    def __init__(
        self, name: str, traffic: Traffic, address: str, journal: Journal, size: int, progress: Progress
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._progress = progress
        self.known: SimpleQueue[str] = SimpleQueue()
        self.going, self.ending = threading.Event(), threading.Event()
        self.able = 0
        self.fault: Exception | None = None
        self._traffic, self._address, self._journal, self._size = traffic, address, journal, size
        self._connection = self._connect()
        self._stamp = self._requests = 0

    def run(self) -> None:
        try:
            due = time.monotonic()
            while not self.ending.is_set():
                self._turn()
                # After a break the schedule starts again: a backlog would be sent as a burst.
                due = max(due + EVERY, time.monotonic() - EVERY)
                time.sleep(max(0.0, due - time.monotonic()))
        except Exception as error:
            self.fault = error

    def _turn(self) -> None:
        clock = time.monotonic()
        while not self.known.empty():
            self._traffic.known(self.known.get(), clock)
        self.able = self._traffic.able(clock)
        acts = self._size if self.going.is_set() else math.ceil(self._size * WARM_UP)
        if events := self._traffic.next(self._size, clock, acts=acts, passed=self._progress.passed):
            self._requests += 1
            if self._requests % BAD_EVERY == 0:
                self._post_bad(events)
            self._post(events)

    def _post(self, events: list[Event]) -> None:
        """Post until acknowledged."""
        stamps: list[int] = []
        while True:
            stamps.append(self._next_stamp())
            status, said = self._request(events, stamps[-1])
            if status == 200:
                break
            if 400 <= status < 500 and status not in (408, 429):
                raise RuntimeError(f"good events are refused with {status}: {said!r}")
            self._journal.count("retries")
            time.sleep(BACK_OFF)
        self._traffic.acknowledged(events, now())
        self._journal.acknowledged(events, stamps)

    def _post_bad(self, events: list[Event]) -> None:
        """Post the same request with an event that violates the schema; raises RuntimeError if it is accepted."""
        bad = [{**event, "id": f"bad-{event['id']}"} for event in events]
        bad[-1]["event"] = "sneeze"
        status, said = self._request(bad, self._next_stamp())
        if status == 400:
            self._journal.count("refused")
        elif status == 200:
            raise RuntimeError(f"an event that violates the schema is accepted: {said!r}")

    def _next_stamp(self) -> int:
        self._stamp = max(self._stamp + 1, now())
        return self._stamp

    def _request(self, events: list[Event], stamp: int) -> tuple[int, bytes]:
        """The status and body of the answer; status 0 without an answer."""
        body = b"\n".join(orjson.dumps({**event, "ts": stamp}) for event in events)
        try:
            self._connection.request("POST", f"/events/{site.EVENTS}", body, HEADERS)
            answer = self._connection.getresponse()
            return answer.status, answer.read()
        except (OSError, HTTPException) as error:
            self._connection.close()
            self._connection = self._connect()
            return 0, str(error).encode()

    def _connect(self) -> HTTPConnection:
        return HTTPConnection(self._address, timeout=PATIENCE)


def run(status: Status, trackers: Sequence[Tracker], answers: Answers, seconds: float) -> None:
    """Warm up until `go`, then act for `seconds` or until the end of standard input; then wait for the last answers."""
    told = commands()

    threads: list[Tracker | Answers] = [*trackers, answers]

    def report() -> None:
        for thread in threads:
            if thread.fault:
                raise thread.fault
        status.able = sum(tracker.able for tracker in trackers)
        status.report()

    until = float("inf")
    while not told.stop.is_set() and time.monotonic() < until:
        if told.go.is_set() and not status.going:
            status.going, status.started_us, status.warm_up_acts = True, time.time_ns() // 1000, status.acts
            until = time.monotonic() + seconds
            for tracker in trackers:
                tracker.going.set()
        status.seconds = max(0.0, seconds - (until - time.monotonic())) if status.going else 0.0
        report()
        told.stop.wait(min(STATUS_EVERY, max(0.0, until - time.monotonic())))
    status.seconds = seconds
    for tracker in trackers:
        tracker.ending.set()
    for tracker in trackers:
        while tracker.is_alive():
            tracker.join(STATUS_EVERY)
            report()
    status.finished = True
    report()


def _started(journal: Journal, given: argparse.Namespace) -> tuple[list[Tracker], Answers]:
    size = max(1, round(given.rate * EVERY / TRACKERS))
    progress = Progress()
    trackers = []
    for number in range(TRACKERS):
        name = f"t{number}"
        traffic = Traffic(name, given.seed + number, visitors(given.rate))
        trackers.append(Tracker(name, traffic, given.address, journal, size, progress))
    answers = Answers(given.kafka, {one.name: one.known for one in trackers}, progress)
    for thread in (answers, *trackers):
        thread.start()
    return trackers, answers


def now() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def visitors(rate: float) -> int:
    """The number of visitors of a tracker: half of them wait at times, and the others act about once per second."""
    return max(4, round(rate / TRACKERS * 2))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m penstock_demo.adtech.load", description=__doc__)
    parser.add_argument("--address", required=True, help="host:port of ingest")
    parser.add_argument("--kafka", required=True, help="host:port of Kafka, for the pipeline's output")
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--rate", type=float, required=True, help="events per second")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    # Low priority: if CPU is short, the load posts fewer events instead of slowing down the other parts.
    os.nice(10)
    with given.journal.open("wb") as file:
        journal = Journal(file)
        run(journal.status, *_started(journal, given), given.seconds)


if __name__ == "__main__":
    main()
