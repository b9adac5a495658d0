"""What the server says of itself: metrics that promtool accepts, added up over workers, readiness, and its status."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import requests
from ingest_app import ask, running
from ingest_server import PARTITIONS, Server, ingest, metrics
from kafka_topics import new_topic
from promtool import promtool
from waiting import PATIENCE, until

from penstock import __version__
from penstock.cli.ingest import _about
from penstock.ingest.ingest_metrics import ROOM, ROOM_OF_TOPIC, Family, IngestCounts, WorkerState, current
from penstock.ingest.ingest_settings import Given, read
from penstock.ingest.kafka_store import Facts
from penstock.local.services import Services
from penstock.watch.program import Program
from penstock.watch.run_files import running as running_commands
from penstock.wire.producer.stats import BrokerStats, Stats, TopicCounts
from penstock.wire.prometheus import ProducerCollector


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of run files of its own."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_RUNS", str(folder))
        yield folder


@pytest.fixture(scope="module")
def topic(services: Services) -> Iterator[str]:
    with new_topic(services.kafka, "metrics", PARTITIONS) as name:
        yield name


@pytest.fixture(scope="module")
def server(services: Services, topic: str, runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two workers that have counted some requests."""
    assert runs
    folder = tmp_path_factory.mktemp("ingest")
    with ingest(folder, "--servers", services.kafka, "--topics", topic, "--workers", 2) as running:
        for _ in range(20):
            # A connection each, so that both workers get some.
            assert (
                requests.post(f"{running.url}/events/{topic}", json=[{"n": 1}] * 3, timeout=PATIENCE).status_code == 200
            )
        assert requests.post(f"{running.url}/events/{topic}", json=[1, 2], timeout=PATIENCE).status_code == 400
        until(lambda: metrics(running).get(("penstock_ingest_events_total", topic)) == 60, "all reports")
        yield running


def test_promtool_finds_nothing_wrong(server: Server) -> None:
    text = requests.get(f"{server.url}/metrics", timeout=PATIENCE).text
    checked = promtool("check", "metrics", given=text)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    assert f'penstock_build_info{{version="{__version__}"}} 1.0' in text


def test_the_histograms_of_workers_are_added(server: Server, topic: str) -> None:
    found = metrics(server)
    name = "penstock_ingest_request_duration_seconds"
    assert found[f"{name}_count",] >= 21
    assert found[f"{name}_bucket", "+Inf"] == found[f"{name}_count",]
    name = "penstock_producer_latency_seconds"
    bounds = [key for key in found if key[0] == f"{name}_bucket" and topic in key]
    places = sorted(bounds, key=lambda key: min(_bound(one) for one in key[1:] if _bound(one) >= 0))
    counts = [found[key] for key in places]
    assert len(counts) == 20
    assert counts == sorted(counts)
    assert counts[-1] == found[f"{name}_count", *sorted(("ingest", topic))]
    # Each request of three events is at most three batches.
    assert 20 <= counts[-1] <= 60


def _bound(text: str) -> float:
    """The value of `le`; -1 of another label."""
    return math.inf if text == "+Inf" else float(text) if re.fullmatch(r"[\d.]+", text) else -1.0


def test_status_tells_the_graph_and_the_counts(server: Server, services: Services, topic: str) -> None:
    told = requests.get(f"{server.url}/status", timeout=PATIENCE)
    assert told.headers["Content-Type"] == "application/json"
    status = told.json()
    assert (status["kind"], status["name"], status["state"], status["waits_for"]) == ("ingest", "ingest", "running", "")
    assert status["version"] == __version__
    assert status["pid"] == server.process.pid
    assert status["command"].startswith("penstock ingest --listen 127.0.0.1:0")
    assert status["started"] < status["now"]
    listens = server.url.removeprefix("http://")
    assert status["graph"]["edges"] == [{"source": f"http:{listens}", "target": f"topic:{topic}"}]
    assert [node["address"] for node in status["graph"]["nodes"]] == [listens, services.kafka]
    counted = status["ingest"]
    assert (counted["workers"], counted["events_total"], counted["bad_events_total"]) == (2, 60, 2)
    assert counted["topics"][topic]["requests_total"] == 21
    assert counted["requests_total"] >= 21


def test_status_counts_what_users_sent_by_http_status(server: Server, topic: str) -> None:
    """Not who looks at pages: the console asks for this one each second."""
    assert requests.post(f"{server.url}/events/none-{topic}", json={}, timeout=PATIENCE).status_code == 404
    for page in ("health", "ready", "metrics", "status") * 3:
        requests.get(f"{server.url}/{page}", timeout=PATIENCE)

    def counted() -> Any:
        return requests.get(f"{server.url}/status", timeout=PATIENCE).json()["ingest"]

    # A worker tells the others of its requests twice a second.
    until(lambda: "404" in counted()["statuses"], "count of the refused request")
    told = counted()
    assert told["requests_total"] == 22 and told["topics"][topic]["requests_total"] == 21
    assert told["statuses"] == {"200": 20, "400": 1, "404": 1}


