"""A command in this process: its exit code, and what it printed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.cli.main import main


class Ran(NamedTuple):
    """`code` is the exit code, also of wrong usage."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def own_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands find no command of another test, and none of the user's."""
    monkeypatch.setenv("PENSTOCK_RUNS", str(tmp_path / "own-runs"))


@pytest.fixture
def penstock(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Runs a command."""

    def run(*words: object) -> Ran:
        try:
            code = main([str(word) for word in words])
        except SystemExit as ended:
            code = int(ended.code or 0)
        said = capsys.readouterr()
        return Ran(code, said.out, said.err)

    return run
