"""No test depends on how fast the machine is: bounds on time come from `patience`, and no test sleeps until it is so.

A test that measures a time and compares it with a number fails on a busy machine. What a test promises about time is
either a count (of requests, of rows, of tries), a growth (`growth.assert_linear`), or a bound for something that would
never end otherwise (`waiting.patience`). Figures belong to benchmarks/.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time", "time"}
CLOCKS |= {f"{name}_ns" for name in CLOCKS}
SCALED = {"patience", "PATIENCE"}
WAITS = {"wait", "join"}
SHORT = 10
"""Seconds; a wait below it is one that passes: nothing comes meanwhile."""
# Outside of loops, what sleeps in these files is no wait for something else, and why.
SLEEPS = {
    "ingest/test_replay.py": "nothing may happen meanwhile",
    "kafka/test_kafka_stream.py": "times of records are whole milliseconds",
    "table/test_globals.py": "stands for a source in which nothing happens any more",
    "wire/test_closed.py": "whatever has been sent by then, the close is correct",
}
SINCE = {"support/http/fake_status.py": "it stands for a program that started then"}
"""Files that keep the time of their import, and why."""
FILES = sorted(TESTS.rglob("*.py"))


def reads_clock(node: ast.AST) -> bool:
    """Whether a clock of Python's module `time` is read inside."""
    return any(
        isinstance(one, ast.Call)
        and isinstance(one.func, ast.Attribute)
        and one.func.attr in CLOCKS
        and isinstance(one.func.value, ast.Name)
        and one.func.value.id == "time"
        for one in ast.walk(node)
    )


def kept_times(tree: ast.Module) -> Iterator[int]:
    """The lines of variables of a module with the time of its import."""
    for one in tree.body:
        if isinstance(one, (ast.Assign, ast.AnnAssign)) and one.value is not None:
            called = (ast.unparse(node.func) for node in ast.walk(one.value) if isinstance(node, ast.Call))
            if reads_clock(one.value) or any(name.endswith((".now", ".utcnow", ".today")) for name in called):
                yield one.lineno


def names(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def variables(node: ast.AST) -> set[str]:
    """Names, and attributes as they are written."""
    return {ast.unparse(one) for one in ast.walk(node) if isinstance(one, (ast.Name, ast.Attribute))}


def is_number(node: ast.AST) -> bool:
    """A literal or a constant, or made of them."""
    parts = [one for one in ast.walk(node) if isinstance(one, (ast.Constant, ast.Name, ast.Call))]
    return all(isinstance(one, ast.Constant) or (isinstance(one, ast.Name) and one.id.isupper()) for one in parts)


def is_scaled(node: ast.AST) -> bool:
    return bool(names(node) & SCALED)


def durations(function: ast.AST) -> set[str]:
    """Variables for the difference of two times."""
    return {
        variable
        for one in ast.walk(function)
        if isinstance(one, ast.Assign) and is_duration(one.value, set())
        for target in one.targets
        # An object is no time because an attribute of it is one.
        for variable in ({ast.unparse(target)} if isinstance(target, ast.Attribute) else variables(target))
    }


def is_duration(node: ast.AST, named: set[str]) -> bool:
    subtractions = [one for one in ast.walk(node) if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Sub)]
    return any(map(reads_clock, subtractions)) or bool(variables(node) & named)


def bounds(tree: ast.AST) -> Iterator[int]:
    """The lines where a measured time has to be below a number, or a deadline is a number of seconds away."""
    for function in (one for one in ast.walk(tree) if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))):
        named = durations(function)
        for node in ast.walk(function):
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                for left, op, right in zip(sides, node.ops, sides[1:], strict=False):
                    less, more = (left, right) if isinstance(op, (ast.Lt, ast.LtE)) else (right, left)
                    ordered = isinstance(op, (ast.Lt, ast.LtE, ast.Gt, ast.GtE))
                    if ordered and is_duration(less, named) and is_number(more) and not is_scaled(more):
                        yield node.lineno
            elif isinstance(node, ast.Assign) and "deadline" in set().union(*map(names, node.targets)):
                sums = [one for one in ast.walk(node.value) if isinstance(one, ast.BinOp) and reads_clock(one.left)]
                if any(is_number(one.right) and not is_scaled(one.right) for one in sums):
                    yield node.lineno


