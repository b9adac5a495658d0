"""The lock of a checkpoint with running, ended and orphaned processes."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.errors import PenstockError
from penstock.run import checkpoint
from penstock.run.checkpoint import holder, lock


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints" / "orders"


@pytest.fixture
def java() -> Iterator[subprocess.Popen[bytes]]:
    """A process that looks like a Spark JVM."""
    process = subprocess.Popen(["java", "60"], executable="/bin/sleep")
    yield process
    process.kill()
    process.wait()


def leave_behind(folder: Path, **pids: int | str) -> None:
    folder.parent.mkdir(parents=True)
    folder.with_name("orders.lock").write_text(json.dumps(pids))


def test_a_second_run_is_refused_and_told_which_process_runs(folder: Path) -> None:
    with (
        lock(folder),
        pytest.raises(PenstockError, match=f"process {os.getpid()} already runs this pipeline"),
        lock(folder),
    ):
        pass


def test_a_lock_falls_with_the_run(folder: Path) -> None:
    with lock(folder):
        pass
    with lock(folder):
        pass


def test_the_lock_of_a_dead_process_is_stale(folder: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    leave_behind(folder, pid=dead.pid, jvm=dead.pid)
    with lock(folder):
        pass


def test_an_orphaned_jvm_is_waited_for(
    folder: Path, java: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_behind(folder, pid=1, jvm=java.pid)
    looks = iter((None, None, java))

    def look_and_end(seconds: float) -> None:
        if found := next(looks):
            found.kill()
            found.wait()

    # Only this module's clock: other threads of the test run sleep by the real clock.
    monkeypatch.setattr(checkpoint, "time", SimpleNamespace(monotonic=time.monotonic, sleep=look_and_end))
    with lock(folder):
        assert java.poll() is not None


def test_an_orphaned_jvm_that_stays_is_named(
    folder: Path, java: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_behind(folder, pid=1, jvm=java.pid)
    monkeypatch.setattr(checkpoint, "ORPHAN_PATIENCE", timedelta(0))
    with pytest.raises(PenstockError, match=f"process {java.pid}, the Spark JVM of a killed run"), lock(folder):
        pass


def test_a_number_that_now_belongs_to_another_program_is_no_orphan(folder: Path) -> None:
    leave_behind(folder, pid=1, jvm=os.getpid())
    with lock(folder):
        pass


def test_a_number_of_another_machine_is_not_looked_for_here(folder: Path, java: subprocess.Popen[bytes]) -> None:
    leave_behind(folder, pid=1, jvm=java.pid, host="other")
    with lock(folder):
        pass


def test_a_run_on_another_machine_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with lock(folder), monkeypatch.context() as patch:
        here = checkpoint.HERE
        patch.setattr(checkpoint, "HERE", "other")
        with (
            pytest.raises(PenstockError, match=f"process {os.getpid()} on {here} already runs this pipeline"),
            lock(folder),
        ):
            pass
        assert holder(folder) == os.getpid()


def test_a_damaged_lock_file_does_not_matter(folder: Path) -> None:
    folder.parent.mkdir(parents=True)
    folder.with_name("orders.lock").write_text("{")
    with lock(folder):
        pass


def test_a_link_to_the_folder_has_the_same_lock(folder: Path) -> None:
    folder.mkdir(parents=True)
    link = folder.with_name("link")
    link.symlink_to(folder)
    with (
        lock(link),
        pytest.raises(PenstockError, match=f"process {os.getpid()} already runs this pipeline"),
        lock(folder),
    ):
        pass
    with lock(folder):
        assert holder(link) == os.getpid()


def test_a_folder_that_is_none_is_told(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with (
        pytest.raises(PenstockError, match=r"the folder cannot be used: .* \(.*/file\). Next: give a folder"),
        lock(file / "orders"),
    ):
        pass
