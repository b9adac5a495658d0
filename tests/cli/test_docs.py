"""Commands in the documents and the examples have the arguments that they need; what they run is there."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from penstock.cli.main import COMMANDS, _parser

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
FILES = [*PAGES, *sorted(ROOT.glob("examples/*.py"))]
BLOCK = re.compile(r"^```(?:\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^ *(?:\w+=\S+ )*penstock (\w.*)$")
INLINE = re.compile(r"`penstock (\w[^`]*)`")
OPTION = re.compile(r"(?<![\w-])--?[a-z][\w-]*")
PLACES = {"KAFKA": "127.0.0.1:9092", "CQL": "127.0.0.1:9042", "SERVER": "127.0.0.1:9092"}


def name(file: Path) -> str:
    return str(file.relative_to(ROOT))


def written(file: Path) -> list[str]:
    """The command lines in the blocks of a page, and in the text of an example."""
    text = file.read_text()
    blocks = BLOCK.findall(text) if file.suffix == ".md" else [text.split('"""')[1]]
    return [command for block in blocks for command in commands(block.splitlines())]


def commands(lines: list[str]) -> Iterator[str]:
    """The commands of a block; a command goes on within quotes, and in lines that are indented far."""
    while lines:
        found = COMMAND.match(lines.pop(0))
        command = found[1] if found else ""
        while lines and command and (is_open(command) or re.match(" {10,}", lines[0])):
            command += "\n" + lines.pop(0)
        if command:
            yield command


def is_open(command: str) -> bool:
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return True
    return False


def words_of(command: str) -> list[str]:
    """What a shell gives to the program, without what a usage line says is optional."""
    needed = re.sub(r"\[[^\]]*\](?:\.\.\.)?", "", command) if re.search(r"(?<!\w)\[-*\w", command) else command
    return [PLACES.get(word, word) for word in shlex.split(needed, comments=True)]


@cache
def known(command: str) -> frozenset[str]:
    """The options of a command and its subcommands, and the subcommands' names."""
    return frozenset(_options(dict(subcommands(_parser(command)))[command]))


def subcommands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from action.option_strings
    for found, inner in subcommands(parser):
        yield found
        yield from _options(inner)


@pytest.mark.parametrize("file", [file for file in FILES if written(file)], ids=name)
def test_commands_are_whole(file: Path) -> None:
    for command in written(file):
        words = words_of(command)
        _parser(words[0]).parse_args(words)


@pytest.mark.parametrize("file", FILES, ids=name)
def test_commands_and_options_exist(file: Path) -> None:
    for command in (*INLINE.findall(file.read_text()), *written(file)):
        first, *more = command.partition("#")[0].replace("[", " ").replace("]", " ").split()
        assert first in COMMANDS, command
        # A value such as "-2 hours" looks like an option that is not written with letters.
        assert set(OPTION.findall(" ".join(more))) <= known(first), command
        if more and dict(subcommands(dict(subcommands(_parser(first)))[first])):
            assert more[0] in known(first), command


@pytest.mark.parametrize("file", FILES, ids=name)
def test_what_documents_run_is_there(file: Path) -> None:
    text = file.read_text()
    targets = re.findall(r"^([\w-]+)(?=:)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    lines = "\n".join(BLOCK.findall(text)) + "\n".join(re.findall("`([^`\n]+)`", text))
    for target in re.findall(r"^make ([a-z][\w-]*)", lines, re.MULTILINE):
        assert target in targets
    for script in re.findall(r"\b(?:python|sh) ([\w/]+\.(?:py|sh))\b", lines):
        assert (ROOT / script).exists()


def test_the_readme_has_commands() -> None:
    assert len(written(ROOT / "README.md")) >= 4
