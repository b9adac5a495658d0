"""Finds the vectors, gives them a node, and prints how many of each difficulty ran."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.query import dict_factory
from waiting import PATIENCE

from penstock.local.services import Services

FOLDER = Path(os.environ.get("PENSTOCK_VECTORS") or Path(__file__).parent)
RAN = pytest.StashKey[Counter[int]]()


@pytest.fixture(scope="module")
def node(services: Services) -> Iterator[Session]:
    """A session without schema metadata: the vectors change the schema faster than a driver refreshes it."""
    host, port = services.cql.split(":")
    profile = ExecutionProfile(row_factory=dict_factory, request_timeout=PATIENCE)
    cluster = Cluster(
        [host],
        port=int(port),
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        schema_metadata_enabled=False,
        token_metadata_enabled=False,
    )
    try:
        yield cluster.connect()
    finally:
        cluster.shutdown()


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
    # Those that wait between two steps are the last: they wait while the others run.
    vectors = sorted(json.loads(file.read_text()), key=lambda vector: vector.get("run", {}).get("lag_s", 0))
    metafunc.parametrize("vector", [_case(vector, reasons) for vector in vectors])


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
