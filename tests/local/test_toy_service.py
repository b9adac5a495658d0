"""The life of services, with a small server instead of Kafka: ports, starts that fail, records, and what is stopped."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import PATIENCE, until

from penstock.errors import PenstockError
from penstock.local import ports, process, services, start
from penstock.local.process import Process
from penstock.local.service import Launch, Service, ServiceFolder, ask

SERVER = """
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
    print("listening", flush=True)
    while True:
        connection, _ = server.accept()
        with connection:
            connection.recv(10)
            connection.sendall(sys.argv[2].encode())
"""


def toy(name: str, code: str = SERVER, answer: str = "ready", stop: int = signal.SIGTERM) -> Service:
    def command(place: ServiceFolder) -> list[str]:
        script = place.write("server.py", code)
        return [sys.executable, str(script), str(place.ports["client"]), answer]

    def ready(place: ServiceFolder) -> bool:
        return ask(place.ports["client"], b"?", 5) == b"ready"

    return Service(name, ("client", "other"), f"--{name}-port", lambda say: Launch("Python", command), ready, stop)


GOOD, ALSO = toy("kafka"), toy("cassandra")
BROKEN = toy("registry", "import sys; sys.exit('the disk is on fire')")
MUTE = toy("postgres", answer="wait!")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A root of small services, which end with the test."""
    monkeypatch.setattr(services, "USUAL", (ALSO, GOOD))
    monkeypatch.setattr(services, "EXTRA", (BROKEN, MUTE))
    monkeypatch.setattr(services, "ALL", (ALSO, GOOD, BROKEN, MUTE))
    monkeypatch.setattr(start, "PATIENCE", 10.0)
    yield tmp_path / "root"
    services.down(tmp_path / "root")


def test_services_start_and_stop_with_all_their_ports(root: Path) -> None:
    said: list[str] = []
    running = services.up(root, say=said.append)
    assert said == ["starting cassandra with Python", "starting kafka with Python"]
    found = [port for record in running.records.values() for port in record.ports.values()]
    assert len(set(found)) == 4 and all(port in ports.RANGE for port in found)
    assert running.kafka == f"127.0.0.1:{running.records['kafka'].ports['client']}"
    assert [one.state for one in services.status(root)] == ["running", "running"]
    assert services.down(root) == ["cassandra", "kafka"]
    assert services.down(root) == [] and running.pids.keys() == {"cassandra", "kafka"}
    assert not any(process._started(pid) for pid in running.pids.values())


def test_a_service_keeps_its_ports_and_its_last_log(root: Path) -> None:
    first = services.up(root, only=["kafka"])
    services.down(root)
    again = services.up(root, only=["kafka"])
    assert again.records["kafka"].ports == first.records["kafka"].ports
    assert again.pids != first.pids
    log = root / "kafka" / "log" / "kafka.log"
    assert "listening" in log.read_text() and "listening" in log.with_name("kafka.log.1").read_text()


def test_a_port_that_was_taken_meanwhile_is_replaced(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "PATIENCE", 0.01)
    first = services.up(root, only=["kafka"]).records["kafka"].ports
    services.down(root)
    with socket.create_server(("127.0.0.1", first["client"])):
        again = services.up(root, only=["kafka"]).records["kafka"].ports
        assert again["client"] != first["client"] and again["other"] == first["other"]


def test_a_given_port_is_used_and_kept(root: Path) -> None:
    port = ports.free(set())
    assert services.up(root, only=["kafka"], kafka_port=port).kafka == f"127.0.0.1:{port}"
    services.down(root)
    assert services.up(root, only=["kafka"]).kafka == f"127.0.0.1:{port}"


def test_a_service_that_ends_at_its_start_stops_those_that_this_call_started(root: Path) -> None:
    before = services.up(root, only=["kafka"])
    with pytest.raises(PenstockError) as raised:
        services.up(root, also=["registry"])
    assert "registry ended while it started; its log ends with\nthe disk is on fire" in str(raised.value)
    assert raised.value.where == str(root / "registry" / "log" / "registry.log")
    assert [(one.name, one.state) for one in services.status(root)] == [("cassandra", "stopped"), ("kafka", "running")]
    assert services.up(root, only=["kafka"]).pids == before.pids


def test_a_service_that_does_not_get_ready_is_stopped(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "PATIENCE", 0.3)
    with pytest.raises(PenstockError, match=r"postgres was not ready within 0 s; its log ends with"):
        services.up(root, only=["postgres"])
    entry = json.loads((root / "services.json").read_text())["postgres"]
    assert entry["process"] is None and entry["ports"].keys() == {"client", "other"}


def test_clean_deletes_the_data_of_all_services_and_only_theirs(root: Path) -> None:
    services.up(root)
    (root / "cassandra" / "data" / "rows").write_text("old")
    (root / "checkpoints").mkdir()
    running = services.up(root, only=["kafka"], clean=True)
    assert running.pids.keys() == {"kafka"} and not (root / "cassandra").exists() and (root / "checkpoints").is_dir()


def test_another_up_waits_for_the_first(root: Path) -> None:
    ended: list[str] = []
    with start.locked(root):
        waiting = threading.Thread(target=lambda: ended.extend(services.up(root, only=["kafka"]).pids))
        waiting.start()
        waiting.join(0.1)
        assert waiting.is_alive() and not ended
    waiting.join(PATIENCE)
    assert ended == ["kafka"]


