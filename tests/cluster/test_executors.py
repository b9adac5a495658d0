"""What a run asks its executors before the first query, with executors in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.dataset as ds
import pytest
from waiting import patience

import penstock
from penstock.errors import PenstockError
from penstock.run import executors
from penstock.run.executors import ExecutorFacts, require_executors

FILE = """
import os

import penstock as ps


@ps.pipeline(every="1 second")
def numbers(spark):
    frame = spark.readStream.schema("id long").json(os.environ["FOLDER"] + "/in")
    return ps.write(frame.mapInArrow(lambda batches: batches, "id long"), ps.files.sink(os.environ["FOLDER"] + "/out"))
"""
CLUSTER = "local-cluster[1,1,1024]"
"""A cluster that Spark starts with the driver: its executor is a process of its own."""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "in").mkdir()
    (folder / "in/one.json").write_text('{"id": 3}\n{"id": 7}\n')
    (folder / "shop.py").write_text(FILE)
    command = [sys.executable, "-m", "penstock", "run", "shop.py:numbers", "--once", "--master", CLUSTER, *words]
    own = {"FOLDER": str(folder), "PYSPARK_PYTHON": sys.executable}
    return subprocess.run(
        command, cwd=folder, env=os.environ | own, capture_output=True, text=True, timeout=patience(300), check=False
    )


def test_a_run_with_executors_of_their_own(tmp_path: Path) -> None:
    ran = run(tmp_path, "--executor-memory", "700m", "--cores", "1")
    assert ran.returncode == 0, ran.stderr
    rows = ds.dataset(tmp_path / "out", exclude_invalid_files=True).to_table()
    assert sorted(rows["id"].to_pylist()) == [3, 7]


@pytest.mark.slow
def test_a_python_without_penstock_is_told_before_the_first_query(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    ran = run(tmp_path, "--conf", f"spark.pyspark.python={tmp_path}/bare/bin/python", "--executor-memory", "700m")
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1].startswith("penstock: executors cannot run Penstock's Python: No module named")
    assert "Next: install the same penstock there" in ran.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_python_that_is_not_there_is_told_before_the_first_query(tmp_path: Path) -> None:
    ran = run(tmp_path, "--conf", "spark.pyspark.python=/no/python", "--executor-memory", "700m")
    assert ran.returncode == 1
    assert 'executors cannot run Penstock\'s Python: Cannot run program "/no/python"' in ran.stderr.splitlines()[-1]


def session(master: str) -> Any:
    return SimpleNamespace(sparkContext=SimpleNamespace(master=master))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (
            [ExecutorFacts("b", penstock.__version__, False)],
            r"b does not see the checkpoint .*shop.*all machines share",
        ),
        (
            [ExecutorFacts("b", penstock.__version__, True), ExecutorFacts("c", "0.0.1", True)],
            r"c has penstock 0.0.1, and the driver",
        ),
    ],
)
def test_what_executors_lack_is_told(
    found: Sequence[ExecutorFacts], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "_ask", lambda session, mark, where: found)
    with pytest.raises(PenstockError, match=said):
        require_executors(session("spark://a:7077"), tmp_path / "shop")
    assert list((tmp_path / "shop").iterdir()) == []


def test_a_local_session_has_no_executors_to_ask(tmp_path: Path) -> None:
    require_executors(session("local[2,4]"), tmp_path / "shop")
    assert not (tmp_path / "shop").exists()
