"""`penstock status`: running commands by their run files, stopped pipelines by their checkpoints, and the exit code."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any

import psutil
import pytest
from checkpoints import write_batches
from recorded_progress import Fed, recorded

from penstock.checkpoint.checkpoint_folder import Local
from penstock.checkpoint.identity import CheckpointIdentity, SinkTarget, SourceIdentity, keep
from penstock.local.services import Services
from penstock.metrics import delays
from penstock.metrics.delays import BOUNDS, SinkCounts
from penstock.run.checkpoint import lock
from penstock.watch import run_files
from penstock.watch.metrics_server import ListenAddress, MetricsAnswer, Page, as_json, served
from penstock.watch.run_files import RunFile, written
from penstock.wire import BlockingProducer

Command = Callable[..., Any]
NO_SERVICES = ["cassandra  stopped", "kafka      stopped"]


@contextmanager
def running(page: Page, name: str = "shop", kind: str = "run", *, other: bool = False) -> Iterator[None]:
    """A command of this process, or of the process above it, whose status is this page."""
    with ExitStack() as stack:
        url = stack.enter_context(served(ListenAddress("127.0.0.1", 0), {"/status": page}))
        file = RunFile(kind, name, url, f"penstock run {name}.py:{name}")
        if other:
            parent = psutil.Process(os.getppid())
            file = replace(file, pid=parent.pid, created=parent.create_time())
        stack.enter_context(written(file))
        yield


def of(fed: Fed) -> Page:
    return lambda: as_json(fed.status())


@pytest.fixture
def fed() -> Fed:
    """A query that has read a topic to its end."""
    made = Fed()
    for one in recorded("topic"):
        made.progress(one)
    made.looks(active=False, available=False)
    return made


def test_a_pipeline_has_a_line_with_its_rate_lag_and_delay(tmp_path: Path, penstock: Command, fed: Fed) -> None:
    with running(of(fed)):
        ran = penstock("status", "--root", tmp_path)
    assert (ran.code, ran.err) == (0, "")
    *services, blank, head, line = ran.out.splitlines()
    assert services == NO_SERVICES and blank == ""
    assert head.split()[:3] == ["NAME", "STATE", "ROWS/S"]
    words = line.split()
    assert words[:2] == ["shop.orders", "running"]
    (query,) = fed.status()["queries"]
    assert words[2:6] == [f"{query['rows_per_second']:.1f}", "0", "0.0", "s"]
    delay = query["sinks"][0]["delay"]
    assert words[6:12:2] == [f"{delay[one]:.2f}" for one in ("p50", "p95", "p99")]
    assert words[-1] == "ago"


def test_a_pipeline_that_waits_says_for_what_and_ends_with_1(tmp_path: Path, penstock: Command, fed: Fed) -> None:
    fed.query.waits("Kafka at 127.0.0.1:9092", fed.clock.now)
    fed.clock.now += 12
    with running(of(fed)):
        ran = penstock("status", "--root", tmp_path)
    assert ran.code == 1
    assert "shop.orders  waiting" in ran.out
    assert "waiting: shop.orders waits for Kafka at 127.0.0.1:9092 for 12 s" in ran.out and "Next: " in ran.out


def test_a_pipeline_that_failed_tells_the_error_and_what_to_do(tmp_path: Path, penstock: Command, fed: Fed) -> None:
    fed.pipeline.fault("there is no column \x1b[31mid. Next: add it", query="shop.orders")
    with running(of(fed)):
        ran = penstock("status", "--root", tmp_path)
    assert ran.code == 1
    (line,) = [line for line in ran.out.splitlines() if line.startswith("failed: ")]
    assert line.startswith("failed: shop.orders failed: there is no column \\x1b[31mid") and line.endswith(
        "Next: add it"
    )


def test_a_pipeline_that_recovered_tells_its_last_error_and_ends_with_0(
    tmp_path: Path, penstock: Command, fed: Fed
) -> None:
    fed.pipeline.fault("a worker ended. Next: nothing", query="shop.orders", pause=1.0)
    fed.begins()
    fed.progress(recorded("topic")[-1])
    with running(of(fed)):
        ran = penstock("status", "--root", tmp_path)
    assert ran.code == 0
    assert ran.out.splitlines()[-1].startswith("last error of shop.orders, ")
    assert ran.out.splitlines()[-1].endswith(" ago: a worker ended. Next: nothing")


def test_a_pipeline_that_is_behind_its_target_ends_with_1(tmp_path: Path, penstock: Command, fed: Fed) -> None:
    fed.looks(active=True, available=True)
    fed.clock.now += 31
    with running(of(fed)):
        ran = penstock("status", "--root", tmp_path)
    assert ran.code == 1 and "behind: shop.orders is " in ran.out and "its target is 30 s" in ran.out


def acknowledged(fed: Fed, bound: float, rows: int = 100) -> None:
    """A batch whose rows took up to this bound of the delays' buckets."""
    (told,) = [one for one in recorded("topic") if "addBatch" in one["durationMs"]][-1:]
    buckets = tuple(rows if one == bound else 0 for one in (*BOUNDS, inf))
    delays.add(told["id"], SinkCounts(rows=rows, buckets=buckets))
    at = datetime.fromtimestamp(fed.clock.now, UTC).isoformat()
    fed.progress(told | {"timestamp": at, "observedMetrics": {}})
    fed.looks(active=False, available=False)


