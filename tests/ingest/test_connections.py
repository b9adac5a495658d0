"""Requests over one connection: small ones that are answered without a task, and all others."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests
from ingest_server import Site
from prometheus_client.parser import text_string_to_metric_families
from waiting import PATIENCE, until

from penstock.local import java

SOURCE = Path(__file__).parents[1] / "support/http/Post.java"


@contextmanager
def connection(site: Site) -> Iterator[socket.socket]:
    host, port = site.server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as made:
        yield made


def request(site: Site, body: bytes, *more: str, version: str = "1.1") -> bytes:
    lines = [f"POST /events/{site.raw} HTTP/{version}", "Host: 127.0.0.1", f"X-API-Key: {site.all}"]
    lines += ["Content-Type: application/x-ndjson", *more]
    if not any(line.startswith("Transfer-Encoding") for line in more):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def answers(made: socket.socket, count: int) -> list[tuple[int, bytes]]:
    """Status and body of `count` answers."""
    found: list[tuple[int, bytes]] = []
    with made.makefile("rb") as file:
        for _ in range(count):
            head = b"".join(iter(file.readline, b"\r\n"))
            size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
            found.append((int(head[9:12]), file.read(size)))
    return found


def accepted(count: int) -> tuple[int, bytes]:
    return 200, b'{"accepted":%d}' % count


def events(mark: str, count: int) -> bytes:
    return b"\n".join(b'{"of":"%b"}' % mark.encode() for _ in range(count))


@pytest.mark.slow
def test_requests_that_follow_at_once_are_answered_in_their_order(site: Site, mark: str) -> None:
    with connection(site) as made:
        made.sendall(b"".join(request(site, events(mark, count)) for count in (1, 2, 3)) + request(site, b"nonsense"))
        *good, bad = answers(made, 4)
        assert good == [accepted(1), accepted(2), accepted(3)]
        assert bad[0] == 400
        made.sendall(request(site, events(mark, 4)))
        assert answers(made, 1) == [accepted(4)]
    assert len([value for value in site.stored(site.raw) if mark.encode() in value]) == 10


@pytest.mark.parametrize(("version", "more"), [("1.1", "Connection: close"), ("1.0", "X-None: none")])
def test_the_connection_ends_after_the_answer_if_the_caller_wants_that(
    site: Site, mark: str, version: str, more: str
) -> None:
    with connection(site) as made:
        made.sendall(request(site, events(mark, 2), more, version=version))
        answer = b"".join(iter(lambda: made.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"connection: close\r\n" in answer
    assert answer.endswith(b'{"accepted":2}')


def test_a_body_in_pieces_in_chunks_or_after_a_question_is_taken(site: Site, mark: str) -> None:
    body = events(mark, 5)
    with connection(site) as made:
        for at in range(0, len(whole := request(site, body)), 40):
            made.sendall(whole[at : at + 40])
        assert answers(made, 1) == [accepted(5)]
        chunks = b"".join(
            b"%x\r\n%b\r\n" % (len(body[at : at + 9]), body[at : at + 9]) for at in range(0, len(body), 9)
        )
        made.sendall(request(site, chunks + b"0\r\n\r\n", "Transfer-Encoding: chunked"))
        assert answers(made, 1) == [accepted(5)]
        head = request(site, body, "Expect: 100-continue").removesuffix(body)
        made.sendall(head)
        assert answers(made, 1) == [(100, b"")]
        made.sendall(body)
        assert answers(made, 1) == [accepted(5)]
        large = b'{"of":"%b","x":"%b"}\n' % (mark.encode(), b"x" * 3000)
        made.sendall(request(site, large * 60))  # 180 kB
        assert answers(made, 1) == [accepted(60)]


OFFERS = [
    ["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"],
    ["Connection: keep-alive, upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"],
]


@pytest.mark.parametrize("offer", OFFERS, ids=["HTTP/2", "WebSocket"])
def test_who_offers_another_protocol_is_answered_in_this_one(site: Site, mark: str, offer: list[str]) -> None:
    chunked = b'5\r\n{"a":\r\n3\r\n{}}\r\n0\r\n\r\n'
    with connection(site) as made:
        whole = request(site, events(mark, 2), *offer)
        made.sendall(whole + request(site, events(mark, 3)) + whole)
        assert answers(made, 3) == [accepted(2), accepted(3), accepted(2)]
        for at in range(0, len(whole), 40):
            made.sendall(whole[at : at + 40])
        assert answers(made, 1) == [accepted(2)]
        made.sendall(request(site, chunked, "Transfer-Encoding: chunked", *offer))
        assert answers(made, 1) == [accepted(1)]
        made.sendall(request(site, events(mark, 1), "Expect: 100-continue", *offer))
        assert answers(made, 2) == [(100, b""), accepted(1)]
        made.sendall("\r\n".join(["GET /health HTTP/1.1", "Host: 127.0.0.1", *offer, "", ""]).encode())
        assert answers(made, 1)[0][0] == 200
        made.sendall(request(site, b"nonsense", *offer))
        assert answers(made, 1)[0][0] == 400
        made.sendall(request(site, events(mark, 1), "Connection: close", *offer))
        assert answers(made, 1) == [accepted(1)]
        assert made.recv(1) == b""
    assert len([value for value in site.stored(site.raw) if mark.encode() in value]) == 11


@pytest.mark.slow
def test_javas_client_sends_events_with_its_defaults(site: Site, mark: str) -> None:
    """It offers HTTP/2 with each request."""
    launcher = java.find().bin
    if not launcher.with_name("javac").exists():
        pytest.skip("this Java runs no source files")
    command: list[str | Path] = [launcher, SOURCE, site.url(site.raw), site.all, f'{{"of":"{mark}"}}']
    done = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=True, text=True)
    assert done.stdout.splitlines() == ['200 {"accepted":1}'] * 2
    assert [value for value in site.stored(site.raw) if mark.encode() in value] == [b'{"of":"%b"}' % mark.encode()] * 2


def test_a_caller_that_goes_away_leaves_nothing_behind(site: Site, mark: str) -> None:
    def gone() -> float:
        text = requests.get(f"{site.server.url}/metrics", timeout=PATIENCE).text
        samples = (one for family in text_string_to_metric_families(text) for one in family.samples)
        return sum(one.value for one in samples if one.labels.get("status") == "499")

    before = gone()
    with connection(site) as made:
        made.sendall(request(site, events(mark, 2))[:-3])
        health = f"{site.server.url}/health"
        assert until(lambda: requests.get(health, timeout=PATIENCE).json()["in_flight"] > 0, "a part of the body")
    until(lambda: gone() == before + 1, "its end to be counted")
    assert requests.get(health, timeout=PATIENCE).json()["in_flight"] == 0
    assert not [value for value in site.stored(site.raw) if mark.encode() in value]
