"""The list of what is here, and what is not: its names exist or not, and other pages agree with it."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import penstock
from penstock.cli.main import COMMANDS

DOCS = Path(__file__).parents[1] / "docs"
HERE, _, ABSENT = (DOCS / "features.md").read_text().partition("## What is not here")
ROW = re.compile(r"^\| ([^|]+) \| ((?:`[^`]+`(?:, )?)+) \|", re.MULTILINE)
MISSING = {what: re.findall(r"`([^`]+)`", names) for what, names in ROW.findall(ABSENT)}
COMING = sorted(path.name for path in DOCS.glob("coming-from-*.md"))


def exists(name: str) -> bool:
    """Whether a command, a public name, or a package has this name."""
    if name.removeprefix("penstock ") in COMMANDS:
        return True
    package, _, attribute = name.removeprefix("penstock.").rpartition(".")
    module = import_module(f"penstock.{package}") if package and find_spec(f"penstock.{package}") else penstock
    return attribute in dir(module) or (not package and find_spec(f"penstock.{attribute}") is not None)


def claims(page: str) -> list[str]:
    """What a page names as missing: the bold words of its last chapter."""
    _, found, text = (DOCS / page).read_text().partition("## What is not here\n")
    assert found and text.count("\n- ") == len(re.findall(r"^- \*\*", text, re.MULTILINE)), "each begins in bold"
    bold = re.findall(r"\*\*(.+?)\*\*", text)
    return [words[0].upper() + words[1:].rstrip(".") for words in bold]


def test_what_is_listed_exists() -> None:
    names = {name for _, names in ROW.findall(HERE) for name in re.findall("`(.+?)`", names)}
    assert names and sorted(name for name in names if not exists(name)) == []


def test_what_is_listed_as_missing_does_not_exist() -> None:
    here = {what: found for what, names in MISSING.items() if (found := [name for name in names if exists(name)])}
    assert here == {}, "move them to the tables above"


@pytest.mark.parametrize("page", COMING)
def test_a_page_names_only_as_missing_what_is_in_the_list(page: str) -> None:
    assert [claim for claim in claims(page) if claim not in MISSING] == []


def test_each_missing_thing_is_of_a_page() -> None:
    assert {claim for page in COMING for claim in claims(page)} == MISSING.keys()


def test_all_sources_sinks_and_commands_are_listed() -> None:
    """Those that begin or end a stream, and commands that have a page of their own."""
    packages = ["cdc", "cql", "delta", "files", "kafka", "postgres"]
    ends = {f"{one}.{name}" for one in packages for name in ("read", "sink") if exists(f"{one}.{name}")}
    own_pages = {f"penstock {name}" for name in COMMANDS if (DOCS / f"{name}.md").exists()} - {"penstock demo"}
    assert {name for name in ends | own_pages if f"`{name}`" not in HERE} - {"penstock cql"} == set()
