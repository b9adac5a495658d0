"""Several workers at one port: they die, are stopped and replaced under load, and report as one server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests
from ingest_load import Load
from ingest_server import PARTITIONS, Server, ingest, metrics
from kafka_topics import new_topic, stored
from waiting import PATIENCE, until

from penstock.cli.main import main
from penstock.ingest.events import KeyedEvents
from penstock.ingest.ingest_metrics import Family, Sample, Slots, WorkerState, merged
from penstock.ingest.spool_files import SpoolFolder, frame
from penstock.local.services import Services
from penstock_demo.child import below, listed

WORKERS = 2
DIES_AT_START = """
import os, signal, socket
from penstock.ingest.supervisor import Workers

def serve(number, ready):
    if number == 1:
        os._exit(3)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    ready()
    while True:
        signal.pause()

Workers(2, serve, socket.socket(), lambda number: print("died:", number)).run(lambda: print("ready"))
"""


@pytest.fixture
def topic(services: Services) -> Iterator[str]:
    with new_topic(services.kafka, "workers", PARTITIONS) as name:
        yield name


def workers(server: Server) -> list[int]:
    return [one.pid for one in below(server.process.pid)]


def in_kafka(services: Services, topic: str) -> list[bytes]:
    return [value for part in stored(services.kafka, topic, PARTITIONS) for value in part]


def healthy(server: Server) -> int:
    """How many workers take events."""
    told = requests.get(f"{server.url}/health", timeout=PATIENCE)
    return int(told.json()["workers"]) if told.status_code == 200 else 0


@contextmanager
def only(server: Server, worker: int) -> Iterator[None]:
    """Pause the other workers."""
    others = [pid for pid in workers(server) if pid != worker]
    for pid in others:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in others:
            os.kill(pid, signal.SIGCONT)


def test_kill_9_of_a_worker_loses_nothing_acknowledged(services: Services, topic: str, tmp_path: Path) -> None:
    options = "--servers", services.kafka, "--topics", topic, "--workers", WORKERS
    with ingest(tmp_path, *options) as server, Load(server, topic, again=True) as load:
        until(lambda: len(load.acknowledged) > 5_000, "load")
        killed = workers(server)[0]
        os.kill(killed, signal.SIGKILL)
        until(lambda: "another worker replaces it" in server.errors.read_text(), "a word about it")
        until(lambda: healthy(server) == WORKERS, "another worker")
        before = len(load.acknowledged)
        until(lambda: len(load.acknowledged) > before + 5_000, "load afterwards")
        assert f"(process {killed}) was killed by SIGKILL" in server.errors.read_text()
        assert metrics(server)["penstock_ingest_worker_deaths_total",] == 1
        assert server.stop() == 0
    came = in_kafka(services, topic)
    assert set(load.acknowledged) <= set(came) <= set(load.sent)
    assert len(came) == len(set(came))


def test_sigterm_answers_what_is_under_way(services: Services, topic: str, tmp_path: Path) -> None:
    options = "--servers", services.kafka, "--topics", topic, "--workers", WORKERS
    with ingest(tmp_path, *options) as server, Load(server, topic) as load:
        until(lambda: len(load.acknowledged) > 5_000, "load")
        assert server.stop() == 0
    assert sorted(in_kafka(services, topic)) == sorted(load.acknowledged)
    assert server.errors.read_text() == ""


@pytest.mark.slow
def test_a_scrape_has_the_counts_of_all_workers_and_those_that_died(
    services: Services, topic: str, tmp_path: Path
) -> None:
    def counted() -> dict[str, float]:
        found = metrics(server)
        return {
            "events": found["penstock_ingest_events_total", topic],
            "stored": found["penstock_producer_records_total", "ingest", topic],
            "answers": found["penstock_ingest_requests_total", "200", topic],
            "workers": found["penstock_ingest_workers",],
            "deaths": found["penstock_ingest_worker_deaths_total",],
        }

    with ingest(tmp_path, "--servers", services.kafka, "--topics", topic, "--workers", WORKERS) as server:
        first, second = workers(server)
        for worker, requests_sent in ((first, 2), (second, 3)):
            with only(server, worker):
                for _ in range(requests_sent):
                    assert (
                        requests.post(f"{server.url}/events/{topic}", json=[{}] * 10, timeout=PATIENCE).status_code
                        == 200
                    )
        both = {"events": 50, "stored": 50, "answers": 5, "workers": 2, "deaths": 0}
        until(lambda: counted() == both, "the counts of both")
        for worker in (first, second):
            with only(server, worker):
                assert counted() == both
        os.kill(first, signal.SIGKILL)
        until(lambda: counted() == both | {"deaths": 1}, "the counts of the dead one and of the next")
        with only(server, second):
            health = f"{server.url}/health"
            until(
                lambda: "a worker has been stuck" in requests.get(health, timeout=PATIENCE).json()["problem"],
                "a word about it",
            )
            assert requests.get(health, timeout=PATIENCE).status_code == 503
        until(lambda: healthy(server) == WORKERS, "both again")


@pytest.mark.slow
def test_what_dead_workers_left_in_spools_is_taken_over(services: Services, topic: str, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    left = [b'{"left":%d}' % number for number in range(2)]
    for path, event in zip((spool, spool / "worker-7"), left, strict=True):
        path.mkdir()
        SpoolFolder(path).file(3).write_bytes(frame(topic, 1, KeyedEvents.of([event], None, 0)))
    options = "--servers", services.kafka, "--topics", topic, "--spool", spool, "--workers"
    with ingest(tmp_path, *options, 3) as server, Load(server, topic) as load:
        pids = workers(server)
        for pid in pids:
            with only(server, pid):
                assert (
                    requests.post(f"{server.url}/events/{topic}", json={"pid": pid}, timeout=PATIENCE).status_code
                    == 202
                )
        until(lambda: len(load.acknowledged) > 5_000, "load")
        server.kill()
        until(lambda: not {one.pid for one in listed()} & set(pids), "the end of its workers")
    expected = {*load.acknowledged, *left, *(b'{"pid": %d}' % pid for pid in pids)}
    with ingest(tmp_path, *options, 2) as server:
        until(lambda: expected <= set(in_kafka(services, topic)), "all that was acknowledged")
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(PATIENCE) == 0
    assert sum(file.stat().st_size for file in (spool / "worker-2").glob("*.spool")) == 0


@pytest.mark.slow
def test_a_worker_that_cannot_start_ends_the_server(services: Services, topic: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock", "ingest", "--listen", "127.0.0.1:0", "--workers", str(WORKERS)]
    command += ["--servers", services.kafka, "--topics", topic, "--spool", str(tmp_path)]
    with SpoolFolder(tmp_path / "worker-1").locked():
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith(f"penstock: another process uses this spool ({tmp_path}/worker-1)")
    assert ended.stderr.count("\n") == 1


def test_a_worker_that_dies_again_and_again_at_its_start_ends_the_server() -> None:
    ended = subprocess.run([sys.executable, "-c", DIES_AT_START], capture_output=True, text=True, timeout=PATIENCE)
    assert ended.returncode == 1
    assert ended.stdout == "died: 1\n" * 3
    assert ended.stderr.count("worker 1 (process") == 3
    assert "ended with exit code 3 before it served, 3 times" in ended.stderr.splitlines()[-1]


def test_a_port_that_is_taken_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ["--listen", f"127.0.0.1:{port}", "--topics", "a", "--servers", "127.0.0.1:1", "--workers", "2"]
        assert main(["ingest", *words]) == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in capsys.readouterr().err


def test_a_slot_has_the_last_whole_text() -> None:
    slots = Slots(2, 100)
    assert (slots.read(0), slots.read(1)) == (b"", b"")
    for text in (b"a" * 100, b"", b"b"):
        slots.write(1, text)
        assert (slots.read(0), slots.read(1)) == (b"", text)
    with pytest.raises(ValueError, match="101 bytes do not fit; there is room for 100"):
        slots.write(1, b"c" * 101)
    assert slots.read(1) == b"b"


def test_reports_are_added_and_a_dead_one_keeps_its_counts_only() -> None:
    def report(count: float, size: float, quick: float) -> WorkerState:
        buckets: list[Sample] = [('seconds_bucket{le="1",topic="a"}', quick)]
        families = [
            Family("events", "", "counter", [('events_total{topic="a"}', count)]),
            Family("size", "", "gauge", [("size", size)]),
            Family("seconds", "", "histogram", buckets),
        ]
        return WorkerState(0.0, families, None, 0)

    def values(*reports: WorkerState) -> list[float]:
        return [value for family in merged(one.families for one in reports) for _, value in family.samples]

    assert values(report(1, 2, 3), report(10, 20, 30)) == [11, 22, 33]
    assert sorted(values(report(1, 2, 3).left(), report(10, 20, 30))) == [11, 20, 33]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("place", [False, True], ids=["events", "place"])
def test_a_damaged_spool_ends_the_start_with_one_line(
    services: Services, topic: str, tmp_path: Path, workers: int, place: bool
) -> None:
    path = tmp_path if workers == 1 else tmp_path / "worker-0"
    path.mkdir(exist_ok=True)
    spoilt = bytearray(frame(topic, 1, KeyedEvents.of([b"{}"], None, 0)) * 2)
    spoilt[20] ^= 1
    SpoolFolder(path).file(0).write_bytes(spoilt)
    if place:
        (path / "place.json").write_bytes(b"[0")
    options = ["--servers", services.kafka, "--topics", topic, "--spool", str(tmp_path), "--workers", str(workers)]
    command = [sys.executable, "-m", "penstock", "ingest", "--listen", "127.0.0.1:0", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    said = [line for line in done.stderr.splitlines() if "another worker replaces it" not in line]
    file = path / "place.json" if place else SpoolFolder(path).file(0)
    assert (done.returncode, len(said)) == (1, 1), done.stderr
    assert said[0].startswith("penstock: ") and f"({file})" in said[0] and "Next: " in said[0]
