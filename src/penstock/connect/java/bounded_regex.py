"""The one room for regular expressions whose text is not in the source: of configurations, signals, and workers' files.

Neither Java nor Python's `re` can be interrupted, and both need more time than there is for `(a|aa)+b` and sixty
letters. The package `regex` counts the CPU time of a match and ends it, and other threads go on meanwhile. A match that
is ended has not said that the text does not fit: the record is a bad one, or the task fails.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import regex

from penstock.connect.records.record import NoValue
from penstock.errors import PenstockError

BOUND = 1.0
"""Seconds of CPU that an expression may take for a text, or for a list of names. A match takes microseconds."""
LONGEST_TEXT = 10_000
MOST_OVERRUNS = 10
"""So many texts that take longer are bad records; then the expression fails its task, which they would hold."""
KEPT = 1000
"""Results that are cached: topics are few, and records are many."""
T = TypeVar("T")


class Overrun(NoValue):
    """A text that an expression cannot be matched with in time."""


class BoundedRegex:
    """An expression in the syntax of `regex`, which users know as `shown`.

    Raises ValueError for what is not an expression; its methods raise Overrun after `seconds`, or BOUND.
    """

    def __init__(self, text: str, shown: str, flags: int) -> None:
        try:
            self._compiled: Any = regex.compile(text, flags)
        except (regex.error, RecursionError, OverflowError) as error:
            raise ValueError(f"it cannot be compiled: {error}") from None
        self.shown = shown[:200]
        self.groups: int = self._compiled.groups
        self.names = frozenset(self._compiled.groupindex)

    def fullmatch(self, text: str, seconds: float | None = None) -> Any:
        """The match of the whole text, or None."""
        return self._bounded(self._compiled.fullmatch, text, seconds)

    def search(self, text: str, seconds: float | None = None) -> Any:
        """The first match, or None."""
        return self._bounded(self._compiled.search, text, seconds)

    def _bounded(self, method: Any, text: str, seconds: float | None) -> Any:
        if len(text) > LONGEST_TEXT:
            raise Overrun(
                f"{text[:80]!r} has {len(text)} characters, and regular expressions are for {LONGEST_TEXT} at most"
            )
        try:
            return method(text, timeout=BOUND if seconds is None else seconds)
        except (TimeoutError, MemoryError):
            raise Overrun(
                f"the regular expression {self.shown!r} takes more than {BOUND:g} s for {text[:80]!r}; "
                "write it without a repetition in another one"
            ) from None


def cached(expression: BoundedRegex, ask: Callable[[str], T]) -> Callable[[str], T]:
    """Asks once for each text; raises PenstockError after MOST_OVERRUNS texts that take too long."""
    overruns = 0

    @lru_cache(maxsize=KEPT)
    def answered(text: str) -> T | Overrun:
        nonlocal overruns
        try:
            return ask(text)
        except Overrun as error:
            overruns += 1
            if overruns <= MOST_OVERRUNS:
                return error
            raise PenstockError(
                f"{error}; so it is for {MOST_OVERRUNS} other texts",
                where="the connector's configuration",
                next="correct the expression",
            ) from None

    def asked(text: str) -> T:
        answer = answered(text)
        if isinstance(answer, Overrun):
            raise Overrun(*answer.args)
        return answer

    return asked
