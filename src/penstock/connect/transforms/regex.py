"""Java regular expressions: checked in Python, applied by Spark, which uses Java's."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, functions as F

from penstock.connect.transforms.state import State
from penstock.errors import PenstockError

# Java's syntax that Python lacks or writes differently, and a similar replacement: only the syntax is checked.
_ALIKE: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"\\Q(.*?)(\\E|$)", re.DOTALL), lambda found: re.escape(found[1])),
    (re.compile(r"\(\?<([A-Za-z]\w*)>"), r"(?P<\1>"),
    (re.compile(r"\\k<(\w+)>"), r"(?P=\1)"),
    (re.compile(r"\\[pP](\{\w+\}|\w)"), r"\\w"),
    (re.compile(r"\\[hHvVRXzGe]"), r"\\s"),
    (re.compile(r"\(\?[a-zA-Z]*(-[a-zA-Z]+)?\)"), ""),
)


def problem(pattern: str) -> str | None:
    """The error of a Java regular expression, or None."""
    for java, alike in _ALIKE:
        pattern = java.sub(alike, pattern)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # Java's && in classes.
            re.compile(pattern)
    except re.error as error:
        # Java accepts some look-behinds that Python refuses.
        return None if "look-behind" in str(error) else f"Invalid regex: {error}"
    return None


def matches(state: State, pattern: str) -> Column | bool:
    """Whether the pattern matches the whole topic; a bool if all records have the same topic."""
    if isinstance(state.topic, str):
        return bool(_matcher(state.frame, pattern, state.topic).matches())
    return F.coalesce(state.topic.rlike(_whole(pattern)), F.lit(False))


def replaced(state: State, pattern: str, replacement: str) -> str | Column:
    """The topic after Java's replacement (with `$1`) if the pattern matches the whole topic; else the topic itself."""
    if not isinstance(state.topic, str):
        return F.regexp_replace(state.topic, _whole(pattern), replacement)
    matcher = _matcher(state.frame, pattern, state.topic)
    if not matcher.matches():
        return state.topic
    try:
        return str(matcher.replaceFirst(replacement))
    except Py4JJavaError as error:
        raise PenstockError(
            f"the replacement {replacement!r} does not fit the regular expression {pattern!r}: {error.java_exception}",
            where=f"topic {state.topic}",
            next="use $1 to $9 for groups of the expression, and \\$ for a dollar sign",
        ) from None


def _matcher(frame: DataFrame, pattern: str, text: str) -> Any:
    jvm: Any = frame.sparkSession.sparkContext._jvm
    return jvm.java.util.regex.Pattern.compile(pattern).matcher(text)


def _whole(pattern: str) -> str:
    return rf"\A(?:{pattern})\z"
