"""Many callers that send nothing, or too little, to each HTTP server of the package: it answers others meanwhile."""

from __future__ import annotations

import asyncio
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from http_attacks import Pulse, answer, asked, connected, crowd, get, is_open, request as event, resident
from ingest_app import Memory, running
from our_servers import SERVERS, Target, rest, the_console
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from waiting import PATIENCE, patience, until

from penstock.ingest.events import KeyedEvents
from penstock.serve import listener, rest_server
from penstock.watch import metrics_server, served_app
from penstock.watch.metrics_server import ListenAddress, MetricsAnswer, as_json, pages, served
from penstock.watch.program import Program
from penstock.watch.served_app import observed

MEMORY = 64 << 20
"""Bytes by which a server may grow: its callers are in the same process as most servers."""
SLOWEST = patience(3)
"""Seconds until /health answers, at most: less than the silent callers may stay."""
MOST = 200 + listener.SPARE
"""Connections of a server."""
RECOVERY = patience(1)
"""Seconds until all is as before, at most."""


@pytest.fixture(scope="module", params=SERVERS)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with SERVERS[request.param](tmp_path_factory.mktemp(request.param)) as made:
        until(lambda: asked(made.url, get(made.page))[0] == 200, "server")
        yield made


@pytest.fixture(autouse=True)
def files() -> Iterator[None]:
    """As many open files as the callers need."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], min(before[1], 4096)), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextmanager
def attackers(target: Target, attack: str, count: int) -> Iterator[list[socket.socket]]:
    """This many callers, who send what the attack says."""
    post = f"POST {target.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    first = {"half": post, "body": f"{post}Content-Length: 500\r\n\r\n"}.get(attack, "").encode()
    dripping, ended = attack == "drip", threading.Event()
    with crowd(target.url, count, first) as callers:

        def drip() -> None:
            for piece in b"POST /" + b"a" * 500:
                for one in callers:
                    with suppress(OSError):
                        one.send(bytes([piece]))
                if ended.wait(1):
                    return

        thread = threading.Thread(target=drip if dripping else ended.wait)
        thread.start()
        try:
            yield callers
        finally:
            ended.set()
            thread.join()


def require_answers(target: Target, attack: str, count: int) -> None:
    before = resident(target.pid)
    with Pulse(target.url) as pulse:
        with attackers(target, attack, count) as callers:
            until(lambda: len(pulse.seconds) > 5, "some answers")
            until(lambda: sum(map(is_open, callers)) <= MOST, "as many connections as there may be")
            assert asked(target.url, get(target.page))[0] == 200
            assert resident(target.pid) < before + MEMORY
        until(lambda: asked(target.url, get(target.page))[0] == 200, "recovery", RECOVERY)
    assert pulse.slowest() < SLOWEST


ATTACKS = ("silent", "half", "body", "drip")


@pytest.mark.parametrize("count", [8, 250])
@pytest.mark.parametrize("attack", ATTACKS)
def test_callers_that_say_nothing_keep_nobody_out(target: Target, attack: str, count: int) -> None:
    require_answers(target, attack, count)


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
def test_many_callers_that_say_nothing_keep_nobody_out(target: Target, attack: str) -> None:
    require_answers(target, attack, 1500)


def taken(request: Request) -> Response:
    """Answers when the test says so."""
    assert request.app.state.go.wait(PATIENCE)
    return PlainTextResponse("answer")


@contextmanager
def slow_app(go: threading.Event, folder: Path) -> Iterator[tuple[str, bytes]]:
    app = Starlette(routes=[Route("/slow", taken)])
    app.state.go = go
    with rest(observed(app, Program("state", "state"), lambda: [])) as url:
        yield url, get("/slow")


@contextmanager
def slow_page(go: threading.Event, folder: Path) -> Iterator[tuple[str, bytes]]:
    def slow() -> MetricsAnswer:
        assert go.wait(PATIENCE)
        return as_json({})

    with served(ListenAddress("127.0.0.1", 0), pages([], dict, lambda: []) | {"/slow": slow}) as url:
        yield url, get("/slow")


@contextmanager
def slow_store(go: threading.Event, folder: Path) -> Iterator[tuple[str, bytes]]:
    def put(store: Memory, topic: str, events: KeyedEvents) -> asyncio.Future[bool]:
        return asyncio.get_running_loop().run_in_executor(None, go.wait, PATIENCE)

    limits = "[limits]\nconnections = 50\nconnections_per_address = 50\n"
    with pytest.MonkeyPatch.context() as patch, running(folder, f"[topics.raw]\n{limits}") as server:
        patch.setattr(Memory, "put", put)
        yield server.url, event("raw", b"{}")


@pytest.mark.parametrize("server", [slow_app, slow_page, slow_store])
def test_health_is_answered_while_every_connection_waits_for_an_answer(
    server: Callable[[threading.Event, Path], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(listener, "CONNECTIONS", 50)
    go = threading.Event()
    with server(go, tmp_path) as (url, slow), ExitStack() as stack:
        callers: list[socket.socket] = []

        def is_full() -> bool:
            callers.extend(stack.enter_context(crowd(url, 10, slow)))
            return any(map(is_refused, callers))

        try:
            until(is_full, "no place for others")
            for path in ("/health", "/ready"):
                with crowd(url, 100, b""):
                    assert asked(url, get(path))[0] == 200
            with connected(url) as other:
                other.sendall(get("/metrics"))
                assert b"retry-after: 1" in other.recv(4096)
        finally:
            go.set()
        # While the others came, a few may have been silent for a moment.
        assert 40 <= sum(map(is_answered, callers)) <= 50
        until(lambda: asked(url, get("/metrics"))[0] == 200, "recovery", RECOVERY)


def is_refused(caller: socket.socket) -> bool:
    """Whether the answer has come, and is a refusal; leaves it to be read."""
    caller.setblocking(False)
    try:
        return caller.recv(16, socket.MSG_PEEK).startswith(b"HTTP/1.1 503")
    except OSError:
        return False
    finally:
        caller.settimeout(PATIENCE)


def is_answered(caller: socket.socket) -> bool:
    """Whether the caller got what it asked for; others were refused, or closed for others."""
    with suppress(OSError):
        return answer(caller)[0] == 200
    return False


@contextmanager
def ready_app(unready: Callable[[], list[str]]) -> Iterator[str]:
    with rest(observed(Starlette(), Program("state", "state"), unready)) as url:
        yield url


@contextmanager
def ready_page(unready: Callable[[], list[str]]) -> Iterator[str]:
    with served(ListenAddress("127.0.0.1", 0), pages([], dict, unready)) as url:
        yield url


@pytest.mark.parametrize("server", [ready_app, ready_page])
def test_ready_is_answered_though_its_check_hangs(
    server: Callable[[Callable[[], list[str]]], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_app, "READY", 0.1)
    monkeypatch.setattr(metrics_server, "LATE", 0.1)
    go = threading.Event()

    def unready() -> list[str]:
        assert go.wait(PATIENCE)
        return []

    with server(unready) as url:
        try:
            with crowd(url, 20, get("/ready")) as callers:
                found = [answer(one) for one in callers]
            assert {status for status, _ in found} == {503}
            assert b"within 0 s" in found[0][1]
            until(lambda: asked(url, get("/health"))[0] == 200, "health")
        finally:
            go.set()
        until(lambda: asked(url, get("/ready"))[0] == 200, "an answer of a new check")


def test_a_stream_of_events_stays_open_while_silent_callers_come(tmp_path: Path) -> None:
    with the_console(tmp_path) as target, connected(target.url) as page:
        page.sendall(get("/api/events"))
        assert page.recv(4096).startswith(b"HTTP/1.1 200 OK")
        with attackers(target, "silent", 500):
            assert asked(target.url, get("/health"))[0] == 200
            assert is_open(page)


def test_an_answer_that_nobody_reads_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = replace(listener.usual_bounds(), idle=0.2)
    monkeypatch.setattr(rest_server, "usual_bounds", lambda: bounds)
    large = b"x" * (16 << 20)
    app = Starlette(routes=[Route("/large", lambda request: Response(large))])
    with rest(app) as url, connected(url) as made:
        made.sendall(get("/large"))
        assert made.recv(1)
        both = open_files()
        until(lambda: open_files() < both, "the end at the server")
        found = 0
        with suppress(ConnectionError):
            while part := made.recv(1 << 20):
                found += len(part)
    assert found < len(large)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
