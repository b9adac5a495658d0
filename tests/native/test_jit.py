"""Compiled loops never run old machine code after an edit anywhere in their sources."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FILES = {
    "limits": "MOST = (1, 2)\n",
    "steps": """
        from numba import types
        from numba.extending import intrinsic

        @intrinsic
        def ten(typing):
            def generate(context, builder, signature, arguments):
                return context.get_constant(types.int64, 10)
            return types.int64(), generate
        """,
    "inner": """
        from penstock.native.jit import compiled
        from loops.limits import MOST
        from loops.steps import ten

        @compiled
        def inner(value):
            return value + MOST[1] + ten()
        """,
    "outer": """
        from penstock.native.jit import compiled, uncounted
        from loops.inner import inner

        @DECORATOR
        def outer(value):
            total = 0
            for _ in range(value):
                total += inner(value)
            return total
        """,
    "other": """
        from penstock.native.jit import compiled

        @compiled
        def other(value):
            return value + 1
        """,
}
RUN = """
import json
from loops.other import other
from loops.outer import outer
print(json.dumps([outer(3), other(1), [sum(f.stats.cache_misses.values()) for f in (outer, other)]]))
"""


@pytest.fixture(params=["compiled", "uncounted"])
def loops(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A package of loops that call each other across files."""
    folder = tmp_path / "loops"
    folder.mkdir()
    for name, source in FILES.items():
        lines = (line.removeprefix(" " * 8) for line in source.splitlines(keepends=True))
        (folder / f"{name}.py").write_text("".join(lines).replace("DECORATOR", request.param))
    return folder


def run(loops: Path, **environment: str) -> Any:
    """The results of the loops in a new process, and how often each outermost loop was compiled."""
    paths = os.pathsep.join(filter(None, [str(loops.parent), os.environ.get("PYTHONPATH")]))
    settings = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", **environment}
    done = subprocess.run([sys.executable, "-c", RUN], env=settings, check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("file", "old", "new", "result"),
    [
        ("inner", "value + MOST", "7 * value + MOST", 99),
        ("limits", "(1, 2)", "(1, 5)", 54),
        ("steps", "10", "20", 75),
    ],
)
def test_an_edit_in_another_file_is_compiled(loops: Path, file: str, old: str, new: str, result: int) -> None:
    assert run(loops) == [45, 2, [1, 1]]
    assert run(loops) == [45, 2, [0, 0]], "machine code is kept for the next process"
    edited = loops / f"{file}.py"
    edited.write_text(edited.read_text().replace(old, new))
    assert run(loops) == [result, 2, [1, 0]], "and other files keep theirs"


@pytest.mark.slow
def test_another_place_of_the_cache_has_the_same_rule(loops: Path, tmp_path: Path) -> None:
    kept = {"NUMBA_CACHE_DIR": str(tmp_path / "kept")}
    assert run(loops, **kept) == [45, 2, [1, 1]]
    (loops / "limits.py").write_text("MOST = (1, 3)\n")
    assert run(loops, **kept) == [48, 2, [1, 0]]


@pytest.mark.slow
def test_a_class_of_arguments_may_get_another_name(loops: Path) -> None:
    other = loops / "other.py"
    other.write_text(
        "from typing import NamedTuple\n"
        "from penstock.native.jit import compiled\n"
        "class Cells(NamedTuple):\n    length: int\n"
        "def other(value):\n    return inner(Cells(value))\n"
        "@compiled\ndef inner(cells):\n    return cells.length + 1\n"
        "other.stats = inner.stats\n"
    )
    assert run(loops) == [45, 2, [1, 1]]
    other.write_text(other.read_text().replace("Cells", "Columns"))
    assert run(loops) == [45, 2, [0, 1]], "what is on disk names a class that is no more"
