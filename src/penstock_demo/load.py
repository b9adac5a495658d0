"""The load generator, a process of its own: paced writes through the CQL driver, each journalled when acknowledged.

The pace is open-loop: writes are sent on schedule whether or not earlier ones were answered, up to a limit of writes
in flight. A partition has at most one write in flight, so its order is defined. A write whose outcome is unknown (the
node died, a timeout) is sent again until it is acknowledged, with a NEW timestamp: the log is ordered by timestamp,
and an old timestamp could land behind a reader that has already passed it. The journal has the timestamps of all
attempts.

The demo commands it as `parts` says.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, BinaryIO

from penstock_demo import journal
from penstock_demo.mix import Mix, statements
from penstock_demo.model import Event
from penstock_demo.node import connect
from penstock_demo.operations import Write
from penstock_demo.parts import LoadStatus, commands
from penstock_demo.shop import KEYSPACE, TABLES

TICK = 0.002
STATUS_EVERY = 0.1
BACK_OFF = 0.5
IN_FLIGHT = 32
"""Most unanswered writes at a time."""
LATE = 1.0
"""Seconds; a write that takes longer than this may be missed by a reader that stays one second behind."""


class Request:
    """A write in flight, with the timestamps of its attempts."""

    __slots__ = ("acknowledged", "due", "stamps", "write")

    def __init__(self, write: Write) -> None:
        self.write = write
        self.stamps: list[int] = []
        self.due = 0.0
        self.acknowledged = 0


@dataclass
class Status(LoadStatus):
    """What the load has done so far."""

    writes: int = 0
    events: int = 0
    late: int = 0
    in_flight: int = 0
    warm_up_writes: int = 0


class Pace:
    """How many writes are due: `rate` per second, or unlimited without a rate."""

    def __init__(self, rate: float | None) -> None:
        self.rate, self._since, self._sent = rate, time.perf_counter(), 0

    def due(self) -> int:
        if self.rate is None:
            return 1 << 30
        due = int((time.perf_counter() - self._since) * self.rate) - self._sent
        if due > self.rate:
            # After a break the schedule starts again: a backlog would be sent as a burst.
            self._sent += due - 1
            return 1
        return due

    def sent(self, count: int) -> None:
        self._sent += count


class Load:
    """Sends, collects and journals, in one thread; only the driver's answers come in others."""

    def __init__(
        self, session: Any, mix: Mix, journal_file: BinaryIO, *, in_flight: int = IN_FLIGHT, late: float = LATE
    ) -> None:
        self.status = Status()
        self._session, self._mix, self._journal, self._limit = session, mix, journal_file, in_flight
        self._late = round(late * 1e6)
        self._prepared = {one.cql: session.prepare(one.cql) for one in statements(mix.tables)}
        self._answers: deque[tuple[Request, bool]] = deque()
        self._failed: deque[Request] = deque()

    def turn(self, pace: Pace, *, new: bool) -> None:
        """Take the answers, then send the due writes: failed ones first, and no new ones while any has failed."""
        self._collect()
        now = time.perf_counter()
        while self._failed and self._failed[0].due <= now:
            self.status.retries += 1
            self._send(self._failed.popleft())
        if new and not self._failed:
            count = min(pace.due(), self._limit - self.status.in_flight)
            for _ in range(count):
                self._send(Request(self._mix.next()))
            pace.sent(max(count, 0))

    def idle(self) -> bool:
        return self.status.in_flight == 0 and not self._failed

    def _send(self, request: Request) -> None:
        write = request.write
        stamp = write.partition.next_timestamp(time.time_ns() // 1000)
        request.stamps.append(stamp)
        write.values[write.statement.stamp] = stamp
        self.status.in_flight += 1
        try:
            future = self._session.execute_async(self._prepared[write.statement.cql].bind(write.values))
        except Exception:  # for example NoHostAvailable: the driver raises it here as well as in the future
            self._answers.append((request, False))
            return
        future.add_callbacks(partial(self._answered, request), partial(self._lost, request))

    def _answered(self, request: Request, _rows: Any) -> None:
        request.acknowledged = time.time_ns() // 1000
        self._answers.append((request, True))

    def _lost(self, request: Request, _error: Exception) -> None:
        self._answers.append((request, False))

    def _collect(self) -> None:
        while self._answers:
            request, acknowledged = self._answers.popleft()
            self.status.in_flight -= 1
            if acknowledged:
                self._write_down(request)
            else:
                request.due = time.perf_counter() + BACK_OFF
                self._failed.append(request)
        self._journal.flush()

    def _write_down(self, request: Request) -> None:
        write, stamps = request.write, request.stamps
        table = write.partition.table
        late = request.acknowledged - stamps[-1] > self._late
        also = [self._other_images(write, event, len(stamps)) for event in write.events] if len(stamps) > 1 else []
        self._journal.write(journal.line(table, write.events, stamps, late=late, also=also))
        write.partition.busy = False
        self.status.writes += 1
        self.status.late += late
        self.status.events += sum(
            1 + journal.has_tombstone(event.op, tuple(event.key.values())) for event in write.events
        )

    def _other_images(self, write: Write, event: Event, attempts: int) -> list[list[Any]]:
        """The images that the log may have if several attempts were applied: each sees the result of earlier ones."""
        column = write.appends_to
        if column is None or event.after is None:
            return [[write.partition.image(event.key), event.after]]
        self._read_back(write, event, column)
        element = event.after[column][-1]
        repeated = [event.after | {column: event.after[column] + [element] * n} for n in range(attempts)]
        return [[before, after] for before, after in pairwise(repeated)]

    def _read_back(self, write: Write, event: Event, column: str) -> None:
        """Read the column from the table: it is unknown how many attempts have appended."""
        table = write.partition.table
        where = " AND ".join(f"{name} = %s" for name in table.key)
        query = f"SELECT {column} FROM {KEYSPACE}.{table.name} WHERE {where}"
        values = write.values[2 : 2 + len(table.key)]
        while True:
            try:
                found = self._session.execute(query, values).one()[0]
            except Exception:
                time.sleep(BACK_OFF)
                continue
            write.partition.replace(event.key, column, list(found))
            return


def run(load: Load, *, warm_rate: float, seconds: float) -> None:
    """Warm up until `go`, keep the rate for `seconds` or until `stop`, then wait for the last answers."""
    told = commands()
    pace, rate, until, reported = Pace(warm_rate), "", float("inf"), 0.0
    while not (load.idle() and load.status.finished):
        now = time.perf_counter()
        if told.rate != rate:
            rate = told.rate
            pace = Pace(None if rate == "max" else float(rate or warm_rate))
        if told.go.is_set() and not load.status.going:
            until = now + seconds
            load.status.warm_up_writes = load.status.writes + load.status.in_flight
            load.status.going, load.status.started_us = True, time.time_ns() // 1000
        if not load.status.finished:
            load.status.finished = told.stop.is_set() or now >= until
            load.status.seconds = seconds - (until - now) if load.status.going else 0.0
        load.turn(pace, new=not load.status.finished)
        if now - reported >= STATUS_EVERY:
            reported = now
            load.status.report()
        time.sleep(TICK)
    load.status.report()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m penstock_demo.load", description=__doc__)
    parser.add_argument("--hosts", required=True, help="host:port,... of the CQL nodes")
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--warm-rate", type=float, default=100)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--partitions", type=int, default=600, help="partitions of each table")
    parser.add_argument("--tables", nargs="+", default=list(TABLES), help="tables to write to (default: all)")
    parser.add_argument(
        "--no-appends", action="store_true", help="no appends to lists: a second attempt changes the list again"
    )
    parser.add_argument("--late", type=float, default=LATE, help="seconds after which a write counts as late")
    parser.add_argument("--seed", type=int, default=0, help="seed of the written values")
    given = parser.parse_args()
    # Low priority: if CPU is short, the load makes fewer writes instead of slowing down the other parts.
    os.nice(10)
    appends = not given.no_appends
    mix = Mix(Random(given.seed), partitions=given.partitions, tables=given.tables, appends=appends)
    with connect(given.hosts) as session, given.journal.open("wb") as file:
        load = Load(session, mix, file, late=given.late)
        run(load, warm_rate=given.warm_rate, seconds=given.seconds)


if __name__ == "__main__":
    main()
