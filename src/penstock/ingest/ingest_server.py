"""The server process: `App` in uvicorn, from a bound socket to the last acknowledged event."""

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
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import msgspec
import uvicorn

from penstock.errors import PenstockError
from penstock.ingest.app import App, Page
from penstock.ingest.body import InFlight
from penstock.ingest.event_schema import load
from penstock.ingest.events import EventFormat
from penstock.ingest.http_connection import HttpConnection, watch
from penstock.ingest.ingest_metrics import TYPE, IngestCounts, Report, Reporter, exposition, health
from penstock.ingest.ingest_settings import IngestSettings, Tls
from penstock.ingest.kafka_store import EventStore, KafkaStore
from penstock.ingest.listener import Listener, room
from penstock.ingest.openapi import document, page
from penstock.ingest.responses import PLAIN
from penstock.ingest.seats import Alone, Seat, Seats
from penstock.ingest.spool import Spool
from penstock.ingest.spool_files import folders
from penstock.ingest.supervisor import STOPS, Workers
from penstock.wire import Producer, Reader

MARGIN = 10
"""Seconds that requests under way have at the end, in addition to those for Kafka and for the body."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt (malloc.h)."""
KEPT = 32 << 20
"""Bytes; glibc's maximum."""


SILENT = 5.0
"""Seconds after which a worker that has reported nothing counts as stuck."""

Sit = Callable[[Reporter], Alone | Seat]


class IngestServer(uvicorn.Server):
    """uvicorn's server, with the connections of `Listener`."""

    def __init__(self, config: uvicorn.Config, site: Site) -> None:
        super().__init__(config)
        limits, most = site.settings.limits, room(site.settings.limits.connections)
        self.listener = Listener(
            site.bound,
            self._connection,
            most=most,
            per_address=min(limits.connections_per_address or max(1, most // 2), most),
            tls=site.tls,
            handshake=site.settings.times.body.total_seconds(),
        )

    def _connection(self, on_lost: Callable[[], None]) -> HttpConnection:
        made = HttpConnection(self.config, self.server_state, {})
        made.on_lost = on_lost
        return made

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        self.listener.start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.listener.stop()
        await super().shutdown(sockets=[])


def readings(settings: IngestSettings) -> dict[str, EventFormat]:
    """How the events of each topic are read; compiles the schemas, and raises PenstockError if one is not valid."""
    return {
        name: EventFormat(
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
    readings: Mapping[str, EventFormat]
    bound: socket.socket
    tls: ssl.SSLContext | None


def run(site: Site, connect: Callable[[], Clients], ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or Ctrl-C; then answer the requests under way, and send Kafka what it does not have yet."""
    count = site.settings.workers
    if count == 1:
        _run(site, 0, connect, Alone, ready)
        return
    seats = Seats(count, len(site.readings))
    shared = replace(site, settings=site.settings.share())

    def work(number: int, ready: Callable[[], None]) -> None:
        _run(shared, number, connect, partial(Seat, seats, number), ready)

    Workers(count, work, site.bound, seats.died).run(ready)


def _run(site: Site, number: int, connect: Callable[[], Clients], sit: Sit, ready: Callable[[], None]) -> None:
    """Run the only process, or the worker of this number."""
    _keep_memory()
    config = _config(site)
    server = IngestServer(config, site)
    # For signals before uvicorn handles them, and for those that it raises again at its end.
    for one in STOPS:
        signal.signal(one, lambda number, frame: setattr(server, "should_exit", True))
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(_serve(site, number, connect, sit, server, ready))


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
    sit: Sit,
    server: IngestServer,
    ready: Callable[[], None],
) -> None:
    settings, clients = site.settings, connect()
    async with _store(settings, number, clients) as store:
        counts, in_flight = IngestCounts(), InFlight(settings.limits.in_flight)
        seat = sit(Reporter(counts, in_flight, store, clients.producer, server.listener))
        pages = _pages(site, store, seat.reports)
        server.config.app = App(site.readings, store, settings, counts, in_flight, pages)
        watching = watch(
            server.server_state.connections,
            body=settings.times.body.total_seconds(),
            idle=settings.times.idle.total_seconds(),
            unread=settings.limits.in_flight,
            most=server.listener.most,
        )
        beside = [seat.keep_telling(), watching]
        tasks = [asyncio.create_task(one) for one in beside]
        # The garbage collector then looks only at objects made from here on.
        gc.collect()
        gc.freeze()
        ready()
        await server.serve()
        for task in tasks:
            task.cancel()


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


def _config(site: Site) -> uvicorn.Config:
    times = site.settings.times
    patience = times.kafka.total_seconds() + times.body.total_seconds() + MARGIN

    async def nothing(scope: Any, receive: Any, send: Any) -> None: ...

    return uvicorn.Config(
        nothing,
        http=HttpConnection,
        ws="none",
        lifespan="off",
        interface="asgi3",
        access_log=False,
        log_config=None,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=int(times.idle.total_seconds()) or 1,
        timeout_graceful_shutdown=int(patience),
    )


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


def _pages(site: Site, store: EventStore, reports: Callable[[], list[Report]]) -> dict[str, Page]:
    described = document(site.settings, site.readings, store)
    openapi, docs = msgspec.json.encode(described), page(described).encode()

    def healthy() -> tuple[int, bytes, bytes]:
        takes, told = health(reports(), time.monotonic(), SILENT)
        return 200 if takes else 503, PLAIN, msgspec.json.encode(told)

    return {
        "/health": healthy,
        "/metrics": lambda: (200, TYPE, exposition(reports())),
        "/openapi.json": lambda: (200, PLAIN, openapi),
        "/docs": lambda: (200, b"text/html; charset=utf-8", docs),
    }
