"""Who may send events: keys as callers give them, and the origins of web pages, without a server."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from penstock.errors import PenstockError
from penstock.ingest.exchange import Headers
from penstock.serve.access import callers
from penstock.serve.access.callers import EXPOSED, HEADERS, VARY, ApiKey, ApiKeys, Origins, Pages, Rate, RefusedCaller

SHOP = b"https://shop.example"
ALLOW, CREDENTIALS = b"access-control-allow-origin", (b"access-control-allow-credentials", b"true")


def key(name: str, *topics: str, origins: Origins | None = None, rate: float | None = None) -> ApiKey:
    """A key whose text is its name."""
    digest = hashlib.sha256(name.encode()).digest()
    return ApiKey(name, digest, frozenset(topics) if topics else None, origins, rate)


def origins(*texts: str) -> Origins:
    return Origins.of(texts, "a test")


def pages(allowed: Origins, *keys: ApiKey) -> Pages:
    return Pages.of("clicks", allowed, keys)


@pytest.mark.parametrize(
    ("bearer", "header", "url", "name"),
    [
        (b"Bearer web", None, None, "web"),
        (b"bearer   web ", None, None, "web"),
        (None, b"web", None, "web"),
        (b"Bearer other", b"web", None, "web"),
        (None, b"web", b"page", "web"),
        (None, None, b"page", "page"),
        (b"Basic d2Vi", None, b"page", "page"),
    ],
)
def test_a_key_is_taken_from_its_header_before_the_url(
    bearer: bytes | None, header: bytes | None, url: bytes | None, name: str
) -> None:
    access = ApiKeys([key("web", "clicks"), key("page", "clicks", origins=origins("*"))])
    found = access.require("clicks", bearer, header, url)
    assert found is not None and found.name == name


@pytest.mark.parametrize(
    ("topic", "bearer", "header", "url", "status", "detail"),
    [
        ("clicks", None, None, None, 401, "no API key; send it as Authorization: Bearer KEY or as X-API-Key"),
        ("clicks", b"Basic d2Vi", None, None, 401, "no API key"),
        ("clicks", b"web", None, None, 401, "no API key"),
        ("clicks", b"Bearer ", None, None, 401, "this API key is not known"),
        ("clicks", b"Bearer web", b"wrong", None, 401, "this API key is not known"),
        ("clicks", None, b"WEB", None, 401, "this API key is not known"),
        ("clicks", None, b"web", b"wrong", None, ""),
        ("orders", None, b"web", None, 403, "the key 'web' may not write orders"),
        ("clicks", None, None, b"web", 403, "the key 'web' is secret, and URLs are kept in logs"),
        ("orders", None, None, b"web", 403, "the key 'web' is secret"),
    ],
)
def test_other_callers_are_refused(
    topic: str, bearer: bytes | None, header: bytes | None, url: bytes | None, status: int | None, detail: str
) -> None:
    access = ApiKeys([key("web", "clicks")])
    if status is None:
        assert access.require(topic, bearer, header, url) == key("web", "clicks")
        return
    with pytest.raises(RefusedCaller) as caught:
        access.require(topic, bearer, header, url)
    assert caught.value.status == status
    assert caught.value.detail.startswith(detail)


def test_without_keys_everybody_may_write_whatever_they_show() -> None:
    assert ApiKeys([]).require("clicks", b"Bearer x", b"y", b"z") is None


def test_a_key_for_all_topics_may_write_each() -> None:
    assert ApiKeys([key("all")]).require("anything", None, b"all") == key("all")


def test_the_rates_of_keys_are_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(callers, "time", SimpleNamespace(monotonic=lambda: now))
    access = ApiKeys([key("slow", rate=1), key("fast", rate=3), key("free")])

    def taken(name: str) -> int:
        count = 0
        for _ in range(20):
            try:
                access.require("clicks", None, name.encode())
            except RefusedCaller as why:
                assert (why.status, why.retry_after) == (429, 1)
                assert f"the key '{name}' has sent more requests than its rate allows" in why.detail
                break
            count += 1
        return count

    assert (taken("slow"), taken("fast"), taken("free")) == (1, 3, 20)
    now += 1
    assert (taken("slow"), taken("fast")) == (1, 3)
    now += 100
    assert (taken("slow"), taken("fast")) == (1, 3), "what was not used is not saved up beyond a second"


def test_a_rate_below_one_lets_one_through_at_a_time() -> None:
    rate = Rate(0.25)
    assert [rate.take(100.0 + second) for second in range(9)] == [n % 4 == 0 for n in range(9)]


@given(st.floats(0.1, 50), st.lists(st.floats(0, 2), max_size=60))
def test_no_rate_is_exceeded_by_more_than_a_second_of_it(most: float, pauses: list[float]) -> None:
    rate, now, taken = Rate(most), 1000.0, 0
    for pause in pauses:
        now += pause
        taken += rate.take(now)
    assert taken <= max(1.0, most) + (now - 1000.0) * most + 1e-6


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("https://shop.example", b"https://shop.example"),
        ("HTTPS://Shop.Example:443", b"https://shop.example"),
        ("http://shop.example:80", b"http://shop.example"),
        ("http://shop.example:443", b"http://shop.example:443"),
        ("https://[2001:DB8::1]:8443", b"https://[2001:db8::1]:8443"),
        ("chrome-extension://abcdef", b"chrome-extension://abcdef"),
    ],
)
def test_an_origin_is_compared_as_browsers_send_it(text: str, origin: bytes) -> None:
    assert origins(text).listed == {origin}
    assert origin in origins(text) and origin + b"x" not in origins(text)


@pytest.mark.parametrize(
    "text",
    [
        "", "null", "shop.example", "https://", "https://shop.example/", "https://a b", "https://u@shop.example", "//a",
        "https://*.example", "https://shop.example?x", "https://šop.example", "ftp:shop", "1ttp://a",
    ],
)  # fmt: skip
def test_what_is_not_an_origin_is_refused_with_the_place_in_the_file(text: str) -> None:
    with pytest.raises(PenstockError, match="is not an origin of web pages") as caught:
        Origins.of(["https://good.example", text], "ingest.toml, [cors]")
    assert f"{text!r} is" in str(caught.value) and "(ingest.toml, [cors])" in str(caught.value)


def test_a_star_is_all_and_is_shown_as_such() -> None:
    every, some = origins("https://b.example", "*"), origins("https://b.example", "https://a.example")
    assert (every.all, every.listed, str(every)) == (True, frozenset({b"https://b.example"}), "*")
    assert str(some) == "https://a.example, https://b.example"
    assert None in every and None not in some
    assert Origins.union([some, every]) == Origins(some.listed, True)
    assert Origins.union([]) == Origins()


@pytest.mark.parametrize(
    ("known", "origin", "headers"),
    [
        (pages(origins()), SHOP, []),
        (pages(origins(SHOP.decode())), SHOP, [VARY, (ALLOW, SHOP), CREDENTIALS, EXPOSED]),
        (pages(origins(SHOP.decode())), b"https://evil.example", [VARY]),
        (pages(origins(SHOP.decode())), None, [VARY]),
        (pages(origins("*")), SHOP, [(ALLOW, b"*"), EXPOSED]),
        (pages(origins("*")), None, [(ALLOW, b"*"), EXPOSED]),
        (pages(origins(), key("shop", "clicks", origins=origins(SHOP.decode()))), SHOP, None),
        (pages(origins(), key("shop", "orders", origins=origins(SHOP.decode()))), SHOP, []),
        (pages(origins(), key("secret")), SHOP, []),
    ],
)
def test_an_answer_is_for_known_pages_of_the_topic(known: Pages, origin: bytes | None, headers: Headers | None) -> None:
    expected = [VARY, (ALLOW, SHOP), CREDENTIALS, EXPOSED] if headers is None else headers
    assert known.headers(origin) == expected


def test_a_preflight_says_what_may_follow() -> None:
    known = pages(origins(SHOP.decode()))
    asked = {b"origin": SHOP, b"access-control-request-method": b"DELETE"}
    assert known.preflight(asked, b"POST", 600) == [
        (b"allow", b"POST, OPTIONS"),
        (b"access-control-allow-methods", b"POST"),
        (b"access-control-allow-headers", HEADERS),
        (b"access-control-max-age", b"600"),
    ]
    assert known.preflight({}, b"GET", 600) == [(b"allow", b"GET, OPTIONS")], "OPTIONS of a program"


@pytest.mark.parametrize(("origin", "named"), [(b"https://evil.example", "https://evil.example"), (None, "null")])
def test_a_preflight_of_another_page_is_refused_with_its_name(origin: bytes | None, named: str) -> None:
    asked = {b"access-control-request-method": b"POST"} | ({b"origin": origin} if origin else {})
    with pytest.raises(RefusedCaller, match=f"a page of {named} may not send events here") as caught:
        pages(origins(SHOP.decode())).preflight(asked, b"POST", 1)
    assert caught.value.status == 403


OWN, SITE = b"http://127.0.0.1:8080", b"sec-fetch-site"


@pytest.mark.parametrize(
    ("head", "image", "tls", "allowed"),
    [
        ({}, False, False, True),
        ({}, True, False, True),
        ({b"origin": SHOP}, False, False, True),
        ({b"origin": b"null"}, False, False, False),
        ({b"origin": OWN}, False, False, True),
        ({b"origin": OWN}, False, True, False),
        ({b"origin": OWN.replace(b"http:", b"https:")}, False, True, True),
        ({b"origin": OWN.replace(b"http:", b"https:")}, False, False, True),
        ({b"origin": OWN[:-1]}, False, False, False),
        ({b"origin": b"https://evil.example", SITE: b"same-origin"}, False, False, True),
        ({SITE: b"same-origin"}, False, False, True),
        ({SITE: b"none"}, False, False, True),
        ({SITE: b"cross-site"}, False, False, False),
        ({SITE: b"same-site"}, True, False, False),
        ({SITE: b"cross-site", b"referer": SHOP + b"/cart"}, True, False, True),
        ({SITE: b"cross-site", b"referer": SHOP + b"/cart"}, False, False, False),
        ({b"referer": SHOP.upper() + b"?x"}, True, False, True),
        ({b"referer": SHOP + b".evil.example/"}, True, False, False),
        ({b"referer": b"https://evil.example/#" + SHOP}, True, False, False),
        ({b"referer": b"https://user@shop.example/"}, True, False, False),
        ({b"referer": b"about:blank"}, True, False, False),
    ],
)
def test_pages_that_may_call_without_a_key(head: dict[bytes, bytes], image: bool, tls: bool, allowed: bool) -> None:
    known = pages(origins(SHOP.decode()))
    head = {b"host": b"127.0.0.1:8080"} | head
    if allowed:
        known.require(head, None, image=image, tls=tls)
    else:
        with pytest.raises(RefusedCaller, match="may not send events here"):
            known.require(head, None, image=image, tls=tls)


def test_a_publishable_key_needs_a_page_of_its_own_unless_it_is_for_all() -> None:
    bound, anywhere = key("shop", "clicks", origins=origins(SHOP.decode())), key("all", "clicks", origins=origins("*"))
    known = pages(origins("https://blog.example"), bound, anywhere)
    known.require({b"origin": SHOP}, bound, image=False, tls=False)
    known.require({}, anywhere, image=False, tls=False)
    for head, named in (
        ({}, "a request that names no page"),
        ({b"origin": b"https://blog.example"}, "a page of https://blog.example"),
    ):
        with pytest.raises(RefusedCaller, match=f"the key 'shop' is not for {named}; it is for https://shop.example"):
            known.require(head, bound, image=False, tls=False)
