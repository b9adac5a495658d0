"""Who may read the console and let it act, what its pages may load, and what it answers to odd requests."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import validate
from starlette.testclient import TestClient

from penstock.console import app as console_app
from penstock.console.routes import PANELS
from penstock.console.settings import ConsoleSettings
from penstock.console.watched_systems import WatchedSystems
from penstock.kafka.brokers import Brokers
from penstock.serve.access.hosts import Hosts, guarded
from penstock.serve.access.page import policy
from penstock.serve.http_client import Address
from penstock.serve.json_bodies import DEEPEST, MOST

TOKEN = "a-token-of-the-test"
ACTIONS = ("/api/dead-letters/dead/send", "/api/connectors/0/cdc/restart")
OWN = "http://127.0.0.1:8085"


def client(**settings: Any) -> TestClient:
    app = guarded(console_app.app(WatchedSystems(ConsoleSettings(**settings))), Hosts(), allow_with="--allow-host NAME")
    return TestClient(app, base_url=OWN, raise_server_exceptions=False)


@pytest.fixture(autouse=True)
def no_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_RUNS", str(tmp_path))


@pytest.fixture
def reading() -> Iterator[TestClient]:
    with client() as made:
        yield made


@pytest.fixture
def acting() -> Iterator[TestClient]:
    with client(token=TOKEN, connect=(Address("http://127.0.0.1:1", None),)) as made:
        yield made


def test_another_host_is_refused(reading: TestClient) -> None:
    answer = reading.get("/api/overview", headers={"Host": "evil.example"})
    assert answer.status_code == 421
    assert "--allow-host" in answer.json()["next"]
    assert reading.get("/api/overview", headers={"Host": "localhost:8085"}).status_code == 200


def test_a_page_of_another_site_reads_nothing(reading: TestClient) -> None:
    assert reading.get("/api/overview", headers={"Origin": "https://evil.example"}).status_code == 403
    # A browser sends no Origin with an image or a script, but says whose page it is.
    for site in ("cross-site", "same-site"):
        assert reading.get("/api/events", headers={"Sec-Fetch-Site": site}).status_code == 403
    assert reading.get("/api/overview", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200


@pytest.mark.parametrize("path", ACTIONS)
def test_a_read_only_console_acts_for_nobody(reading: TestClient, path: str) -> None:
    answer = reading.post(path, json={"all": True}, headers={"X-Penstock-Token": ""})
    assert (answer.status_code, answer.json()["next"]) == (403, "start it with --allow-actions")


@pytest.mark.parametrize("path", ACTIONS)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-Penstock-Token": ""},
        {"X-Penstock-Token": TOKEN[:-1]},
        {"X-Penstock-Token": f"{TOKEN}x"},
        {"X-Penstock-Token": "\xff".encode("latin-1")},
        {"Cookie": f"token={TOKEN}"},
        {"Authorization": f"Bearer {TOKEN}"},
        {"X-Penstock-Token": TOKEN, "Origin": "http://127.0.0.1:9999"},
        {"X-Penstock-Token": TOKEN, "Origin": "http://localhost:8085"},
        {"X-Penstock-Token": TOKEN, "Origin": "null"},
        {"X-Penstock-Token": TOKEN, "Sec-Fetch-Site": "cross-site"},
        [("X-Penstock-Token", TOKEN), ("X-Penstock-Token", TOKEN)],
    ],
)
def test_an_action_needs_the_token_and_the_own_origin(acting: TestClient, path: str, headers: Any) -> None:
    answer = acting.post(path, json={"all": True}, headers=headers)
    assert answer.status_code == 403, answer.text
    assert answer.json()["error"] and answer.json()["next"]


@pytest.mark.parametrize("headers", [{}, {"Origin": OWN}, {"Origin": OWN, "Sec-Fetch-Site": "same-origin"}])
def test_an_action_with_the_token_is_tried(acting: TestClient, headers: dict[str, str]) -> None:
    answer = acting.post(ACTIONS[0], json={"all": True}, headers={"X-Penstock-Token": TOKEN, **headers})
    assert (answer.status_code, answer.json()["error"]) == (404, "no Kafka is known")
    answer = acting.post(ACTIONS[1], json={}, headers={"X-Penstock-Token": TOKEN, **headers})
    assert answer.status_code == 503 and "refused" in answer.json()["error"]


def test_no_answer_allows_another_origin_or_sets_a_cookie(acting: TestClient) -> None:
    asking = {"Origin": OWN, "Access-Control-Request-Method": "POST"}
    for answer in (
        acting.options(ACTIONS[0], headers=asking),
        acting.get("/api/overview"),
        acting.post(ACTIONS[0], json={}, headers={"X-Penstock-Token": TOKEN}),
    ):
        assert not {name for name in answer.headers if name.startswith("access-control") or name == "set-cookie"}


@pytest.mark.parametrize("path", ["/", "/api/overview", "/static/js/main.js", "/not/there", "/metrics"])
def test_each_answer_has_the_headers_of_security(reading: TestClient, path: str) -> None:
    answer = reading.get(path)
    rules = answer.headers["content-security-policy"].split("; ")
    assert "default-src 'self'" in rules and "object-src 'none'" in rules and "frame-ancestors 'none'" in rules
    assert not any("unsafe" in rule or "*" in rule or "http" in rule for rule in rules)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


def test_the_policy_allows_the_import_map_of_the_page_and_no_other_script(reading: TestClient) -> None:
    page = reading.get("/").text
    found = re.findall(r"<script([^>]*)>(.*?)</script>", page, re.DOTALL)
    inline = [text for attributes, text in found if "src=" not in attributes]
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in inline]
    scripts = next(r for r in reading.get("/").headers["content-security-policy"].split("; ") if r.startswith("script"))
    assert scripts == " ".join(["script-src 'self'", *(f"'sha256-{digest}'" for digest in digests)])
    assert len(inline) == 1
    assert policy("<script>alert(1)</script>").split("; ")[1] == "script-src 'self'"


@pytest.mark.parametrize(
    "path",
    [
        "/static/../console_app.py",
        "/static/%2e%2e/console_app.py",
        "/static/..%2fconsole_app.py",
        "/static/....//console_app.py",
        "/static//etc/passwd",
        "/static/%00",
        "/static/js/..%5c..%5cconsole_app.py",
        "/../../../etc/passwd",
    ],
)
def test_no_path_leads_out_of_the_folder_of_static_files(reading: TestClient, path: str) -> None:
    answer = reading.get(path)
    assert answer.status_code in (400, 404), answer.text
    assert "import" not in answer.text and "root:" not in answer.text


@pytest.mark.parametrize("name", ["..", ".", "a/b", "a%2Fb", "%3Cscript%3E", "x" * 250, "a%00"])
@pytest.mark.parametrize("route", ["topics/{}/records", "dead-letters/{}"])
def test_odd_names_of_topics_are_not_found(reading: TestClient, route: str, name: str) -> None:
    answer = reading.get(f"/api/{route.format(name)}")
    assert answer.status_code == 404
    assert "<script>" not in answer.headers.get("content-type", "") and answer.headers["content-type"].startswith(
        "application/json"
    )


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/api/overview?x=1", "there is no parameter 'x'"),
        ("/api/topics/t/records?limit=1&limit=2", "limit is given twice"),
        ("/api/topics/t/records?limit=-1", "limit is not a number"),
        ("/api/topics/t/records?limit=" + "9" * 40, "limit is not a number"),
        ("/api/topics/t/records?filter=" + "a" * 3000, "filter has more than 2000 characters"),
        ("/api/topics/t/download?as=exe", "as is not one of its values"),
        ("/api/history?range=1y", "range is not one of its values"),
    ],
)
def test_wrong_parameters_are_named(reading: TestClient, path: str, error: str) -> None:
    answer = reading.get(path)
    assert answer.status_code == 400
    assert error in answer.json()["error"] and answer.json()["next"]


def test_bodies_have_a_largest_size_and_are_json_objects(acting: TestClient) -> None:
    headers = {"X-Penstock-Token": TOKEN, "Content-Type": "application/json"}
    for body, status, error in (
        (b"x" * (MOST + 1), 413, f"a request may have {MOST} bytes"),
        (b"[" * MOST, 400, f"nested more than {DEEPEST} levels"),
        (b'{"a":' * (DEEPEST + 1) + b"1" + b"}" * (DEEPEST + 1), 400, f"nested more than {DEEPEST} levels"),
        (b"[]", 400, "not a JSON object"),
        (b"\xff", 400, "is not JSON"),
        (b'{"reason": "\\ud800"}', 400, "is not JSON"),
    ):
        answer = acting.post(ACTIONS[0], content=body, headers=headers)
        assert answer.status_code == status and error in answer.json()["error"]
    answer = acting.post(ACTIONS[0], content=b"{}", headers=headers | {"Content-Type": "text/plain"})
    assert answer.status_code == 415 and "Content-Type" in answer.json()["next"]


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "POST", "HEAD"])
def test_other_methods_are_refused(acting: TestClient, method: str) -> None:
    answer = acting.request(method, "/api/overview", headers={"X-Penstock-Token": TOKEN})
    assert answer.status_code == 405


def test_without_messages_no_record_is_shown() -> None:
    with client(messages=False, kafka=Brokers("127.0.0.1:1")) as hidden:
        assert hidden.get("/api/overview").json()["messages"] is False
        for page in ("records", "tail", "download"):
            answer = hidden.get(f"/api/topics/t/{page}")
            assert (answer.status_code, answer.json()["error"]) == (403, "the console shows no messages")


def test_the_document_is_openapi_and_has_every_route(reading: TestClient) -> None:
    document = reading.get("/openapi.json").json()
    validate(document)
    operations = [(path, method) for path, item in document["paths"].items() for method in item]
    assert len(operations) == sum(len(panel.routes) for panel in PANELS) + 3
    assert all(("security" in document["paths"][path][method]) == (method == "post") for path, method in operations)
    used = set(re.findall(r"#/components/schemas/(\w+)", reading.get("/openapi.json").text))
    assert used == set(document["components"]["schemas"])


def test_health_and_metrics_are_for_monitors(reading: TestClient) -> None:
    assert reading.get("/health").json()["status"] == "ok"
    reading.get("/api/overview")
    reading.get("/api/topics")
    text = reading.get("/metrics").text
    assert 'penstock_console_requests_total{route="GET /api/overview",status="200"} 1.0' in text
    assert 'penstock_console_requests_total{route="GET /api/topics",status="404"} 1.0' in text
    assert re.search(r'penstock_build_info\{version="[^"]+"\} 1\.0', text)


def test_an_error_of_the_console_shows_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(systems: WatchedSystems) -> None:
        raise RuntimeError("a secret")

    with client() as made:
        monkeypatch.setattr(WatchedSystems, "overview", broken)
        answer = made.get("/api/overview")
        assert answer.status_code == 500
        assert "secret" not in answer.text and "Traceback" not in answer.text