def sleeps(tree: ast.AST) -> Iterator[int]:
    """The lines that sleep outside of a loop; a sleep of zero lets other tasks run."""
    loops = [one for one in ast.walk(tree) if isinstance(one, (ast.While, ast.For, ast.AsyncFor))]
    inside = {id(one) for loop in loops for one in ast.walk(loop)}
    for one in ast.walk(tree):
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.func.attr == "sleep":
            zero = isinstance(one.args[0], ast.Constant) and one.args[0].value == 0
            if not zero and id(one) not in inside:
                yield one.lineno


def waits(tree: ast.AST) -> Iterator[int]:
    """The lines that wait for something at most a number of seconds."""
    for call in (one for one in ast.walk(tree) if isinstance(one, ast.Call)):
        given = [one.value for one in call.keywords if one.arg == "timeout"]
        if isinstance(call.func, ast.Attribute) and call.func.attr in WAITS and len(call.args) == 1:
            given += call.args
        if any(
            isinstance(one, ast.Constant) and isinstance(one.value, int | float) and one.value >= SHORT for one in given
        ):
            yield call.lineno


def parsed(words: str) -> Iterator[tuple[str, ast.Module]]:
    """The files with words without which a rule finds nothing: to parse and walk all of them takes many seconds."""
    for file in FILES:
        text = file.read_text()
        if re.search(words, text):
            yield str(file.relative_to(TESTS)), ast.parse(text)


def test_no_bound_on_time_is_a_number() -> None:
    compared = {name: lines for name, tree in parsed(rf"time\.({'|'.join(CLOCKS)})\b") if (lines := [*bounds(tree)])}
    waited = {
        name: lines
        for name, tree in parsed(rf"(\btimeout *=|\.({'|'.join(WAITS)})\()\s*\d")
        if (lines := [*waits(tree)])
    }
    assert (compared, waited) == ({}, {})


def test_no_test_sleeps_until_something_has_happened() -> None:
    assert {name for name, tree in parsed(r"\.sleep\(") if list(sleeps(tree))} == SLEEPS.keys()


@pytest.mark.parametrize(
    "bound",
    [
        "assert time.monotonic() - began < 0.2",
        "took = time.perf_counter() - began\n    assert took <= 0.05",
        "run.took = time.perf_counter() - began\n    assert run.took <= 0.05",
        "assert 0.4 < until - time.monotonic() <= 1.0",
        "assert SLOWEST > time.process_time() - began",
        "deadline = time.monotonic() + 30",
    ],
)
def test_bounds_that_are_numbers_are_found(bound: str) -> None:
    assert list(bounds(ast.parse(f"def test() -> None:\n    {bound}")))


@pytest.mark.parametrize(
    "bound",
    [
        "assert time.monotonic() - began < patience(20)",
        "assert time.monotonic() - began > 0.2",
        "deadline = time.monotonic() + PATIENCE",
        "assert len(found) < 30",
        "run.took = time.perf_counter() - began\n    assert len(run.rows) < 30",
    ],
)
def test_other_comparisons_are_not(bound: str) -> None:
    assert not list(bounds(ast.parse(f"def test() -> None:\n    {bound}")))


def test_waits_that_are_numbers_are_found() -> None:
    found = "process.wait(30)\nrequests.get(url, timeout=20)\nprocess.wait(PATIENCE)\nended.wait(0.2)\n', '.join(names)"
    assert list(waits(ast.parse(found))) == [1, 2]


def test_sleeps_are_found() -> None:
    assert list(sleeps(ast.parse("time.sleep(0.3)\nawait_(asyncio.sleep(0))\nwhile x():\n    time.sleep(0.1)"))) == [1]


def test_no_file_keeps_the_time_of_its_import() -> None:
    """All files are imported first: an hour from then may be over when the last of them runs."""
    found = {str(file.relative_to(TESTS)) for file in FILES if list(kept_times(ast.parse(file.read_text())))}
    assert found == set(SINCE)


def test_kept_times_are_found() -> None:
    found = "LATER = datetime.now(UTC) + timedelta(hours=1)\nNOW: float = time.time()\nnow = datetime.now\n"
    assert list(kept_times(ast.parse(f"{found}def later():\n    return datetime.now(UTC)"))) == [1, 2]
