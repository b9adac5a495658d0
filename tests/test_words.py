"""Names say what they hold: a name such as `found` says that there is something, and not what it is."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src/penstock"
WORDS = {"found", "one", "made", "told", "given", "kept", "anew"}
MOST = 0.3
"""Bindings per 100 lines of code of a folder: a few are names of JSON, or fit."""


def bound(node: ast.AST) -> str | None:
    """The name that this node binds: a variable, a parameter, an attribute, a function or a class."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            return name
        case ast.arg(arg=name):
            return name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return name
        case ast.ExceptHandler(name=name) | ast.MatchAs(name=name) | ast.MatchStar(name=name) | ast.alias(asname=name):
            return name
    return None


def bindings(source: str) -> list[int]:
    """The lines that bind one of the words."""
    return [getattr(node, "lineno", 0) for node in ast.walk(ast.parse(source)) if bound(node) in WORDS]


def lines(source: str) -> int:
    """The lines of code: neither empty nor a comment."""
    stripped = (line.strip() for line in source.splitlines())
    return sum(bool(line) and not line.startswith("#") for line in stripped)


def folder_of(file: Path) -> str:
    """The folder of the package in which a file is, with two levels in connect/; "." is the package itself."""
    parents = file.relative_to(PACKAGE).parent.parts
    return "/".join(parents[: 2 if parents[:1] == ("connect",) else 1]) or "."


@cache
def densities() -> dict[str, float]:
    """Bindings per 100 lines, by folder."""
    words: Counter[str] = Counter()
    code: Counter[str] = Counter()
    for file in PACKAGE.rglob("*.py"):
        source, folder = file.read_text(), folder_of(file)
        words[folder] += len(bindings(source))
        code[folder] += lines(source)
    return {folder: round(100 * words[folder] / code[folder], 2) for folder in sorted(code)}


def test_no_folder_has_more_names_that_say_nothing() -> None:
    above = {folder: rate for folder, rate in densities().items() if rate > MOST}
    assert above == {}, f"give these names that say what they hold: {', '.join(sorted(WORDS))}"


@pytest.mark.parametrize(
    "source",
    [
        "found = 1",
        "found: int = 1",
        "if (found := 1): pass",
        "for one in []: pass",
        "[one for one in []]",
        "lambda one: one",
        "def f(given, *, kept=1): pass",
        "class C:\n    def told(self): pass",
        "class C:\n    made: int",
        "self.kept = 1",
        "with open('') as (found, one): pass",
        "import a as found",
        "match x:\n    case [one, *made]: pass",
        "try: pass\nexcept ValueError as found: pass",
    ],
)
def test_bindings_are_found(source: str) -> None:
    assert bindings(source)


@pytest.mark.parametrize("source", ["f(found=1)", "a.told()", "'one'", "found_keys = 1", "print(one)"])
def test_uses_are_no_bindings(source: str) -> None:
    assert bindings(source) == []