def test_a_pipeline_whose_rows_arrive_later_than_its_target_is_behind_while_they_do(
    tmp_path: Path, penstock: Command, fed: Fed
) -> None:
    acknowledged(fed, 120.0)
    with running(of(fed)):
        ran = penstock("status", "--root", tmp_path)
    assert ran.code == 1
    (line,) = [line for line in ran.out.splitlines() if line.startswith("behind: ")]
    assert "the delay of shop.orders is " in line and " at P99, its target is 30 s (topic out)" in line
    fed.clock.now += 301
    acknowledged(fed, 0.5)
    with running(of(fed)):
        assert penstock("status", "--root", tmp_path).code == 0


def test_a_delay_that_is_not_known_says_why(tmp_path: Path, penstock: Command) -> None:
    fed = Fed()
    told = [one for one in recorded("topic") if "addBatch" in one["durationMs"]][-1]
    said = []
    for rows in (0, 5):
        delays.add(told["id"], SinkCounts(rows=rows))
        fed.progress(told | {"observedMetrics": {}})
        fed.looks(active=False, available=False)
        with running(of(fed)):
            ran = penstock("status", "--root", tmp_path)
        assert ran.out.splitlines()[-2].split()[6:9] == ["-", "-", "-"] and ran.code == 0
        said.append(ran.out.splitlines()[-1])
    assert said[0].startswith("the delay of shop.orders is not known: the sink has counted no row")
    assert said[1].startswith(
        "the delay of shop.orders is not known: no event time reaches the sink: keep the column ts"
    )


def test_connectors_have_their_tasks(tmp_path: Path, penstock: Command, fed: Fed) -> None:
    tasks = [{"id": 0, "state": "RUNNING", "trace": ""}, {"id": 1, "state": "FAILED", "trace": "no table\nat line 1"}]
    told = fed.status() | {"kind": "connect", "connectors": [{"name": "shop", "state": "RUNNING", "tasks": tasks}]}
    with running(lambda: as_json(told), "connect", "connect"):
        ran = penstock("status", "--root", tmp_path)
    assert ran.code == 1
    assert "shop         running, tasks running, failed" in ran.out
    assert "failed: task 1 of connector shop failed: no table" in ran.out


def test_all_of_it_as_json(tmp_path: Path, penstock: Command, fed: Fed) -> None:
    with running(of(fed)), running(of(Fed()), "other", other=True):
        ran = penstock("status", "--root", tmp_path, "--json")
    told = json.loads(ran.out)
    assert {one["name"]: one["state"] for one in told["services"]} == {"cassandra": "stopped", "kafka": "stopped"}
    assert len(told["runs"]) == 2 and told["problems"] == [] and ran.code == 0
    assert all(one["reachable"] and "history" not in query for one in told["runs"] for query in one["queries"])


