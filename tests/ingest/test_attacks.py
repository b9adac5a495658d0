"""Callers that try to stop the server, or to fill its memory: it still answers others. It has a spool, and no Kafka."""

from __future__ import annotations

import re
import resource
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests
from http_attacks import (
    EMPTY_MEMBER,
    Pulse,
    answer,
    asked,
    connected,
    cpu,
    crowd,
    flood,
    get,
    head,
    is_open,
    request,
    resident,
    wrong_items,
)
from ingest_server import Server, ingest, metrics
from secure_kafka import certificate
from waiting import PATIENCE, patience, until

CONFIG = """
servers = "127.0.0.1:1"
spool = "spool"
[topics.raw]
[topics.checked]
schema = "checked.json"
{topics}
[timeouts]
body = "2 seconds"
idle = "{idle}"
"""
SCHEMA = """{
    "properties": {
        "a": {"items": {"type": "string"}}, "b": {"anyOf": [{"type": "string"}, {"maxItems": 1}]},
        "p": {"pattern": "^(a+)+$"}, "q": {"items": {"pattern": "^(.*a){20}b$"}}, "f": {"format": "regex"}
    },
    "patternProperties": {"^(x+x+)+y$": false}
}"""
TOPICS = 300
"""Further topics, so that the page about them is large."""
SLOWEST = patience(5)
"""Seconds until /health answers, at most; 0.1 on an idle machine."""
ESTABLISHED = 1
"""A state of TCP (tcp(7), TCP_INFO)."""
EVENT = request("raw", b'{"a":1}')
CHUNKED = head("raw", 5).replace(b"Content-Length: 5", b"Transfer-Encoding: chunked")


