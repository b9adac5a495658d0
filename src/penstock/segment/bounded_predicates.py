"""Predicates of rules: none of their functions and regular expressions may hold a task.

Spark's own tree of a predicate is read. `repeat('x', 1000000000)` is a gigabyte for each event, and an `aggregate` that
joins its result to itself doubles it for each element: a length or a count has to be a small constant, the result of
`aggregate` has to be of one size, and of two texts that are multiplied with each other one has to be a constant.

Spark runs RLIKE, LIKE and the functions with regular expressions in Java's engine, which needs more time than there is
for `(a+)+b` and a long text, and cannot be interrupted. An expression that Java finds in linear time stays as it is
(`backtracking`). LIKE becomes such an expression (`linear_regex.linear_like`). Others are evaluated by RE2 in Python
(`linear_regex`), and what RE2 cannot do is refused. Spark evaluates Python functions for all rows, and before all else:
their argument must not be one that fails for rows that an earlier part of the predicate would have left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql.pandas.functions import arrow_udf

from penstock.errors import PenstockError
from penstock.segment import linear_regex
from penstock.segment.backtracking import Ambiguous, require_linear
from penstock.segment.linear_regex import linear_like
from penstock.spark_runtime.expressions import Expressions, kind
from penstock.spark_runtime.logical_plan import each, require_classic

REGEX_WORDS = re.compile("like|regexp|split|str_to_map|parse_url|reflect|java_method", re.IGNORECASE)
"""Without these words, a predicate has no LIKE and no regular expression, and calls no method of Java."""
PATTERNS = {
    "RLike": (1,),
    "RegExpReplace": (1,),
    "RegExpExtract": (1,),
    "RegExpExtractAll": (1,),
    "RegExpInStr": (1,),
    "StringSplit": (1,),
    "StringToMap": (1, 2),
    "ParseUrl": (2,),
}
"""Spark's expressions with regular expressions, and which children these are."""
LIKES = {"LikeAll": ("And", False), "NotLikeAll": ("And", True), "LikeAny": ("Or", False), "NotLikeAny": ("Or", True)}
REFLECTION = ("CallMethodViaReflection", "TryReflect")
LEAVES = ("AttributeReference", "Literal", "NamedLambdaVariable")
CONDITIONAL = ("And", "Or", "If", "CaseWhen", "Coalesce")
"""These evaluate what follows their first child for some rows only."""
NEVER_FAIL = {
    *("AttributeReference", "GetStructField", "Literal", "Lower", "Upper", "Coalesce", "Concat", "ConcatWs"),
    *("StringTrim", "StringTrimLeft", "StringTrimRight", "Substring", "GetMapValue", "GetJsonObject", "StringReplace"),
    "PythonUDF",
}
NOT_IN_LAMBDAS = "use an expression without a repetition in another one, or a function of arrays outside of it"
FUNCTION_WORDS = re.compile(
    "repeat|space|pad|randstr|array_insert|format|printf|sequence|stack|explode|inline|aggregate|reduce"
    r"|levenshtein|jaro|replace|array_join|concat_ws|\b(?:select|from|values|table)\b",
    re.IGNORECASE,
)
"""Without these words, a predicate calls none of the following functions, and has no subquery."""
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


def bounded(frame: DataFrame, texts: Sequence[str], where: Callable[[str], str]) -> tuple[DataFrame, dict[str, str]]:
    """The frame with columns for predicates and values that Spark alone might not end; their names, quoted, by text.

    Raises PenstockError for what is refused; `where` names the rule that has the text.
    """
    some = [text for text in dict.fromkeys(texts) if REGEX_WORDS.search(text) or FUNCTION_WORDS.search(text)]
    if not some:
        return frame, {}
    require_classic(frame, "a rule with LIKE, a regular expression or a function that may hold a task")
    trees = Expressions(frame)
    tree = _Tree(trees)
    columns: dict[str, Column] = {}
    names: dict[str, str] = {}
    for number, (text, expression) in enumerate(zip(some, trees.of(some), strict=True)):
        try:
            require_bounded(trees, expression)
            column = tree.bounded(expression) if REGEX_WORDS.search(text) else None
        except Unbounded as error:
            raise PenstockError(
                f"the predicate {text!r} is refused: {error}", where=where(text), next=error.next
            ) from None
        if column is not None:
            name = _free(f"rule_text_{number}", frame)
            columns[name], names[text] = column, f"`{name}`"
    return (frame.withColumns(columns) if columns else frame), names


