"""What `penstock run` writes to standard error: its own lines alone, also when a user makes a mistake."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import PATIENCE, until

FILE = """
import penstock as ps
from penstock import files, window

def clicks(spark):
    rows = spark.readStream.schema("page string, ts timestamp").json(r"{folder}/in")
    return rows.withWatermark("ts", "1 second")

@ps.pipeline
def minutes(spark):
    size = {{"at": "ts", "key": "page", "name": "minutes", "emit": "changes"}}
    counted = window.tumbling(clicks(spark), "1 minute", **size, n="count(*)")
    return ps.write(counted, files.sink(r"{folder}/out"))

@ps.pipeline
def misspelt(spark):
    return ps.write(clicks(spark).select("paeg"), files.sink(r"{folder}/none"))
"""
LINE = re.compile(r"\d\d:\d\d:\d\d minutes: ")


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/1.json").write_text('{"page": "/", "ts": "2026-05-31T07:00:01Z"}')
    (tmp_path / "shop.py").write_text(FILE.format(folder=tmp_path))

    def started(name: str, *arguments: str, **more: str) -> subprocess.Popen[str]:
        command = ["run", f"{tmp_path}/shop.py:{name}", "--checkpoints", str(tmp_path / "checkpoints"), *arguments]
        whole = [sys.executable, "-m", "penstock", *command]
        # A group of its own, which tests send signals to.
        return subprocess.Popen(whole, stderr=subprocess.PIPE, text=True, env=os.environ | more, start_new_session=True)

    return started


@pytest.mark.slow
def test_a_window_writes_no_other_lines(start: Callable[..., subprocess.Popen[str]]) -> None:
    _, said = start("minutes", "--once").communicate(timeout=PATIENCE)
    assert [line for line in said.splitlines() if not LINE.match(line) and "JDK_JAVA_OPTIONS" not in line] == []


def test_a_misspelt_column_is_one_line_with_the_right_names(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = start("misspelt", NUMBA_CACHE_DIR=str(tmp_path / "loops"))
    _, said = process.communicate(timeout=PATIENCE)
    lines = [line for line in said.splitlines() if "JDK_JAVA_OPTIONS" not in line]
    assert process.returncode == 1
    assert [line for line in lines[:-1] if not re.match(r"\d\d:\d\d:\d\d misspelt: ", line)] == []
    assert "misspelt: compiles loops at their first use, once on a machine" in said
    assert re.search("no column paeg .*did you mean page[?]", lines[-1]) and "shop.py, line 17" in lines[-1]


def is_java(pid: str) -> bool:
    try:
        return b"java" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):  # a command of Spark's start that has ended
        return False


def javas(process: subprocess.Popen[str]) -> list[str]:
    """The JVM that a run starts, once it is there."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [pid for pid in children if is_java(pid)]


@pytest.mark.parametrize(
    ("send", "number"),
    [(os.kill, signal.SIGINT), pytest.param(os.killpg, signal.SIGTERM, marks=pytest.mark.slow)],
)
def test_a_signal_while_spark_starts_leaves_no_traceback(
    start: Callable[..., subprocess.Popen[str]], send: Callable[[int, int], None], number: int
) -> None:
    process = start("minutes")
    until(lambda: javas(process), "JVM")
    send(process.pid, number)
    _, said = process.communicate(timeout=PATIENCE)
    assert [line for line in said.splitlines() if not LINE.match(line) and "JDK_JAVA" not in line] == []


@pytest.mark.kill
def test_java_does_not_outlive_a_run_that_is_killed_while_spark_starts(
    start: Callable[..., subprocess.Popen[str]],
) -> None:
    process = start("minutes")
    (jvm,) = until(lambda: javas(process), "JVM")
    process.kill()
    process.communicate()
    until(lambda: not is_java(jvm), "end of the JVM")
