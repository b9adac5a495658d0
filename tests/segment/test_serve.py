"""Deliveries over HTTP: keys, refused requests, receipts, and one delivery at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from uuid import uuid1

import pytest
from cassandra.cluster import Session
from kafka_topics import new_topic, stored
from promtool import promtool
from waiting import PATIENCE, until

from penstock.cli.main import main
from penstock.cli.segment import _unready
from penstock.database.access import Access
from penstock.errors import PenstockError
from penstock.local.services import Services
from penstock.segment.member_tables.delivery_server import Busy, Deliveries
from penstock.segment.member_tables.delivery_sync import DeliveryRun, Receipt, Sync
from penstock.segment.member_tables.member_schema import bucket_of
from penstock.serve.access.callers import new_key

PEOPLE = [f"p{i}" for i in range(20)]


@dataclass
class Served:
    """A running server and its client."""

    url: str
    key: str

    def ask(self, path: str, body: object = None, key: str | None = None) -> tuple[int, Any, str]:
        """Status, answer and the `location` header; POST if there is a body."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"x-api-key": self.key if key is None else key, "content-type": "application/json"}
        try:
            with urlopen(Request(self.url + path, data, headers)) as answer:
                return answer.status, json.loads(answer.read()), answer.headers["location"] or ""
        except HTTPError as error:
            with error:
                return error.code, json.loads(error.read()), ""


@pytest.fixture(scope="module")
def served(services: Services, cql: Session, keyspace: str) -> Iterator[Served]:
    insert = cql.prepare(
        f"INSERT INTO {keyspace}.members (segment, bucket, person, until) VALUES ('back', ?, ?, ?) USING TTL 3600"
    )
    for person in PEOPLE:
        cql.execute(insert, (bucket_of(person), person, datetime.now(UTC) + timedelta(hours=1)))
    key, digest = new_key()
    command = [sys.executable, "-m", "penstock", "segment", "serve", "--port", "0", "--key", digest]
    command += ["--keyspace", keyspace, "--hosts", services.cql, "--servers", services.kafka]
    with subprocess.Popen(command, env=os.environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        line = process.stdout.readline()
        try:
            yield Served(line.split()[-1].removesuffix("/segments/NAME/deliveries"), key)
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0


def test_a_delivery_is_begun_and_its_receipt_read(services: Services, served: Served) -> None:
    with new_topic(services.kafka, "asked", 1) as topic:
        status, begun, place = served.ask("/segments/back/deliveries", {"to": topic, "mode": "full"})
        assert (status, begun["state"], begun["destination"]) == (202, "running", topic)
        assert place == f"/segments/back/deliveries/{topic}/{begun['run']}"

        def done() -> Any:
            status, told, _ = served.ask(place)
            assert status == 200
            return told if told["state"] != "running" else None

        receipt = until(done, "receipt")
        assert (receipt["state"], receipt["added"], receipt["removed"]) == ("done", len(PEOPLE), 0)
        assert receipt["run"] == begun["run"] and receipt["began"] <= receipt["ended"]
        assert sorted(json.loads(value)["person"] for value in stored(services.kafka, topic, 1)[0]) == sorted(PEOPLE)
        _, _, place = served.ask("/segments/back/deliveries", {"to": topic, "mode": "changes"})
        assert until(done, "receipt")["added"] == 0


def test_what_is_wrong_is_told_with_the_next_step(served: Served) -> None:
    path, good = "/segments/back/deliveries", {"to": "t", "mode": "full"}
    for body, key, status, said in (
        (good, "", 401, "this API key is not known"),
        (b"{", None, 400, "is not JSON"),
        (b"[" * 9_000, None, 400, "nested more than 20 levels"),
        (b'{"to": "t", "mode": []}', None, 400, "does not say what to deliver"),
        ({"to": "t"}, None, 400, "does not say what to deliver"),
        ({"to": "t", "mode": "half"}, None, 400, "does not say what to deliver"),
        ({"to": "a b", "mode": "full"}, None, 400, "is not a valid topic name"),
        ({"to": "..", "mode": "full"}, None, 400, "is not a valid topic name"),
        (b" " * 20_000, None, 413, "a request may have 10000 bytes"),
    ):
        found, answer, _ = served.ask(path, body, key)
        assert found == status and said in answer["error"] and answer.keys() == {"error", "where", "next"}
    unknown, answer, _ = served.ask("/segments/bakc/deliveries", good)
    assert unknown == 404 and "no segment 'bakc' has members" in answer["error"]
    missing, answer, _ = served.ask(f"{path}/t/{uuid1()}")
    assert missing == 404 and answer["error"] == "no such delivery"


def test_the_server_tells_its_metrics_and_status(served: Served) -> None:
    assert served.ask("/segments/back/deliveries", b"{")[0] == 400
    with urlopen(f"{served.url}/metrics") as answer:
        text = answer.read().decode()
    checked = promtool("check", "metrics", given=text)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    assert 'penstock_http_requests_total{path="/segments/{name}/deliveries",status="400"}' in text
    assert served.ask("/ready")[:2] == (200, {"status": "ok", "problems": []})
    status, told, _ = served.ask("/status")
    assert (status, told["kind"], told["state"]) == (200, "segment", "running")
    assert told["command"].startswith("penstock segment serve --port 0")


def test_it_is_not_ready_without_its_tables(services: Services) -> None:
    (why,) = _unready("no_such_keyspace", Access(services.cql))
    assert "no_such_keyspace" in why and "Next: " in why


@dataclass(frozen=True)
class Held(Sync):
    """A delivery that waits until it is released, and may fail."""

    go: threading.Event
    runs: tuple[DeliveryRun, ...]
    error: Exception | None = None

    def begin(self, mode: str) -> DeliveryRun:
        return self.runs[0]

    def finish(self, run: DeliveryRun) -> Receipt:
        self.go.wait(PATIENCE)
        raise self.error or AssertionError

    def find(self, run: Any) -> Any:
        return run if run == self.runs[0].id else None


def test_one_delivery_at_a_time_and_what_ended_it() -> None:
    run, go = DeliveryRun(uuid1(), "full", datetime.now(UTC), {}), threading.Event()
    deliveries = Deliveries(
        lambda name, to: Held(name, to, "ks", Access("h:1"), "h:1", go, (run,), PenstockError("Kafka is away"))
    )
    first = deliveries.begin("back", "t", "full")
    assert deliveries.begin("back", "t", "full") == first, "the same that is under way"
    with pytest.raises(Busy, match="a delivery of back to t with mode full is running"):
        deliveries.begin("back", "t", "changes")
    assert (deliveries.find("back", "t", run.id) or {})["state"] == "running"
    go.set()
    deliveries.close()
    told = deliveries.find("back", "t", run.id) or {}
    assert (told["state"], told["error"]) == ("failed", "Kafka is away")
    assert deliveries.find("back", "t", uuid1()) is None
    # As left by a killed process.
    assert (Deliveries(deliveries.sync).find("back", "t", run.id) or {})["state"] == "interrupted"


def test_a_server_that_others_reach_wants_keys(capsys: pytest.CaptureFixture[str]) -> None:
    where = ["segment", "serve", "--keyspace", "k", "--hosts", "h:1", "--servers", "h:1"]
    assert main([*where, "--host", "0.0.0.0"]) == 1
    assert "without keys, everybody who reaches 0.0.0.0 could deliver" in capsys.readouterr().err
    assert main([*where, "--key", "abc"]) == 1
    assert "--key abc is not 64 hexadecimal digits" in capsys.readouterr().err
