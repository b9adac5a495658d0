"""`penstock run` as a process, on a real broker: restarts, stops, kills, and errors of users' files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest
from confluent_kafka import Consumer
from waiting import patience, until

from penstock.cli.pipeline_file import load
from penstock.errors import PenstockError
from penstock.local.services import Services

FILE = Path(__file__).parent / "files" / "pipelines.py"
AT_THE_TOP = FILE.with_name("at_the_top.py")
ROWS, BATCH = 50, 10
# Long enough for a busy machine; a passing test does not wait that long.
PATIENCE = patience(300)


class Runs:
    """Runs of a pipeline with the same checkpoint and topic."""

    def __init__(self, folder: Path, kafka: str) -> None:
        self.folder, self.kafka, self.topic = folder, kafka, f"run-{uuid.uuid4().hex}"
        self.lock = folder / "checkpoints" / "count.lock"
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str, file: Path = FILE, name: str = "count", **settings: int) -> subprocess.Popen[str]:
        counting = {f"COUNT_{name.upper()}": str(value) for name, value in {"limit": ROWS, **settings}.items()}
        environment = {"TOPIC": self.topic, "KAFKA": self.kafka, "COUNT_FOLDER": str(self.folder), **counting}
        command = ["run", f"{file}:{name}", "--checkpoints", str(self.folder / "checkpoints"), *arguments]
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", *command],
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def hold(self, process: subprocess.Popen[str]) -> None:
        """Wait until a batch of this run waits in the middle."""
        await_that((self.folder / "held").exists, process)

    def go(self) -> None:
        (self.folder / "go").touch()

    def jvm(self) -> int:
        return int(json.loads(self.lock.read_text())["jvm"])

    def batches(self) -> list[int]:
        return sorted(int(file.name) for file in (self.folder / "checkpoints" / "count" / "commits").glob("[0-9]*"))

    def delivered(self, rows: int) -> list[int]:
        settings = {"bootstrap.servers": self.kafka, "group.id": self.topic, "auto.offset.reset": "earliest"}
        consumer = Consumer(settings)
        consumer.subscribe([self.topic])
        found: list[int] = []
        try:
            while len(set(found)) < rows and (message := consumer.poll(PATIENCE)):
                if not message.error():
                    found.append(int(message.value()))
        finally:
            consumer.close()
        return sorted(found)


@pytest.fixture
def runs(tmp_path: Path, services: Services) -> Iterator[Runs]:
    runs = Runs(tmp_path, services.kafka)
    yield runs
    for process in runs.started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def await_that(condition: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    """Wait for another process's result; fail if it takes far too long or that process ends."""

    def reached() -> bool:
        if condition():
            return True
        assert process is None or process.poll() is None, f"ended: {process.communicate()}"
        return False

    until(reached, "result", PATIENCE)


def group(leader: int) -> list[str]:
    """The running processes of a session."""
    listed = subprocess.run(["ps", "-o", "stat=,args=", "-s", str(leader)], capture_output=True, text=True, check=False)
    return [line for line in listed.stdout.splitlines() if not line.startswith("Z")]


def iter_until(lines: IO[str], text: str) -> Iterator[str]:
    """The lines up to the one with this text."""
    for line in lines:
        yield line
        if text in line:
            return


def test_a_run_survives_a_changed_schema_and_stops_after_the_batch_in_flight(runs: Runs) -> None:
    process = runs.start(fail_at=15, hold_at=35)
    runs.hold(process)
    second = runs.start()
    _, said = second.communicate(timeout=PATIENCE)
    assert second.returncode == 1
    assert f"process {process.pid} already runs this pipeline" in said
    jvm = runs.jvm()
    # As shells and supervisors do: all processes of its group get the signal, and Java must not be among them.
    os.killpg(process.pid, signal.SIGTERM)
    assert process.stderr
    heard = "".join(iter_until(process.stderr, "stopping after the batch in flight"))
    runs.go()
    out, said = process.communicate(timeout=PATIENCE)
    said = heard + said
    assert process.returncode == 0
    assert "count: the columns changed (a test); starting again in 0 s" in said
    assert "Traceback" not in said and "java" not in said.replace("JDK_JAVA_OPTIONS", "")
    assert out == ""
    assert runs.batches() == [0, 1, 2, 3]
    assert runs.delivered(40) == list(range(40))
    assert group(process.pid) == [] == group(jvm)


