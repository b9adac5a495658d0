"""Finds the vectors, and prints how many of each difficulty ran."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(os.environ.get("PENSTOCK_VECTORS") or Path(__file__).parent)
RAN = pytest.StashKey[Counter[int]]()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A module with VECTORS = "<file>" gets a test per vector of that file."""
    name = getattr(metafunc.module, "VECTORS", None)
    if name is None or "vector" not in metafunc.fixturenames:
        return
    file = FOLDER / name
    if not file.exists():
        missing = pytest.param(None, id=name, marks=pytest.mark.skip(reason=f"{FOLDER} has no {name}"))
        metafunc.parametrize("vector", [missing])
        return
    reasons: dict[str, str] = getattr(metafunc.module, "IMPOSSIBLE", {})
    metafunc.parametrize("vector", [_case(vector, reasons) for vector in json.loads(file.read_text())])


def _case(vector: dict[str, Any], reasons: dict[str, str]) -> Any:
    why = next((reason for tag, reason in reasons.items() if tag in vector.get("tags", [])), None)
    marks = [pytest.mark.xfail(strict=True, reason=why)] if why else []
    return pytest.param(vector, id=vector["id"], marks=marks)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[RAN] = Counter()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    vector = getattr(item, "callspec", None) and item.callspec.params.get("vector")  # type: ignore[attr-defined]
    if vector:
        item.config.stash[RAN][vector.get("difficulty", 0)] += 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    ran = terminalreporter.config.stash[RAN]
    if ran:
        counts = ", ".join(f"{count} of difficulty {difficulty}" for difficulty, count in sorted(ran.items()))
        terminalreporter.write_line(f"vectors run: {counts}")
