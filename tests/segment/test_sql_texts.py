"""What others write reaches Spark's parser in one place: in a rule, which is checked first.

The test finds the calls that take SQL as text. A module that makes such a call is listed with the reason why the text
is not a caller's: it is in the source, or the pipeline's author wrote it, who may run any Python as well.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import penstock

SOURCE = Path(penstock.__file__).parent
OF_SQL = {"expr", "selectExpr", "sql", "parseExpression", "parsePlan", "parse_expression"}
"""Methods whose arguments are SQL."""
OR_COLUMN = "where"
"""A method of frames whose argument may be SQL."""
AUTHOR = "an argument of the pipeline's author"
RULES = "predicates of rules, which Spark parses alone and `bounded_predicates` checks"
ALLOWED = {
    "cql/cql_writer.py": AUTHOR,
    "join/joins.py": "a duration, parsed and written again",
    "kafka/kafka_read.py": AUTHOR,
    "keyed_state/aggregates.py": AUTHOR,
    "spark_runtime/expressions.py": RULES,
    "segment/event_packing.py": RULES,
    "segment/segment_match.py": RULES,
    "state/read.py": "the condition of `penstock state scan`, by who runs the command; the HTTP server has none",
}


def texts_of(tree: ast.Module) -> Iterator[ast.Call]:
    """Calls that pass SQL which is not written there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            names = {part.attr for part in (node.func, *node.args) if isinstance(part, ast.Attribute)}
            is_mapped = isinstance(node.func, ast.Name) and node.func.id == "map" and names & OF_SQL
            is_called = isinstance(node.func, ast.Attribute) and node.func.attr in OF_SQL
            is_where = isinstance(node.func, ast.Attribute) and node.func.attr == OR_COLUMN
            if (
                is_mapped
                or (is_called and not all(isinstance(part, ast.Constant) for part in node.args))
                or (is_where and len(node.args) == 1 and isinstance(node.args[0], ast.JoinedStr | ast.Name))
            ):
                yield node


def test_sql_of_others_is_only_in_rules() -> None:
    found = {
        str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if any(texts_of(ast.parse(path.read_text())))
    }
    assert sorted(found - set(ALLOWED)) == [], "use columns and literals, or list the module with a reason"
    assert sorted(set(ALLOWED) - found) == [], "these pass no SQL any more"
