"""Each HTTP server of the package, at a free port: `SERVERS` is the list that tests of all of them take.

Those of `GUARDED` admit only callers with their key, password or token.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from connect_memory import memory_worker
from console_process import console
from ingest_app import running

from penstock.connect.worker.api import application
from penstock.segment.member_tables.delivery_server import Deliveries, app as deliveries_app
from penstock.serve.access.callers import ApiKey, ApiKeys, new_key
from penstock.serve.access.hosts import Asgi
from penstock.serve.access.page import TOKEN
from penstock.serve.access.passwords import Passwords, protected
from penstock.serve.rest_server import RestServer, bind
from penstock.state.serve import app as state_app
from penstock.watch.metrics_server import ListenAddress, pages, served
from penstock.watch.program import Program
from penstock.watch.served_app import observed


@dataclass(frozen=True)
class Target:
    """A server, a page of it that is not for monitors, and a path that takes a body."""

    url: str
    page: str
    path: str
    pid: int
    login: tuple[str, str] = ("", "")
    """The header that admits a caller to the path, if it needs one."""


class NoStates:
    """No state is kept."""

    def overview(self) -> list[dict[str, Any]]:
        return []


@contextmanager
def rest(app: Asgi) -> Iterator[str]:
    with bind("127.0.0.1", 0) as bound:
        server = RestServer(app, bound)
        try:
            yield server.url
        finally:
            server.close()


@contextmanager
def metrics(folder: Path) -> Iterator[Target]:
    with served(ListenAddress("127.0.0.1", 0), pages([], dict, lambda: [])) as url:
        yield Target(url, "/metrics", "/metrics", os.getpid())


@contextmanager
def connect(folder: Path) -> Iterator[Target]:
    with rest(application(memory_worker(folder))) as url:
        yield Target(url, "/connectors", "/connectors", os.getpid())


@contextmanager
def state(folder: Path) -> Iterator[Target]:
    with rest(observed(state_app(NoStates()), Program("state", "state"), lambda: [])) as url:  # type: ignore[arg-type]
        yield Target(url, "/state", "/state", os.getpid())


@contextmanager
def segment(folder: Path) -> Iterator[Target]:
    made = Deliveries(lambda name, to: pytest.fail("nothing is delivered"))
    with rest(observed(deliveries_app(made, ApiKeys([])), Program("segment", "ks"), lambda: [])) as url:
        yield Target(url, "/status", "/segments/a/deliveries", os.getpid())
    made.close()


@contextmanager
def ingest(folder: Path) -> Iterator[Target]:
    limits = "[limits]\nconnections = 200\nconnections_per_address = 200\n"
    with running(folder, f"[topics.raw]\n{limits}") as server:
        yield Target(server.url, "/openapi.json", "/events/raw", os.getpid())


@contextmanager
def the_console(folder: Path) -> Iterator[Target]:
    with console(folder) as made:
        yield Target(made.url, "/api/overview", "/api/dead-letters/a/replay", made.process.pid)


SERVERS = {
    "metrics": metrics,
    "connect": connect,
    "state": state,
    "segment": segment,
    "ingest": ingest,
    "console": the_console,
}


PASSWORD = ("Authorization", "Basic " + base64.b64encode(b"ann:secret").decode())
KEY, DIGEST = new_key()
OF_KEY = ApiKey("ann", bytes.fromhex(DIGEST), None)


@contextmanager
def guarded_connect(folder: Path) -> Iterator[Target]:
    with rest(protected(application(memory_worker(folder)), Passwords({"ann": "secret"}))) as url:
        yield Target(url, "/connectors", "/connectors", os.getpid(), PASSWORD)


@contextmanager
def guarded_segment(folder: Path) -> Iterator[Target]:
    made = Deliveries(lambda name, to: pytest.fail("nothing is delivered"))
    with rest(observed(deliveries_app(made, ApiKeys([OF_KEY])), Program("segment", "ks"), lambda: [])) as url:
        yield Target(url, "/status", "/segments/a/deliveries", os.getpid(), ("X-API-Key", KEY))
    made.close()


@contextmanager
def guarded_ingest(folder: Path) -> Iterator[Target]:
    with running(folder, f'[topics.raw]\n[[keys]]\nname = "ann"\nsha256 = "{DIGEST}"\ntopics = ["raw"]\n') as server:
        yield Target(server.url, "/openapi.json", "/events/raw", os.getpid(), ("Authorization", f"Bearer {KEY}"))


@contextmanager
def guarded_console(folder: Path) -> Iterator[Target]:
    with console(folder, "--allow-actions") as made:
        path = "/api/connectors/0/a/pause"
        yield Target(made.url, "/api/overview", path, made.process.pid, (TOKEN, made.token))


GUARDED = {
    "connect": guarded_connect,
    "segment": guarded_segment,
    "ingest": guarded_ingest,
    "console": guarded_console,
}
