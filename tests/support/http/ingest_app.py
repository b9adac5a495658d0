"""The server of `penstock ingest` in this process, with a store for events in memory instead of Kafka."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple

from waiting import PATIENCE

from penstock.ingest import ingest_server as server
from penstock.ingest.app import App
from penstock.ingest.events import KeyedEvents
from penstock.ingest.exchange import InFlight
from penstock.ingest.ingest_metrics import IngestCounts
from penstock.ingest.ingest_settings import Given, read
from penstock.ingest.kafka_store import Facts


class Stored(NamedTuple):
    """An event as it would reach Kafka."""

    key: bytes | None
    value: bytes


@dataclass
class Memory:
    """A store that takes everything at once."""

    status = 200
    events: dict[str, list[Stored]] = field(default_factory=lambda: defaultdict(list))

    def put(self, topic: str, events: KeyedEvents) -> asyncio.Future[None]:
        keys = events.key_texts().listed()
        self.events[topic] += map(Stored, keys, (value or b"" for value in events.values.listed()))
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    def require_ready(self) -> None: ...

    def facts(self) -> Facts:
        return Facts(True, "ok", "")

    async def close(self) -> None: ...


@dataclass(frozen=True)
class Running:
    """A server at `port` of 127.0.0.1, and its events and counts."""

    port: int
    counts: IngestCounts
    events: dict[str, list[Stored]]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def taken(self) -> dict[str, list[Stored]]:
        """The events since the last call."""
        found = dict(self.events)
        self.events.clear()
        return found


@contextmanager
def running(folder: Path, config: str) -> Iterator[Running]:
    """Serves a configuration; `servers` are added, but never contacted."""
    file = folder / "ingest.toml"
    file.write_text(f'servers = "127.0.0.1:1"\n{config}')
    settings = read(file, Given())
    with server.bind("127.0.0.1", 0) as bound:
        site = server.Site(settings, server.readings(settings), bound, None)
        store, counts = Memory(), IngestCounts()
        app = App(
            site.readings,
            store,
            settings,
            counts,
            InFlight(settings.limits.in_flight),
            server._pages(site, store, list),
        )
        serving = server.IngestServer(site)
        thread = threading.Thread(target=lambda: asyncio.run(serving.serve(app)))
        thread.start()
        try:
            yield Running(bound.getsockname()[1], counts, store.events)
        finally:
            serving.stop()
            thread.join()


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


def ask(
    server: Running, path: str, headers: Mapping[str, str], method: str = "POST", body: bytes | None = b'{"a":1}'
) -> Answer:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    try:
        connection.request(method, path, body if method == "POST" else None, dict(headers))
        answer = connection.getresponse()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
    finally:
        connection.close()
