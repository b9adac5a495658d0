"""The metrics server: its pages by HTTP, and callers that are slow, hostile or many."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection

import pytest
from prometheus_client.parser import text_string_to_metric_families
from waiting import PATIENCE, until

from penstock import __version__
from penstock.errors import PenstockError
from penstock.watch import metrics_server
from penstock.watch.metrics_server import ListenAddress, MetricsAnswer, Page, as_json, pages, served

LOCAL = ListenAddress("127.0.0.1", 0)


def fails() -> MetricsAnswer:
    raise RuntimeError("a secret of the page")


@contextmanager
def server(**more: Page) -> Iterator[tuple[str, int]]:
    """A server with the usual pages and others, at its host and port."""
    made = pages([], lambda: {"state": "running"}, lambda: [])
    with served(LOCAL, made | {f"/{name}": page for name, page in more.items()}) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        yield host, int(port)


def get(place: tuple[str, int], path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = HTTPConnection(*place, timeout=PATIENCE)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, body


def raw(place: tuple[str, int], text: bytes) -> bytes:
    """All that a server answers to these bytes."""
    with socket.create_connection(place, timeout=PATIENCE) as connection:
        connection.sendall(text)
        found = b""
        while part := connection.recv(4096):
            found += part
        return found


def test_the_usual_pages() -> None:
    with server() as place:
        status, headers, body = get(place, "/metrics")
        assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
        (family,) = text_string_to_metric_families(body.decode())
        assert family.samples[0].labels == {"version": __version__} and family.samples[0].value == 1
        assert json.loads(get(place, "/health")[2]) == {"status": "ok"}
        assert get(place, "/ready")[0] == 200
        status, headers, body = get(place, "/status?x=1")
        assert (status, json.loads(body), headers["cache-control"]) == (200, {"state": "running"}, "no-store")


def test_a_command_that_is_not_ready_says_why() -> None:
    with served(LOCAL, pages([], dict, lambda: ["orders: waiting"])) as url:
        place = ("127.0.0.1", int(url.rpartition(":")[2]))
        status, _, body = get(place, "/ready")
    assert (status, json.loads(body)) == (503, {"status": "unavailable", "problems": ["orders: waiting"]})


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/", {}, 404),
        ("GET", "/metrics/", {}, 404),
        ("GET", "/../etc/passwd", {}, 404),
        ("POST", "/metrics", {}, 405),
        ("HEAD", "/metrics", {}, 405),
        ("GET", "/metrics", {"Host": "evil.example"}, 421),
        ("GET", "/metrics", {"Host": "evil.example:80"}, 421),
        ("GET", "/metrics", {"Origin": "https://evil.example"}, 403),
        ("GET", "/metrics", {"Origin": "null"}, 403),
        ("GET", "/metrics", {"Host": "localhost:9400"}, 200),
        ("GET", "/metrics", {"Host": "[::1]:9400"}, 200),
    ],
)
def test_what_is_answered_to_whom(method: str, path: str, headers: dict[str, str], status: int) -> None:
    with server() as place:
        found, fields, body = get(place, path, method, **headers)
    assert found == status
    if status >= 400 and method != "HEAD":
        assert set(json.loads(body)) == {"error", "where", "next"}
    assert fields.get("allow") == ("GET" if status == 405 else None)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"\r\n\r\n", b"400"),
        (b"GET /metrics\r\n\r\n", b"400"),
        (b"GET /metrics SPDY/3\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nhost : evil.example\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nHOST:evil.example\r\n\r\n", b"421"),
        (b"GET /metrics HTTP/1.1\r\n\xff\xfe: \xff\r\n\r\n", b"200"),
        (b"GET /metrics HTTP/1.0\r\n\r\n", b"200"),
        (b"GET /" + b"x" * metrics_server.HEAD_BYTES + b" HTTP/1.1\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * metrics_server.HEAD_BYTES, b"431"),
    ],
)
def test_bytes_that_are_no_request(text: bytes, status: bytes) -> None:
    with server() as place:
        try:
            assert raw(place, text).startswith(b"HTTP/1.1 " + status)
        except ConnectionError:
            # The server closed while bytes that it does not read were on their way.
            assert status == b"431"
        assert get(place, "/health")[0] == 200


def test_a_page_that_fails_says_nothing_of_the_error(caplog: pytest.LogCaptureFixture) -> None:
    with server(broken=fails) as place:
        status, _, body = get(place, "/broken")
        assert status == 500 and b"secret" not in body
        assert get(place, "/health")[0] == 200
    assert "a secret of the page" in caplog.text


def test_not_a_number_is_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    with server(nan=lambda: as_json({"lag": float("nan")})) as place:
        assert get(place, "/nan")[0] == 500


def test_only_some_connections_are_served_at_a_time() -> None:
    inside, most, go, lock = [0], [0], threading.Event(), threading.Lock()

    def slow() -> MetricsAnswer:
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        go.wait(PATIENCE)
        with lock:
            inside[0] -= 1
        return as_json({})

    with server(slow=slow) as place:
        found: list[int] = []
        callers = [
            threading.Thread(target=lambda: found.append(get(place, "/slow")[0]))
            for _ in range(2 * metrics_server.PAGES)
        ]
        for one in callers:
            one.start()
        until(lambda: inside[0] >= metrics_server.PAGES, "as many as are served")
        go.set()
        for one in callers:
            one.join(PATIENCE)
    assert most[0] == metrics_server.PAGES and found == [200] * len(callers)


def test_a_port_that_is_taken_is_an_error_with_the_next_step() -> None:
    with server() as (host, port), pytest.raises(PenstockError) as refused, served(ListenAddress(host, port), {}):
        pass
    assert str(port) in refused.value.where and "--metrics" in refused.value.next


@pytest.mark.parametrize("host", ["256.0.0.1", "no.such.host.invalid", "192.0.2.1"])
def test_an_address_of_no_interface_is_an_error(host: str) -> None:
    with pytest.raises(PenstockError, match="cannot listen"), served(ListenAddress(host, 0), {}):
        pass


def test_the_port_is_free_again_after_the_end() -> None:
    with server() as place:
        pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(place)
    with served(ListenAddress(*place), {}):
        socket.create_connection(place).close()


def test_a_warning_where_others_can_reach_it(capsys: pytest.CaptureFixture[str]) -> None:
    with served(ListenAddress("0.0.0.0", 0), {}):
        pass
    assert "without authentication" in capsys.readouterr().err
