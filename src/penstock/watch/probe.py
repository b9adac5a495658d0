"""Finds out what queries wait for, and how much memory Spark's JVM uses: a thread that looks twice a second.

Readers and writers wait patiently in processes of Spark's. While a batch, or a search for one,
takes STUCK seconds and more, the addresses of the query's sources, lookups and sinks are probed, by a connection that
is closed at once. A server that was killed refuses it. One that hangs takes it: then only a source that has not
answered for SILENT seconds is reported. Idle queries are not probed. Why they wait, and for what else, is in the lines
that they log (`worker_waits`).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from weakref import WeakKeyDictionary

from penstock.process import waits
from penstock.spark_runtime import worker_waits
from penstock.watch.meters import Meters, PipelineMeter
from penstock.watch.query_meter import RUNNING, STARTING, WAITING, QueryMeter, SinkMeter, SourceMeter

PERIOD = 0.5
STUCK = 0.3
EARLY, PAUSE = 3.0, 2.0
"""Seconds after which a query is probed less often, and how often then."""
SILENT = 10.0
PATIENCE = 0.5
"""Seconds for the answer to a connection."""
JVM_PERIOD = 5.0
MOST_ADDRESSES = 16
"""Servers of one query, and addresses of one server, that are probed."""
PORTS = {"kafka": 9092, "cql": 9042, "postgres": 5432}
NAMES = {"kafka": "Kafka", "cql": "the database", "postgres": "PostgreSQL"}

Memory = Callable[[], tuple[int, int]]
"""Reads the bytes of the JVM's heap in use, and the most that it may use."""


class Prober:
    """Looks from `started` on, until the code inside ends."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters
        self._ended = threading.Event()
        self._memory: Memory | None = None
        self._probed: WeakKeyDictionary[QueryMeter, float] = WeakKeyDictionary()
        """When a query was probed last; without those that are forgotten."""
        self._waiting, self._heard = worker_waits.Waiting(), deque[worker_waits.Line]()

    def measures(self, memory: Memory | None) -> None:
        """Measure the JVM's memory by this; None to measure it no more."""
        self._memory = memory
        if memory is None:
            self._meters.jvm = None

    @contextmanager
    def started(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run, name="probe", daemon=True)
        thread.start()
        try:
            with worker_waits.heard(self._heard.append):
                yield
        finally:
            self._ended.set()
            thread.join(PERIOD)

    def _run(self) -> None:
        measured = -JVM_PERIOD
        while not self._ended.wait(PERIOD):
            self.look()
            if self._memory is not None and time.monotonic() - measured >= JVM_PERIOD:
                measured = time.monotonic()
                # The JVM may end at any moment.
                with suppress(Exception):
                    self._meters.jvm = self._memory()

    def look(self) -> None:
        """Look at all queries once."""
        for line in (*worker_waits.received(), *self._from_here()):
            self._waiting.take(line)
        with self._meters.lock:
            now = self._meters.clock()
            stuck = [query for query in self._meters.queries() if _is_stuck(query, now) and self._is_due(query, now)]
            wanted = {query: _servers(query) for query in stuck}
        places = {place for servers in wanted.values() for some in servers.values() for place in some}
        down = _down(places) if places else set()
        with self._meters.lock:
            now = self._meters.clock()
            for query in self._meters.queries():
                if query in wanted and _is_stuck(query, now):
                    said = self._waiting.of(query.id)
                    obstacle = _blocked(query, wanted[query], down, now) or (said.what if said else "")
                    query.waits(obstacle, now, said.why if said else "")
                elif not _is_stuck(query, now):
                    self._waiting.forget(query.id)
                    if query.blocked:
                        query.waits("", now)
                if query.state == WAITING:
                    query.note_wait(now)

    def _from_here(self) -> Iterator[worker_waits.Line]:
        """What queries have waited for in this process."""
        while self._heard:
            yield self._heard.popleft()

    def _is_due(self, query: QueryMeter, now: float) -> bool:
        early = now - (query.active_since or query.since) < EARLY
        if not early and not query.blocked and now - self._probed.get(query, 0.0) < PAUSE:
            return False
        self._probed[query] = now
        return True


def _is_stuck(query: QueryMeter, now: float) -> bool:
    """Whether a query may wait for something: it starts, or its batch or its search for one takes a while."""
    if query.phase in (STARTING, WAITING):
        return now - query.since >= STUCK
    return query.phase == RUNNING and query.active_since is not None and now - query.active_since >= STUCK


Place = tuple[str, int]


def _servers(query: QueryMeter) -> dict[str, list[Place]]:
    """The servers that a query needs, each with its addresses, by what a user calls it."""
    systems = {node.id: node.system for node in query.graph.nodes}
    of: list[SourceMeter | SinkMeter] = [*query.sources, *query.sinks]
    addresses = {(systems.get(meter.node, ""), meter.address) for meter in of if meter.address}
    # Lookups, too.
    addresses |= {(node.system, node.address) for node in query.graph.nodes if node.address}
    servers: dict[str, list[Place]] = {}
    for system, text in sorted(addresses)[:MOST_ADDRESSES]:
        with suppress(ValueError):
            places = [
                _host_and_port(address.strip(), PORTS.get(system, 0)) for address in text.split(",")[:MOST_ADDRESSES]
            ]
            servers[f"{NAMES.get(system, system)} at {text}"] = places
    return servers


def _host_and_port(text: str, default: int) -> Place:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        return text.strip("[]"), default
    return host.strip("[]"), int(port)


def _blocked(query: QueryMeter, servers: Mapping[str, list[Place]], down: set[Place], now: float) -> str:
    """What is in the way of a query that makes no progress; "" if nothing is found.

    Of several addresses of a server one may be down while the others do its work.
    """
    long = query.active_since is not None and now - query.active_since >= SILENT
    for name, places in servers.items():
        away = [place for place in places if place in down]
        if len(away) == len(places):
            return name
        if away and long:
            return f"{name.partition(' at ')[0]} at {', '.join(f'{host}:{port}' for host, port in away)}"
    if query.asking and long:
        return f"an answer of {' or '.join(source.name for source in query.sources)}"
    return ""


def _down(places: set[Place]) -> set[Place]:
    """Those of the places that take no connection."""

    async def takes(host: str, port: int) -> bool:
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), PATIENCE)
        except (OSError, TimeoutError):
            return False
        writer.close()
        return True

    async def all_of_them() -> list[bool]:
        return await asyncio.gather(*(takes(*place) for place in some))

    some = sorted(places)
    return {place for place, taken in zip(some, asyncio.run(all_of_them()), strict=True) if not taken}


def heard(meter: PipelineMeter) -> AbstractContextManager[None]:
    """Tell the meter what `waits` logs in this thread: that the pipeline waits while it makes its queries."""
    thread = threading.get_ident()

    def take(said: waits.Said) -> None:
        if said.thread != thread:
            return
        if said.seconds is None:
            meter.waits("", time.time())
        else:
            meter.waits(said.what, time.time() - said.seconds, said.why)

    return waits.heard(take)
