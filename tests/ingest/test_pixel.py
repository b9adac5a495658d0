"""Events that come as the parameters of an image."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from ingest_app import Answer, Running, Stored, ask, running
from openapi_spec_validator import OpenAPIV31SpecValidator
from waiting import until

from penstock.ingest.pixel import GIF

SCHEMA = {
    "type": "object",
    "required": ["user"],
    "properties": {
        "user": {"type": "string"},
        "n": {"type": "integer"},
        "price": {"type": ["number", "null"]},
        "new": {"type": "boolean"},
    },
    "additionalProperties": False,
}
CONFIG = """
[topics.views]
pixel = true
key = "u"
[topics.clicks]
pixel = true
key = "user"
schema = "click.json"
[topics.orders]
[limits]
event = 200
[cors]
origins = ["https://shop.example"]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("pixel")
    (folder / "click.json").write_text(json.dumps(SCHEMA))
    with running(folder, CONFIG) as made:
        yield made


def load(server: Running, path: str, **headers: str) -> Answer:
    server.events.clear()
    answer = ask(server, path, {name.replace("_", "-"): value for name, value in headers.items()}, "GET")
    assert (answer.body, answer.headers["content-type"]) == (GIF, "image/gif")
    assert answer.headers["cache-control"] == "no-store"
    return answer


def test_parameters_become_the_fields_of_an_event_with_its_key(server: Running) -> None:
    answer = load(server, "/pixel/views?" + urlencode({"u": "é 1", "page": '/"a"?b=1&c', "empty": "", "n": "1"}))
    assert (answer.status, "x-penstock-problem" in answer.headers) == (200, False)
    [stored] = server.taken()["views"]
    assert stored.key == "é 1".encode()
    assert json.loads(stored.value) == {"u": "é 1", "page": '/"a"?b=1&c', "empty": "", "n": "1"}
    assert load(server, "/pixel/views?a=1&key=k").status == 200
    assert server.taken() == {"views": [Stored(b"k", b'{"a":"1"}')]}


def test_values_are_numbers_where_the_schema_wants_them(server: Running) -> None:
    assert load(server, "/pixel/clicks?user=7&n=5&price=1.50&new=true").status == 200
    assert server.taken() == {"clicks": [Stored(b"7", b'{"user":"7","n":5,"price":1.50,"new":true}')]}


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/pixel/clicks?user=u&n=many", 400, '/n \\"many\\" is not of type \\"integer\\"'),
        ("/pixel/clicks?n=1", 400, '\\"user\\" is a required property'),
        ("/pixel/clicks?user=u&n=1%0d%0aSet-Cookie:%20a", 400, "\\\\r\\\\nSet-Cookie: a"),
        ("/pixel/clicks?user=%ff", 400, "not UTF-8 in user=%ff"),
        ("/pixel/views", 400, "no field"),
        ("/pixel/views?key=k", 400, "no field"),
        ("/pixel/views?a=1&a=2", 400, "'a' twice"),
        ("/pixel/views?" + "&".join(f"a{n}=1" for n in range(201)), 400, "more than 200 parameters"),
        ("/pixel/views?a=" + "x" * 200, 400, "at most 200 are taken"),
        ("/pixel/orders?a=1", 404, "pixel = true"),
        ("/pixel/none?a=1", 404, "there is no topic"),
        ("/pixel/?a=1", 404, "there is no topic"),
    ],
)
def test_an_event_that_is_refused_is_a_picture_too(server: Running, path: str, status: int, said: str) -> None:
    before = dict(server.counts.bad), server.counts.requests["clicks", 400]
    answer = load(server, path)
    assert answer.status == status
    assert said in answer.headers["x-penstock-problem"]
    assert len(answer.headers["x-penstock-problem"]) < 2000
    assert "set-cookie" not in answer.headers
    assert not server.taken()
    if path.startswith("/pixel/clicks"):
        assert until(lambda: server.counts.requests["clicks", 400] == before[1] + 1, "the refusal in the metrics")
        assert server.counts.bad["clicks"] == before[0].get("clicks", 0) + ("%ff" not in path)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),  # a mail program, curl
        ({"Sec_Fetch_Site": "same-origin"}, 200),
        ({"Sec_Fetch_Site": "none"}, 200),
        ({"Sec_Fetch_Site": "cross-site", "Referer": "https://shop.example/"}, 200),
        ({"Referer": "https://shop.example/cart"}, 200),
        ({"Origin": "https://shop.example"}, 200),
        ({"Sec_Fetch_Site": "cross-site", "Referer": "https://evil.example/"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-site"}, 403),
        ({"Referer": "https://evil.example/?https://shop.example/"}, 403),
        ({"Referer": "https://shop.example@evil.example/"}, 403),
        ({"Referer": "about:client"}, 403),
        ({"Origin": "https://evil.example", "Referer": "https://shop.example/"}, 403),
    ],
)
def test_an_image_of_a_page_that_is_not_known_is_no_event(
    server: Running, headers: dict[str, str], status: int
) -> None:
    """Images carry no Origin: other headers of the browser show the page."""
    answer = load(server, "/pixel/views?a=1", **headers)
    assert (answer.status, bool(server.taken())) == (status, status == 200)


def test_only_get_writes(server: Running) -> None:
    server.events.clear()
    for method in ("HEAD", "POST", "PUT"):
        assert ask(server, "/pixel/views?a=1", {}, method).status == 405
    question = {"Origin": "https://shop.example", "Access-Control-Request-Method": "GET"}
    assert ask(server, "/pixel/views?a=1", question, "OPTIONS").headers["access-control-allow-methods"] == "GET"
    assert not server.taken()


def test_the_description_has_the_pixel_and_is_openapi(server: Running) -> None:
    described = json.loads(ask(server, "/openapi.json", {}, "GET").body)
    OpenAPIV31SpecValidator(described).validate()
    assert {"/pixel/views", "/pixel/clicks"} == {path for path in described["paths"] if path.startswith("/pixel")}
    assert "GET /pixel/views" in ask(server, "/docs", {}, "GET").body.decode()
