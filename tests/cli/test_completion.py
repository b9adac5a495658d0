"""Completion as shells ask for it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import PATIENCE

BASH = """
eval "$(penstock completion bash)"
COMP_LINE={line}; COMP_POINT=${{#COMP_LINE}}; COMP_WORDS=({words}); COMP_CWORD={last}; COMP_TYPE=9
_python_argcomplete penstock
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
FILE = """
import penstock as ps

@ps.pipeline(every="1 second")
def orders(spark): ...

@ps.pipeline
def clicks(spark): ...

def helper(): ...

raise SystemExit("completion does not execute a file")
"""


def answers(folder: Path, line: str) -> set[str]:
    words = shlex.split(line) + ([""] if line.endswith(" ") else [])
    script = BASH.format(line=shlex.quote(line), words=" ".join(map(shlex.quote, words)), last=len(words) - 1)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", "--norc", "-c", script],
        cwd=folder,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    return {line.strip() for line in ran.stdout.splitlines()}


@pytest.mark.slow_after(3)
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("penstock ru", {"run"}),
        ("penstock che", {"check", "checkpoints"}),
        ("penstock topics ", {"list", "describe", "create", "alter", "delete", "count", "tail"}),
        ("penstock gro", {"groups"}),
        ("penstock run sho", {"shop.py"}),
        ("penstock run shop.py:", {"orders", "clicks"}),
        ("penstock run missing.py:", {""}),
        ("penstock check shop.py:orders --js", {"--json"}),
        ("penstock completion ", {"bash", "zsh", "fish"}),
    ],
)
def test_bash_completes(tmp_path: Path, line: str, found: set[str]) -> None:
    (tmp_path / "shop.py").write_text(FILE)
    (tmp_path / "shop.txt").touch()
    assert answers(tmp_path, line) - {"-h", "--help"} == found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_code_of_each_shell_is_its_own(shell: str) -> None:
    command = [sys.executable, "-m", "penstock", "completion", shell]
    code = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    mark = {"bash": "complete -o", "zsh": "compdef", "fish": "complete --command penstock"}[shell]
    assert mark in code and "penstock" in code
    if program := shutil.which(shell):
        subprocess.run([program, "-n"], input=code, text=True, check=True, capture_output=True)