def _free(name: str, frame: DataFrame) -> str:
    taken = {column.lower() for column in frame.columns}
    while name in taken:
        name += "_"
    return name


class _Tree:
    """Replaces the parts of an expression that Spark alone might not end."""

    def __init__(self, trees: Expressions) -> None:
        self._trees = trees

    def bounded(self, expression: Any) -> Column | None:
        """A column with the same values; None if Spark may evaluate the expression as it is."""
        substitute = self._bounded(expression, True, False)
        return None if substitute is expression else self._trees.column(substitute)

    def _bounded(self, node: Any, is_always: bool, is_lambda: bool) -> Any:
        """The node, or what stands for it; it is evaluated for all rows, or in a function of arrays."""
        name = kind(node)
        if name in LEAVES:
            return node
        if name in REFLECTION:
            raise Unbounded("a rule may not call a method of Java", "use a function of Spark SQL")
        if name != "ParseUrl" and self._trees.is_a(node, "RuntimeReplaceable"):
            return self._or_same(node, node.replacement(), is_always, is_lambda)
        children = list(each(node.children()))
        is_conditional, in_lambda = name in CONDITIONAL, is_lambda or name == "LambdaFunction"
        new = [
            self._bounded(child, is_always and not (is_conditional and number), in_lambda)
            for number, child in enumerate(children)
        ]
        if any(new_child is not child for new_child, child in zip(new, children, strict=True)):
            node = self._trees.with_children(node, new)
        if name == "Like":
            return self._like(node, new[0], new[1])
        if name in LIKES:
            return self._likes(node, new[0], *LIKES[name])
        return self._checked(node, new, is_always, in_lambda) if name in PATTERNS else node

    def _or_same(self, node: Any, replacement: Any, is_always: bool, is_lambda: bool) -> Any:
        substitute = self._bounded(replacement, is_always, is_lambda)
        return node if substitute is replacement else substitute

    # LIKE.

    def _like(self, node: Any, text: Any, pattern: Any) -> Any:
        written = _like_of(_constant(pattern), node.escapeChar())
        return node if written is None else self._trees.new("RLike", text, self._trees.literal(written, pattern))

    def _likes(self, node: Any, text: Any, join: str, is_not: bool) -> Any:
        """LIKE ALL or LIKE ANY; as parts of their own if one of the patterns is not linear."""
        patterns = list(each(node.patterns()))
        texts = [None if pattern is None else str(pattern) for pattern in patterns]
        if all(like is None or _like_of(like, "\\") is None for like in texts):
            return node
        parts = [self._like_part(text, like, is_not) for like in texts]
        while len(parts) > 1:
            pairs = zip(parts[::2], [*parts[1::2], None], strict=False)
            parts = [a if b is None else self._trees.new(join, a, b) for a, b in pairs]
        return parts[0]

    def _like_part(self, text: Any, pattern: str | None, is_not: bool) -> Any:
        literal = self._trees.literal(pattern, text)
        like = self._trees.new("Like", text, literal, "\\")
        part = like if pattern is None else self._like(like, text, literal)
        return self._trees.new("Not", part) if is_not else part

    # Regular expressions.

    def _checked(self, node: Any, children: Sequence[Any], is_always: bool, is_lambda: bool) -> Any:
        """The node if Java is fast for its expressions, else the same by RE2."""
        name = kind(node)
        for number in PATTERNS[name]:
            if number >= len(children) or (pattern := _constant(children[number])) is None:
                continue
            if name == "ParseUrl":
                pattern = f"(&|^){pattern}=([^&]*)"
            is_plain = children[0].dataType().simpleString() == "string"
            try:
                require_linear(pattern if is_plain else f"(?iu){pattern}")
            except Ambiguous as error:
                return self._by_re2(node, children, pattern, error, is_always, is_lambda, is_plain)
            except ValueError as error:
                raise Unbounded(
                    f"the regular expression {pattern[:200]!r} cannot be read: {error}",
                    "correct it, or write this part in another way",
                ) from None
        return node

    def _by_re2(
        self,
        node: Any,
        children: Sequence[Any],
        pattern: str,
        reason: Ambiguous,
        is_always: bool,
        is_lambda: bool,
        is_plain: bool,
    ) -> Any:
        slow = f"the regular expression {pattern[:200]!r} takes too long for long texts: {reason}"
        try:
            if not is_plain:
                raise ValueError("the string has a collation")
            apply, type = _re2_function(kind(node), children, pattern)
        except ValueError as error:
            raise Unbounded(f"{slow}; and RE2 cannot evaluate it: {error}", SIMPLER) from None
        if is_lambda:
            raise Unbounded(f"{slow}, and in a function of arrays there is no faster way", NOT_IN_LAMBDAS)
        if not is_always and not _never_fails(children[0]):
            raise Unbounded(
                f"{slow}; a faster way evaluates {children[0].sql()[:200]!r} for all events, for which it may fail",
                "make it a column of the events before segment.match, or write this part first",
            )
        return self._trees.expression(_arrow_function(apply, type)(self._trees.column(children[0])))


