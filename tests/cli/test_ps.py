"""`penstock ps`, with commands that really run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from penstock.cli import ps


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A command that serves, with several processes."""
    words = ["ingest", "--topics", ["a", "b"][0], "--servers", "127.0.0.1:1", "--spool", "spool", "--workers", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", *words, "--listen", "127.0.0.1:0"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


def test_a_command_is_shown_once_with_its_processes_and_addresses(
    serving: subprocess.Popen[str], tmp_path: Path, penstock: Callable[..., Any]
) -> None:
    def found() -> dict[str, Any] | None:
        ran = penstock("ps", "--json")
        rows = [json.loads(line) for line in ran.out.splitlines()]
        mine = [row for row in rows if row["folder"] == str(tmp_path)]
        assert len(mine) <= 1
        return mine[0] if mine and mine[0]["listens"] and mine[0]["processes"] >= 3 else None

    row = until(found, "the command with its address")
    assert row["pid"] == serving.pid
    assert row["command"].startswith("ingest --topics a --servers 127.0.0.1:1")
    assert row["memory"] > 10_000_000 and 0 < row["age"] < 300
    text = penstock("ps").out
    assert text.startswith("PID") and f"{serving.pid} " in text and row["listens"][0] in text


def test_nothing_runs(monkeypatch: pytest.MonkeyPatch, penstock: Callable[..., Any]) -> None:
    monkeypatch.setattr(ps, "commands", lambda: iter(()))
    assert penstock("ps").out.startswith("no command of penstock runs here")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/usr/bin/python3 -m penstock run a.py:b", "run a.py:b"),
        ("/venv/bin/python /venv/bin/penstock connect", "connect"),
        ("/usr/bin/python3 -m penstock", ""),
        ("vim penstock run", ""),
        ("/usr/bin/python3 -m penstock.spark_runtime.daemon 1", ""),
        ("", ""),
    ],
)
def test_command_lines_of_penstock_are_known(line: str, words: str) -> None:
    assert list(ps._words(line.split())) == words.split()
