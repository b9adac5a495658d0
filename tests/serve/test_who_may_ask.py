"""Who may ask: each HTTP server of the package refuses the same callers, with the same status."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from http_attacks import asked, get
from our_servers import GUARDED, SERVERS, Target
from waiting import until

SOURCE = Path(__file__).parents[2] / "src/penstock"


def is_up(target: Target) -> bool:
    return asked(target.url, get(target.page))[0] == 200


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Target]]:
    with ExitStack() as stack:
        made = {name: stack.enter_context(one(tmp_path_factory.mktemp(name))) for name, one in SERVERS.items()}
        for one in made.values():
            until(partial(is_up, one), "server")
        yield made


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Target]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(one(tmp_path_factory.mktemp(name))) for name, one in GUARDED.items()}


def status(target: Target, method: str, *lines: str, path: str | None = None, body: bytes = b"") -> int:
    """The status of the answer to a request with these lines; without a `Host` among them, with the right one."""
    if not any(line.lower().startswith("host:") for line in lines):
        lines = (f"Host: {target.url.removeprefix('http://')}", *lines)
    length = [f"Content-Length: {len(body)}"] if body else []
    where = path or (target.page if method == "GET" else target.path)
    head = "\r\n".join((f"{method} {where} HTTP/1.1", *lines, *length, "", ""))
    return asked(target.url, head.encode() + body)[0]


REFUSED = [
    (421, ["Host: evil.example"]),
    (421, ["Host: evil.example:8083", "Origin: http://evil.example:8083"]),
    (421, ["Host: 127.0.0.1.evil.example"]),
    (421, ["Host: " + "a" * 5000]),
    (403, ["Origin: http://evil.example"]),
    (403, ["Origin: http://203.0.113.5:8000"]),
    (403, ["Origin: null"]),
    (403, ["Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors"]),
    (400, ["Host: localhost", "Host: localhost"]),
    (400, ["Origin: http://localhost", "Origin: http://evil.example"]),
    (400, ["Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: none"]),
]


@pytest.mark.parametrize(("refusal", "lines"), REFUSED, ids=[lines[-1][:40] for _, lines in REFUSED])
def test_each_server_refuses_foreign_names_and_pages(
    servers: dict[str, Target], refusal: int, lines: list[str]
) -> None:
    wanted = dict.fromkeys(servers, refusal)
    assert {name: status(one, "GET", *lines) for name, one in servers.items()} == wanted
    sent = "Content-Type: application/json"
    assert {name: status(one, "POST", *lines, sent, body=b"{}") for name, one in servers.items()} == wanted


ADMITTED = [
    [],
    ["Host: localhost"],
    ["Host: shop.localhost:1"],
    ["Sec-Fetch-Site: none", "Sec-Fetch-Mode: navigate"],
    ["Sec-Fetch-Site: same-origin", "Sec-Fetch-Mode: cors"],
]


@pytest.mark.parametrize("lines", ADMITTED, ids=str)
def test_each_server_answers_its_own_pages_and_programs(servers: dict[str, Target], lines: list[str]) -> None:
    assert {status(one, "GET", *lines) for one in servers.values()} == {200}
    own = [f"Origin: {one.url}" for one in servers.values()]
    assert {status(one, "GET", *lines[1:], origin) for one, origin in zip(servers.values(), own, strict=True)} == {200}


def test_a_link_of_another_site_leads_to_each_server(servers: dict[str, Target]) -> None:
    """Of the console to its page, which asks for the rest itself."""
    links = {name: "/" if name == "console" else one.page for name, one in servers.items()}
    lines = ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate")
    assert {status(one, "GET", *lines, path=links[name]) for name, one in servers.items()} == {200}


def test_a_body_that_a_page_may_send_unasked_is_refused(servers: dict[str, Target]) -> None:
    found = {name: status(one, "POST", "Content-Type: text/html", body=b"{}") for name, one in servers.items()}
    # The metrics server takes GET only.
    assert found == dict.fromkeys(servers, 415) | {"metrics": 405}


WRONG = {
    "connect": ["", "Authorization: Basic YW5uOmh1c2g=", "Authorization: Bearer YW5uOnNlY3JldA=="],
    "segment": ["", "X-API-Key: ann", "Authorization: Bearer ann"],
    "ingest": ["", "X-API-Key: ann", "Authorization: Bearer ann", "Authorization: Basic YW5uOnNlY3JldA=="],
    "console": ["", "X-Penstock-Token: ann", "X-Penstock-Token: "],
}
UNKNOWN = {"connect": 401, "segment": 401, "ingest": 401, "console": 403}
"""Of the console, 401 would let a browser ask for a password."""
BODY = b'{"to": "t", "mode": "none"}'


@pytest.mark.parametrize("name", GUARDED)
def test_who_has_not_the_right_key_password_or_token_is_refused(guarded: dict[str, Target], name: str) -> None:
    target, sent = guarded[name], "Content-Type: application/json"
    body = b'{"to": "t", "mode": "full"}'
    for line in WRONG[name]:
        assert status(target, "POST", sent, *filter(None, [line]), body=body) == UNKNOWN[name], line
    right = ": ".join(target.login)
    assert status(target, "POST", sent, right, right, body=body) in (400, 401, 403), "a header that comes twice"
    assert status(target, "POST", sent, right, "Origin: http://evil.example", body=body) == 403
    assert status(target, "POST", sent, right, "Host: evil.example", body=body) == 421
    # An answer that says what is wrong with the request, or that it is done.
    assert status(target, "POST", sent, right, body=BODY) not in (401, 403, 421)


LISTENERS = {"Listener", "BoundedServer", "RestServer", "start_server", "HTTPServer", "ThreadingHTTPServer"}
LISTENING = {
    "cli/connect.py": "connect",
    "cli/segment.py": "segment",
    "cli/state.py": "state",
    "console/server.py": "console",
    "ingest/ingest_server.py": "ingest",
    "serve/rest_server.py": "",
    "watch/metrics_server.py": "metrics",
}
"""The modules that make a server, and its name in the table."""


def test_each_server_is_in_the_table() -> None:
    """A new server is another one of `SERVERS`."""
    found = {str(module.relative_to(SOURCE)) for module in SOURCE.rglob("*.py") if makes_server(module)}
    assert sorted(found) == sorted(LISTENING)
    assert {name for name in LISTENING.values() if name} == set(SERVERS)


def makes_server(module: Path) -> bool:
    """Whether a module calls what listens for HTTP, or has a class of it."""
    for node in ast.walk(ast.parse(module.read_text())):
        called = {ast.unparse(node.func).rpartition(".")[2]} if isinstance(node, ast.Call) else set()
        bases = {ast.unparse(base) for base in node.bases} if isinstance(node, ast.ClassDef) else set()
        if (called | bases) & LISTENERS:
            return True
    return False
