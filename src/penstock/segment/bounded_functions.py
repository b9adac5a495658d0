"""Functions in the predicates of rules whose results have no bound in what an event has: a rule may not call them.

`repeat('x', 1000000000)` is a gigabyte for each event, and `aggregate` that joins its result to itself doubles it for
each element. Spark's own tree of a predicate is read: a length or a count has to be a small constant, the result of
`aggregate` has to be of one size, and of two texts that are multiplied with each other one has to be a constant.
"""

from __future__ import annotations

import re
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from penstock.spark_runtime.expressions import Expressions, kind
from penstock.spark_runtime.logical_plan import each

WORDS = re.compile(
    "repeat|space|pad|randstr|array_insert|format|printf|sequence|stack|explode|inline|aggregate|reduce"
    r"|levenshtein|jaro|replace|array_join|concat_ws|\b(?:select|from|values|table)\b",
    re.IGNORECASE,
)
"""Without these words, a predicate calls none of the functions below, and has no subquery."""
MOST = 100
"""How many times longer than what an event has a result may be; a length may be as large."""
SIZES = {
    "StringRepeat": 1,
    "ArrayRepeat": 1,
    "StringSpace": 0,
    "StringLPad": 1,
    "StringRPad": 1,
    "BinaryPad": 1,
    "RandStr": 0,
    "ArrayInsert": 1,
    "FormatNumber": 1,
}
"""Spark's expressions with a length or a count of elements of their result, and which child that is."""
FORMATS = {"FormatString": 0}
"""Those with widths in a format."""
SERIES = ("Sequence", "Stack", "Explode", "PosExplode", "Inline")
"""Those that make as many elements or rows as they are asked for."""
FOLDS = ("ArrayAggregate",)
"""Those that give their result to a function again."""
PRODUCTS = {
    "Levenshtein": (0, 1),
    "JaroWinkler": (0, 1),
    "StringReplace": (2,),
    "RegExpReplace": (2,),
    "ArrayJoin": (1,),
    "ConcatWs": (0,),
}
"""Those whose cost or result is the product of their texts; one of these children has to be a constant."""
GROWS = re.compile("string|binary|array|map|variant|char")
"""Types whose values have no fixed size."""
WIDTH = re.compile(r"%[^a-zA-Z%]*?(\d{3,})")


class Unbounded(ValueError):
    """A part of a predicate that may hold a task; `next` is what to write."""

    def __init__(self, what: str, next: str) -> None:
        super().__init__(what)
        self.next = next


def require_bounded(trees: Expressions, node: Any, times: int = 1) -> None:
    """Raise Unbounded for the first function without a bound; what is around it makes `times` as much of its result."""
    name, children = kind(node), list(each(node.children()))
    if trees.is_a(node, "SubqueryExpression"):
        raise Unbounded("it has a subquery, which is computed in each batch", "join the table to the events instead")
    if name in SERIES:
        raise _refused(node, "makes as many elements as it is asked for", "compare with BETWEEN, or use an array's own")
    if name in SIZES:
        times *= _size(node, children[SIZES[name]], times)
    if name in FORMATS:
        _require_narrow(node, children[FORMATS[name]])
    if name in FOLDS and GROWS.search(children[1].dataType().simpleString()):
        raise _refused(node, "may double its result with each element", "let it compute a number, a time or a boolean")
    if name in PRODUCTS and not any(children[number].foldable() for number in PRODUCTS[name]):
        raise _refused(node, "multiplies two texts of an event", "give it a constant as one of them")
    for child in children:
        require_bounded(trees, child, times)


def _size(node: Any, size: Any, times: int) -> int:
    """The length or count that a function is given; raises Unbounded if it is large, or comes from the event."""
    if size.dataType().simpleString() == "string" or _is_null(size):
        return 1
    value = _constant(size)
    if value is None or abs(int(value)) * times > MOST:
        inside = f", in a function that repeats it {times} times" if times > 1 else ""
        raise _refused(node, f"is given {size.sql()[:100]}{inside}", f"give it a constant of at most {MOST // times}")
    return max(1, abs(int(value)))


def _is_null(node: Any) -> bool:
    return kind(node) == "Literal" and node.value() is None


def _constant(node: Any) -> Any:
    """The value of a constant; None for NULL, for what depends on the event, and for what Spark cannot cast."""
    try:
        return node.eval(None) if node.foldable() else None
    except (PySparkException, Py4JJavaError):
        return None


def _require_narrow(node: Any, format: Any) -> None:
    text = _constant(format)
    if text is None or any(int(width) > MOST for width in WIDTH.findall(str(text))):
        raise _refused(node, "has a width without a bound", f"give it a constant format with widths of at most {MOST}")


def _refused(node: Any, what: str, next: str) -> Unbounded:
    return Unbounded(f"{node.prettyName()} {what}: {node.sql()[:200]}", next)
