"""Starting, finding and stopping real services; most tests use only a broker, which starts in seconds."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from waiting import PATIENCE, until

from penstock.errors import PenstockError
from penstock.local import kafka_broker, services, start
from penstock.local.process import Process

PENSTOCK = (sys.executable, "-m", "penstock")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """An empty root; its services end with the test."""
    yield tmp_path
    services.down(tmp_path)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A root with a running broker, started by two commands at the same time."""
    root = tmp_path_factory.mktemp("broker")
    command = [*PENSTOCK, "up", "--root", str(root), "--only", "kafka"]
    starters = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [starter.communicate()[0] for starter in starters]
    assert [starter.returncode for starter in starters] == [0, 0], outputs
    assert sorted("starting kafka" in output for output in outputs) == [False, True]
    yield root
    services.down(root)


def recorded(root: Path, name: str = "kafka") -> Process:
    return Process(**json.loads((root / "services.json").read_text())[name]["process"])


def remember(root: Path, process: Process, port: int = 1) -> None:
    """Write a services.json that claims this process to be the broker."""
    record = {"ports": {"client": port, "controller": port}, "process": dataclasses.asdict(process)}
    (root / "services.json").write_text(json.dumps({"kafka": record}))


def kafka_status(root: Path) -> services.Status:
    return next(status for status in services.status(root) if status.name == "kafka")


@pytest.mark.slow
def test_up_again_changes_nothing(broker: Path) -> None:
    before = recorded(broker)
    said: list[str] = []
    running = services.up(broker, only=["kafka"], say=said.append)
    assert running.pids == {"kafka": before.pid}
    assert not said


@pytest.mark.slow
def test_up_again_with_another_port_says_what_to_do(broker: Path) -> None:
    with pytest.raises(PenstockError, match=r"already runs on port \d+, not 9. Next: run: penstock down"):
        services.up(broker, only=["kafka"], kafka_port=9)


def test_an_unknown_service_is_named(root: Path) -> None:
    with pytest.raises(
        PenstockError, match=r"No service cql\. Next: choose from: cassandra, kafka, registry, postgres"
    ):
        services.up(root, only=["cql"])


def test_the_server_is_out_of_reach_of_the_terminal(broker: Path) -> None:
    assert os.getsid(recorded(broker).pid) == recorded(broker).pid


def test_status_tells_address_pid_and_memory(broker: Path) -> None:
    status = kafka_status(broker)
    assert status.state == "running"
    assert status.pid == recorded(broker).pid
    assert status.memory is not None
    assert 100 << 20 < status.memory < 512 << 20
    assert status.address == services.up(broker, only=["kafka"]).kafka


def test_a_service_that_does_not_run_has_no_address(broker: Path) -> None:
    with pytest.raises(PenstockError, match=r"cassandra is not running .* Next: run: penstock up"):
        _ = services.up(broker, only=["kafka"]).cql


def test_a_killed_broker_comes_back_with_its_port_and_topics(broker: Path) -> None:
    before = services.up(broker, only=["kafka"])
    admin = AdminClient({"bootstrap.servers": before.kafka, "log_level": 0})
    admin.create_topics([NewTopic("kept", 1)])["kept"].result()
    os.kill(before.pids["kafka"], signal.SIGKILL)
    after = services.up(broker, only=["kafka"])
    assert after.kafka == before.kafka
    assert after.pids != before.pids
    assert "kept" in admin.list_topics(timeout=PATIENCE).topics


def test_a_taken_port_is_named_with_its_holder(root: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(PenstockError) as caught:
            services.up(root, only=["kafka"], kafka_port=port)
    program = Path(sys.executable).name
    assert str(caught.value).startswith(f"Port {port} for kafka is taken by {program} (pid {os.getpid()})")
    assert "--kafka-port" in str(caught.value)


def test_a_service_that_dies_at_start_shows_the_end_of_its_log(root: Path) -> None:
    data = root / "kafka/data"
    data.mkdir(parents=True)
    (data / "meta.properties").write_text("version=1\nnode.id=7\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\n")
    with pytest.raises(
        PenstockError, match=r"(?s)kafka ended while it started.*Stored node id 7 doesn't match.*\(.*kafka\.log\)"
    ):
        services.up(root, only=["kafka"])
    assert kafka_status(root).state == "stopped"


def test_a_full_disk_is_seen_before_a_start(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "SPACE", 1 << 62)
    with pytest.raises(PenstockError, match="No disk space"):
        services.up(root, only=["kafka"])


def test_a_pid_that_now_belongs_to_another_program_is_left_alone(root: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        remember(root, Process(other.pid, "long ago"))
        assert kafka_status(root).state == "died"
        assert services.down(root) == []
        assert other.poll() is None
        other.terminate()
    assert kafka_status(root).state == "stopped"


def test_down_kills_what_does_not_end_by_itself(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "STOP_PATIENCE", 0.2)
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as stubborn:
        assert stubborn.stdout is not None
        assert stubborn.stdout.readline() == b"deaf\n"
        started = Path(f"/proc/{stubborn.pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
        process = Process(stubborn.pid, started)
        remember(root, process)
        assert process.alive()
        assert services.down(root) == ["kafka"]
        assert not process.alive()


def test_ctrl_c_during_up_leaves_nothing_behind(root: Path) -> None:
    command = [*PENSTOCK, "up", "--root", str(root), "--only", "kafka"]
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE) as starter:
        until((root / "services.json").exists, "services.json")
        process = recorded(root)
        os.killpg(starter.pid, signal.SIGINT)
        assert starter.wait() == 130
        assert starter.stderr is not None
        assert starter.stderr.read() == b""
    assert not process.alive()
    assert kafka_status(root).state == "stopped"


@pytest.mark.slow
def test_both_start_within_their_memory_and_only_the_killed_one_again(root: Path) -> None:
    before = services.up(root)
    assert sum(status.memory or 0 for status in services.status(root)) < 2560 << 20
    os.kill(before.pids["cassandra"], signal.SIGKILL)
    after = services.up(root)
    assert (after.cql, after.kafka) == (before.cql, before.kafka)
    assert after.pids["kafka"] == before.pids["kafka"]
    assert after.pids["cassandra"] != before.pids["cassandra"]
    node = recorded(root, "cassandra")
    clean = services.up(root, clean=True, only=["kafka"])
    assert not node.alive()
    assert clean.pids["kafka"] != after.pids["kafka"]
    assert not (root / "cassandra").exists()
    assert services.down(root) == ["kafka"]
    assert [status.state for status in services.status(root)] == ["stopped", "stopped"]


@pytest.mark.slow
def test_the_broker_formats_an_empty_folder_only(broker: Path) -> None:
    identity = (broker / "kafka/data/meta.properties").read_text()
    services.down(broker)
    services.up(broker, only=[kafka_broker.SERVICE.name])
    assert (broker / "kafka/data/meta.properties").read_text() == identity
