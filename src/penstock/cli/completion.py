"""`penstock completion SHELL`: what a shell needs to complete commands, and the answers to it."""

from __future__ import annotations

import ast
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import argcomplete
from argcomplete.completers import FilesCompleter
from argcomplete.shell_integration import shellcode

ASKED = "_ARGCOMPLETE"
"""The environment variable that a shell sets when it asks."""
MOST = 1_000_000
"""Bytes of a file that is looked through for pipelines."""
SET_UP = {
    "bash": 'add to ~/.bashrc:  eval "$(penstock completion bash)"',
    "zsh": 'add to ~/.zshrc, after compinit:  eval "$(penstock completion zsh)"',
    "fish": "run once:  penstock completion fish > ~/.config/fish/completions/penstock.fish",
}


def add(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=tuple(SET_UP), help="; ".join(SET_UP.values()).replace("%", "%%"))
    parser.set_defaults(run=run)


def run(args: Namespace) -> int:
    print(shellcode(["penstock"], shell=args.shell))
    return 0


def answer(parser_of: Callable[[str], ArgumentParser]) -> None:
    """Write the completions of the line that a shell has, and end the program."""
    line = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT", "0"))]
    words = line.split()
    parser = parser_of(words[1] if len(words) > 2 or (len(words) == 2 and line.endswith(" ")) else "")
    for action in _actions(parser):
        if action.dest == "target":
            action.completer = targets
    argcomplete.autocomplete(parser)


def targets(prefix: str, **context: Any) -> list[str]:
    """Python files and, behind a colon, the pipelines of one."""
    file, colon, _ = prefix.partition(":")
    if colon:
        return [f"{file}:{name}" for name in pipelines(Path(file))]
    return list(FilesCompleter(("py",))(prefix, **context))


def pipelines(file: Path) -> Iterator[str]:
    """The functions of a file that are marked with `pipeline`; the file is not executed."""
    try:
        with file.open("rb") as opened:
            tree = ast.parse(opened.read(MOST))
    except (OSError, SyntaxError, ValueError):
        return
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and any("pipeline" in ast.unparse(mark) for mark in node.decorator_list):
            yield node.name


def _actions(parser: ArgumentParser) -> Iterator[Any]:
    for action in parser._actions:
        yield action
        if isinstance(action.choices, dict):
            for inner in action.choices.values():
                yield from _actions(inner)