@pytest.mark.kill
def test_a_killed_run_leaves_no_process_and_loses_nothing(runs: Runs) -> None:
    process = runs.start(hold_at=25)
    runs.hold(process)
    jvm = runs.jvm()
    process.kill()
    process.communicate()
    again = runs.start("--once", "--verbose")
    _, said = again.communicate(timeout=PATIENCE)
    assert again.returncode == 0, said
    # The lock is free only after the first run's Java process has ended.
    assert not Path(f"/proc/{jvm}/exe").exists()
    await_that(lambda: group(process.pid) == [] == group(jvm))
    assert f"count  batch 2: {BATCH} rows in " in said
    found = runs.delivered(30)
    assert sorted(set(found)) == list(range(30))
    assert {row for row in found if found.count(row) > 1} <= set(range(20, 30))


@pytest.mark.slow
def test_a_run_without_its_jvm_ends_with_a_message(runs: Runs) -> None:
    process = runs.start(hold_at=5)
    runs.hold(process)
    os.kill(runs.jvm(), signal.SIGKILL)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert said.splitlines()[-1].startswith("penstock: Spark's Java process ended (exit code -9). Next: run again")


@pytest.mark.slow
def test_a_file_may_use_spark_at_its_top(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    (runs.folder / "numbers").mkdir()
    (runs.folder / "numbers" / "one.json").write_text('{"id": 3}\n{"id": 7}\n')
    monkeypatch.setenv("NUMBERS", str(runs.folder / "numbers"))
    process = runs.start("--once", file=AT_THE_TOP, name="numbers")
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    assert "uses Spark while it is loaded: starting Spark first" in said
    assert "Traceback" not in said
    assert runs.delivered(2) == [7, 15]
    assert group(process.pid) == []


KILLS = """\
import os, signal
from pyspark.sql import SparkSession, functions as F

number = F.col("id")
os.kill(SparkSession.getActiveSession().sparkContext._gateway.proc.pid, signal.SIGKILL)
total = number + F.col("other")
"""


@pytest.mark.slow
def test_the_end_of_java_while_a_file_is_loaded_is_one_line(runs: Runs) -> None:
    file = runs.folder / "kills.py"
    file.write_text(KILLS)
    process = runs.start(file=file)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert said.splitlines()[-1].startswith("penstock: Spark's Java process ended (exit code -9). Next: run ")
    assert "Traceback" not in said


@pytest.mark.slow
def test_a_file_that_uses_spark_at_its_top_asks_for_the_cores_of_real_time_mode(runs: Runs) -> None:
    process = runs.start(file=AT_THE_TOP, name="soon")
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "Next: add --cores 16, or move its columns" in said.splitlines()[-1]
    assert group(process.pid) == []


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("pipelines.py", "'pipelines.py' is not a pipeline.*FILE.py:NAME"),
        ("nowhere.py:count", "there is no file nowhere.py"),
        (f"{FILE}:counts", "there is no counts in .*choose from: count, early, no_query, broken"),
        (f"{FILE}:not_a_pipeline", "not_a_pipeline in .* is not a pipeline. Next: choose from"),
    ],
)
def test_a_target_that_is_no_pipeline_is_explained(target: str, said: str) -> None:
    with pytest.raises(PenstockError, match=said):
        load(target)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import nothing_of_this_name", "ModuleNotFoundError: .*line 1: import nothing_of_this_name"),
        ("x = (1", "SyntaxError: .*line 1"),
        ("def f():\n    return 1 / 0\nf()", "ZeroDivisionError: .*line 2: return 1 / 0"),
        ("x = 1", "there is no orders in .*mark a function with @penstock.pipeline"),
    ],
)
def test_an_error_in_the_file_shows_its_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "json.py"
    file.write_text(text)
    with pytest.raises(PenstockError, match=said):
        load(f"{file}:orders")
    assert "json" in sys.modules and json.dumps({}) == "{}"
