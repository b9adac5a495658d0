"""Imports go one way only: which part of the package may know which other."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src/penstock"

# What each part may import of ours, beside itself. A part that is not listed sits on top and may import all but `cli`.
BELOW = {"native", "schema", "config", "errors", "folders", "hosts", "codec", "wire", "database", "kafka_security"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "hosts": set(),
    "native": set(),
    "wire": {"native"},
    "signals": set(),
    "schema": {"errors"},
    "config": {"errors"},
    "codec": {"schema", "config", "errors"},
    "kafka_security": {"errors", "wire"},
    "database": {"native", "schema", "config", "errors", "signals"},
    "source": BELOW,
    "stream": BELOW,
    "checkpoint": {"errors"},
    "sink": BELOW | {"checkpoint"},
    "folders": {"errors"},
    "local": {"errors", "folders"},
}
MODULES = sorted(PACKAGE.rglob("*.py"))


def part(module: Path) -> str:
    """The first name below the package: a folder or a module of it."""
    return module.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(module: Path) -> set[str]:
    """The parts of the package that a module imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno} imports relatively"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("penstock.")}
    return found - {part(module), "__version__"}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(PACKAGE)))
def test_imports_go_one_way(module: Path) -> None:
    parts = imported(module)
    if part(module) in MAY_IMPORT:
        assert parts <= MAY_IMPORT[part(module)]
    if part(module) not in ("cli", "__main__"):
        assert "cli" not in parts


def test_a_plan_of_topics_loads_no_compiled_loops() -> None:
    # Spark starts a process for each plan: what it loads is a second and more until the first batch.
    code = "import sys, penstock.source.kafka_stream; assert not {'numba', 'pandas'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
