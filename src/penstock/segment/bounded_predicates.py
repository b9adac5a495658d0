"""Regular expressions in the predicates of rules: none of them may hold a task.

Spark runs RLIKE, LIKE and the functions with regular expressions in Java's engine, which needs more time than there is
for `(a+)+b` and a long text, and cannot be interrupted. Here Spark's own tree of a predicate is read. An expression
that Java finds in linear time stays as it is (`backtracking`). LIKE becomes such an expression (`like_pattern`).
Others are evaluated by RE2 in Python (`linear_regex`), and what RE2 cannot do is refused.

Spark evaluates Python functions for all rows, and before all else: their argument must not be one that fails for rows
that an earlier part of the predicate would have left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame, functions as F
from pyspark.sql.pandas.functions import arrow_udf

from penstock.errors import PenstockError
from penstock.plans import require_classic
from penstock.segment import linear_regex
from penstock.segment.backtracking import Ambiguous, require_linear
from penstock.segment.like_pattern import linear_regex as like_regex

WORDS = re.compile("like|regexp|split|str_to_map|parse_url|reflect|java_method", re.IGNORECASE)
"""Without these words, a predicate calls none of the functions below."""
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


class Unbounded(ValueError):
    """A regular expression that may hold a task; `next` is what to write."""

    def __init__(self, what: str, next: str) -> None:
        super().__init__(what)
        self.next = next


def bounded(frame: DataFrame, texts: Sequence[str], where: Callable[[str], str]) -> tuple[DataFrame, dict[str, str]]:
    """The frame with columns for predicates and values that Spark alone might not end; their names, quoted, by text.

    Raises PenstockError for what is refused; `where` names the rule that has the text.
    """
    some = [text for text in dict.fromkeys(texts) if WORDS.search(text)]
    if not some:
        return frame, {}
    require_classic(frame, "a rule with LIKE or a regular expression")
    tree = _Tree(frame)
    expressions = frame.select(*map(F.expr, some))._jdf.queryExecution().analyzed().expressions()
    columns: dict[str, Column] = {}
    names: dict[str, str] = {}
    for number, text in enumerate(some):
        try:
            column = tree.bounded(expressions.apply(number))
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
    """Spark's trees of expressions over the columns of a frame."""

    def __init__(self, frame: DataFrame) -> None:
        self._jvm = cast(Any, frame.sparkSession._jvm)
        self._catalyst = self._jvm.org.apache.spark.sql.catalyst.expressions
        self._columns = self._jvm.org.apache.spark.sql.classic.ExpressionUtils
        self._known: dict[tuple[str, str], bool] = {}
        """Which classes of Java are of which kinds."""

    def bounded(self, expression: Any) -> Column | None:
        """A column with the same values; None if Spark may evaluate the expression as it is."""
        found = self._bounded(expression, True, False)
        return None if found is expression else Column(self._columns.column(found))

    def _bounded(self, node: Any, is_always: bool, is_lambda: bool) -> Any:
        """The node, or what stands for it; it is evaluated for all rows, or in a function of arrays."""
        kind = _kind(node)
        if kind in LEAVES:
            return node
        if kind in REFLECTION:
            raise Unbounded("a rule may not call a method of Java", "use a function of Spark SQL")
        if self._is(node, kind, "SubqueryExpression"):
            raise Unbounded("it has a regular expression and a subquery", "join the table to the events instead")
        if kind != "ParseUrl" and self._is(node, kind, "RuntimeReplaceable"):
            return self._or_same(node, node.replacement(), is_always, is_lambda)
        children = [node.children().apply(number) for number in range(node.children().size())]
        is_conditional, in_lambda = kind in CONDITIONAL, is_lambda or kind == "LambdaFunction"
        new = [
            self._bounded(child, is_always and not (is_conditional and number), in_lambda)
            for number, child in enumerate(children)
        ]
        if any(one is not child for one, child in zip(new, children, strict=True)):
            node = node.withNewChildren(self._seq(new))
        if kind == "Like":
            return self._like(node, new[0], new[1])
        if kind in LIKES:
            return self._likes(node, new[0], *LIKES[kind])
        return self._checked(node, new, is_always, in_lambda) if kind in PATTERNS else node

    def _or_same(self, node: Any, replacement: Any, is_always: bool, is_lambda: bool) -> Any:
        found = self._bounded(replacement, is_always, is_lambda)
        return node if found is replacement else found

    def _is(self, node: Any, kind: str, name: str) -> bool:
        if (kind, name) not in self._known:
            other = self._jvm.Class.forName(f"org.apache.spark.sql.catalyst.expressions.{name}")
            self._known[kind, name] = bool(other.isInstance(node))
        return self._known[kind, name]

    def _seq(self, nodes: Sequence[Any]) -> Any:
        found = self._jvm.java.util.ArrayList()
        for node in nodes:
            found.add(node)
        return self._jvm.org.apache.spark.api.python.PythonUtils.toSeq(found)

    def _literal(self, text: str | None, like: Any) -> Any:
        return self._catalyst.Literal.create(text, like.dataType())

    # LIKE.

    def _like(self, node: Any, text: Any, pattern: Any) -> Any:
        written = _like_of(_constant(pattern), node.escapeChar())
        return node if written is None else self._catalyst.RLike(text, self._literal(written, pattern))

    def _likes(self, node: Any, text: Any, join: str, is_not: bool) -> Any:
        """LIKE ALL or LIKE ANY; as parts of their own if one of the patterns is not linear."""
        patterns = [node.patterns().apply(number) for number in range(node.patterns().size())]
        texts = [None if pattern is None else str(pattern) for pattern in patterns]
        if all(one is None or _like_of(one, "\\") is None for one in texts):
            return node
        parts = [self._like_part(text, one, is_not) for one in texts]
        while len(parts) > 1:
            pairs = zip(parts[::2], [*parts[1::2], None], strict=False)
            parts = [a if b is None else getattr(self._catalyst, join)(a, b) for a, b in pairs]
        return parts[0]

    def _like_part(self, text: Any, pattern: str | None, is_not: bool) -> Any:
        literal = self._literal(pattern, text)
        like = self._catalyst.Like(text, literal, "\\")
        part = like if pattern is None else self._like(like, text, literal)
        return self._catalyst.Not(part) if is_not else part

    # Regular expressions.

    def _checked(self, node: Any, children: Sequence[Any], is_always: bool, is_lambda: bool) -> Any:
        """The node if Java is fast for its expressions, else the same by RE2."""
        kind = _kind(node)
        for number in PATTERNS[kind]:
            if number >= len(children) or (pattern := _constant(children[number])) is None:
                continue
            if kind == "ParseUrl":
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
            apply, kind = _re2_function(_kind(node), children, pattern)
        except ValueError as error:
            raise Unbounded(f"{slow}; and RE2 cannot evaluate it: {error}", SIMPLER) from None
        if is_lambda:
            raise Unbounded(f"{slow}, and in a function of arrays there is no faster way", NOT_IN_LAMBDAS)
        if not is_always and not _never_fails(children[0]):
            raise Unbounded(
                f"{slow}; a faster way evaluates {children[0].sql()[:200]!r} for all events, for which it may fail",
                "make it a column of the events before segment.match, or write this part first",
            )
        column = _arrow_function(apply, kind)(Column(self._columns.column(children[0])))
        return self._columns.expression(column._jc)


