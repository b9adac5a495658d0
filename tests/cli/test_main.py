"""The entry point: exit codes, errors in one line, and commands that load only what they need."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any

import pytest

from penstock.cli import erase, main as entry, warm
from penstock.cli.main import COMMANDS, _parser
from penstock.errors import PenstockError

Command = Callable[..., Any]


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """The command `down` raises this error."""

    def run(args: object) -> int:
        raise error

    def add(parser: ArgumentParser) -> None:
        parser.set_defaults(run=run)

    monkeypatch.setattr("penstock.cli.services.down", add)


def test_an_error_has_what_where_and_next(monkeypatch: pytest.MonkeyPatch, penstock: Command) -> None:
    raising(monkeypatch, PenstockError("the tap is closed", where="kitchen", next="open it"))
    assert penstock("down") == (1, "", "penstock: the tap is closed (kitchen). Next: open it\n")


def test_ctrl_c_ends_with_the_code_that_shells_expect_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, penstock: Command
) -> None:
    raising(monkeypatch, KeyboardInterrupt())
    assert penstock("down") == (130, "", "")


def test_an_error_of_our_own_is_not_hidden(monkeypatch: pytest.MonkeyPatch, penstock: Command) -> None:
    raising(monkeypatch, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        penstock("down")


def test_the_name_alone_shows_the_help(penstock: Command) -> None:
    ran = penstock()
    assert (ran.code, ran.err) == (0, "") and all(f"\n    {name}" in ran.out for name in COMMANDS)


@pytest.mark.parametrize("words", [["nonsense"], ["Up"], ["--root", "x"]])
def test_without_a_command_the_usage_is_shown(penstock: Command, words: list[str]) -> None:
    ran = penstock(*words)
    assert (ran.code, ran.out) == (2, "") and ran.err.startswith("usage: penstock ")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_sets_what_runs_it(name: str) -> None:
    required = {
        "run": ["a.py:b"],
        "new": ["a.b"],
        "completion": ["bash"],
        "check": ["a.py:b"],
        "checkpoints": ["list"],
        "state": ["list"],
        "topics": ["list"],
        "groups": ["list"],
        "graph": ["a.py:b"],
        "package": ["a.tar.gz"],
        "dashboards": ["--out", "folder"],
        "erase": ["kind", "value", "--keyspace", "k", "--hosts", "h:1"],
        "segment": ["tables", "--keyspace", "k"],
        "replicate": ["a.b", "--from", "h:1", "--to", "h:2", "--name", "n"],
        "verify": ["a.b", "--from", "h:1", "--to", "h:2"],
    }
    assert callable(_parser(name).parse_args([name, *required.get(name, [])]).run)


@pytest.mark.parametrize("name", ["checkpoints", "state", "topics", "groups", "segment"])
def test_a_command_with_actions_wants_one(penstock: Command, name: str) -> None:
    ran = penstock(name)
    assert ran.code == 2 and "the following arguments are required: ACTION" in ran.err
    assert "invalid choice: 'fly'" in penstock(name, "fly").err


def test_the_help_of_all_commands_loads_none_of_them() -> None:
    code = (
        "import sys; from penstock.cli.main import _parser; _parser('').format_help();"
        "print([name for name in sys.modules if name.startswith('penstock.') and name.count('.') > 1])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "['penstock.cli.arguments', 'penstock.cli.main']\n"


def test_each_command_has_a_line_in_the_help(penstock: Command) -> None:
    ran = penstock("--help")
    assert ran.code == 0
    said = re.sub(r"\s+", " ", ran.out)
    assert all(f" {name} {one.line} " in f"{said} " for name, one in COMMANDS.items())


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("KIND", ["--keyspace", "k", "--hosts", "h:1"]),
        ("--keyspace", ["email", "a@b", "--hosts", "h:1"]),
        ("--hosts", ["email", "a@b", "--keyspace", "k"]),
    ],
)
def test_an_erasure_names_what_is_missing(penstock: Command, missing: str, words: list[str]) -> None:
    ran = penstock("erase", *words)
    assert ran.code == 2 and missing.lower() in ran.err.splitlines()[-1]


def test_the_password_of_an_erasure_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, penstock: Command
) -> None:
    given: dict[str, Any] = {}

    def ids(keyspace: str, **reach: str) -> None:
        given.update(reach, keyspace=keyspace)
        raise PenstockError("enough")

    monkeypatch.setenv("CQL_PASSWORD", "hidden")
    monkeypatch.setattr(erase, "ids", ids)
    ran = penstock("erase", "email", "a@b", "--keyspace", "ids", "--hosts", "h:1", "--user", "ann")
    assert given == {"keyspace": "ids", "hosts": "h:1", "user": "ann", "password": "hidden"}
    assert "hidden" not in ran.err


@pytest.mark.parametrize("words", [["compile", "windows"], ["compile", "json", "nothing", "else"]])
def test_compile_refuses_unknown_parts_before_it_compiles(penstock: Command, words: list[str]) -> None:
    ran = penstock(*words)
    unknown = ", ".join(word for word in words[1:] if word != "json")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(f"penstock: there is nothing to compile for {unknown}. Next: use kafka-client, json, ")


def test_compile_leaves_out_what_needs_a_package_that_is_not_here(
    penstock: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking() -> None:
        raise ModuleNotFoundError("No module named 'msgspec'", name="msgspec")

    done: list[str] = []
    monkeypatch.setattr(warm, "PARTS", {"ingest": lacking, "json": lambda: done.append("json")})
    ran = penstock("compile")
    assert ran.code == 0 and "left out ingest: msgspec is not installed\n" in ran.out and done == ["json"]
    ran = penstock("compile", "json", "ingest")
    assert ran.code == 1 and "penstock compile needs the package msgspec" in ran.err


def parsers(name: str) -> list[ArgumentParser]:
    """The parsers of a command and of its actions."""
    all_commands = _parser(name)._subparsers
    assert all_commands
    found = [all_commands._group_actions[0].choices[name]]  # type: ignore[index]
    if found[0]._subparsers:
        found += found[0]._subparsers._group_actions[0].choices.values()
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_each_help_ends_with_examples_that_are_whole(name: str) -> None:
    for parser in parsers(name):
        _, _, examples = parser.format_help().rpartition("examples:\n")
        lines = examples.splitlines()
        assert lines, f"{parser.prog} has no example"
        for line in lines:
            assert line.startswith(f"  {parser.prog}"), line
            _parser(name).parse_args(shlex.split(line)[1:])


def test_the_first_commands_are_whole(penstock: Command) -> None:
    lines = penstock().out.rpartition("examples:\n")[2].splitlines()
    for words in map(shlex.split, lines):
        assert words[0] == "penstock" and words[1] in COMMANDS
        if words[-1] != "--help":
            _parser(words[1]).parse_args(words[1:])


def test_the_entry_point_of_the_package_is_this_one() -> None:
    assert __import__("penstock.__main__", fromlist=["main"]).main is entry.main
