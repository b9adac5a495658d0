"""The server process, from a bound socket to the last acknowledged event."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import signal
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import msgspec
import uvloop

from penstock.errors import PenstockError
from penstock.ingest.app import App, Page
from penstock.ingest.event_schema import load
from penstock.ingest.events import TopicFormat
from penstock.ingest.exchange import PLAIN, InFlight
from penstock.ingest.http_connection import HttpConnection
from penstock.ingest.ingest_metrics import (
    TYPE,
    IngestCounts,
    OnlyReport,
    WorkerReport,
    WorkerReports,
    WorkerState,
    current,
    exposition,
    health,
    report,
)
from penstock.ingest.ingest_settings import IngestSettings, Tls
from penstock.ingest.kafka_store import EventStore, KafkaStore
from penstock.ingest.openapi import document, page
from penstock.ingest.spool import Spool
from penstock.ingest.spool_files import folders
from penstock.ingest.supervisor import STOPS, Workers
from penstock.serve.listener import Bounds, Listener, room, watch
from penstock.wire import Producer, Reader

MARGIN = 10
"""Seconds that requests under way have at the end, in addition to those for Kafka and for the body."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt (malloc.h)."""
KEPT = 32 << 20
"""Bytes; glibc's maximum."""


SILENT = 5.0
"""Seconds after which a worker that has reported nothing counts as stuck."""

Reporting = Callable[[Callable[[], WorkerState]], OnlyReport | WorkerReport]


class IngestServer:
    """Connections at a bound socket, from the start until all that were open at the end have their answers."""

    def __init__(self, site: Site) -> None:
        self._times = site.settings.times
        self._bounds = _bounds(site.settings)
        self._connections: set[HttpConnection] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False
        self.listener = Listener(site.bound, self._connection, self._bounds, site.tls)

    def stop(self) -> None:
        """Let `serve` end; may be called at any time, by other threads and by handlers of signals, too."""
        self._stopping = True
        if self._loop:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._changed.set)

    async def serve(self, app: App) -> None:
        """Take requests until `stop`; then answer those that have begun to come."""
        self._app, self._changed, self._loop = app, asyncio.Event(), asyncio.get_running_loop()
        watching = asyncio.create_task(watch(self._connections, self._bounds))
        self.listener.start()
        await self._until(lambda: self._stopping)
        self.listener.stop()
        for connection in list(self._connections):
            connection.shutdown()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._times.kafka.total_seconds() + self._bounds.request + MARGIN):
                await self._until(lambda: not self._connections)
        for connection in list(self._connections):
            connection.transport.abort()
        watching.cancel()

    async def _until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            self._changed.clear()
            await self._changed.wait()

    def _connection(self, on_lost: Callable[[], None]) -> HttpConnection:
        def lost() -> None:
            on_lost()
            self._changed.set()

        return HttpConnection(self._app, self._connections, lost)


