"""Commands in the documents have the arguments that they need."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from penstock.cli.main import _parser

ROOT = Path(__file__).parents[2]
FILES = ("README.md", "docs/segments.md")
COMMAND = re.compile(r"^penstock \w.*$|`(penstock segment \w+ [^`]+)`", re.MULTILINE)
PLACES = {"KAFKA": "127.0.0.1:9092", "CQL": "127.0.0.1:9042"}


def commands(file: str) -> list[list[str]]:
    found = [(match[1] or match[0]) for match in COMMAND.finditer((ROOT / file).read_text())]
    return [[PLACES.get(word, word) for word in shlex.split(text, comments=True)[1:]] for text in found]


@pytest.mark.parametrize("file", FILES)
def test_commands_are_whole(file: str) -> None:
    found = commands(file)
    assert len(found) > 3
    for words in found:
        _parser(words[0]).parse_args(words)
