"""What a request may take in memory, encodings of bodies, and refusals as documents."""

from __future__ import annotations

import gzip
import json
import sys

import pytest
from hypothesis import given, strategies as st

from penstock.ingest.exchange import (
    DETAIL,
    JOINED,
    LONGEST,
    SHOWN,
    EventProblem,
    HttpRequest,
    InFlight,
    RefusedRequest,
    refusal,
    refusal_headers,
    shortened,
    unpack,
)


def request(in_flight: InFlight, most: int = 100, url: bytes = b"/events/a") -> HttpRequest:
    return HttpRequest("POST", url, {}, in_flight, most)


@given(st.lists(st.lists(st.integers(0, 60), max_size=4), max_size=6), st.integers(1, 150))
def test_all_memory_is_given_back_when_all_requests_have_ended(bodies: list[list[int]], most: int) -> None:
    in_flight = InFlight(most)
    requests = [request(in_flight) for _ in bodies]
    for one, parts in zip(requests, bodies, strict=True):
        for size in parts:
            one.add(b"x" * size)
        try:
            assert len(one.body()) == sum(parts) <= 100
        except RefusedRequest as why:
            assert why.status in (413, 429)
    assert in_flight.bytes == sum(one._taken for one in requests)
    for one in requests:
        one.end()
        one.add(b"late")
    assert in_flight.bytes == 0


def test_a_body_beyond_its_limit_gives_its_memory_back_at_once() -> None:
    in_flight = InFlight(1000)
    one = request(in_flight)
    one.add(b"x" * 100)
    assert in_flight.bytes == 100
    one.add(b"x")
    assert in_flight.bytes == 0
    one.add(b"x" * 500)
    assert in_flight.bytes == 0, "what still comes is not kept"
    with pytest.raises(RefusedRequest, match="a request may have at most 100 bytes") as caught:
        one.body()
    assert caught.value.status == 413


def test_a_request_that_is_alone_may_exceed_the_memory_for_all() -> None:
    in_flight = InFlight(50)
    first, second = request(in_flight), request(in_flight)
    first.add(b"x" * 90)
    assert first.body() == b"x" * 90
    with pytest.raises(RefusedRequest, match="90 bytes of requests are under way") as caught:
        in_flight.require_room()
    assert (caught.value.status, caught.value.retry_after) == (429, 1)
    second.add(b"y")
    with pytest.raises(RefusedRequest, match="the memory for requests is taken"):
        second.body()
    first.end()
    in_flight.require_room()


@pytest.mark.parametrize(
    ("url", "path"),
    [(b"/events/a?b=/c", "/events/a"), (b"/events/%C3%A9%20x", "/events/é x"), (b"http://h:1/a%2Fb", "/a/b")],
)
def test_a_path_is_decoded(url: bytes, path: str) -> None:
    assert request(InFlight(1), url=url).path == path


@pytest.mark.parametrize("url", ["/events/é".encode(), b"events", b"http://", b""])
def test_a_url_that_is_not_valid_is_refused(url: bytes) -> None:
    with pytest.raises(RefusedRequest, match="the URL is not valid") as caught:
        _ = request(InFlight(1), url=url).path
    assert caught.value.status == 400


@pytest.mark.parametrize("coding", [b"", b"identity", b" Identity "])
def test_a_body_without_an_encoding_stays_as_it_is(coding: bytes) -> None:
    assert unpack(b"plain", coding, most=1) == b"plain"


@pytest.mark.parametrize("coding", [b"gzip", b"x-gzip", b" GZIP "])
def test_gzip_has_two_names(coding: bytes) -> None:
    assert unpack(gzip.compress(b"plain"), coding, most=5) == b"plain"


@pytest.mark.parametrize("coding", [b"br", b"deflate", b"gzip, gzip", b"\xff"])
def test_another_encoding_is_refused_with_its_name(coding: bytes) -> None:
    with pytest.raises(RefusedRequest) as caught:
        unpack(b"", coding, most=1)
    assert caught.value.status == 415
    assert caught.value.detail == f"the content encoding {coding.decode('latin-1')!r} is not known; use gzip or none"


def test_a_refusal_is_a_document_with_its_first_problems() -> None:
    problems = [EventProblem(n // 2, f"/{n}", "wrong") for n in range(3 * SHOWN)]
    why = RefusedRequest(400, "bad", problems=problems, accepted=0)
    found = json.loads(refusal(why))
    assert found == {
        "title": "Bad Request",
        "status": 400,
        "detail": "bad",
        "bad": 3 * SHOWN // 2,
        "errors": [{"index": n // 2, "path": f"/{n}", "reason": "wrong"} for n in range(SHOWN)],
        "accepted": 0,
    }
    assert json.loads(refusal(RefusedRequest(404, "gone"))) == {"title": "Not Found", "status": 404, "detail": "gone"}


def test_refusals_say_when_to_come_back_and_how_to_log_in() -> None:
    assert refusal_headers(RefusedRequest(503, "", retry_after=5)) == [(b"retry-after", b"5")]
    assert refusal_headers(RefusedRequest(401, "")) == [(b"www-authenticate", b"Bearer")]
    assert refusal_headers(RefusedRequest(400, "")) == []


@given(st.text(max_size=2 * DETAIL))
def test_long_texts_are_cut_and_short_ones_kept(text: str) -> None:
    detail, cut = RefusedRequest(400, text).detail, shortened(text)
    assert detail == text if len(text) <= DETAIL else detail == f"{text[:DETAIL]} ..."
    assert len(cut) <= LONGEST and (cut == text or (len(text) > LONGEST and cut.endswith("...")))


@pytest.mark.parametrize("sizes", [[2] * 50_000, [1, 5000] * 20, [5000, 1, 1, 5000], [0, 3, 0, 4096, 0], [1]])
def test_a_body_in_small_parts_takes_the_memory_of_its_bytes(sizes: list[int]) -> None:
    one = request(InFlight(1 << 20), most=1 << 20)
    parts = [bytes([n % 256]) * size for n, size in enumerate(sizes)]
    for part in parts:
        one.add(part)
    whole = b"".join(parts)
    assert one.body() == whole
    kept = sum(map(sys.getsizeof, one._parts)) + sys.getsizeof(one._parts)
    assert kept < 1.3 * len(whole) + 500 * max(1, len(whole) // JOINED)


def test_a_head_counts_until_the_answer() -> None:
    in_flight = InFlight(100)
    one = request(in_flight)
    one.count_head(1000)
    assert in_flight.bytes == 1000
    with pytest.raises(RefusedRequest):
        in_flight.require_room()
    one.end()
    assert (in_flight.bytes, one.headers, one.url) == (0, {}, b"")