def test_the_run_file_names_the_server(server: Server, services: Services) -> None:
    (file,) = running_commands()
    assert (file.kind, file.pid, file.url, file.servers) == ("ingest", server.process.pid, server.url, services.kafka)


def test_it_is_ready(server: Server) -> None:
    told = requests.get(f"{server.url}/ready", timeout=PATIENCE)
    assert (told.status_code, told.json()) == (200, {"status": "ok", "problems": []})


def test_the_run_file_goes_with_the_server(services: Services, topic: str, runs: Path, tmp_path: Path) -> None:
    before = set(runs.iterdir())
    with ingest(tmp_path, "--servers", services.kafka, "--topics", topic) as running:
        assert len(set(runs.iterdir()) - before) == 1
        assert running.stop() == 0
    assert set(runs.iterdir()) == before


def report(facts: Facts, **counts: float) -> WorkerState:
    samples = [(f'penstock_ingest_{name}{{topic="a"}}', value) for name, value in counts.items()]
    return WorkerState(0.0, [Family("f", "", "counter", samples)], facts, 0)


def test_it_waits_while_kafka_is_away_and_is_not_ready_where_no_disk_takes_events(tmp_path: Path) -> None:
    away = Facts(False, "away", "no broker answers")
    told = current([report(away, events_total=2), report(Facts(True, "ok", ""), events_total=3)], 0.0, 5.0)
    assert (told["state"], told["waits_for"]) == ("waiting", "no broker answers")
    assert told["ingest"]["events_total"] == 5
    refuses = Facts(False, "ok", "the spool is full")
    failed = current([report(refuses)], 0.0, 5.0)
    assert (failed["state"], [error["what"] for error in failed["errors"]]) == ("failed", ["the spool is full"])
    # A worker that has been silent for long is stuck.
    assert current([report(Facts(True, "ok", ""))], 6.0, 5.0)["state"] == "failed"
    with running(tmp_path, "[topics.a]") as server:
        answer = ask(server, "/ready", {}, "GET")
        assert (answer.status, json.loads(answer.body)["status"]) == (200, "ok")
        assert ask(server, "/status", {}, "POST").status == 405
        assert ask(server, "/status", {"host": "evil.example"}, "GET").status == 421


def test_a_server_that_others_reach_tells_no_addresses(tmp_path: Path) -> None:
    (tmp_path / "ingest.toml").write_text('servers = "10.1.2.3:9092"\n[topics.a]\n')
    for listen, shown in (("0.0.0.0:8080", False), ("127.0.0.1:8080", True)):
        settings = read(tmp_path / "ingest.toml", Given(listen=listen))
        about = _about(Program("ingest", "ingest", "penstock ingest --servers 10.1.2.3:9092"), settings, listen)
        assert ("10.1.2.3" in json.dumps(about)) is shown


class Statistics:
    """In place of a producer: what the longest names and many brokers make of its statistics."""

    def __init__(self, topics: list[str], brokers: int) -> None:
        counts = TopicCounts()
        counts.acknowledged(1 << 50, 1 << 60, 1234.56789)
        counts.failed = counts.retries = 1 << 50
        latency = counts.latency.latency()
        of_topics = {name: counts.snapshot(1 << 20, 1 << 20) for name in topics}
        of_brokers = {1_000_000 + node: BrokerStats(1 << 50, 5, 0.123456, 1.23456, latency) for node in range(brokers)}
        self._stats = Stats(1 << 40, 1 << 40, of_topics, of_brokers)

    def stats(self) -> Stats:
        return self._stats


def test_a_report_has_room_for_the_longest_names_all_statuses_and_a_hundred_brokers() -> None:
    topics = [f"{number:02}" + "x" * 247 for number in range(20)]
    counts = IngestCounts()
    for topic in topics:
        counts.events[topic] = counts.bytes[topic] = counts.bad[topic] = 1 << 60
        for status in (200, 202, 204, 400, 401, 403, 405, 408, 413, 415, 421, 429, 431, 499, 500, 503):
            counts.requests[topic, status] = 1 << 50
    statistics: Any = Statistics(topics, 100)
    metrics = [*counts.collect(), *ProducerCollector(statistics, "ingest").collect()]
    facts = Facts(False, "away", "x" * 1000, 1 << 60, dict.fromkeys(topics, 1 << 60))
    size = len(msgspec.msgpack.encode(WorkerState(1e9, [Family.of(one) for one in metrics], facts, 1 << 50)))
    assert size < ROOM + len(topics) * ROOM_OF_TOPIC
    # Of what a topic takes, at least a third is left for gauges, such as its bytes on disk.
    assert size - ROOM < len(topics) * ROOM_OF_TOPIC * 2 / 3
