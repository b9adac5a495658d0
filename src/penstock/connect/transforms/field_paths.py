"""Paths to nested fields: version 2 of the syntax of KIP-821, `a.b`, with backticks around names that hold dots."""

from __future__ import annotations

import re

# A name in backticks ends at the first backtick that no backslash precedes and that a dot or the end follows.
_QUOTED = re.compile(r"`(.*?)(?<!\\)`(?=\.|$)")


def steps(path: str, version: str) -> list[str]:
    """The names on the way; raises `ValueError` for a backtick without its partner."""
    if version.upper() == "V1":
        return [path]
    found, rest = [], path
    while True:
        if rest.startswith("`"):
            quoted = _QUOTED.match(rest)
            if not quoted:
                raise ValueError(
                    f"Incomplete backtick pair in path: [{path}], consider adding a backslash before backtick "
                    f"at position {len(path) - len(rest)} to escape it"
                )
            # A backslash hides only a backtick that would end the name.
            found.append(re.sub(r"\\`(?=\.)", "`", quoted[1]))
            rest = rest[quoted.end() :]
        else:
            name, dot, after = rest.partition(".")
            found.append(name)
            rest = dot + after
        if not rest:
            return found
        rest = rest[1:]


def problem(path: str, version: str) -> str | None:
    """What is wrong with a path, or None."""
    try:
        steps(path, version)
    except ValueError as error:
        return str(error)
    return None
