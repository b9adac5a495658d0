"""What queries wait for: addresses that take no connection, sources that do not answer, and a pipeline's own waits."""

from __future__ import annotations

import gc
import logging
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from recorded_progress import Fed, recorded
from waiting import PATIENCE, until

from penstock.process.waits import Wait
from penstock.spark_runtime import worker_waits
from penstock.watch import probe
from penstock.watch.graph import Graph, Node, table, topic
from penstock.watch.meters import Meters
from penstock.watch.probe import Prober, heard
from penstock.watch.program import Program
from penstock.watch.query_meter import SinkMeter, SourceMeter
from penstock.watch.status import status


@pytest.fixture
def listening() -> Iterator[str]:
    """The address of a server that takes connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def closed() -> Iterator[str]:
    """An address that no server listens at."""
    # Bound, so that no other server takes the port, and not listening, as after the death of a server.
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def reading(address: str, sink: str | None = None) -> Fed:
    """A query that reads a topic, and writes to a table, of these addresses; its first batch has ended."""
    fed = Fed()
    source = SourceMeter("topic orders", "topic:orders", address)
    target = SinkMeter("table shop.out", "table:shop.out", sink)
    fed.query.begins(Graph((topic("orders", address), table("shop.out", sink))), [source], [target], {}, fed.clock.now)
    fed.progress(recorded("topic")[0])
    return fed


def asks_for(fed: Fed, seconds: float) -> None:
    """The query asks its source for this long."""
    fed.looks(active=True, available=False)
    fed.clock.now += seconds
    fed.looks(active=True, available=False)


def waits_for(fed: Fed) -> str:
    told = status(Program("run", "shop"), fed.meters)
    assert told["waits_for"] == told["queries"][0]["waits_for"]
    assert told["state"] == told["queries"][0]["state"] == ("waiting" if told["waits_for"] else "running")
    return str(told["waits_for"])


def test_a_server_that_is_gone_is_named_until_it_is_back(closed: str) -> None:
    fed = reading(closed)
    prober = Prober(fed.meters)
    asks_for(fed, 1.0)
    prober.look()
    assert waits_for(fed) == f"Kafka at {closed} for 0 s"
    fed.clock.now += 12
    prober.look()
    assert waits_for(fed) == f"Kafka at {closed} for 12 s"
    # The history goes on, so that the growing lag is seen.
    points = [one.lag_seconds or 0.0 for one in fed.query.history if one.seconds is None]
    assert len(points) == 2 and points[0] < points[1]
    fed.progress(recorded("topic")[1])
    assert waits_for(fed) == ""


def test_a_query_runs_again_when_its_server_takes_connections(closed: str, listening: str) -> None:
    fed = reading(closed)
    prober = Prober(fed.meters)
    asks_for(fed, 1.0)
    prober.look()
    assert waits_for(fed)
    fed.query.sources[0].address = listening
    fed.query.graph = Graph((topic("orders", listening),))
    prober.look()
    assert waits_for(fed) == ""


def test_a_sink_that_is_gone_is_named_during_a_batch(closed: str, listening: str) -> None:
    fed = reading(listening, closed)
    fed.looks(active=True, available=True)
    fed.clock.now += 1
    Prober(fed.meters).look()
    assert waits_for(fed) == f"the database at {closed} for 0 s"


def test_a_lookup_that_is_gone_is_named(closed: str, listening: str) -> None:
    fed = reading(listening, listening)
    fed.query.graph = Graph(
        (*fed.query.graph.nodes, Node("table:shop.persons", "table", "shop.persons", "cql", closed))
    )
    asks_for(fed, 1.0)
    Prober(fed.meters).look()
    assert waits_for(fed) == f"the database at {closed} for 0 s"


def test_an_idle_query_is_not_probed(closed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def probed(places: object) -> set[tuple[str, int]]:
        raise AssertionError("it was probed")

    monkeypatch.setattr(probe, "_down", probed)
    fed = reading(closed)
    fed.looks(active=False, available=False)
    fed.clock.now += 100
    Prober(fed.meters).look()
    assert waits_for(fed) == ""


def test_a_query_that_is_forgotten_is_forgotten_by_the_probes_too(listening: str) -> None:
    fed = reading(listening)
    prober = Prober(fed.meters)
    asks_for(fed, 1.0)
    prober.look()
    assert list(prober._probed) == [fed.query]
    query = weakref.ref(fed.query)
    fed.meters.forget("shop")
    del fed
    gc.collect()
    prober.look()
    assert query() is None and not prober._probed


def test_one_of_several_servers_may_be_down_for_a_while(closed: str, listening: str) -> None:
    fed = reading(f"{closed},{listening}")
    prober = Prober(fed.meters)
    asks_for(fed, 1.0)
    prober.look()
    assert waits_for(fed) == ""
    fed.clock.now += probe.SILENT
    prober.look()
    assert waits_for(fed) == f"Kafka at {closed} for 0 s"


def test_a_source_that_takes_connections_and_does_not_answer_is_named_after_a_while(listening: str) -> None:
    fed = reading(listening)
    prober = Prober(fed.meters)
    asks_for(fed, 1.0)
    prober.look()
    assert waits_for(fed) == ""
    asks_for(fed, probe.SILENT)
    prober.look()
    assert waits_for(fed) == "an answer of topic orders for 0 s"


def test_a_query_that_works_for_long_is_probed_now_and_then(listening: str, monkeypatch: pytest.MonkeyPatch) -> None:
    probes: list[set[tuple[str, int]]] = []

    def probed(places: set[tuple[str, int]]) -> set[tuple[str, int]]:
        probes.append(places)
        return set()

    monkeypatch.setattr(probe, "_down", probed)
    fed = reading(listening)
    fed.looks(active=True, available=True)
    prober = Prober(fed.meters)
    for _ in range(200):
        fed.clock.now += probe.PERIOD
        prober.look()
    early, later = probe.EARLY / probe.PERIOD, (200 * probe.PERIOD - probe.EARLY) / probe.PAUSE
    assert abs(len(probes) - early - later) <= 2


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("kafka", ("kafka", 9092)),
        ("kafka:1", ("kafka", 1)),
        ("[::1]:7", ("::1", 7)),
        ("[::1]", ("::1", 9092)),
    ],
)
def test_addresses_as_users_write_them(address: str, expected: tuple[str, int]) -> None:
    assert list(probe._servers(reading(address).query).values()) == [[expected]]


def test_an_address_that_is_none_is_left_out() -> None:
    assert probe._servers(reading("kafka:port").query) == {}


def test_a_pipeline_that_waits_while_it_makes_its_queries_says_so() -> None:
    meters = Meters()
    meter = meters.pipeline("shop", timedelta(seconds=1))
    logging.getLogger("penstock.process.waits").setLevel(logging.INFO)
    with heard(meter):
        wait = Wait("the table shop.orders", 60.0, since=time.monotonic() - 5)
        wait.failed("no node answers")
        told = status(Program("run", "shop"), meters)
        assert (told["state"], told["waits_for"]) == ("waiting", "the table shop.orders for 5 s: no node answers")
        wait.over()
        assert status(Program("run", "shop"), meters)["state"] == "starting"
    wait.failed("nobody hears it")
    assert meter.waits_for == ""


WORKER = """
import logging, sys, time
from pathlib import Path