def test_a_service_is_ended_by_its_own_signal(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = f"import signal; signal.signal(signal.SIGINT, lambda *_: print('heard', flush=True) or exit(0))\n{SERVER}"
    monkeypatch.setattr(services, "ALL", (toy("kafka", code, stop=signal.SIGINT),))
    services.up(root, only=["kafka"])
    services.down(root)
    assert (root / "kafka" / "log" / "kafka.log").read_text() == "listening\nheard\n"


def test_a_process_is_recorded_before_it_is_ready(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[bool] = []

    def ready(place: ServiceFolder) -> bool:
        recorded.append(start.load(root)["kafka"].alive)
        return True

    slow = toy("kafka")
    monkeypatch.setattr(services, "ALL", (Service(slow.name, slow.ports, slow.option, slow.prepare, ready),))
    services.up(root, only=["kafka"])
    assert recorded and all(recorded)


def test_a_taken_port_names_the_option_and_starts_nothing(root: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            PenstockError, match=rf"Port {port} for kafka is taken by .*choose another port with --kafka-p"
        ):
            services.up(root, only=["kafka"], kafka_port=port)
    assert start.load(root)["kafka"].process is None


def test_records_are_read_back_as_written(tmp_path: Path) -> None:
    records = {
        "kafka": start.Record({"client": 1, "controller": 2}, Process(7, "then", signal.SIGINT)),
        "cassandra": start.Record({"client": 3}),
    }
    start.save(tmp_path, records)
    assert start.load(tmp_path) == records and [path.name for path in tmp_path.iterdir()] == ["services.json"]
    assert start.load(tmp_path / "nowhere") == {}


def test_ports_are_free_and_not_those_that_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert not ports.is_free(port) and ports.holder(port) == f"{Path(sys.executable).name} (pid {os.getpid()})"
        monkeypatch.setattr(ports, "PATIENCE", 0.01)
        assert not ports.becomes_free(port)
        monkeypatch.setattr(ports, "RANGE", range(port, port + 1))
        monkeypatch.setattr("random.sample", lambda numbers, count: list(numbers))
        with pytest.raises(PenstockError, match=rf"No free port found \(127.0.0.1, {port} to {port + 1}\)"):
            ports.free(set())
    assert ports.is_free(port) and ports.becomes_free(port) and ports.holder(port) is None
    assert ports.free(set()) == port
    with pytest.raises(PenstockError, match="No free port found"):
        ports.free({port})


def test_an_answer_that_does_not_come_is_empty() -> None:
    assert ask(ports.free(set()), b"?", 5) == b""


def ran(tmp_path: Path, code: str, **environment: str) -> Process:
    return process.start([sys.executable, "-c", code], tmp_path / "logs" / "log", os.environ | environment)


def test_a_process_has_its_own_session_environment_and_log(tmp_path: Path) -> None:
    code = (
        "import os, sys; print(os.getsid(0) == os.getpid(), os.environ['MARK'], sys.stdin.read() == '');"
        "print(1, file=sys.stderr)"
    )
    running = ran(tmp_path, code, MARK="here")
    until(lambda: not running.alive(), "end of the process")
    assert sorted((tmp_path / "logs" / "log").read_text().splitlines()) == ["1", "True here True"]


def test_a_process_is_known_by_its_start_and_not_by_its_pid_alone(tmp_path: Path) -> None:
    running = ran(tmp_path, "import time; time.sleep(600)")
    other = Process(running.pid, "1")
    assert running.alive() and not other.alive()
    process.stop([other], patience=0)
    assert running.alive()
    until(lambda: (running.memory() or 0) > 1 << 20, "memory of a process that has begun")
    process.stop([running, other], patience=10)
    assert not running.alive() and running.memory() is None


def test_a_deaf_process_is_killed_after_patience_and_the_others_at_once(tmp_path: Path) -> None:
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    )
    deaf = ran(tmp_path, code)
    until(lambda: "deaf" in (tmp_path / "logs" / "log").read_text(), "deaf process")
    began = time.monotonic()
    process.stop([deaf], patience=0.2)
    assert not deaf.alive() and 0.2 <= time.monotonic() - began < PATIENCE


def test_signals_wait_until_a_process_is_recorded() -> None:
    code = """
import os, signal
from penstock.local.process import uninterrupted
signal.signal(signal.SIGTERM, lambda *_: print("heard", flush=True))
with uninterrupted():
    os.kill(os.getpid(), signal.SIGTERM)
    print("recorded", flush=True)
print("after", flush=True)
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "recorded\nheard\nafter\n"


def test_the_end_of_a_log_has_no_frames_and_no_endless_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert process.tail(log) == ""
    log.write_bytes(
        b"\n".join([b"old"] * 20 + [b"\tat Main.java:5", b"x" * 1000, b"bad \xff", b"\tat B.java", b"last"])
    )
    lines = process.tail(log, lines=4).splitlines()
    assert lines == ["old", "x" * 400, "bad \ufffd", "last"]
    assert len(process.tail(log).splitlines()) == 12
