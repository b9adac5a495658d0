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
from penstock.errors import PenstockError

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


def test_commands_are_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert [wrong for file in FILES for command in written(file) if (wrong := is_refused(file, command, capsys))] == []


def is_refused(file: Path, command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What the parser says of a command that it refuses; else an empty string."""
    words = words_of(command)
    try:
        _parser(words[0]).parse_args(words)
    except (SystemExit, PenstockError) as refused:
        return f"{name(file)}: {command}: {refused} {capsys.readouterr().err}"
    return ""


def test_commands_and_options_exist() -> None:
    found = [
        f"{name(file)}: {command}: {unknown}"
        for file in FILES
        for command in (*INLINE.findall(file.read_text()), *written(file))
        if (unknown := unknown_words(command))
    ]
    assert found == []


def unknown_words(command: str) -> list[str]:
    """The words of a command that name no command and no option."""
    first, *more = command.partition("#")[0].replace("[", " ").replace("]", " ").split()
    if first not in COMMANDS:
        return [first]
    # A value such as "-2 hours" looks like an option that is not written with letters.
    unknown = [option for option in OPTION.findall(" ".join(more)) if option not in known(first)]
    if more and more[0] not in known(first) and dict(subcommands(dict(subcommands(_parser(first)))[first])):
        unknown.append(more[0])
    return unknown


def test_what_documents_run_is_there() -> None:
    targets = re.findall(r"^([\w-]+)(?=:)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    found = []
    for file in FILES:
        text = file.read_text()
        lines = "\n".join(BLOCK.findall(text)) + "\n".join(re.findall("`([^`\n]+)`", text))
        made = re.findall(r"^make ([a-z][\w-]*)", lines, re.MULTILINE)
        scripts = re.findall(r"\b(?:python|sh) ([\w/]+\.(?:py|sh))\b", lines)
        found += [f"{name(file)}: make {target}" for target in made if target not in targets]
        found += [f"{name(file)}: {script}" for script in scripts if not (ROOT / script).exists()]
    assert found == []


def test_the_readme_has_commands() -> None:
    assert len(written(ROOT / "README.md")) >= 4
