"""docs/architecture.md says where things are: the ways of the data as they are, and files that have what it names."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from importlib import import_module, util
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/penstock"
PAGE = (ROOT / "docs/architecture.md").read_text()
# Ways with more files than MOST of scripts/ways.py, and how many they have: a number here may only fall.
LONGER: dict[str, int] = {}


class IndexRow(NamedTuple):
    """A row of "Where is ...?": public names, files below the package, and what stands there."""

    names: list[str]
    files: list[str]
    definitions: list[str]


def rows_of_index() -> list[IndexRow]:
    section = PAGE.partition("## Where is ...?")[2].partition("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")][2:]
    return [IndexRow(*(re.findall("`([^`]+)`", cell) for cell in cells)) for cells in lines]


INDEX = rows_of_index()


def defined_in(file: str) -> set[str]:
    """The names of functions, classes, fields and constants of a module, and its strings; the words of another file."""
    text = (PACKAGE / file).read_text()
    if not file.endswith(".py"):
        return set(re.findall(r"[\w.]+", text))
    nodes = list(ast.walk(ast.parse(text)))
    names = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return names | bound | {str(node.value) for node in nodes if isinstance(node, ast.Constant)}


def public_object(name: str) -> Any:
    """What a dotted name means to a user who imports `penstock`; None if it means nothing."""
    module, _, attribute = f"penstock.{name.removeprefix('penstock.')}".rpartition(".")
    try:
        return getattr(import_module(module), attribute, None)
    except ImportError:
        return None


def ways_script() -> Any:
    spec = util.spec_from_file_location("ways", ROOT / "scripts/ways.py")
    assert spec and spec.loader
    ways = util.module_from_spec(spec)
    # Its dataclass looks for the module.
    sys.modules["ways"] = ways
    spec.loader.exec_module(ways)
    return ways


def test_the_page_has_the_ways_as_they_are_and_none_is_long(capsys: pytest.CaptureFixture[str]) -> None:
    ways = ways_script()
    ways.main([])
    assert capsys.readouterr().out in PAGE
    counts = {way.partition(".")[0]: len(ways.passed(*ends)) for way, ends in ways.WAYS.items()}
    assert {way: count for way, count in counts.items() if count > ways.MOST} == LONGER


def test_the_index_names_what_is_there() -> None:
    assert len(INDEX) >= 25
    wrong = []
    for row in INDEX:
        defined = {file: defined_in(file) for file in row.files if (PACKAGE / file).is_file()}
        if not set(row.definitions) <= set().union(*defined.values()):
            wrong.append(row)
        if any(not defined.get(file, set()) & set(row.definitions) for file in row.files):
            wrong.append(row)
    assert wrong == []


def test_a_public_name_is_in_the_file_that_the_index_says() -> None:
    checked, wrong = 0, []
    for row in INDEX:
        for name in row.names:
            module = getattr(inspect.unwrap(public_object(name) or str), "__module__", "")
            if module.startswith("penstock."):
                checked += 1
                if f"{module.removeprefix('penstock.').replace('.', '/')}.py" not in row.files:
                    wrong.append((name, module))
    assert wrong == []
    assert checked >= 15
