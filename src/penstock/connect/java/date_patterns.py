"""The patterns of Java's formats of dates: letters are fields, and text in single quotes stands for itself.

`SimpleDateFormat`, `DateTimeFormatter` and Joda-Time share this syntax; each has a table of its letters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
WEEKDAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_ELEMENT = re.compile(r"(?P<field>([A-Za-z])\2*)|'(?P<quoted>(?:[^']|'')*)'|(?P<plain>[^'])", re.DOTALL)


class WrongPattern(ValueError):
    """A pattern that cannot be used."""


class Element(NamedTuple):
    """A field: a letter and how often it stands there; or literal text, 0 times."""

    text: str
    times: int
    is_quoted: bool = False
    """Whether the text is in quotes; characters outside may have a meaning of their own."""


def elements(pattern: str) -> Iterator[Element]:
    """The parts of a pattern; raises WrongPattern for a quote without an end."""
    at = 0
    while at < len(pattern):
        part = _ELEMENT.match(pattern, at)
        if part is None:
            raise WrongPattern("a quote is not closed")
        at = part.end()
        if part["field"]:
            yield Element(part["field"][0], len(part["field"]))
        elif part["plain"]:
            yield Element(part["plain"], 0)
        else:
            yield Element(part["quoted"].replace("''", "'") or "'", 0, True)
