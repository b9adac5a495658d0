"""Run files: written while a command runs, found by others, and deleted when its process is gone."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.watch import run_files
from penstock.watch.run_files import RunFile, running, written

ORDERS = RunFile("run", "orders", "http://127.0.0.1:9400", "penstock run shop.py:orders", "/data/orders", "kafka:9092")


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "runs"
    monkeypatch.setenv("PENSTOCK_RUNS", str(folder))
    return folder


def test_a_command_is_found_while_it_runs_and_not_afterwards(runs: Path) -> None:
    assert running() == []
    with written(ORDERS):
        path = runs / f"{os.getpid()}.json"
        assert running() == [ORDERS]
        assert json.loads(path.read_text()) == asdict(ORDERS)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(runs.stat().st_mode) == 0o700
    assert running() == [] and list(runs.iterdir()) == []
    assert ORDERS.pid == os.getpid() and ORDERS.folder == str(Path.cwd())


def test_a_command_that_was_killed_is_not_found_and_its_file_is_deleted(runs: Path) -> None:
    code = (
        "import sys, time; from penstock.watch.run_files import RunFile, written\n"
        "with written(RunFile('run', 'killed', 'http://127.0.0.1:1', 'x')): print('there', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "there\n"
        assert [file.name for file in running()] == ["killed"]
        process.kill()
        process.wait()
    assert len(list(runs.iterdir())) == 1
    assert running() == [] and list(runs.iterdir()) == []


def test_another_process_with_the_same_pid_is_not_taken_for_it(runs: Path) -> None:
    with written(replace(ORDERS, created=ORDERS.created - 10)):
        assert running() == []


def test_commands_are_in_the_order_of_their_start(runs: Path) -> None:
    runs.mkdir()
    parent = psutil.Process(os.getppid())
    older = replace(ORDERS, name="older", pid=parent.pid, created=parent.create_time())
    with written(ORDERS):
        (runs / f"{older.pid}.json").write_text(json.dumps(asdict(older)))
        assert [file.name for file in running()] == ["older", "orders"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '"' + "x" * run_files.MOST_BYTES + '"',
        "[" * 30_000,
        "\x00",
        json.dumps(asdict(ORDERS) | {"pid": "1"}),
        json.dumps(asdict(ORDERS) | {"pid": True}),
        json.dumps(asdict(ORDERS) | {"url": None}),
        json.dumps(asdict(ORDERS) | {"created": "now"}),
        json.dumps({"pid": 1, "created": 1.0}),
    ],
)
def test_what_is_no_run_file_is_ignored_and_stays(runs: Path, text: str) -> None:
    runs.mkdir()
    (runs / "1.json").write_text(text)
    (runs / "2.txt").write_text(json.dumps(asdict(ORDERS)))
    (runs / "3.json").mkdir()
    assert running() == []
    assert {path.name for path in runs.iterdir()} == {"1.json", "2.txt", "3.json"}


@pytest.mark.parametrize("pid", [-1, 0, 1 << 40])
def test_a_pid_that_no_process_has_is_gone(runs: Path, pid: int) -> None:
    runs.mkdir()
    (runs / "1.json").write_text(json.dumps(asdict(replace(ORDERS, pid=pid))))
    assert running() == []


def test_a_folder_that_cannot_be_written_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PENSTOCK_RUNS", str(tmp_path / "file"))
    ran = []
    with written(ORDERS):
        ran.append(running())
    assert ran == [[]]
    (line,) = caplog.messages
    assert "cannot be written: Not a directory" in line or "cannot be written: [Errno" in line
    assert "Next: " in line and ORDERS.url in line


def test_a_disk_that_is_full_leaves_no_half_file(
    runs: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(self: Path, *args: Any, **more: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with written(ORDERS):
        assert list(runs.iterdir()) == []
    assert "No space left on device" in caplog.text


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"PENSTOCK_RUNS": "/a/b", "XDG_STATE_HOME": "/c"}, "/a/b"),
        ({"XDG_STATE_HOME": "/c"}, "/c/penstock/runs"),
        ({"HOME": "/home/ann"}, "/home/ann/.local/state/penstock/runs"),
    ],
)
def test_the_folder_is_chosen_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str
) -> None:
    for name in ("PENSTOCK_RUNS", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert run_files.folder() == Path(expected)


@pytest.mark.parametrize("moved", [-3600.0, 3600.0, 40 * 365 * 86_400.0])
def test_a_command_is_found_after_the_clock_was_set(runs: Path, monkeypatch: pytest.MonkeyPatch, moved: float) -> None:
    # The time at which a process began is the boot by the present clock, and the time since then.
    boot, create_time = psutil.boot_time, psutil.Process.create_time
    with written(ORDERS):
        monkeypatch.setattr(psutil, "boot_time", lambda: boot() + moved)
        monkeypatch.setattr(psutil.Process, "create_time", lambda self: create_time(self) + moved)
        assert running() == [ORDERS]
        assert (runs / f"{ORDERS.pid}.json").exists()


def test_a_file_of_an_earlier_version_is_read(runs: Path) -> None:
    runs.mkdir()
    text = {name: value for name, value in asdict(ORDERS).items() if name != "boot"}
    (runs / f"{ORDERS.pid}.json").write_text(json.dumps(text))
    assert running() == [replace(ORDERS, boot=None)]