SIMPLER = (
    "use LIKE, begin the expression with ^, use [^x]* instead of .* before an x, or divide it: "
    "url RLIKE '^/shop' AND NOT url RLIKE 'bot'"
)


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


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
        return None if pattern is None else like_regex(pattern, escape)
    except ValueError as error:
        raise Unbounded(f"the pattern of LIKE is too long: {error}", "use fewer") from None


def _never_fails(node: Any) -> bool:
    is_one = _kind(node) in NEVER_FAIL or (_kind(node) == "Cast" and node.dataType().simpleString() == "string")
    return is_one and all(_never_fails(node.children().apply(number)) for number in range(node.children().size()))


def _re2_function(kind: str, children: Sequence[Any], pattern: str) -> tuple[linear_regex.Apply, str]:
    """The function that stands for one of Spark's, and its type; raises ValueError if there is none."""
    if kind == "RLike":
        return linear_regex.matching(pattern), "boolean"
    constants = [str(child.eval(None)) if child.foldable() else None for child in children[2:]]
    if kind == "RegExpExtract" and (number := constants[0]) is not None and number.isdigit():
        return linear_regex.extracting(pattern, int(number)), "string"
    if kind == "RegExpReplace" and (replacement := constants[0]) is not None and constants[1] == "1":
        return linear_regex.replacing(pattern, replacement), "string"
    raise ValueError("RE2 has no such function")


def _arrow_function(apply: linear_regex.Apply, kind: str) -> Callable[[Column], Column]:
    def applied(texts: pa.Array) -> pa.Array:
        return apply(texts)

    # With annotations that are strings, Spark looks for the types in the module.
    applied.__annotations__ = {"texts": pa.Array, "return": pa.Array}
    made: Callable[[Column], Column] = arrow_udf(applied, kind)  # type: ignore[call-overload]
    return made
