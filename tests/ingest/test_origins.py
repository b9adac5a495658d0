"""Web pages that send events: which may, which answers they may read, and which host names the server accepts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from ingest_app import Answer, Running, Stored, ask, running
from openapi_spec_validator import OpenAPIV31SpecValidator

SHOP, BLOG, EVIL = "https://shop.example", "http://localhost:3000", "https://evil.example"
BEACON = {"Content-Type": "text/plain;charset=UTF-8"}
SECRET, PUBLISHABLE, EVERYWHERE = "secret", "pk_shop", "pk_all"


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


OPEN = f"""
[cors]
origins = ["HTTPS://Shop.example:443"]
max_age = "10 minutes"
[topics.clicks]
[topics.blog]
origins = ["{BLOG}"]
[topics.all]
origins = ["*"]
[topics.none]
origins = []
"""
KEYED = f"""
[cors]
origins = ["{BLOG}"]
[topics.clicks]
pixel = true
[topics.orders]
[[keys]]
name = "secret"
sha256 = "{digest(SECRET)}"
topics = ["*"]
[[keys]]
name = "shop"
sha256 = "{digest(PUBLISHABLE)}"
publishable = true
topics = ["clicks"]
origins = ["{SHOP}"]
[[keys]]
name = "all"
sha256 = "{digest(EVERYWHERE)}"
publishable = true
topics = ["orders"]
origins = ["*"]
rate = 0.001
"""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Running]]:
    folder = tmp_path_factory.mktemp("keyed")
    with running(tmp_path_factory.mktemp("open"), OPEN) as without_keys, running(folder, KEYED) as keyed:
        yield [without_keys, keyed]


@pytest.fixture
def without_keys(servers: list[Running]) -> Running:
    servers[0].events.clear()
    return servers[0]


@pytest.fixture
def keyed(servers: list[Running]) -> Running:
    servers[1].events.clear()
    return servers[1]


def own(server: Running) -> str:
    return f"http://127.0.0.1:{server.port}"


@pytest.mark.parametrize(
    ("topic", "headers", "status"),
    [
        ("clicks", {}, 200),
        ("clicks", {"Origin": SHOP}, 200),
        ("clicks", {"Origin": "OWN"}, 200),
        ("clicks", {"Origin": "https://127.0.0.1:PORT"}, 200),  # through a proxy that terminates TLS
        ("clicks", {"Sec-Fetch-Site": "same-origin"}, 200),
        ("clicks", {"Origin": SHOP, "Sec-Fetch-Site": "cross-site"}, 200),
        ("clicks", {"Origin": "https://proxied.example", "Sec-Fetch-Site": "same-origin"}, 200),
        ("clicks", {"Origin": EVIL}, 403),
        ("clicks", {"Origin": "null"}, 403),
        ("clicks", {"Origin": ""}, 403),
        ("clicks", {"Origin": "http://shop.example"}, 403),
        ("clicks", {"Origin": "https://shop.example:8443"}, 403),
        ("clicks", {"Origin": "https://shop.example.evil.example"}, 403),
        ("clicks", {"Origin": f"{SHOP}, {EVIL}"}, 403),
        ("clicks", {"Origin": BLOG}, 403),
        ("clicks", {"Origin": "http://127.0.0.1:1"}, 403),
        ("clicks", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("clicks", {"Sec-Fetch-Site": "same-site"}, 403),
        ("clicks", {"Origin": EVIL, "Sec-Fetch-Site": "cross-site"}, 403),
        ("blog", {"Origin": BLOG}, 200),
        ("blog", {"Origin": SHOP}, 403),
        ("all", {"Origin": EVIL}, 200),
        ("all", {"Origin": "null"}, 200),
        ("none", {"Origin": SHOP}, 403),
        ("none", {}, 200),
    ],
)
@pytest.mark.parametrize("query", ["", "?partial=false"], ids=["plain", "query"])
def test_pages_that_are_not_known_are_refused_without_keys_too(
    without_keys: Running, topic: str, headers: dict[str, str], status: int, query: str
) -> None:
    """A plain request is answered on the fast path, a request with a query by the application."""
    filled = {
        name: value.replace("OWN", own(without_keys)).replace("PORT", str(without_keys.port))
        for name, value in headers.items()
    }
    answer = ask(without_keys, f"/events/{topic}{query}", BEACON | filled)
    assert (answer.status, bool(without_keys.taken())) == (status, status == 200), answer.body


@pytest.mark.parametrize("query", ["", "?partial=false"], ids=["plain", "query"])
def test_a_listed_page_may_read_answers_and_errors_and_others_may_not(without_keys: Running, query: str) -> None:
    good = ask(without_keys, f"/events/clicks{query}", BEACON | {"Origin": SHOP})
    bad = ask(without_keys, f"/events/clicks{query}", BEACON | {"Origin": SHOP}, body=b"{")
    missing = ask(without_keys, f"/events/clics{query}", BEACON | {"Origin": SHOP})
    kind = ask(without_keys, f"/events/clicks{query}", {"Content-Type": "text/csv", "Origin": SHOP})
    wrong = ask(without_keys, "/events/clicks", {"Origin": SHOP}, "PUT")
    assert [one.status for one in (good, bad, missing, kind, wrong)] == [200, 400, 404, 415, 405]
    for answer in (good, bad, missing, kind, wrong):
        assert answer.headers["access-control-allow-origin"] == SHOP
        assert answer.headers["access-control-allow-credentials"] == "true"
        assert answer.headers["vary"] == "origin"
        assert "retry-after" in answer.headers["access-control-expose-headers"]
    for headers in ({"Origin": EVIL}, {"Origin": "null"}, {}):
        answer = ask(without_keys, f"/events/clicks{query}", BEACON | headers)
        assert answer.headers["vary"] == "origin"
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_all_pages_may_read_answers_without_credentials(without_keys: Running) -> None:
    """The Fetch Standard does not take * with credentials; repeating any origin would allow them to all."""
    for headers in ({"Origin": EVIL}, {}):
        answer = ask(without_keys, "/events/all", BEACON | headers)
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in answer.headers
        assert "vary" not in answer.headers


def preflight(server: Running, path: str, origin: str, method: str = "POST") -> Answer:
    headers = {"Access-Control-Request-Method": method, "Access-Control-Request-Headers": "content-type,x-api-key"}
    return ask(server, path, headers | {"Origin": origin}, "OPTIONS")


def test_browsers_that_ask_first_are_told_what_a_page_may_send(without_keys: Running) -> None:
    answer = preflight(without_keys, "/events/clicks", SHOP)
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers["access-control-allow-origin"] == SHOP
    assert answer.headers["access-control-allow-credentials"] == "true"
    assert answer.headers["access-control-allow-methods"] == "POST"
    assert answer.headers["access-control-max-age"] == "600"
    allowed = set(answer.headers["access-control-allow-headers"].split(", "))
    assert allowed == {"authorization", "content-encoding", "content-type", "x-api-key", "x-event-key"}
    for origin in (EVIL, "null", BLOG):
        refused = preflight(without_keys, "/events/clicks", origin)
        assert refused.status == 403
        assert "access-control-allow-origin" not in refused.headers
    assert preflight(without_keys, "/events/all", "null").headers["access-control-allow-origin"] == "*"
    plain = ask(without_keys, "/events/clicks", {}, "OPTIONS")
    assert (plain.status, plain.headers["allow"]) == (204, "POST, OPTIONS")
    assert not without_keys.taken()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8080", 200),
        ("localhost", 200),
        ("[::1]:80", 200),
        ("evil.example", 421),
        ("evil.example:8080", 421),
        ("127.0.0.1.evil.example", 421),
        ("x" * 10_000, 421),
    ],
)
def test_a_page_that_points_its_name_at_this_machine_gets_nothing(
    without_keys: Running, host: str, status: int
) -> None:
    """For the browser the page has the server's own origin."""
    headers = BEACON | {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
    assert ask(without_keys, "/events/clicks", headers).status == status
    assert ask(without_keys, "/events/clicks?partial=true", headers).status == status
    assert ask(without_keys, "/openapi.json", headers, "GET").status == status
    assert len(without_keys.taken().get("clicks", [])) == (2 if status == 200 else 0)


def test_names_that_are_allowed_are_taken(tmp_path: Path) -> None:
    with running(tmp_path, f'allowed_hosts = ["events.example", "*.svc"]\n{OPEN}') as server:
        assert ask(server, "/events/clicks", BEACON | {"Host": "events.example"}).status == 200
        assert ask(server, "/events/clicks", BEACON | {"Host": "a.svc:80"}).status == 200
        assert ask(server, "/events/clicks", BEACON | {"Host": "other.example"}).status == 421


@pytest.mark.parametrize(
    ("path", "headers", "status", "said"),
    [
        ("/events/clicks?api_key=pk_shop", {"Origin": SHOP}, 200, "accepted"),
        ("/events/clicks", {"Origin": SHOP, "X-API-Key": PUBLISHABLE}, 200, "accepted"),
        ("/events/clicks", {"Origin": SHOP, "Authorization": f"Bearer {PUBLISHABLE}"}, 200, "accepted"),
        ("/events/clicks?api_key=pk_shop", {"Origin": EVIL}, 403, "it is for https://shop.example"),
        ("/events/clicks?api_key=pk_shop", {"Origin": BLOG}, 403, "it is for https://shop.example"),
        ("/events/clicks?api_key=pk_shop", {"Origin": "null"}, 403, "it is for https://shop.example"),
        ("/events/clicks?api_key=pk_shop", {}, 403, "names no page"),
        ("/events/orders?api_key=pk_shop", {"Origin": SHOP}, 403, "may not write orders"),
        ("/events/clicks?api_key=pk_other", {"Origin": SHOP}, 401, "not known"),
        ("/events/clicks?api_key=", {"Origin": SHOP}, 401, "not known"),
        ("/events/clicks", {"Origin": SHOP}, 401, "no API key"),
        ("/events/clicks?api_key=secret", {}, 403, "is secret"),
        ("/events/clicks?api_key=secret", {"Origin": BLOG}, 403, "is secret"),
        ("/events/clicks", {"X-API-Key": SECRET}, 200, "accepted"),
        ("/events/clicks", {"X-API-Key": SECRET, "Origin": BLOG}, 200, "accepted"),
        ("/events/clicks", {"X-API-Key": SECRET, "Origin": SHOP}, 403, "may not send events here"),
        ("/pixel/clicks?a=1&api_key=pk_shop", {"Referer": f"{SHOP}/cart?x=1"}, 200, ""),
        ("/pixel/clicks?a=1&api_key=pk_shop", {"Referer": f"{EVIL}/?{SHOP}/"}, 403, ""),
        ("/pixel/clicks?a=1&api_key=pk_shop", {}, 403, ""),
        ("/pixel/clicks?a=1", {"Referer": f"{SHOP}/"}, 401, ""),
        ("/pixel/clicks?a=1&api_key=secret", {}, 403, ""),
    ],
)
def test_a_publishable_key_is_for_its_topics_and_pages(
    keyed: Running, path: str, headers: dict[str, str], status: int, said: str
) -> None:
    method = "GET" if path.startswith("/pixel") else "POST"
    answer = ask(keyed, path, BEACON | headers, method)
    assert (answer.status, bool(keyed.taken())) == (status, status == 200), answer.body
    assert said in answer.body.decode("latin-1")
    if headers.get("Origin") == SHOP and "orders" not in path:
        assert answer.headers["access-control-allow-origin"] == SHOP, "its page sees the status"


def test_a_page_that_has_only_a_publishable_key_may_ask_first(keyed: Running) -> None:
    assert preflight(keyed, "/events/clicks?api_key=pk_shop", SHOP).status == 204
    assert preflight(keyed, "/events/clicks", BLOG).status == 204
    assert preflight(keyed, "/events/clicks", EVIL).status == 403
    assert preflight(keyed, "/events/orders", EVIL).headers["access-control-allow-origin"] == "*"


def test_a_key_with_a_rate_is_refused_above_it(keyed: Running) -> None:
    first, second = (ask(keyed, "/events/orders?api_key=pk_all", BEACON) for _ in range(2))
    assert (first.status, second.status, second.headers["retry-after"]) == (200, 429, "1")
    assert ask(keyed, "/events/orders", BEACON | {"X-API-Key": SECRET}).status == 200


def test_no_key_is_shown(keyed: Running, caplog: pytest.LogCaptureFixture) -> None:
    texts = [ask(keyed, path, {}, "GET").body.decode() for path in ("/docs", "/openapi.json")]
    OpenAPIV31SpecValidator(json.loads(texts[1])).validate()
    texts += [
        ask(keyed, f"/events/clicks?api_key={key}", BEACON).body.decode() for key in (SECRET + "-no", PUBLISHABLE)
    ]
    texts += [record.getMessage() for record in caplog.records]
    for text in texts:
        assert not any(shown in text for shown in (SECRET + "-no", PUBLISHABLE, EVERYWHERE, digest(SECRET)))


@pytest.mark.parametrize("query", ["key=%ff%fe", "key=%ed%a0%80", "key=a&key=b", "%ff=1", "partial=maybe"])
def test_a_query_that_is_not_clear_is_refused(without_keys: Running, query: str) -> None:
    answer = ask(without_keys, f"/events/clicks?{query}", BEACON)
    assert (answer.status, without_keys.taken()) == (400, {})


def test_a_key_in_the_query_is_text_in_utf_8(without_keys: Running) -> None:
    assert ask(without_keys, "/events/clicks?key=%C3%A9+%2B&", BEACON).status == 200
    assert without_keys.taken() == {"clicks": [Stored("é +".encode(), b'{"a":1}')]}


def test_what_a_refusal_quotes_is_cut(without_keys: Running) -> None:
    for path, headers in (
        ("/events/" + "x" * 20_000, BEACON),
        ("/events/clicks?" + "x" * 20_000, BEACON),
        ("/events/clicks?key=%ff" + "x" * 20_000, BEACON),
        ("/events/clicks", {"Content-Type": "x" * 20_000}),
        ("/events/clicks", BEACON | {"Content-Encoding": "x" * 20_000}),
        ("/events/clicks", BEACON | {"Origin": "x" * 20_000}),
    ):
        answer = ask(without_keys, path, headers)
        assert 400 <= answer.status < 500
        assert len(answer.body) < 2000
