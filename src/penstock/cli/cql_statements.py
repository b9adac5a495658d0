"""Splits CQL text into statements; for how CQL writes strings, names and comments see its grammar (CQL 3.4.7)."""

from __future__ import annotations

import re

TOKEN = re.compile(
    r"""(?P<comment>--[^\n]*|//[^\n]*|/\*.*?\*/)
    |(?P<quoted>'[^']*'|"[^"]*"|\$\$.*?\$\$)
    |(?P<open>'|"|\$\$|/\*)
    |(?P<end>;)
    |(?P<word>\w+)
    |.""",
    re.DOTALL | re.VERBOSE,
)


def split(text: str) -> tuple[list[str], str]:
    """The statements that end with a semicolon, without it and without comments; and the text after the last one.

    A batch is one statement up to `APPLY BATCH`.
    """
    statements: list[str] = []
    parts: list[str] = []
    rest = 0
    for token in TOKEN.finditer(text):
        if token.lastgroup == "open":
            break
        if token.lastgroup == "end" and not _in_batch(parts):
            statements.append("".join(parts).strip())
            parts, rest = [], token.end()
        else:
            parts.append(" " if token.lastgroup == "comment" else token[0])
    return [statement for statement in statements if statement], text[rest:]


def last(rest: str) -> str:
    """The statement in the text after the last semicolon; "" if it has only comments and blanks."""
    return "".join(" " if token.lastgroup == "comment" else token[0] for token in TOKEN.finditer(rest)).strip()


def _in_batch(parts: list[str]) -> bool:
    words = [part.upper() for part in parts if part.isidentifier()]
    return words[:1] == ["BEGIN"] and words[-2:] != ["APPLY", "BATCH"]
