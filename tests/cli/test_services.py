"""`penstock up`, `down` and `status`: what they print of services in each state; the processes here are not servers."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import services
from penstock.errors import PenstockError
from penstock.local import process
from penstock.local.process import Process

Command = Callable[..., Any]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as running:
        yield running
        running.kill()


def recorded(root: Path, **processes: Process) -> None:
    """A root whose services have these processes, at ports from 9001 on."""
    entries = {
        name: {"ports": {"client": 9000 + number}, "process": dataclasses.asdict(one)}
        for number, (name, one) in enumerate(processes.items(), 1)
    }
    (root / "services.json").write_text(json.dumps(entries))


def alive(running: subprocess.Popen[bytes]) -> Process:
    return Process(running.pid, process._started(running.pid) or "")


ENDED = Process(1, "long ago")


def test_each_service_has_a_line_and_all_must_run_for_exit_code_0(
    tmp_path: Path, penstock: Command, sleeper: subprocess.Popen[bytes]
) -> None:
    recorded(tmp_path, cassandra=alive(sleeper), kafka=alive(sleeper))
    ran = penstock("status", "--root", tmp_path)
    first, second = ran.out.splitlines()
    assert ran.code == 0 and ran.err == ""
    assert first.split()[:5] == ["cassandra", "running", "127.0.0.1:9001", "pid", str(sleeper.pid)]
    assert first.endswith(" MiB") and second.startswith("kafka      running  127.0.0.1:9002")


def test_a_service_that_died_is_shown_with_its_log_and_without_what_has_its_pid_now(
    tmp_path: Path, penstock: Command
) -> None:
    recorded(tmp_path, kafka=ENDED)
    ran = penstock("status", "--root", tmp_path)
    assert (ran.code, ran.err) == (1, "")
    assert ran.out.splitlines() == [
        "cassandra  stopped",
        "kafka      died     127.0.0.1:9001   pid 1",
        f"           ended without `penstock down`; log: {tmp_path}/kafka/log/kafka.log",
    ]


def test_a_service_on_request_is_shown_only_while_it_is_recorded(
    tmp_path: Path, penstock: Command, sleeper: subprocess.Popen[bytes]
) -> None:
    recorded(tmp_path, postgres=alive(sleeper))
    names = [line.split()[0] for line in penstock("status", "--root", tmp_path).out.splitlines()]
    assert names == ["cassandra", "kafka", "postgres"]
    assert penstock("down", "--root", tmp_path).out == "stopped postgres\n"
    assert sleeper.poll() is not None
    assert "postgres" not in penstock("status", "--root", tmp_path).out
    assert penstock("down", "--root", tmp_path)[:2] == (0, "nothing was running\n")


def test_down_names_only_what_ran(tmp_path: Path, penstock: Command, sleeper: subprocess.Popen[bytes]) -> None:
    recorded(tmp_path, cassandra=ENDED, kafka=alive(sleeper), registry=Process(os.getpid(), "long ago"))
    assert penstock("down", "--root", tmp_path)[:2] == (0, "stopped kafka\n")
    statuses = penstock("status", "--root", tmp_path).out
    assert statuses == "cassandra  stopped\nkafka      stopped\n"


@pytest.mark.parametrize(
    "text", ["", "{", "\udcff", "[]", '{"kafka": {}}', '{"kafka": {"ports": {}, "process": {"pid": 1}}}']
)
@pytest.mark.parametrize("command", ["up", "down", "status"])
def test_a_damaged_record_of_the_services_is_one_line(
    tmp_path: Path, penstock: Command, command: str, text: str
) -> None:
    file = tmp_path / "services.json"
    file.write_text(text, errors="surrogateescape")
    ran = penstock(command, "--root", tmp_path)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(f"penstock: the record of the services is damaged ({file}). Next: ")
    assert ran.err.count("\n") == 1 and file.read_text(errors="surrogateescape") == text


@pytest.mark.parametrize(
    ("address", "what", "option"), [(services.kafka, "Kafka", "--servers"), (services.cql, "database", "--hosts")]
)
def test_other_commands_use_only_a_service_that_runs(
    tmp_path: Path, sleeper: subprocess.Popen[bytes], address: Callable[[Path], str], what: str, option: str
) -> None:
    said = f"No {what} runs here ({tmp_path}). Next: run: penstock up, or give {option} HOST:PORT"
    with pytest.raises(PenstockError) as missing:
        address(tmp_path)
    recorded(tmp_path, cassandra=ENDED, kafka=ENDED)
    with pytest.raises(PenstockError) as died:
        address(tmp_path)
    assert str(missing.value) == str(died.value) == said
    recorded(tmp_path, cassandra=alive(sleeper), kafka=alive(sleeper))
    assert address(tmp_path) == f"127.0.0.1:{9001 if what == 'database' else 9002}"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--with", "kafka"], "argument --with: invalid choice: 'kafka'"),
        (["--only", "postgres", "--only", "redis"], "argument --only: invalid choice: 'redis'"),
        (["--cql-port", "0"], "argument --cql-port: '0' is not a port"),
        (["--registry-port=-1"], "argument --registry-port: '-1' is not a port"),
        (["--postgres-port", "9e3"], "argument --postgres-port: '9e3' is not a port"),
        (["kafka"], "unrecognized arguments: kafka"),
    ],
)
def test_wrong_options_start_nothing(tmp_path: Path, penstock: Command, words: list[str], said: str) -> None:
    root = tmp_path / "root"
    ran = penstock("up", "--root", root, *words)
    assert ran.code == 2 and said in ran.err and not root.exists()


def test_a_running_service_keeps_its_port(tmp_path: Path, penstock: Command, sleeper: subprocess.Popen[bytes]) -> None:
    recorded(tmp_path, kafka=alive(sleeper))
    ran = penstock("up", "--root", tmp_path, "--only", "kafka", "--kafka-port", "9002")
    assert ran.code == 1 and sleeper.poll() is None
    assert ran.err == (
        "penstock: kafka already runs on port 9001, not 9002. Next: run: penstock down, then penstock up again\n"
    )
