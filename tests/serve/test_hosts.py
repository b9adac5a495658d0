"""The names a server answers to: web pages that point their own name at this machine get no answer."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from waiting import PATIENCE

from penstock.serve.access.hosts import Hosts, is_loopback, warn_if_open
from penstock.serve.rest_server import HEAD, RestServer, bind

ALLOWED = Hosts(("connect", "Advertised.Example.org", "*.svc.cluster.local"))


@pytest.mark.parametrize(
    ("host", "taken"),
    [
        ("localhost", True),
        ("LocalHost:8083", True),
        ("localhost.", True),
        ("shop.localhost:8083", True),
        ("127.0.0.1:8083", True),
        ("[::1]:8083", True),
        ("192.168.1.7", True),
        (socket.gethostname(), True),
        ("connect:8083", True),
        ("advertised.example.org", True),
        ("a.b.svc.cluster.local:80", True),
        ("svc.cluster.local", False),
        ("evil.example", False),
        ("evil.example:8083", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("evil.example:localhost", False),
        ("localhost:80@evil.example", False),
        ("[::1].evil.example", False),
        ("[localhost", False),
        ("", False),
        ("a" * 100_000, False),
    ],
)
def test_hosts_that_are_taken(host: str, taken: bool) -> None:
    assert ALLOWED.allows(host) is taken
    assert Hosts("*").allows(host)


@pytest.mark.parametrize(
    ("origin", "host", "taken"),
    [
        ("http://localhost:3000", "localhost:8083", True),
        ("https://127.0.0.1", "localhost:8083", True),
        ("http://[::1]:8083", "127.0.0.1", True),
        ("http://connect", "10.0.0.1:8083", True),
        ("http://192.168.1.7:8083", "192.168.1.7:8083", True),
        ("http://[fe80::1]:8083", "[FE80::1]:8083", True),
        ("http://192.168.1.7:8083", "127.0.0.1:8083", False),
        ("http://203.0.113.5", "192.168.1.7:8083", False),
        ("http://203.0.113.5", "", False),
        ("http://evil.example", "evil.example", False),
        ("null", "localhost", False),
        ("", "localhost", False),
        ("http://[", "localhost", False),
        ("localhost", "localhost", False),
    ],
)
def test_origins_that_are_taken(origin: str, host: str, taken: bool) -> None:
    assert ALLOWED.allows_origin(origin, host) is taken
    assert Hosts("*").allows_origin(origin, host)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    async def answer(request: object) -> PlainTextResponse:
        return PlainTextResponse("secret")

    with bind("127.0.0.1", 0) as bound:
        server = RestServer(Starlette(routes=[Route("/", answer, methods=["GET", "POST"])]), bound)
        yield bound.getsockname()[1]
        server.close()


def ask(port: int, method: str = "GET", body: bytes | None = None, **headers: str) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request(method, "/", body, headers)
    answer = connection.getresponse()
    try:
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_a_page_that_points_its_name_here_gets_nothing(port: int) -> None:
    assert ask(port) == (200, "secret")
    assert ask(port, Host=f"localhost:{port}") == (200, "secret")
    for method, body in (("GET", None), ("POST", b"{}" * 1000)):
        status, text = ask(port, method, body, Host=f"rebound.example:{port}")
        assert status == 421
        said = json.loads(text)
        assert f"'rebound.example:{port}'" in said["message"] and "--allow-host NAME" in said["next"]


def test_a_page_of_another_origin_gets_nothing(port: int) -> None:
    status, text = ask(port, "POST", b"", Origin="http://evil.example")
    assert status == 403 and "http://evil.example" in json.loads(text)["error"]
    assert ask(port, "POST", b"", Origin=f"http://localhost:{port}")[0] == 200


def test_a_page_of_a_bare_address_begins_nothing(port: int) -> None:
    for body in (None, b"{}"):
        status, text = ask(port, "POST", body, Origin="http://203.0.113.5:8000")
        assert status == 403 and "http://203.0.113.5:8000" in json.loads(text)["error"]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_body_that_a_page_may_send_unasked_is_refused(port: int, kind: str) -> None:
    """A browser sends these types without a question before (CORS, simple requests)."""
    status, text = ask(port, "POST", b"{}", **({"Content-Type": kind} if kind else {}))
    assert status == 415 and "Content-Type: application/json" in json.loads(text)["next"]
    assert ask(port, "POST", b"{}", **{"Content-Type": "Application/JSON; charset=utf-8"})[0] == 200
    assert ask(port, "POST", None)[0] == 200


@pytest.mark.parametrize("name", ["Host", "Origin", "Content-Type"])
def test_two_lines_of_one_name_are_refused(port: int, name: str) -> None:
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.putrequest("POST", "/", skip_host=True)
    for value in ("evil.example", "localhost"):
        connection.putheader(name, value)
    if name != "Host":
        connection.putheader("Host", "localhost")
    connection.endheaders()
    answer = connection.getresponse()
    assert answer.status == 400 and (name == "Host" or f"2 lines {name.lower()}" in answer.read().decode())
    connection.close()


def test_the_head_of_a_request_is_bounded(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as caller:
        caller.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\na: " + b"b" * (HEAD + 10))
        assert caller.recv(100).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.9.9.9"])
def test_a_server_on_loopback_warns_of_nothing(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert is_loopback(host)
    warn_if_open(host, "do things")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])
def test_a_server_that_others_reach_says_so(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    warn_if_open(host, "do things")
    assert f"listens at {host}" in capsys.readouterr().err
