"""JSON bodies, and whole numbers in them: one function reads each for all servers, whose own tests try its bounds."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.serve.json_bodies import whole_number

SOURCE = Path(penstock.__file__).parent
SERVERS = ("RestError", "BadQuery", "json_body")
"""Names that a module has which reads the body of a request."""
NOT_OF_BODIES = {
    ("serve/json_bodies.py", "type(value) is int"),  # the function itself
    ("connect/worker/offsets.py", "int(path.name)"),  # Spark's files
    ("console/routes/state.py", "int(limit)"),  # of a query, in digits
    ("console/reading/record_query.py", "int(limit)"),
    ("console/reading/record_query.py", "int(partition)"),
    ("console/reading/record_query.py", "int(p)"),
    ("console/reading/record_query.py", "int(at)"),
    ("console/reading/topic_messages.py", "int(query.start)"),
    ("console/reading/topic_messages.py", "int(RATE * TICK)"),
    ("console/reading/topic_messages.py", "int(read / max(seconds, 0.001) * left)"),
}


READS_A_BODY = re.compile(r"\.stream\(\)|await \S*request\.(?:json|body|form)\(")


def test_no_server_reads_a_body_by_itself() -> None:
    # `penstock ingest` checks events as bytes (ingest/events.py), and makes no objects of them.
    found = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if _reads_a_body(path)}
    assert found == {"serve/json_bodies.py"}, "use json_body of serve/json_bodies.py"


def _reads_a_body(path: Path) -> bool:
    return bool(READS_A_BODY.search(path.read_text()))


@pytest.mark.parametrize("value", [0, 1, (1 << 63) - 1])
def test_a_whole_number_is_itself(value: int) -> None:
    assert whole_number(value) == value == whole_number(str(value), as_text=True)
    assert whole_number(str(value)) is None


@pytest.mark.parametrize("value", [-1, 1 << 63, 3.0, 3.9, 1e300, float("inf"), True, False, None, "", "1", [1], {}])
def test_anything_else_is_none(value: Any) -> None:
    assert whole_number(value) is None


@pytest.mark.parametrize("text", ["", "-1", "+1", "1.0", "1e3", " 1", "1_0", "٣", "0x1", "true", "9" * 10_000])
def test_a_string_has_plain_digits(text: str) -> None:
    assert whole_number(text, as_text=True) is None


def test_bounds_are_those_of_the_caller() -> None:
    assert [whole_number(value, -1, 1) for value in (-2, -1, 1, 2)] == [None, -1, 1, None]


def test_no_server_reads_whole_numbers_by_itself() -> None:
    found = {
        (path.relative_to(SOURCE).as_posix(), text)
        for path in SOURCE.rglob("*.py")
        if any(name in (source := path.read_text()) for name in SERVERS)
        for text in whole_numbers(ast.parse(source))
    }
    assert not (others := found - NOT_OF_BODIES), f"use whole_number of serve/json_bodies.py: {sorted(others)}"


def whole_numbers(module: ast.Module) -> Iterator[str]:
    """Where a value is made a whole number, or looked at whether it is one."""
    for node in ast.walk(module):
        names = [one.id for one in ast.walk(node) if isinstance(one, ast.Name)]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            looks = node.func.id == "isinstance" and {"int", "float"} & set(names)
            if looks or node.func.id in ("int", "float"):
                yield ast.unparse(node)
        elif isinstance(node, ast.Compare) and "type" in names and {"int", "float"} & set(names):
            yield ast.unparse(node)