from pyspark import TaskContext

from penstock.spark_runtime import worker_waits
from penstock.process.waits import Wait

logging.getLogger("penstock.process.waits").setLevel(logging.INFO)
worker_waits.send_to(Path(sys.argv[1]))
TaskContext._getOrCreate()._localProperties = {"sql.streaming.queryId": sys.argv[2]}
wait = Wait("the database (writing rows, shop.out)", 60.0, since=time.monotonic() - 5)
wait.failed("no three replicas")
print(flush=True)
sys.stdin.readline()
wait.over()
"""


def test_the_reason_that_a_process_of_spark_logs_is_in_the_status(
    listening: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    # Not that of a session which other tests use.
    monkeypatch.setattr(worker_waits, "_receiver", None)
    worker_waits.listen(tmp_path / "waits")
    request.addfinalizer(worker_waits.close)
    fed = reading(listening)
    fed.query.id = None
    prober = Prober(fed.meters)
    # Spark's status has the id before there is a progress.
    fed.query.looked({"isTriggerActive": True, "isDataAvailable": True, "message": "", "id": "q-1"}, fed.clock.now)
    fed.clock.now += 1
    command = [sys.executable, "-c", WORKER, str(tmp_path / "waits"), "q-1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout and worker.stdin
        worker.stdout.readline()
        prober.look()
        reason = "the database (writing rows, shop.out) for 0 s: no three replicas"
        assert waits_for(fed) == reason
        fed.clock.now += 2
        worker.stdin.write("\n")
        worker.stdin.flush()
        assert worker.wait(PATIENCE) == 0
        prober.look()
        assert waits_for(fed) == ""


def test_the_reason_of_a_batch_that_waits_in_this_process_is_in_the_status(listening: str) -> None:
    fed = reading(listening)
    prober = Prober(fed.meters)
    fed.looks(active=True, available=True)
    fed.clock.now += 1
    logging.getLogger("penstock.process.waits").setLevel(logging.INFO)
    with prober.started(), worker_waits.of_query(fed.query.id or ""):
        Wait("the offsets", 60.0, since=time.monotonic() - 5).failed("no answer")
        until(lambda: waits_for(fed) == "the offsets for 0 s: no answer", "reason of the wait")


def test_the_memory_of_the_jvm_is_measured_until_its_end() -> None:
    meters = Meters()
    prober = Prober(meters)
    measured = threading.Event()

    def memory() -> tuple[int, int]:
        measured.set()
        return 1, 2

    with prober.started():
        prober.measures(memory)
        assert measured.wait(PATIENCE)
        until(lambda: meters.jvm == (1, 2), "memory")
        prober.measures(None)
        assert meters.jvm is None


def test_a_jvm_that_ends_does_not_end_the_probes() -> None:
    meters = Meters()
    prober = Prober(meters)
    calls = []

    def gone() -> tuple[int, int]:
        calls.append(1)
        raise OSError("the JVM has ended")

    with prober.started():
        prober.measures(gone)
        until(lambda: calls, "a call")
        looked = threading.Event()
        prober.look = looked.set  # type: ignore[method-assign]
        assert looked.wait(PATIENCE)
    assert meters.jvm is None