def broken() -> MetricsAnswer:
    raise RuntimeError("broken")


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (broken, "HTTP 500"),
        (lambda: MetricsAnswer(b"<html>"), "Expecting value"),
        (lambda: MetricsAnswer(b"[" * 100_000), "recursion"),
        (lambda: as_json({"kind": "run"}), "not a status"),
        (lambda: as_json([]), "not a status"),
    ],
)
def test_a_command_that_gives_no_status_is_told_as_failed(
    tmp_path: Path, penstock: Command, page: Page, said: str
) -> None:
    with running(page):
        ran = penstock("status", "--root", tmp_path)
    assert ran.code == 1 and ran.err == ""
    assert "shop  no answer" in ran.out and said in ran.out


def test_a_command_that_does_not_answer_costs_little_time(
    tmp_path: Path, penstock: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cli.status.PATIENCE", 0.2)
    file = RunFile("run", "shop", "http://127.0.0.1:1", "penstock run shop.py:shop")
    with written(file):
        refused = penstock("status", "--root", tmp_path)
    assert refused.code == 1 and "Connection refused" in refused.out
    for url in ("ftp://127.0.0.1:1", "http://127.0.0.1", "http://[", ""):
        with written(replace(file, url=url)):
            assert penstock("status", "--root", tmp_path).code == 1


def test_services_that_were_never_started_do_not_count_beside_a_pipeline(
    tmp_path: Path, penstock: Command, fed: Fed
) -> None:
    assert penstock("status", "--root", tmp_path).code == 1
    with running(of(fed)):
        assert penstock("status", "--root", tmp_path).code == 0
        (tmp_path / "services.json").write_text('{"kafka": {"ports": {"client": 9001}, "process": null}}')
        assert penstock("status", "--root", tmp_path).code == 1


# Pipelines that do not run.


def stopped(root: Path, topic: str, at: dict[str, int]) -> None:
    """The checkpoint of a pipeline that has read a topic until `at`."""
    write_batches(root / "orders", [json.dumps({topic: at})] * 2, committed=1)
    source = SourceIdentity("kafka", {"topic": topic}, "penstock-kafka-topic")
    keep(Local(root / "orders"), CheckpointIdentity((source,), (SinkTarget("kafka", "topic out"),)))


def test_a_stopped_pipeline_is_shown_without_kafka_and_without_a_lag(tmp_path: Path, penstock: Command) -> None:
    stopped(tmp_path / "checkpoints", "clicks", {"0": 7})
    ran = penstock("status", "--root", tmp_path, "--checkpoints", tmp_path / "checkpoints")
    assert ran.out.splitlines()[-1].split()[:5] == ["orders", "stopped", "-", "-", "-"]
    assert ran.code == 0


def test_a_pipeline_that_runs_is_not_shown_as_stopped(tmp_path: Path, penstock: Command) -> None:
    stopped(tmp_path / "checkpoints", "clicks", {"0": 7})
    with lock(tmp_path / "checkpoints/orders"):
        ran = penstock("status", "--root", tmp_path, "--checkpoints", tmp_path / "checkpoints")
    assert ran.out.splitlines() == NO_SERVICES


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path, penstock: Command) -> None:
    ran = penstock("status", "--root", tmp_path, "--checkpoints", tmp_path / "nowhere")
    assert ran.code == 1 and "there is no folder" in ran.err and "Next: " in ran.err


def test_the_lag_of_a_stopped_pipeline_is_what_was_written_since(
    tmp_path: Path, penstock: Command, services: Services
) -> None:
    topic = f"status-{os.urandom(4).hex()}"
    with BlockingProducer(services.kafka) as producer:
        for number in range(10):
            producer.send(topic, b"before %d" % number, partition=0)
        producer.flush()
        stopped(tmp_path / "checkpoints", topic, {"0": 10})
        words = ("status", "--root", tmp_path, "--checkpoints", tmp_path / "checkpoints", "--servers", services.kafka)
        ran = penstock(*words)
        assert ran.code == 0 and ran.out.splitlines()[-1].split()[3:6] == ["0", "0.0", "s"]
        for number in range(7):
            producer.send(topic, b"after %d" % number, partition=0)
        producer.flush()
    ran = penstock(*words)
    (line,) = [line for line in ran.out.splitlines() if line.startswith("orders")]
    assert ran.code == 1 and line.split()[3] == "7"
    assert "stopped: orders is stopped, 7 records behind" in ran.out


def test_the_folder_of_run_files_is_that_of_this_test(tmp_path: Path) -> None:
    assert run_files.folder().is_relative_to(tmp_path)
