"""Java's regular expressions and replacements, without a JVM; `bounded_regex` bounds their time."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

import regex

from penstock.connect.java import bounded_regex
from penstock.connect.java.bounded_regex import BoundedRegex, cached
from penstock.spark_runtime.java_regex_syntax import translated

_REFERENCE = re.compile(
    r"\\(?P<literal>.)|\$(?:(?P<number>[0-9]+)|\{(?P<name>[A-Za-z][A-Za-z0-9]*)\})|(?P<text>[^\\$]+)", re.DOTALL
)
Expand = Callable[[Any], str]
"""Makes the text that replaces a match."""


@lru_cache(maxsize=100)
def compiled(pattern: str) -> BoundedRegex:
    """Raises ValueError for what is not a regular expression of Java, or has no equal here."""
    return BoundedRegex(translated(pattern), pattern, regex.VERSION1)


def problem(pattern: str) -> str | None:
    """The error of a regular expression, or None."""
    try:
        compiled(pattern)
    except ValueError as error:
        return f"Invalid regex: {error}"
    return None


def template(pattern: str, replacement: str) -> Expand:
    """Makes the text of a match that replaces it; raises ValueError for a replacement that does not fit the pattern."""
    parts = list(_parts(compiled(pattern), replacement))
    return lambda match: "".join(part if isinstance(part, str) else match[part[0]] or "" for part in parts)


def template_problem(pattern: str, replacement: str) -> str | None:
    """The error of a replacement for a valid regular expression, or None."""
    try:
        template(pattern, replacement)
    except ValueError as error:
        return str(error)
    return None


def fitting(pattern: str, texts: Iterable[str]) -> list[str]:
    """The texts that it matches as a whole; raises Overrun if all of them together take longer than a text may."""
    expression, end = compiled(pattern), time.process_time() + bounded_regex.BOUND
    return [text for text in texts if expression.fullmatch(text, max(end - time.process_time(), 0.001))]


def matching(pattern: str) -> Callable[[str], bool]:
    """Whether it matches a whole text, for many texts; raises as `replacing`."""
    expression = compiled(pattern)
    return cached(expression, lambda text: expression.fullmatch(text) is not None)


def replacing(pattern: str, replacement: str) -> Callable[[str], str | None]:
    """Replaces the first match in a text that the pattern matches as a whole; None if it does not.

    Raises Overrun for a text that takes too long, and PenstockError after several of them.
    """
    expression, expand = compiled(pattern), template(pattern, replacement)

    def replaced(text: str) -> str | None:
        if expression.fullmatch(text) is None:
            return None
        # As in Java, the match that is replaced may be shorter than the text.
        match = expression.search(text)
        return text[: match.start()] + expand(match) + text[match.end() :]

    return cached(expression, replaced)


def _parts(expression: BoundedRegex, replacement: str) -> Iterator[str | tuple[int | str]]:
    """Texts, and numbers and names of groups."""
    at = 0
    while at < len(replacement):
        token = _REFERENCE.match(replacement, at)
        if token is None:
            raise ValueError(f"{replacement[at:]!r} is not a group: write $1 or ${{name}}, or \\$ for a dollar sign")
        at = token.end()
        if token["number"]:
            number = _number(token["number"], expression.groups)
            yield (int(token["number"][:number]),)
            yield token["number"][number:]
        elif token["name"]:
            if token["name"] not in expression.names:
                raise ValueError(f"the regular expression has no group {token['name']}")
            yield (token["name"],)
        else:
            yield token["literal"] or token["text"]


def _number(digits: str, groups: int) -> int:
    """How many of the digits are the number of a group: as many as there can be, and at least one."""
    if int(digits[0]) > groups:
        raise ValueError(f"the regular expression has no group {digits[0]}")
    fitting = [length for length in range(1, min(len(digits), 4) + 1) if int(digits[:length]) <= groups]
    return max(fitting)
