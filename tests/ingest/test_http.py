"""Requests of third-party clients, and the events that librdkafka then finds in Kafka."""

from __future__ import annotations

import gzip
import json
import socket
import subprocess
from contextlib import ExitStack
from typing import Any

import pytest
import requests
from ingest_server import Site, metrics
from kafka_topics import messages
from openapi_spec_validator import OpenAPIV31SpecValidator
from waiting import PATIENCE, until

LINES = "application/x-ndjson"


def post(site: Site, topic: str, body: bytes, kind: str = "application/json", **more: Any) -> requests.Response:
    headers = {"Content-Type": kind, "Authorization": f"Bearer {site.all}"} | more.pop("headers", {})
    return requests.post(site.url(topic), data=body, headers=headers, timeout=PATIENCE, **more)


def found(site: Site, topic: str, mark: str) -> list[bytes]:
    return [value for value in site.stored(topic) if mark.encode() in value]


def test_one_event_an_array_and_lines_arrive_as_they_were_sent(site: Site, mark: str) -> None:
    one = f'{{ "a" : "{mark}", "\\u00e4":1.50 }}'
    two, three = f'{{"b":"{mark}","é":[1, 2]}}', f'{{"c":"{mark}"}}'
    answers = [
        post(site, site.raw, f" {one}\n".encode()),
        post(site, site.raw, f"[{two} ,\n{three}]".encode(), "application/json; charset=utf-8"),
        post(site, site.raw, f"{two}\r\n\n{three}".encode(), LINES),
    ]
    assert [(answer.status_code, answer.json()) for answer in answers] == [
        (200, {"accepted": 1}),
        (200, {"accepted": 2}),
        (200, {"accepted": 2}),
    ]
    expected = [text.encode() for text in (one, two, three, two, three)]
    assert sorted(found(site, site.raw, mark)) == sorted(expected)


def test_curl_sends_gzip_from_a_file(site: Site, mark: str) -> None:
    lines = [f'{{"n":{n},"user":"{mark}"}}' for n in range(300)]
    command = ["curl", "-sS", "--data-binary", "@-", "-H", f"Content-Type: {LINES}", "-H", "Content-Encoding: gzip"]
    command += ["-H", f"X-API-Key: {site.web}", "-w", " %{http_code}", site.url(site.clicks)]
    answer = subprocess.run(command, input=gzip.compress("\n".join(lines).encode()), capture_output=True, check=True)
    assert answer.stdout == b'{"accepted":300} 200'
    assert found(site, site.clicks, mark) == [line.encode() for line in lines]


def test_keys_decide_the_partition_and_order_is_kept(site: Site, mark: str) -> None:
    bodies = {user: [{"user": f"{user}-{mark}", "n": n} for n in range(50)] for user in ("a", "b", "c", "d")}
    mixed = [bodies[user][n] for n in range(50) for user in bodies]
    assert post(site, site.clicks, json.dumps(mixed).encode()).status_code == 200
    assert post(site, site.raw, json.dumps({"of": mark}).encode(), params={"key": "é"}).status_code == 200
    assert post(site, site.raw, json.dumps({"of": mark}).encode(), headers={"X-Event-Key": "k"}).status_code == 200
    came: dict[bytes, list[tuple[int, int]]] = {}
    for one in messages(site.servers, site.clicks, 3):
        if mark.encode() in one.value():
            came.setdefault(one.key(), []).append((one.partition(), json.loads(one.value())["n"]))
    assert set(came) == {f"{user}-{mark}".encode() for user in bodies}
    for seen in came.values():
        assert len({partition for partition, _ in seen}) == 1
        assert [n for _, n in seen] == list(range(50))
    keys = {one.key() for one in messages(site.servers, site.raw, 3) if mark.encode() in one.value()}
    assert keys == {"é".encode(), b"k"}


def test_a_batch_with_a_bad_event_is_refused_or_taken_in_part(site: Site, mark: str) -> None:
    good, bad = {"user": mark, "n": 1}, {"user": mark, "n": "one", "more": 1}
    body = json.dumps([good, bad, good, 7]).encode()
    answer = post(site, site.clicks, body)
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.status_code == 400
    told = answer.json()
    assert (told["title"], told["status"], told["accepted"], told["bad"]) == ("Bad Request", 400, 0, 2)
    assert sorted((one["index"], one["path"]) for one in told["errors"]) == [(1, ""), (1, "/n"), (3, "")]
    assert {one["reason"] for one in told["errors"]} >= {'"one" is not of type "integer"', '7 is not of type "object"'}
    assert found(site, site.clicks, mark) == []
    answer = post(site, site.clicks, body, params={"partial": "true"})
    assert (answer.status_code, answer.json()["accepted"], answer.json()["bad"]) == (200, 2, 2)
    assert found(site, site.clicks, mark) == [json.dumps(good).encode()] * 2