def _bounds(settings: IngestSettings) -> Bounds:
    limits, times = settings.limits, settings.times
    most = room(limits.connections, " as in [limits]")
    return Bounds(
        connections=most,
        per_address=min(limits.connections_per_address or max(1, most // 2), most),
        request=times.body.total_seconds(),
        idle=times.idle.total_seconds(),
        unread=limits.in_flight,
        names=("connections of [limits]", "connections_per_address of [limits]"),
    )


def readings(settings: IngestSettings) -> dict[str, TopicFormat]:
    """How the events of each topic are read; compiles the schemas, and raises PenstockError if one is not valid."""
    return {
        name: TopicFormat(
            load(topic.schema, name) if topic.schema else None, topic.key, settings.limits.event, settings.limits.events
        )
        for name, topic in settings.topics.items()
    }


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens at this address; port 0 is any free port. Raises PenstockError if it cannot listen."""
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=2048
        )
    except OSError as error:
        raise PenstockError(
            f"cannot listen on {host}:{port}: {error.strerror}",
            next="stop what listens there, or give another address with --listen",
        ) from error


class Clients(NamedTuple):
    """Kafka clients, for the event loop in which they were made; `reader` only asks whether Kafka is available."""

    producer: Producer
    reader: Reader


@dataclass(frozen=True)
class Site:
    """What to serve, all of it checked: settings, how each topic's events are read, and a bound socket."""

    settings: IngestSettings
    readings: Mapping[str, TopicFormat]
    bound: socket.socket
    tls: ssl.SSLContext | None
    about: Mapping[str, Any] = field(default_factory=dict)
    """The fields of /status that stay the same: what runs here, and its graph."""


def run(site: Site, connect: Callable[[], Clients], ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or Ctrl-C; then answer the requests under way, and send Kafka what it does not have yet."""
    count = site.settings.workers
    if count == 1:
        _run(site, 0, connect, OnlyReport, ready)
        return
    reports = WorkerReports(count, len(site.readings))
    shared = replace(site, settings=site.settings.share())

    def work(number: int, ready: Callable[[], None]) -> None:
        _run(shared, number, connect, partial(WorkerReport, reports, number), ready)

    Workers(count, work, site.bound, reports.died).run(ready)


def _run(
    site: Site, number: int, connect: Callable[[], Clients], reporting: Reporting, ready: Callable[[], None]
) -> None:
    """Run the only process, or the worker of this number."""
    _keep_memory()
    server = IngestServer(site)
    for stop_signal in STOPS:
        signal.signal(stop_signal, lambda number, frame: server.stop())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(site, number, connect, reporting, server, ready))


def _keep_memory() -> None:
    """Make glibc keep the memory of a lot of events for the next: a page that is given back costs a page fault."""
    with suppress(OSError, AttributeError):  # another libc
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, KEPT)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT)


async def _serve(
    site: Site,
    number: int,
    connect: Callable[[], Clients],
    reporting: Reporting,
    server: IngestServer,
    ready: Callable[[], None],
) -> None:
    settings, clients = site.settings, connect()
    async with _store(settings, number, clients) as store:
        counts, in_flight = IngestCounts(), InFlight(settings.limits.in_flight)
        reports = reporting(partial(report, counts, in_flight, store, clients.producer, server.listener))
        pages = _pages(site, store, reports.reports)
        app = App(site.readings, store, settings, counts, in_flight, pages)
        writing = asyncio.create_task(reports.keep_writing())
        # The garbage collector then looks only at objects made from here on.
        gc.collect()
        gc.freeze()
        ready()
        await server.serve(app)
        writing.cancel()


@asynccontextmanager
async def _store(settings: IngestSettings, number: int, clients: Clients) -> AsyncIterator[EventStore]:
    """The open store for events; closed afterwards."""
    with ExitStack() as held:
        store: KafkaStore | Spool
        if settings.spool:
            own, left = folders(settings.spool, number, settings.workers)
            for folder in (own, *left):
                held.enter_context(folder.locked())
            store = Spool(own, clients.producer, settings.limits.spool, clients.reader.topics, left)
        else:
            store = KafkaStore(clients.producer, clients.reader, settings.topics)
        try:
            await store.open()
            try:
                yield store
            finally:
                await store.close()
        finally:
            await clients.reader.close()


def tls(of: Tls) -> ssl.SSLContext:
    """A server's context from PEM files; raises PenstockError if they cannot be read or do not match."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=of.clients)
    try:
        # A function even without a password: otherwise OpenSSL would ask for it at the terminal.
        context.load_cert_chain(of.certificate, of.key, lambda: of.password or "")
    except OSError as error:
        raise PenstockError(
            f"the TLS files cannot be read: {error}",
            where=f"{of.certificate}, {of.key}",
            next="give PEM files that belong together, and the password if the key has one",
        ) from error
    if of.clients:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _pages(site: Site, store: EventStore, reports: Callable[[], list[WorkerState]]) -> dict[str, Page]:
    described = document(site.settings, site.readings, store)
    openapi, docs = msgspec.json.encode(described), page(described).encode()

    def healthy() -> tuple[int, bytes, bytes]:
        takes, fields = health(reports(), time.monotonic(), SILENT)
        return 200 if takes else 503, msgspec.json.encode(fields), PLAIN

    def ready() -> tuple[int, bytes, bytes]:
        takes, fields = health(reports(), time.monotonic(), SILENT)
        why = [] if takes else [fields["problem"] or "events are not taken now"]
        said = {"status": fields["status"], "problems": why}
        return 200 if takes else 503, msgspec.json.encode(said), PLAIN

    def status() -> tuple[int, bytes, bytes]:
        return 200, msgspec.json.encode({**site.about, **current(reports(), time.monotonic(), SILENT)}), PLAIN

    return {
        "/health": healthy,
        "/ready": ready,
        "/status": status,
        "/metrics": lambda: (200, exposition(reports()), TYPE),
        "/openapi.json": lambda: (200, openapi, PLAIN),
        "/docs": lambda: (200, docs, b"text/html; charset=utf-8"),
    }
