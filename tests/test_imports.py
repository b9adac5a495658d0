"""Imports go only one way: which part of the package may import which other part."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src/penstock"

# The layers: a part may import the parts in the lines above its own.
LAYERS = (
    "errors __init__",
    "extras durations",
    "lazy",
    "border",
    "native process",
    "wire local serve metrics",
    "spark_runtime",
    "database",
    "codec checkpoint",
    "query",
    "keyed_state",
    "table",
    "cdc kafka cql postgres files delta",
    "window join segment replicate",
    "run state ingest",
    "watch",
    "connect console",
    "cli __main__",
)
RANK = {part: rank for rank, line in enumerate(LAYERS) for part in line.split()}
ROOT = {"__init__", "__main__", "errors", "extras", "lazy", "durations"}
"""The modules beside the folders."""
# Parts in the same line where one imports the other.
BESIDE = {
    ("cql", "cdc"),
    ("local", "serve"),
    ("__main__", "cli"),
}
# Modules that import a part of a higher layer, and why.
ABOVE = {
    # It follows a topic, and checks whether servers are set under the names that all Kafka clients share.
    "table/global_tables.py": {"kafka"},
    # The public names for type checkers, which do not run the code.
    "__init__.py": {
        *("cdc", "cql", "delta", "durations", "errors", "files", "join", "kafka", "lazy", "postgres", "query"),
        *("replicate", "run", "segment", "spark_runtime", "table", "window", "wire"),
    },
}
# Modules of under 120 lines that one module of their folder imports, and why they are not part of it.
SMALL = {
    "cli.completion": "a command, loaded when a shell asks",
    "cli.cql_statements": "an idea of its own: where a statement of CQL ends",
    "connect.sinks.files.writer": "the name that it has beside each destination",
    "console.error_answers": "an idea of its own: an error as an answer, and its HTTP status",
    "connect.group.connect_offsets": "a format that is not ours: what ScyllaDB's connector leaves in the topic",
    "ingest.pixel": "an idea of its own: events as images",
    "kafka.group_position": "an idea of its own: how far a query has read, for tools that show lag",
    "kafka.whole_chunks": "an idea of its own: which records wait for others",
    "local.process": "an idea of its own: processes that outlive their starter; the demos use it, too",
    "native.spill_files": "an idea of its own: state on disk",
    "replicate.take_source": "an idea of its own: writes that win over what the target keeps",
    "window.native_windows": "an idea of its own: windows by Spark's own aggregation",
}
# Class names that stand twice, and why.
TWICE = {
    "Erased": "public in cql and in segment: what each erased of a person",
    "Receipt": "public in wire and in segment: what was sent",
}
MODULES = sorted(PACKAGE.rglob("*.py"))


def name_of(module: Path) -> str:
    return ".".join(module.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


FILES = [module for module in MODULES if module.stem != "__init__"]
NAMES = {name_of(module) for module in MODULES}


def part(module: Path) -> str:
    """The first name below the package: a folder or a module of it."""
    return module.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(module: Path) -> set[str]:
    """The modules of the package that a module imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno} imports relatively"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in NAMES else f"{node.module}" for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return (found & NAMES) - {name_of(module), "penstock"}


def test_imports_go_one_way() -> None:
    above: dict[str, set[str]] = {}
    for module in MODULES:
        own = part(module)
        others = {other.split(".")[1] for other in imported(module)} - {own}
        if wrong := {other for other in others if RANK[other] >= RANK.get(own, -1) and (own, other) not in BESIDE}:
            above[str(module.relative_to(PACKAGE))] = wrong
    assert above == ABOVE


def test_the_root_holds_few_modules() -> None:
    assert {part(module) for module in FILES if module.parent == PACKAGE} | {"__init__"} == ROOT


def test_small_modules_have_a_reason() -> None:
    users: dict[str, set[str]] = {name: set() for name in NAMES}
    for module in FILES:
        for name in imported(module):
            users[name].add(name_of(module))
    small = {
        name.removeprefix("penstock.")
        for name in map(name_of, (one for one in FILES if len(one.read_text().splitlines()) < 120))
        if {user.rpartition(".")[0] for user in users[name]} == {name.rpartition(".")[0]} and len(users[name]) == 1
    }
    assert small == set(SMALL)


def test_a_class_name_stands_once() -> None:
    modules: dict[str, list[str]] = {}
    for module in MODULES:
        for node in ast.parse(module.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules.setdefault(node.name, []).append(name_of(module))
    twice = {name: places for name, places in modules.items() if len(places) > 1}
    assert {name: places for name, places in twice.items() if name not in TWICE} == {}
    assert set(TWICE) == set(twice)


def functions(module: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    nodes = ast.walk(ast.parse(module.read_text()))
    return [node for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def test_functions_are_short() -> None:
    """At most 60 lines without the signature and the docstring; compiled ones have at most 10 arguments."""
    long = []
    for module in MODULES:
        for function in functions(module):
            begin = function.body[1 if ast.get_docstring(function) and len(function.body) > 1 else 0].lineno
            marks = {mark.id for mark in function.decorator_list if isinstance(mark, ast.Name)}
            arguments = len(function.args.args) + len(function.args.kwonlyargs)
            if (function.end_lineno or begin) - begin >= 60 or (marks & {"compiled", "uncounted"} and arguments > 10):
                long.append(f"{module.relative_to(PACKAGE)}:{function.lineno} {function.name}")
    assert long == []


LAZY = [module.parent for module in MODULES if "lazy.names" in module.read_text()]


@pytest.mark.parametrize("package", LAZY, ids=str)
def test_public_names_are_those_that_type_checkers_see(package: Path) -> None:
    tree = ast.parse((package / "__init__.py").read_text())
    full = ".".join(("penstock", *package.relative_to(PACKAGE).parts))
    seen = {
        (f"{node.module}", alias.name)
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    offered = import_module(full)
    assert {name for _, name in seen} == set(offered.__all__)
    modules = {entry.stem for entry in package.iterdir()}
    for module, name in seen:
        if module == full:
            assert getattr(offered, name) is import_module(f"{full}.{name}")
        else:
            assert getattr(offered, name) is getattr(import_module(module), name)
            # Importing the module would replace the public name.
            assert name not in modules


@pytest.mark.parametrize("package", LAZY, ids=str)
def test_a_package_lists_its_public_names(package: Path) -> None:
    """In an interpreter of its own, where nothing is loaded yet: this is what the Tab key shows."""
    name = ".".join(("penstock", *package.relative_to(PACKAGE).parts))
    code = f"import {name} as package; print(*(name for name in dir(package) if not name.startswith('_')))"
    listed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert listed.split() == import_module(name).__all__


def test_public_names_stay_where_they_were() -> None:
    """Those of docs/api in November 2026: users import them by these paths."""
    names = [
        line.rpartition(".") for line in (Path(__file__).parent / "data/public_names.txt").read_text().splitlines()
    ]
    assert [f"{module}.{name}" for module, _, name in names if not hasattr(import_module(module), name)] == []


def test_no_circle_of_modules() -> None:
    graph = {name_of(module): imported(module) for module in MODULES}
    assert list(TopologicalSorter(graph).static_order())


def test_a_plan_of_topics_loads_no_compiled_loops() -> None:
    # Spark starts a process for each plan: its imports delay the first batch by a second and more.
    code = "import sys, penstock.kafka.kafka_source; assert not {'numba', 'pandas'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
