"""Servers that answer slowly, without end or with nonsense, to everything of the package that asks over HTTP."""

from __future__ import annotations

import ast
import asyncio
import itertools
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from secure_kafka import certificate
from waiting import PATIENCE

from penstock import kafka
from penstock.cli import status
from penstock.codec import registry
from penstock.errors import PenstockError
from penstock.serve import http_client
from penstock.serve.client_connection import CHUNK, HEAD
from penstock.serve.http_client import (
    Address,
    CannotBeSent,
    HttpAnswer,
    NoHttpAnswer,
    RedirectedElsewhere,
    TookTooLong,
    TooLargeAnswer,
    UntrustedCertificate,
    fetch,
    fetch_blocking,
)
from penstock.watch import lineage

SOURCES = Path(__file__).parents[2] / "src"
SHORT = 0.3
"""Seconds that a client has for a server that never comes to an end."""
MOST = 100_000
LOGIN = "Basic c2VjcmV0"
OK = b"HTTP/1.1 200 OK\r\n"

Script = Callable[[], Iterable[bytes]]


@dataclass
class Scripted:
    """A server that sends the same bytes to each caller, and keeps the requests."""

    url: str = ""
    requests: list[bytes] = field(default_factory=list)


@contextmanager
def scripted(script: Script, keystore: Path | None = None) -> Iterator[Scripted]:
    made, over = Scripted(), threading.Event()
    context = None
    if keystore:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(keystore)

    def answer(caller: socket.socket) -> None:
        with suppress(OSError), context.wrap_socket(caller, server_side=True) if context else caller as connection:
            connection.settimeout(PATIENCE)
            made.requests.append(connection.recv(CHUNK))
            for part in script():
                connection.sendall(part)
                if over.wait(0.02 if len(part) < 2 else 0):
                    return

    def serve() -> None:
        with suppress(OSError):
            while True:
                caller, _ = listening.accept()
                threads.append(threading.Thread(target=answer, args=(caller,)))
                threads[-1].start()

    threads: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        made.url = f"http{'s' if keystore else ''}://127.0.0.1:{listening.getsockname()[1]}"
        server = threading.Thread(target=serve)
        server.start()
        try:
            yield made
        finally:
            over.set()
            listening.shutdown(socket.SHUT_RDWR)
            server.join()
            for one in threads:
                one.join()


def without_end(head: bytes, part: bytes) -> Script:
    return lambda: itertools.chain([head], itertools.repeat(part))


def once(*parts: bytes) -> Script:
    return lambda: parts


CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
ENDLESS = {
    "a body until the end of the connection": without_end(OK + b"\r\n", b"x" * CHUNK),
    "a body in chunks": without_end(CHUNKED, b"10000\r\n" + b"x" * CHUNK + b"\r\n"),
    "an announced body": without_end(OK + b"Content-Length: 99999999999999\r\n\r\n", b"x" * CHUNK),
}
SLOW = {
    "a slow body": without_end(OK + b"\r\n", b"x"),
    "a slow head": without_end(OK + b"a: ", b"x"),
    "slow chunks": without_end(CHUNKED + b"ffffff\r\n", b"x"),
    "nothing more": without_end(OK + b"Content-Length: 9\r\n\r\n", b""),
    "silence": without_end(b"", b""),
    "one answer that more follow": without_end(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
}
NONSENSE = {
    "a head without end": without_end(OK, b"a: " + b"b" * 1000 + b"\r\n"),
    "a line without end": without_end(OK + b"a: ", b"b" * CHUNK),
    "a head that is too large": once(OK + b"a: " + b"b" * (2 * HEAD) + b"\r\n\r\n{}"),
    "a length that is too large": once(OK + b"Content-Length: 3\r\n\r\n{}"),
    "two lengths": once(OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}"),
    "a negative length": once(OK + b"Content-Length: -2\r\n\r\n{}"),
    "a length of letters": once(OK + b"Content-Length: two\r\n\r\n{}"),
    "a cut head": once(OK + b"Content-Le"),
    "a cut chunk": once(CHUNKED + b"5\r\n{}"),
    "no last chunk": once(CHUNKED + b"2\r\n{}\r\n"),
    "a chunk of letters": once(CHUNKED + b"two\r\n{}\r\n"),
    "no answer": once(),
    "no HTTP": once(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "TLS": once(b"\x15\x03\x01\x00\x02\x02\x46"),
    "zeros": once(bytes(1000)),
    "another protocol": once(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n"),
}


def ask(url: str, patience: float = PATIENCE, **options: Any) -> HttpAnswer:
    return asyncio.run(fetch(Address(url, LOGIN), "/a", patience=patience, most=MOST, **options))


def ask_blocking(url: str, patience: float = PATIENCE, **options: Any) -> HttpAnswer:
    return fetch_blocking(Address(url, LOGIN), "/a", patience=patience, most=MOST, **options)


Ask = Callable[..., HttpAnswer]
both = pytest.mark.parametrize("call", [ask, ask_blocking])


@both
@pytest.mark.parametrize("name", ENDLESS)
def test_an_answer_without_end_is_read_to_its_bound(call: Ask, name: str) -> None:
    with scripted(ENDLESS[name]) as server, pytest.raises(TooLargeAnswer, match=f"more than {MOST} bytes") as caught:
        call(server.url)
    assert caught.value.where == server.url and not caught.value.retriable and caught.value.next


@both
@pytest.mark.parametrize("name", SLOW)
def test_a_slow_answer_ends_by_one_deadline(call: Ask, name: str) -> None:
    with scripted(SLOW[name]) as server, pytest.raises(TookTooLong, match=r"no answer within 0\.3 s .*Next: check"):
        call(server.url, SHORT)


@both
@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_is_not_an_answer(call: Ask, name: str) -> None:
    with scripted(NONSENSE[name]) as server, pytest.raises(NoHttpAnswer, match="Next: check the address") as caught:
        call(server.url)
    assert caught.value.where == server.url and caught.value.retriable
    assert "c2VjcmV0" in str(server.requests) and "c2VjcmV0" not in str(caught.value)


@both
def test_of_an_error_a_part_is_read(call: Ask) -> None:
    with scripted(without_end(b"HTTP/1.1 500 No\r\n\r\n", b"x" * CHUNK)) as server:
        answer = call(server.url)
    assert (answer.status, answer.reason) == (500, "No") and set(answer.body) == {ord("x")}
    assert http_client.MOST_REFUSED <= len(answer.body) <= MOST


@both
def test_a_redirect_is_an_answer(call: Ask) -> None:
    with scripted(once(OK + b"\r\n")) as other:
        head = f"HTTP/1.1 302 Found\r\nLocation: {other.url}/\r\nContent-Length: 0\r\n\r\n".encode()
        with scripted(once(head)) as server:
            assert call(server.url).status == 302
        assert other.requests == []


def redirect(to: str) -> Script:
    return once(f"HTTP/1.1 307 Go\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode())


@pytest.mark.parametrize("path", ["/", "//{place}/", "{url}/b"])
def test_a_login_is_not_taken_to_another_server(path: str) -> None:
    with scripted(once(OK + b"Content-Length: 2\r\n\r\n{}")) as other:
        to = path.format(url=other.url, place=other.url.removeprefix("http://"))
        with scripted(redirect(to)) as server:
            if path == "/":
                # To itself, again and again: the last redirect is the answer.
                assert ask_blocking(server.url, redirects=3).status == 307 and len(server.requests) == 4
                return
            with pytest.raises(RedirectedElsewhere, match=f"redirects to {other.url}, which does not get its login"):
                ask_blocking(server.url, redirects=3)
            assert other.requests == [] and len(server.requests) == 1
            # Without a login there is nothing to keep, and what changes something is sent once.
            assert fetch_blocking(Address(server.url, None), "/a", redirects=1).body == b"{}"
            assert fetch_blocking(Address(server.url, None), "/a", redirects=1, method="POST").status == 307
        assert len(other.requests) == 1 and b"authorization" not in other.requests[0].lower()


@pytest.mark.parametrize("to", ["ftp://a/", "file:///etc/passwd", "http://[", "http://a:x/", "http://a:0/"])
def test_a_redirect_to_no_server_is_not_an_answer(to: str) -> None:
    with scripted(redirect(to)) as server, pytest.raises(NoHttpAnswer, match="redirects to an address that is not one"):
        ask_blocking(server.url, redirects=1)


@both
def test_a_certificate_that_nobody_trusts_is_named(call: Ask, tmp_path: Path) -> None:
    authority, keystore = certificate(tmp_path)
    with scripted(once(OK + b"Content-Length: 2\r\n\r\n{}"), keystore) as server:
        with pytest.raises(UntrustedCertificate, match=r"certificate is not trusted: self.signed.*SSL_CERT_FILE"):
            call(server.url)
        assert call(server.url, tls=ssl.create_default_context(cafile=authority)).body == b"{}"
    with scripted(once(b"HTTP/1.1 400 Bad\r\n\r\n")) as server, pytest.raises(NoHttpAnswer, match="TLS fails"):
        call(server.url.replace("http:", "https:"))


def test_a_slow_handshake_ends_by_the_deadline() -> None:
    with scripted(SLOW["silence"]) as server, pytest.raises(TookTooLong):
        ask_blocking(server.url.replace("http:", "https:"), SHORT)


def test_a_name_server_that_does_not_answer_ends_by_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    answered, looked = threading.Event(), socket.getaddrinfo

    def slow(*names: Any, flags: int = 0, **more: Any) -> Any:
        if not flags:
            answered.wait(PATIENCE)
        return looked(*names, flags=flags, **more)  # type: ignore[misc]

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with pytest.raises(TookTooLong):
        fetch_blocking(Address("http://localhost:1", None), "/", patience=SHORT)
    answered.set()


@both
@pytest.mark.parametrize("login", ["Bearer a\nb", "Bearer \0", "Bearer \u20ac"])
def test_a_login_that_no_header_can_have_is_refused_without_being_shown(call: Ask, login: str) -> None:
    with scripted(once(OK + b"\r\n")) as server:
        with pytest.raises(CannotBeSent, match="has characters that no request can have") as caught:
            fetch_blocking(Address(server.url, login), "/")
        assert "Bearer" not in str(caught.value) and caught.value.__suppress_context__ and server.requests == []


# Proxies of the environment.


@contextmanager
def tunnels(status: bytes = b"200 OK") -> Iterator[Scripted]:
    """A proxy for one tunnel."""
    made = Scripted()

    def relay(source: socket.socket, to: socket.socket) -> None:
        with suppress(OSError):
            while part := source.recv(CHUNK):
                to.sendall(part)
            to.shutdown(socket.SHUT_WR)

    def serve() -> None:
        caller, _ = listening.accept()
        with caller:
            made.requests.append(caller.recv(CHUNK))
            caller.sendall(b"HTTP/1.1 %s\r\n\r\n" % status)
            host, port = made.requests[0].split(b" ")[1].decode().split(":")
            if status == b"200 OK":
                with socket.create_connection((host, int(port))) as server:
                    back = threading.Thread(target=relay, args=(server, caller))
                    back.start()
                    relay(caller, server)
                    back.join()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        made.url = f"http://bob:p%40@127.0.0.1:{listening.getsockname()[1]}"
        server = threading.Thread(target=serve)
        server.start()
        yield made
        server.join()


def test_a_proxy_of_the_environment_gets_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(once(OK + b"Content-Length: 2\r\n\r\n{}")) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.replace("//", "//bob:p%40@"))
        assert ask_blocking("http://far.example:81/x", proxied=True).body == b"{}"
        assert proxy.requests[0].startswith(b"GET http://far.example:81/x/a HTTP/1.1\r\nhost: far.example:81\r\n")
        assert b"proxy-authorization: Basic Ym9iOnBA" in proxy.requests[0]
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert ask_blocking(proxy.url, proxied=True).body == b"{}"
        assert proxy.requests[1].startswith(b"GET /a HTTP/1.1\r\n") and b"proxy-" not in proxy.requests[1]


def test_tls_goes_through_a_tunnel_of_the_proxy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    authority, keystore = certificate(tmp_path)
    trusted = ssl.create_default_context(cafile=authority)
    with scripted(once(OK + b"Content-Length: 2\r\n\r\n{}"), keystore) as server:
        with tunnels() as proxy:
            monkeypatch.setenv("https_proxy", proxy.url)
            assert ask_blocking(server.url, tls=trusted, proxied=True).body == b"{}"
        assert proxy.requests[0].startswith(f"CONNECT {server.url.removeprefix('https://')} HTTP/1.1\r\n".encode())
        # The login of the server is for the server, and that of the proxy for the proxy.
        assert b"Ym9iOnBA" in proxy.requests[0] and b"c2VjcmV0" not in proxy.requests[0]
        assert b"c2VjcmV0" in server.requests[0] and b"Ym9iOnBA" not in server.requests[0]
        with tunnels(b"407 Who are you") as proxy:
            monkeypatch.setenv("https_proxy", proxy.url)
            with pytest.raises(NoHttpAnswer, match=r"127\.0\.0\.1:\d+ refuses: Who are you \(HTTP 407\)") as caught:
                ask_blocking(server.url, tls=trusted, proxied=True)
        assert "bob" not in str(caught.value)


# What the package asks.


def through_registry(url: str) -> object:
    return kafka.Registry(url, user="ann", password="hush").versions("s")


CLIENTS: dict[str, Callable[[str], object]] = {
    "registry": through_registry,
    "lineage": lambda url: lineage.post(url, {}),
    "status": status._fetched,
}
HOSTILE = ENDLESS | SLOW | NONSENSE


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((registry, "TIMEOUT"), (lineage, "TIMEOUT"), (status, "PATIENCE")):
        monkeypatch.setattr(module, name, SHORT)
    monkeypatch.setattr(registry, "PAUSES", ())
    monkeypatch.setattr(registry, "MOST", MOST)
    monkeypatch.setattr(status, "MOST", MOST)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("attack", ["a body in chunks", "a slow body", "a slow head", "a cut chunk", "no HTTP"])
@pytest.mark.parametrize("client", CLIENTS)
def test_each_client_has_an_end(client: str, attack: str) -> None:
    with scripted(HOSTILE[attack]) as server:
        if (client, attack) == ("lineage", "a body in chunks"):
            CLIENTS[client](server.url)  # The event is stored; what else is said does not matter.
            return
        with pytest.raises(PenstockError) as caught:
            CLIENTS[client](server.url)
    assert server.url in str(caught.value) and "hush" not in str(caught.value)


HEADS = (OK, b"HTTP/1.0 404 Not Found\r\n", b"HTTP/1.1 100 Continue\r\n\r\n" + OK)
LINES = (b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"a: b\r\n", b"", b"content-length: +5\r\n")
BODIES = (b"hello", b"5\r\nhello\r\n0\r\n\r\n", b"5\r\nhello\r\n", b"")
answers = st.tuples(st.sampled_from(HEADS), st.sampled_from(LINES), st.sampled_from(LINES), st.sampled_from(BODIES))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """An answer, in which some bytes may be others, or missing."""
    head, *lines, body = draw(answers)
    whole = bytearray(head + b"".join(lines) + b"\r\n" + body)
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(whole) - 1))
        whole[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(whole)


def outcome(call: Ask, url: str) -> object:
    try:
        return call(url)
    except NoHttpAnswer as error:
        return type(error), error.what


@settings(max_examples=60, deadline=None)
@given(damaged())
def test_both_ways_of_asking_take_the_same_bytes_for_the_same_answer(answer: bytes) -> None:
    with scripted(once(answer)) as server:
        assert outcome(ask, server.url) == outcome(ask_blocking, server.url)


# Who else speaks HTTP, or opens connections.

LIBRARIES = {"http.client", "urllib.request", "urllib3", "requests", "httpx", "aiohttp", "h11"}
OPENERS = {"open_connection", "create_connection", "urlopen"}
ALLOWED = {
    "penstock/serve/http_client.py": "the one client",
    "penstock/serve/client_connection.py": "the connections of the one client, and the proxies of the environment",
    "penstock/local/jars.py": "downloads to a file that are resumed, of the size and the digest in a lock file",
    "penstock/local/service.py": "asks servers of this machine for their first bytes, of any protocol",
    "penstock/spark_runtime/settings.py": "whether a Spark master listens",
    "penstock/watch/probe.py": "whether a port takes connections",
    "penstock/wire/transport.py": "Kafka's protocol",
    "penstock_demo/adtech/load.py": "a load: it keeps its connections",
}


def openers(module: Path) -> set[str]:
    """What a module has that asks others: libraries, and calls that open connections."""
    found = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            found |= {name for name in LIBRARIES for alias in node.names if is_of(alias.name, name)}
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name for name in LIBRARIES for one in names if is_of(one, name)}
        elif isinstance(node, ast.Attribute):
            found |= {node.attr} & OPENERS
    return found


def is_of(name: str, library: str) -> bool:
    return name == library or name.startswith(f"{library}.")


def test_who_asks_others_without_the_one_client_says_why() -> None:
    found = {str(module.relative_to(SOURCES)) for module in SOURCES.rglob("*.py") if openers(module)}
    assert sorted(found - set(ALLOWED)) == [], "ask with penstock.serve.http_client, or list the module with a reason"
    assert sorted(set(ALLOWED) - found) == [], "these ask nobody any more"
