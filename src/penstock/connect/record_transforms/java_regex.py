"""Java's regular expressions and replacements, by Python's: tasks of a sink have no JVM.

Classes of characters and case are ASCII's, as Java has them by default. What Python has in no way, or in another
meaning, is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache

_TOKEN = re.compile(
    r"\\Q(?P<quoted>.*?)(?:\\E|\Z)|\\(?P<escaped>k<(?P<back>\w+)>|.)|\(\?<(?P<name>[A-Za-z]\w*)>|.", re.DOTALL
)
_REFERENCE = re.compile(
    r"\\(?P<literal>.)|\$(?:(?P<number>[0-9]+)|\{(?P<name>[A-Za-z][A-Za-z0-9]*)\})|(?P<text>[^\\$]+)", re.DOTALL
)
_ENDS = {"z": r"\Z", "Z": r"(?=\n?\Z)"}
_UNKNOWN = set("GRXNhHvVepPcU0")
"""Letters after a backslash that Python does not know, or reads as something else."""


@lru_cache(maxsize=100)
def compiled(pattern: str) -> re.Pattern[str]:
    """Raises ValueError for what is not a regular expression, or has no equal in Python."""
    try:
        return re.compile("".join(_translated(pattern)), re.ASCII)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{error}; a sink takes what the expressions of Java and of Python share") from None


def problem(pattern: str) -> str | None:
    """The error of a regular expression, or None."""
    try:
        compiled(pattern)
    except ValueError as error:
        return f"Invalid regex: {error}"
    return None


def template(pattern: str, replacement: str) -> Callable[[re.Match[str]], str]:
    """Makes the text of a match that replaces it; raises ValueError for a replacement that does not fit the pattern."""
    groups = compiled(pattern)
    parts = list(_parts(groups, replacement))
    return lambda match: "".join(part if isinstance(part, str) else match[part[0]] or "" for part in parts)


def template_problem(pattern: str, replacement: str) -> str | None:
    """The error of a replacement for a valid regular expression, or None."""
    try:
        template(pattern, replacement)
    except ValueError as error:
        return str(error)
    return None


def replacing(pattern: str, replacement: str) -> Callable[[str], str | None]:
    """Replaces the first match in a text that the pattern matches as a whole; None if it does not."""
    regex, made = compiled(pattern), template(pattern, replacement)
    # As in Java, the match that is replaced may be shorter than the text.
    return lambda text: regex.sub(made, text, count=1) if regex.fullmatch(text) else None


def _translated(pattern: str) -> Iterator[str]:
    """The pattern in Python's notation, piece by piece."""
    opened = -1
    """Where the class of characters begins that we are in."""
    for token in _TOKEN.finditer(pattern):
        quoted, escaped, back, name = token.groups()
        if quoted is not None:
            yield re.escape(quoted)
        elif back:
            yield f"(?P={back})"
        elif escaped:
            if escaped in _UNKNOWN:
                raise ValueError(f"\\{escaped} is not supported in the regular expressions of sinks")
            yield _ENDS.get(escaped, token[0])
        elif name:
            yield f"(?P<{name}>" if opened < 0 else re.escape(token[0])
        else:
            opened = _class(pattern, token.start(), opened)
            yield token[0]


def _class(pattern: str, at: int, opened: int) -> int:
    """Where the class of characters begins that the next character is in; -1 if it is in none."""
    if opened < 0:
        return at if pattern[at] == "[" else -1
    if pattern[at] == "[" or pattern.startswith("&&", at):
        raise ValueError("classes of characters inside others are not supported in the regular expressions of sinks")
    is_first = pattern[opened + 1 : at] in ("", "^")
    return opened if pattern[at] != "]" or is_first else -1


def _parts(groups: re.Pattern[str], replacement: str) -> Iterator[str | tuple[int | str]]:
    """Texts, and numbers and names of groups."""
    at = 0
    while at < len(replacement):
        found = _REFERENCE.match(replacement, at)
        if found is None:
            raise ValueError(f"{replacement[at:]!r} is not a group: write $1 or ${{name}}, or \\$ for a dollar sign")
        at = found.end()
        if found["number"]:
            number = _number(found["number"], groups.groups)
            yield (int(found["number"][:number]),)
            yield found["number"][number:]
        elif found["name"]:
            if found["name"] not in groups.groupindex:
                raise ValueError(f"the regular expression has no group {found['name']}")
            yield (found["name"],)
        else:
            yield found["literal"] or found["text"]


def _number(digits: str, groups: int) -> int:
    """How many of the digits are the number of a group: as many as there can be, and at least one."""
    if int(digits[0]) > groups:
        raise ValueError(f"the regular expression has no group {digits[0]}")
    fitting = [length for length in range(1, min(len(digits), 4) + 1) if int(digits[:length]) <= groups]
    return max(fitting)
