"""The tokens of CQL text: constants, names in quotes, comments, and where a statement ends.

All that looks into a user's text of CQL reads it so: a semicolon, or what looks like a comment, is none in a constant
or a name in quotes. The grammar is that of CQL 3.4.7; whether a text has a meaning is the database's to say.
"""

from __future__ import annotations

import re

TOKEN = re.compile(
    r"""(?P<comment>--[^\n\r]*|//[^\n\r]*|/\*.*?\*/)
    |(?P<quoted>'(?:[^']++|'')*+'|"(?:[^"]++|"")*+"|\$\$.*?\$\$)
    |(?P<open>'|"|\$\$|/\*)
    |(?P<end>;)
    |(?P<word>\w+)
    |.""",
    re.DOTALL | re.VERBOSE,
)
_OPENED = {"'": "a text constant", '"': "a name", "$$": "a text constant", "/*": "a comment"}


def part_problem(text: str) -> str | None:
    """Why a text can be no part of a statement, or None: a comment or an open constant would hide what follows it."""
    for token in TOKEN.finditer(text):
        if token.lastgroup == "comment":
            return f"it has a comment ({token[0][:2]} outside a text constant)"
        if token.lastgroup == "end":
            return "it has a semicolon outside a text constant"
        if token.lastgroup == "open":
            return f"{_OPENED[token[0]]} that begins with {token[0]} at character {token.start() + 1} does not end"
    return None


def without_quoted(text: str) -> str:
    """The text with a space for each constant, name in quotes and comment."""
    return "".join(" " if token.lastgroup in ("quoted", "comment") else token[0] for token in TOKEN.finditer(text))
