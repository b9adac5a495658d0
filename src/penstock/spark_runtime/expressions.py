"""Spark's own trees of expressions: what SQL means over the columns of a frame, and trees that are built of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from pyspark.sql import Column, DataFrame, functions as F

from penstock.spark_runtime.logical_plan import analyzed, each, is_connect


def require_expressions(frame: DataFrame, texts: Sequence[str]) -> None:
    """Let Spark parse each text alone: "true, 2L, 0L) + if(false" is not an expression, but would be one in another.

    Raises Spark's ParseException, or AnalysisException in a session of Spark Connect.
    """
    if is_connect(frame):
        # The server parses each alone, and analyzes it: one request for all of them.
        _ = frame.select(*map(F.expr, texts)).schema
        return
    parser = frame.sparkSession._jsparkSession.sessionState().sqlParser()
    for text in texts:
        parser.parseExpression(text)


def kind(node: Any) -> str:
    """The class of an expression, as "RLike"."""
    return str(node.getClass().getSimpleName())


class Expressions:
    """Expressions over the columns of a frame."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame
        self._jvm = cast(Any, frame.sparkSession._jvm)
        self._catalyst = self._jvm.org.apache.spark.sql.catalyst.expressions
        self._columns = self._jvm.org.apache.spark.sql.classic.ExpressionUtils
        self._known: dict[tuple[str, str], bool] = {}
        """Which classes of Java are of which kinds."""

    def of(self, texts: Sequence[str]) -> list[Any]:
        """The analyzed expression of each text in SQL; raises Spark's exceptions for one that is wrong."""
        return list(each(analyzed(self._frame.select(*map(F.expr, texts))).expressions()))

    def new(self, name: str, *arguments: Any) -> Any:
        """An expression of a class of Spark's, as "RLike"."""
        return getattr(self._catalyst, name)(*arguments)

    def literal(self, text: str | None, like: Any) -> Any:
        """A constant of the type of another expression."""
        return self._catalyst.Literal.create(text, like.dataType())

    def with_children(self, node: Any, children: Sequence[Any]) -> Any:
        """The expression over others."""
        items = self._jvm.java.util.ArrayList()
        for child in children:
            items.add(child)
        return node.withNewChildren(self._jvm.org.apache.spark.api.python.PythonUtils.toSeq(items))

    def is_a(self, node: Any, name: str) -> bool:
        """Whether an expression is of a class or a trait of Spark's."""
        key = kind(node), name
        if key not in self._known:
            other = self._jvm.Class.forName(f"org.apache.spark.sql.catalyst.expressions.{name}")
            self._known[key] = bool(other.isInstance(node))
        return self._known[key]

    def column(self, expression: Any) -> Column:
        """The column that has an expression's values."""
        return Column(self._columns.column(expression))

    def expression(self, column: Column) -> Any:
        """The expression of a column; the inverse of `column`."""
        return self._columns.expression(cast(Any, column)._jc)
