"""What Spark refuses, in words of the user's frame: which column or function is misspelt, and what there is.

Spark gives an error's name and parameters beside its text (its "error conditions"), so that nothing is read from texts.
It names the five most similar columns; all are those of the frame whose method failed, which the traceback has.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, functions as F

from penstock.errors import first_line

COLUMNS = {
    "UNRESOLVED_COLUMN": ("objectName", "proposal"),
    "UNRESOLVED_COLUMN_AMONG_FIELD_NAMES": ("colName", "fieldNames"),
    "UNRESOLVED_USING_COLUMN_FOR_JOIN": ("colName", "suggestion"),
    "UNRESOLVED_MAP_KEY": ("objectName", "proposal"),
    "ATTRIBUTE_NOT_SUPPORTED": ("attr_name", ""),
}
"""Conditions of a column that is not there: the parameters with its name and with columns that are there."""
FIELDS = {"FIELD_NOT_FOUND": ("fieldName", "fields"), "UNRESOLVED_FIELD": ("fieldName", "proposal")}
"""The same of a struct's field."""
ROUTINE = "UNRESOLVED_ROUTINE"
HIDDEN = "_penstock_", "_of_"
"""How columns begin that only Penstock's own steps have."""
_NAME = re.compile(r"`((?:[^`]|``)*)`|([^`\[\],.\s]+)")
_CONDITION = re.compile(r"^(?:[\w.$]+: )?\[[A-Z][A-Z0-9_.]+\] ")
_STATE = re.compile(r" *SQLSTATE: \w+.*$")


@dataclass(frozen=True)
class Refusal:
    """An error of Spark: `what` it refuses, what it was perhaps meant to be (`hint`, or ""), and the `next` step."""

    what: str
    hint: str
    next: str


def refusal(error: PySparkException, columns: Sequence[str] = ()) -> Refusal:
    """The refusal; `columns` are those of the frame, by default of the one in the error's traceback."""
    condition, parameters = error.getCondition() or "", error.getMessageParameters() or {}
    name = condition.partition(".")[0]
    shown = columns or _columns(error)
    if name in COLUMNS and (shown or name != "ATTRIBUTE_NOT_SUPPORTED"):
        missing, others = COLUMNS[name]
        return _missing("column", parameters.get(missing, ""), shown or _names(parameters.get(others, "")))
    if name in FIELDS:
        missing, others = FIELDS[name]
        return _missing("field", parameters.get(missing, ""), _names(parameters.get(others, "")))
    if name == ROUTINE:
        function = ".".join(_names(parameters.get("routineName", "")))
        hint = _hint(function, [known for known in dir(F) if not known.startswith("_")])
        return Refusal(f"there is no function {function}", hint, next=f"{hint}docs of Spark's SQL have all functions")
    step = f"correct it; Spark's documentation has this error as {condition}" if condition else ""
    return Refusal(f"Spark refuses the query: {message(error)}", "", next=step)


def message(error: PySparkException) -> str:
    """The first line of Spark's text, without the codes around it and the class of Java's."""
    return _STATE.sub("", _CONDITION.sub("", first_line(error))).strip()


def _missing(kind: str, missing: str, there: Sequence[str]) -> Refusal:
    parts = _names(missing)
    name = ".".join(parts)
    hint = _hint(name, there) or _hint(parts[-1] if parts else "", there)
    listed = f"the {kind}s are {', '.join(there)}" if there else f"check the names of the {kind}s"
    return Refusal(f"there is no {kind} {name}", hint, next=f"{hint}{listed}")


def _hint(name: str, known: Sequence[str]) -> str:
    close = get_close_matches(name, known, 1)
    return f"did you mean {close[0]}? " if close else ""


def _names(text: str) -> list[str]:
    """The names in a parameter of Spark, such as `s`.`price` or [`id`, `price`]."""
    return [quoted.replace("``", "`") or plain for quoted, plain in _NAME.findall(text)]


def _columns(error: BaseException) -> list[str]:
    """The columns of the innermost frame whose method raised the error."""
    for frame in _frames(error):
        try:
            return [name for name in frame.columns if not name.startswith(HIDDEN)]
        except (PySparkException, Py4JError):
            # Of a server (Spark Connect), which refuses a frame when it is asked for its columns.
            continue
    return []


def _frames(error: BaseException) -> Iterator[DataFrame]:
    for place, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        owner = place.f_locals.get("self")
        # Those of groupBy and na keep their frame.
        frame = owner if isinstance(owner, DataFrame) else getattr(owner, "_df", None)
        if isinstance(frame, DataFrame):
            yield frame
