"""The HTTP server of commands, and their error answers."""

from __future__ import annotations

import json
import socket
import threading
from http.client import HTTPConnection

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from waiting import PATIENCE

from penstock.errors import PenstockError, SchemaChanged
from penstock.serve.rest_errors import RestError, error_response
from penstock.serve.rest_server import RestServer, address_of, bind


def test_an_address_that_cannot_be_listened_at_is_named() -> None:
    with bind("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
        assert address_of(bound) == f"127.0.0.1:{port}"
        with pytest.raises(
            PenstockError, match=rf"cannot listen at 127.0.0.1:{port}: Address already in use.*stop what"
        ):
            bind("127.0.0.1", port)
    with pytest.raises(PenstockError, match="cannot listen at a host:0"):
        bind("a host", 0)


def test_an_ipv6_address_is_in_brackets() -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    with bind("::1", 0) as bound:
        assert address_of(bound) == f"[::1]:{bound.getsockname()[1]}"


def test_a_server_ends_after_the_requests_in_flight() -> None:
    asked, may_answer = threading.Event(), threading.Event()

    def slow(request: Request) -> Response:
        asked.set()
        assert may_answer.wait(PATIENCE)
        return PlainTextResponse("answer")

    with bind("127.0.0.1", 0) as bound:
        server = RestServer(Starlette(routes=[Route("/", slow)]), bound)
        assert server.url == f"http://{address_of(bound)}"
        connection = HTTPConnection("127.0.0.1", bound.getsockname()[1], timeout=PATIENCE)
        connection.request("GET", "/")
        assert asked.wait(PATIENCE)
        closing = threading.Thread(target=server.close)
        closing.start()
        may_answer.set()
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b"answer")
        closing.join()
        connection.close()


@pytest.mark.parametrize(
    ("error", "given", "status"),
    [
        (PenstockError("a", where="b", next="c"), None, 400),
        (SchemaChanged("a", where="b", next="c"), None, 503),
        (SchemaChanged("a", where="b", next="c"), 404, 404),
    ],
)
def test_an_error_is_answered_with_what_happened_where_and_what_to_do(
    error: PenstockError, given: int | None, status: int
) -> None:
    answer = error_response(error, given)
    assert answer.status_code == status
    assert json.loads(bytes(answer.body)) == {"error": "a", "where": "b", "next": "c"}


def test_an_error_of_the_rest_api_has_its_status() -> None:
    error = RestError(409, "it exists")
    assert (error.status, str(error), error.retriable) == (409, "it exists", False)