def started(folder: Path, more: str = "", idle: str = "3 seconds") -> Iterator[Server]:
    topics = "\n".join(f"[topics.t{n}]" for n in range(TOPICS))
    (folder / "checked.json").write_text(SCHEMA)
    (folder / "ingest.toml").write_text(CONFIG.format(topics=topics, idle=idle) + more)
    with ingest(folder, folder / "ingest.toml") as server:
        yield server


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from started(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that takes few connections, and keeps those where nothing happens."""
    more = "[limits]\nconnections = 40\nconnections_per_address = 30\n"
    yield from started(tmp_path_factory.mktemp("narrow"), more, "1 hour")


@pytest.mark.parametrize(
    ("attack", "status"),
    [
        (request("raw", EMPTY_MEMBER * 400_000, "Content-Encoding: gzip"), 400),
        (request("checked", wrong_items(8, 100_000)), 400),
        (request("checked", wrong_items(1, 490_000)), 400),
        (request("checked", wrong_items(8, 490_000, "b")), 400),
        (request("checked", b'{"p": "%b!"}' % (b"a" * 900_000)), 400),
        (request("checked", b'{"q": [%b]}' % b",".join([b'"%b!"' % (b"a" * 9000)] * 100)), 400),
        (request("checked", b'{"f": "%b"}' % (b"(" * 900_000)), 400),
        (request("checked", b'{"%b": 1}' % (b"x" * 900_000)), 202),
        (request("raw", b"[" + b"1," * 4_000_000 + b"1]"), 413),
        (request("raw", b"12\n" * 2_700_000, kind="application/x-ndjson"), 413),
    ],
    ids=[
        "empty members",
        "wrong items",
        "more of them",
        "of anyOf",
        "text",
        "texts",
        "format",
        "name",
        "numbers",
        "lines",
    ],
)
def test_a_body_that_costs_much_holds_up_nobody(target: Server, attack: bytes, status: int) -> None:
    pid = target.process.pid
    with Pulse(target.url) as pulse:
        used = cpu(pid)
        assert asked(target.url, attack)[0] == status
        assert cpu(pid) - used < patience(5)
        until(lambda: len(pulse.seconds) > 3, "some answers")
    assert pulse.slowest() < SLOWEST
    assert resident(pid, "VmHWM") < 600 << 20


@pytest.mark.parametrize(
    ("start", "piece", "status"),
    [
        (b"GET /health HTTP/1.1\r\n", b"a: b\r\n" * 10_000, b"431"),
        (b"GET /health HTTP/1.1\r\na: ", b"b" * 60_000, b"431"),
        (b"GET /", b"b" * 60_000, b"414"),
        (CHUNKED + b"0\r\na: ", b"b" * 60_000, b"431"),
        (CHUNKED + b"1;", b"b" * 60_000, b"431"),
        (b"\r\n", b"\r\n" * 30_000, b"431"),
    ],
    ids=["lines", "value", "url", "trailer", "extension of a chunk", "empty lines"],
)
def test_a_head_without_an_end_takes_no_memory(target: Server, start: bytes, piece: bytes, status: bytes) -> None:
    before = resident(target.process.pid)
    with Pulse(target.url) as pulse:
        sent, said = flood(target.url, start, piece, seconds=PATIENCE, most=60 << 20)
    assert said.startswith(b"HTTP/1.1 %b " % status)
    assert sent < 30 << 20  # what socket buffers take, and a moment for the answer
    assert resident(target.process.pid) < before + (30 << 20)
    assert pulse.slowest() < SLOWEST


@pytest.mark.slow_after(2)
@pytest.mark.parametrize(
    ("path", "lines", "status"),
    [
        ("/health", ["a: b"] * 98, 200),
        ("/health", ["a: b"] * 101, 431),
        ("/health", [f"a: {'b' * 60_000}"], 200),
        ("/health", [f"a: {'b' * 66_000}"], 431),
        (f"/health?{'a' * 8000}", [], 200),
        (f"/health?{'a' * 8200}", [], 414),
    ],
)
def test_heads_are_taken_up_to_the_limits(target: Server, path: str, lines: list[str], status: int) -> None:
    sent = "\r\n".join([f"GET {path} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode()
    with connected(target.url) as made:
        made.sendall(sent)
        assert answer(made)[0] == status
        if status != 200:
            assert made.recv(100) == b""


def test_heads_whose_bodies_do_not_come_take_bounded_memory(tmp_path: Path) -> None:
    """Each whole head of 60 KB is kept until its request is complete."""
    for server in started(tmp_path, "[limits]\nin_flight = 10_000_000\nconnections_per_address = 1_000\n"):
        large = head("raw", 5, *(f"x-{n}: {'a' * 700}" for n in range(80)))
        asked(server.url, EVENT)
        before = resident(server.process.pid)
        with crowd(server.url, 400, large) as callers:
            # Those beyond the limit have their answer at once, and keep nothing.
            refused = until(lambda: sum(_has_answer(one) for one in callers) >= 200, "refused callers")
            grown = resident(server.process.pid) - before
            assert asked(server.url, get("/health"))[0] == 200
        assert refused and grown < 40_000_000


def _has_answer(caller: socket.socket) -> bool:
    with suppress(BlockingIOError):
        return caller.recv(16, socket.MSG_PEEK | socket.MSG_DONTWAIT).startswith(b"HTTP/1.1 429")
    return False


def test_what_is_announced_and_does_not_come_takes_nothing_from_others(target: Server) -> None:
    """257 heads of 92 bytes took all memory for requests."""
    with crowd(target.url, 300, head("raw", 262_144)), Pulse(target.url) as pulse:
        assert asked(target.url, EVENT)[0] == 202
        until(lambda: len(pulse.seconds) > 3, "some answers")
    assert pulse.slowest() < SLOWEST


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("after", [b"\r\n", b"", b"G"])
def test_a_connection_ends_though_line_ends_come_after_the_answer(target: Server, after: bytes) -> None:
    with connected(target.url) as made:
        made.sendall(get("/health"))
        assert answer(made)[0] == 200
        made.sendall(after)
        made.settimeout(PATIENCE)
        said = made.recv(1000)
        assert said == b"" or (after and said.startswith(b"HTTP/1.1 408 "))


def test_a_body_that_drips_ends_in_time(target: Server) -> None:
    with connected(target.url) as made:
        made.sendall(head("raw", 100_000))
        made.settimeout(0.2)

        def said() -> bytes:
            made.send(b" ")
            with suppress(TimeoutError):
                return made.recv(1000)
            return b""

        answered = until(said, "answer")
    assert answered.startswith(b"HTTP/1.1 408 ")


@pytest.mark.slow
def test_answers_that_nobody_reads_end_the_connection(target: Server) -> None:
    """Fifteen such connections kept 9 MB each, for ever."""
    pid = target.process.pid
    page = len(requests.get(f"{target.url}/docs", timeout=PATIENCE).content)
    assert page > 200_000
    before, descriptors = resident(pid), open_files(pid)
    with ExitStack() as stack, Pulse(target.url) as pulse:
        for _ in range(20):
            one = stack.enter_context(closing(socket.socket()))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            host, port = target.url.removeprefix("http://").split(":")
            one.connect((host, int(port)))
            one.sendall(get("/docs") * 90)
        until(lambda: open_files(pid) > descriptors + 15, "connections")
        assert resident(pid) < before + 20 * 2 * page + (30 << 20)
        until(lambda: open_files(pid) <= descriptors + 2, "their end")
    assert pulse.slowest() < SLOWEST


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def state(made: socket.socket) -> int:
    return made.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]


def test_of_very_many_requests_at_once_some_are_answered(target: Server) -> None:
    """Each of 250 000 requests that waited for their turn took 2 KB."""
    before = resident(target.process.pid)
    with connected(target.url) as made:
        threading.Thread(target=_send, args=(made, get("/health") * 100_000)).start()
        said = received(made)
    assert 100 <= said.count(b"HTTP/1.1 200 ") <= 300
    assert said.count(b"HTTP/1.1 ") == said.count(b"HTTP/1.1 200 ")
    assert resident(target.process.pid) < before + (30 << 20)


def _send(made: socket.socket, sent: bytes) -> None:
    with suppress(OSError):
        made.sendall(sent)


def received(made: socket.socket) -> bytes:
    """All bytes until the connection ends."""
    parts: list[bytes] = []
    with suppress(ConnectionResetError):
        while part := made.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def test_a_request_has_its_answer_before_what_is_wrong_behind_it_ends_the_connection(target: Server) -> None:
    with connected(target.url) as made:
        made.sendall(EVENT + b"nonsense\r\n\r\n")
        said = received(made)
    assert said.startswith(b"HTTP/1.1 202 ")
    assert said.count(b"HTTP/1.1 ") == 1


def test_connections_are_bounded_for_an_address_and_in_all(narrow: Server) -> None:
    began = time.monotonic()
    # A line about one bound is not in the way of the first one about another.
    with crowd(narrow.url, 20, b"", "127.0.0.8"), crowd(narrow.url, 21, b"", "127.0.0.9"):
        until(lambda: "silent for longest are closed: 40 are open" in narrow.errors.read_text(), "a line in the log")
    until(lambda: metrics(narrow)["penstock_ingest_connections",] == 1, "the scrape's connection alone")
    with crowd(narrow.url, 45, b"", "127.0.0.2") as made:
        assert asked_from(narrow.url, "127.0.0.2") == 200
        # The scrape has a connection of its own.
        until(lambda: metrics(narrow)["penstock_ingest_connections",] <= 31, "as many as an address may have")
        assert sum(state(one) == ESTABLISHED for one in made) <= 30
        with crowd(narrow.url, 30, b"", "127.0.0.3"):
            assert asked_from(narrow.url, "127.0.0.4") == 200
            assert metrics(narrow)["penstock_ingest_connections",] <= 40
    log = narrow.errors.read_text()
    # More than 30 if some of the crowd had a spare place, while the server answered another request.
    closed = r"silent for longest are closed: 127\.0\.0\.2 has 3\d open, which is connections_per_address of \[limits\]"
    assert re.search(closed, log)
    for bound in ("connections", "connections_per_address"):
        lines = sum("are closed: " in line and f"is {bound} of" in line for line in log.splitlines())
        assert 1 <= lines <= 1 + (time.monotonic() - began) // 10, "a line in ten seconds"
    counted = metrics(narrow)
    # On a busy machine some of the crowd end by their own silence.
    assert counted["penstock_ingest_refused_connections_total",] > 0
    assert 1 <= counted["penstock_ingest_connections",] <= 40


def test_when_it_is_crowded_idle_connections_make_room(narrow: Server) -> None:
    """Without that, a caller who holds all connections open keeps everybody out for `idle`."""
    with ExitStack() as stack:
        for source in ("127.0.0.5", "127.0.0.6"):
            for one in stack.enter_context(crowd(narrow.url, 20, get("/health"), source)):
                assert answer(one)[0] == 200
        assert asked_from(narrow.url, "127.0.0.7") == 200


def asked_from(url: str, source: str) -> int:
    with connected(url, source) as made:
        try:
            made.sendall(get("/health"))
            return answer(made)[0]
        except OSError:  # refused before the request
            return 503


def test_without_file_descriptors_callers_wait_and_the_log_says_so(narrow: Server) -> None:
    pid = narrow.process.pid
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    with crowd(narrow.url, 3, get("/health")) as made:
        assert [answer(one)[0] for one in made] == [200] * 3
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (5, limits[1]))
        try:
            with connected(narrow.url) as waiting:
                waiting.sendall(get("/health"))
                until(lambda: "no connection can be accepted" in narrow.errors.read_text(), "a line in the log")
                used, began = cpu(pid), time.monotonic()
                until(lambda: time.monotonic() > began + 1, "a second in which nothing happens")
                assert cpu(pid) - used < (time.monotonic() - began) / 2
                made[0].sendall(get("/health"))
                assert answer(made[0])[0] == 200
                resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
                assert answer(waiting)[0] == 200
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


@pytest.mark.slow
def test_a_caller_who_never_begins_the_handshake_of_tls_is_sent_away(tmp_path: Path) -> None:
    """It was held for a minute, and not counted as a connection."""
    cert, _ = certificate(tmp_path)
    more = '[tls]\ncertificate = "keystore.pem"\nkey = "keystore.pem"\n[limits]\nconnections_per_address = 5\n'
    for server in started(tmp_path, more):
        with crowd(server.url, 5, b"", "127.0.0.2") as silent:
            assert asked_from_tls(server.url, "127.0.0.2", cert) == 200
            assert requests.get(f"{server.url}/health", verify=str(cert), timeout=PATIENCE).status_code == 200
            until(lambda: not any(map(is_open, silent)), "their end")
        assert requests.get(f"{server.url}/health", verify=str(cert), timeout=PATIENCE).status_code == 200


def asked_from_tls(url: str, source: str, cert: Path) -> int:
    context = ssl.create_default_context(cafile=cert)
    with connected(url, source) as made, context.wrap_socket(made, server_hostname=urlsplit(url).hostname) as secured:
        secured.sendall(get("/health"))
        return answer(secured)[0]