@pytest.mark.parametrize(
    ("path", "more", "status", "detail"),
    [
        ("{raw}", {"data": b"{"}, 400, "1 of 1 events are bad"),
        ("{raw}", {"data": b""}, 400, "there is no event"),
        ("{raw}?parital=true", {}, 400, "the query has parital"),
        ("{raw}", {"headers": {"Authorization": "Bearer nonsense"}}, 401, "not known"),
        ("{raw}", {"headers": {"Authorization": ""}}, 401, "no API key"),
        ("{raw}", {"headers": {"X-API-Key": "WEB"}}, 403, "'web' may not write"),
        ("nothing", {}, 404, "no topic 'nothing'"),
        ("{raw}", {"data": b'{"a":"' + b"x" * 100_001 + b'"}'}, 400, "events are bad"),
        ("{raw}", {"data": b"{}" + b" " * 200_000}, 413, "may have at most 200000 bytes"),
        ("{raw}", {"data": iter([b"{}", b" " * 200_000])}, 413, "may have at most 200000 bytes"),
        ("{raw}", {"data": b"{}\n" * 1001, "headers": {"Content-Type": LINES}}, 413, "more than 1000 events"),
        ("{raw}", {"data": gzip.compress(b" " * 200_001), "headers": {"Content-Encoding": "gzip"}}, 413, "200000"),
        ("{raw}", {"headers": {"Content-Type": "application/x-www-form-urlencoded"}}, 415, "send application/json"),
        ("{raw}", {"headers": {"Content-Encoding": "br"}}, 415, "use gzip"),
    ],
)
def test_what_is_refused(site: Site, path: str, more: dict[str, Any], status: int, detail: str) -> None:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {site.all}"} | more.get("headers", {})
    if headers.get("X-API-Key") == "WEB":
        headers["X-API-Key"] = site.web
    body = more.get("data", b"{}")
    answer = requests.post(site.url(path.format(raw=site.raw)), data=body, headers=headers, timeout=PATIENCE)
    assert (answer.status_code, answer.json()["status"]) == (status, status)
    assert detail in answer.json()["detail"]
    assert ("WWW-Authenticate" in answer.headers) == (status == 401)


def begin(site: Site, length: int, body: bytes) -> socket.socket:
    """A connection on which a request of this length has begun."""
    host, port = site.server.url.removeprefix("http://").split(":")
    head = f"POST /events/{site.raw} HTTP/1.1\r\nHost: {host}\r\nX-API-Key: {site.all}\r\n"
    head += "Content-Type: application/json\r\n"
    made = socket.create_connection((host, int(port)), timeout=PATIENCE)
    made.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % length + body)
    return made


@pytest.mark.slow
def test_a_slow_client_neither_holds_up_others_nor_stays(impatient_site: Site, mark: str) -> None:
    site = impatient_site
    with begin(site, 100, b"{") as slow:
        assert post(site, site.raw, json.dumps({"of": mark}).encode()).status_code == 200
        assert slow.recv(1000).startswith(b"HTTP/1.1 408 ")
        assert slow.recv(100) == b""
    host, port = site.server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as silent:
        silent.sendall(b"POST /events/")
        assert silent.recv(100).startswith(b"HTTP/1.1 408 ")


def test_too_much_at_a_time_is_refused_with_429(site: Site) -> None:
    def refused() -> str | None:
        """With 900 kB of uploads that do not end, one of 150 kB is more than may be in flight."""
        with ExitStack() as open_uploads:
            for _ in range(5):
                open_uploads.enter_context(begin(site, 200_000, b" " * 180_000))
            for _ in range(100):
                if requests.get(f"{site.server.url}/health", timeout=PATIENCE).json()["in_flight"] >= 900_000:
                    break
            answer = post(site, site.raw, b"{}" + b" " * 150_000)
        return answer.headers["Retry-After"] if answer.status_code == 429 else None

    assert until(refused, "answer 429") == "1"
    assert until(lambda: post(site, site.raw, b"{}" + b" " * 150_000).status_code == 200, "room again")


def test_the_description_is_openapi_and_the_page_needs_nothing_else(site: Site) -> None:
    described = requests.get(f"{site.server.url}/openapi.json", timeout=PATIENCE).json()
    OpenAPIV31SpecValidator(described).validate()
    assert {f"/events/{site.clicks}", f"/events/{site.raw}", "/health"} <= set(described["paths"])
    assert described["components"]["schemas"][site.clicks]["required"] == ["user", "n"]
    page = requests.get(f"{site.server.url}/docs", timeout=PATIENCE)
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert f"POST /events/{site.clicks}" in page.text
    assert "&quot;minLength&quot;: 1" in page.text
    assert "http://" not in page.text and "https://" not in page.text and "<script" not in page.text


def test_health_and_metrics(site: Site, mark: str) -> None:
    before = metrics(site.server)
    assert post(site, site.raw, json.dumps([{"of": mark}] * 5).encode()).status_code == 200
    assert post(site, site.clicks, b"[1, 2]").status_code == 400
    after = metrics(site.server)

    def grown(*name: str) -> float:
        return after[name[0], *sorted(name[1:])] - before.get((name[0], *sorted(name[1:])), 0)

    assert grown("penstock_ingest_events_total", site.raw) == 5
    assert grown("penstock_ingest_bad_events_total", site.clicks) == 2
    assert grown("penstock_ingest_requests_total", site.raw, "200") == 1
    assert grown("penstock_ingest_requests_total", site.clicks, "400") == 1
    assert grown("penstock_ingest_request_duration_seconds_count") >= 2
    assert grown("penstock_producer_records_total", "ingest", site.raw) == 5
    assert after["penstock_ingest_in_flight_bytes",] == 0
    health = requests.get(f"{site.server.url}/health", timeout=PATIENCE)
    assert (health.status_code, health.json()["status"]) == (200, "ok")
    assert requests.post(f"{site.server.url}/health", timeout=PATIENCE).status_code == 405
    assert requests.get(f"{site.server.url}/", timeout=PATIENCE).status_code == 404
