"""`penstock demo` as a user runs it: the proof, a kill of each part, and nothing left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from demo_process import PATIENCE, finish, left, start
from waiting import until

pytestmark = [
    pytest.mark.kill,
    pytest.mark.skipif(sys.platform != "linux", reason="finds what is left behind through /proc"),
]

COUNTS = ("lost", "duplicated", "misordered", "wrong")


def test_all_parts_are_killed_in_one_run(tmp_path: Path) -> None:
    result, parts = tmp_path / "demo.json", ["worker", "kafka", "cassandra", "spark"]
    broken = [option for part in parts for option in ("--break", part)]
    demo = start(tmp_path / "root", "--seconds", "25", "--rate", "500", *broken, "--json", str(result))
    said = finish(demo)
    assert demo.returncode == 0, said
    verdict: dict[str, Any] = json.loads(result.read_text())
    assert {name: verdict[name] for name in COUNTS} == dict.fromkeys(COUNTS, 0)
    assert verdict["broken"] == parts
    assert verdict["writes"] > 100
    assert verdict["events"] > verdict["writes"]
    assert 0 < verdict["delay_p50_s"] <= verdict["delay_p99_s"]
    assert left(tmp_path / "root") == {}


@pytest.mark.slow
def test_on_a_cluster_a_worker_and_the_driver_are_killed(tmp_path: Path) -> None:
    result, root = tmp_path / "demo.json", tmp_path / "root"
    words = ["--seconds", "20", "--rate", "200", "--cluster", "2", "--break", "worker", "--break", "spark"]
    demo = start(root, *words, "--json", str(result))
    said = finish(demo)
    assert demo.returncode == 0, said
    verdict = json.loads(result.read_text())
    assert {name: verdict[name] for name in COUNTS} == dict.fromkeys(COUNTS, 0)
    assert verdict["cpu_s"]["worker"] > 0 and verdict["cpu_s"]["worker2"] > 0
    assert any((root / "executors/worker2").glob("app-*"))
    assert left(root) == {}


@pytest.mark.slow
def test_the_metrics_of_the_pipeline_tell_the_delays_that_the_proof_finds(tmp_path: Path) -> None:
    result = tmp_path / "demo.json"
    demo = start(tmp_path / "root", "--seconds", "8", "--rate", "300", "--json", str(result))
    said = finish(demo)
    assert demo.returncode == 0, said
    verdict = json.loads(result.read_text())
    least, most = verdict["told_p99_s"]
    # The consumer has an event some moments after the broker's acknowledgement.
    assert least - 0.05 <= verdict["exact_p99_s"] <= most * 1.1 + 0.1, verdict
    assert "see it in a browser: http://127.0.0.1:" in said
    assert left(tmp_path / "root") == {}


PHASES: dict[str, Callable[[Path], bool]] = {
    "services are starting": lambda root: (root / "services.json").exists(),
    "the pipeline is starting": lambda root: (root / "checkpoints" / "changes.lock").exists(),
    "writes are under way": lambda root: any(path.stat().st_size for path in root.glob("journal.jsonl")),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "phase"),
    [(signal.SIGTERM, "services are starting"), (signal.SIGINT, "writes are under way")],
    ids=lambda value: value if isinstance(value, str) else signal.Signals(value).name,
)
def test_a_signal_leaves_no_process(number: signal.Signals, phase: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    demo = start(root, "--seconds", "60", "--rate", "200")
    until(lambda: PHASES[phase](root), phase, PATIENCE)
    demo.send_signal(number)
    said = finish(demo)
    assert demo.returncode == 130, said
    assert "Traceback" not in said
    assert left(root) == {}


@pytest.mark.slow
def test_a_killed_demo_takes_its_own_processes_with_it_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    root = tmp_path / "root"
    demo = start(root, "--seconds", "60", "--rate", "200")
    until(lambda: PHASES["the pipeline is starting"](root), "pipeline", PATIENCE)
    demo.kill()
    finish(demo)
    services = {pid for pid, command in left(root).items() if "CassandraDaemon" in command or "kafka.Kafka" in command}
    assert len(services) == 2
    until(lambda: left(root).keys() == services, "end of all but the services", PATIENCE)
    subprocess.run([sys.executable, "-m", "penstock", "down", "--root", str(root)], check=True)
    assert left(root) == {}