SIMPLER = (
    "use LIKE, begin the expression with ^, use [^x]* instead of .* before an x, or divide it: "
    "url RLIKE '^/shop' AND NOT url RLIKE 'bot'"
)


def _constant(pattern: Any) -> str | None:
    """The text of a pattern; None for NULL."""
    if not pattern.foldable():
        raise Unbounded(
            f"the pattern {pattern.sql()[:200]!r} is not a constant, and events could bring one that takes too long",
            "write the pattern into the rule; contains(a, b), startswith(a, b) and endswith(a, b) take columns",
        )
    value = pattern.eval(None)
    return None if value is None else str(value)


def _like_of(pattern: str | None, escape: str) -> str | None:
    try:
        return None if pattern is None else linear_like(pattern, escape)
    except ValueError as error:
        raise Unbounded(f"the pattern of LIKE is too long: {error}", "use fewer") from None


def _never_fails(node: Any) -> bool:
    is_one = kind(node) in NEVER_FAIL or (kind(node) == "Cast" and node.dataType().simpleString() == "string")
    return is_one and all(map(_never_fails, each(node.children())))


def _re2_function(name: str, children: Sequence[Any], pattern: str) -> tuple[linear_regex.Apply, str]:
    """The function that stands for one of Spark's, and its type; raises ValueError if there is none."""
    if name == "RLike":
        return linear_regex.matching(pattern), "boolean"
    constants = [str(child.eval(None)) if child.foldable() else None for child in children[2:]]
    if name == "RegExpExtract" and (number := constants[0]) is not None and number.isdigit():
        return linear_regex.extracting(pattern, int(number)), "string"
    if name == "RegExpReplace" and (replacement := constants[0]) is not None and constants[1] == "1":
        return linear_regex.replacing(pattern, replacement), "string"
    raise ValueError("RE2 has no such function")


def _arrow_function(apply: linear_regex.Apply, type: str) -> Callable[[Column], Column]:
    def applied(texts: pa.Array) -> pa.Array:
        return apply(texts)

    # With annotations that are strings, Spark looks for the types in the module.
    applied.__annotations__ = {"texts": pa.Array, "return": pa.Array}
    column_function: Callable[[Column], Column] = arrow_udf(applied, type)  # type: ignore[call-overload]
    return column_function


# Functions.


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
    value = _value(size)
    if value is None or abs(int(value)) * times > MOST:
        inside = f", in a function that repeats it {times} times" if times > 1 else ""
        raise _refused(node, f"is given {size.sql()[:100]}{inside}", f"give it a constant of at most {MOST // times}")
    return max(1, abs(int(value)))


def _is_null(node: Any) -> bool:
    return kind(node) == "Literal" and node.value() is None


def _value(node: Any) -> Any:
    """The value of a constant; None for NULL, for what depends on the event, and for what Spark cannot cast."""
    try:
        return node.eval(None) if node.foldable() else None
    except (PySparkException, Py4JJavaError):
        return None


def _require_narrow(node: Any, format: Any) -> None:
    text = _value(format)
    if text is None or any(int(width) > MOST for width in WIDTH.findall(str(text))):
        raise _refused(node, "has a width without a bound", f"give it a constant format with widths of at most {MOST}")


def _refused(node: Any, what: str, next: str) -> Unbounded:
    return Unbounded(f"{node.prettyName()} {what}: {node.sql()[:200]}", next)
