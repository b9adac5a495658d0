"""Expressions of configurations: Java's meaning, and a bound of time for each."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from java_expressions import NAMES, expressions
from pyspark.sql import SparkSession

import penstock
from penstock.connect.java import bounded_regex, regex as java_regex
from penstock.connect.java.bounded_regex import LONGEST_TEXT, MOST_OVERRUNS, Overrun
from penstock.connect.java.regex_check import fitting
from penstock.connect.records.record import NOTHING, ConnectRecord, NoValue
from penstock.connect.source.signal_format import BadSignal, signal_of
from penstock.connect.transforms.predicates import topic_name_matches
from penstock.connect.transforms.routing import regex_router
from penstock.connect.transforms.steps import Step
from penstock.connect.worker.settings import _provider
from penstock.errors import PenstockError
from penstock.spark_runtime.java_regex_syntax import LONGEST_PATTERN

SLOW, TEXT = "(a|aa)+b", "a" * 42 + "x"
"""Java and Python's `re` try each of the ways to divide the letters: 10 to the power of eight."""


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_regex, "BOUND", 0.02)


def record(topic: str) -> ConnectRecord:
    return ConnectRecord(topic, 0, 0, 0, NOTHING, NOTHING, ())


def routed(step: Step, topic: str) -> str:
    changed = step(record(topic))
    assert changed
    return changed.topic


def test_a_record_whose_topic_takes_too_long_is_a_bad_one() -> None:
    route = regex_router({"regex": SLOW, "replacement": "b"})
    assert routed(route, "aaab") == "b"
    for step in route, topic_name_matches({"pattern": SLOW}):
        with pytest.raises(NoValue, match=r"'\(a\|aa\)\+b' takes more than 0.02 s for 'aaa.*write it without"):
            step(record(TEXT))


@pytest.mark.parametrize("pattern", [r"(a+)+b", r"(a|a)*b", r"(.*a){20}b", r"(?=(a+)+b)x", r"(a*)*\1b", "(?:a?){42}b"])
def test_other_expressions_that_java_would_never_end_are_answered(pattern: str) -> None:
    assert routed(regex_router({"regex": pattern, "replacement": "b"}), TEXT) == TEXT


def test_many_bad_topics_fail_the_task_that_they_would_hold() -> None:
    route = regex_router({"regex": SLOW, "replacement": "b"})
    for number in range(MOST_OVERRUNS):
        for _ in range(2):
            with pytest.raises(NoValue):
                route(record(f"{TEXT}{number}"))
    with pytest.raises(PenstockError, match=f"so it is for {MOST_OVERRUNS} other texts.*correct the expression"):
        route(record(TEXT))


def test_a_long_text_is_not_matched() -> None:
    with pytest.raises(Overrun, match="has 10001 characters"):
        java_regex.matching(".*")("a" * (LONGEST_TEXT + 1))


def test_a_list_of_names_has_one_bound() -> None:
    names = [f"{TEXT}{number}" for number in range(1000)]
    with pytest.raises(PenstockError, match=r"takes more than .*Next: correct the expression"):
        fitting(SLOW, names)


def test_a_signal_whose_pattern_takes_too_long_is_refused() -> None:
    signal = {"type": "execute-snapshot", "data": {"data-collections": [r"((a|aa)(\1|a\1)*x)*+b"]}}
    with pytest.raises(BadSignal, match="repeats a group"):
        signal_of(signal, ["ks.t"], lambda table, text: None, "here")


def test_a_provider_asks_only_for_variables_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = _provider("env", "p.", {"p.allowlist.pattern": SLOW}, "a file")
    assert provider.find(None, TEXT) is None
    monkeypatch.setitem(os.environ, TEXT, "secret")
    with pytest.raises(Overrun):
        provider.find(None, TEXT)


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("(a{1000}){1000}", "more than 20000 elements"),
        ("a" * (LONGEST_PATTERN + 1), "it has 10001 characters"),
        ("(" * 5000 + ")" * 5000, "too many groups"),
        ("(?R)", "Unknown inline modifier"),
        ("(?:a){e<=1}", "Illegal repetition"),
        ("(?P<a>b)", "Unknown inline modifier"),
        ("[[:alpha:]&&&", "Unclosed character class"),
        (r"\p{InGreek}", "not supported"),
        (r"\N{NO SUCH LETTER}", "Unknown character name"),
        ("a\\", "escape"),
    ],
)
def test_what_is_too_large_or_not_java_s_is_refused(pattern: str, said: str) -> None:
    assert said in str(java_regex.problem(pattern))


# Java's meaning.


@pytest.fixture(scope="module")
def java(spark: SparkSession) -> Iterator[Any]:
    yield spark.sparkContext._jvm


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(expressions())
def test_expressions_mean_what_they_mean_in_java(java: Any, pattern: str) -> None:
    try:
        judge = java.java.util.regex.Pattern.compile(pattern)
    except Exception:
        return
    expression = java_regex.compiled(pattern)
    for text in NAMES:
        matcher = judge.matcher(text)
        assert (expression.fullmatch(text) is not None) == matcher.matches(), text
        matcher.reset()
        found = expression.search(text)
        assert (found.span() if found else None) == ((matcher.start(), matcher.end()) if matcher.find() else None), text


# One room: every other place compiles what is in the source.

SOURCE = Path(penstock.__file__).parent
OF_RE = {"compile", "match", "search", "fullmatch", "sub", "subn", "split", "findall", "finditer"}
OF_SPARK = {"rlike", "regexp", "regexp_like", "regexp_count", "regexp_extract", "regexp_extract_all", "regexp_instr"}
OF_SPARK |= {"regexp_replace", "regexp_substr"}
FROM_OUTSIDE = {
    "connect/java/bounded_regex.py": "the room itself",
    "connect/java/simple_date_format.py": "built of two constants in the same expression",
    "connect/java/date_time_formatter.py": "built of parts of its own, of which at most ten may be missing",
    "connect/sinks/cql/topic_codecs.py": "built around the separators of a locale",
    "connect/sinks/cql/datastax_properties.py": "an argument, from the lines above it",
    "connect/worker/secrets.py": "secrets, escaped",
    "codec/problem.py": "the constants PATTERNS",
    "cli/cql.py": "a name, escaped",
    "run/faults.py": "built around a constant, escaped",
    "local/java.py": "an argument, which is in the source",
    "query/real_time.py": "the pipeline's own code, which Spark's source compiles, too",
}
"""The modules whose expressions are neither literals nor constants of their module, and why that is no danger."""


def expressions_of(tree: ast.Module) -> Iterator[ast.expr]:
    """The expression of each call that compiles or matches one."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner, name = getattr(node.func.value, "id", ""), node.func.attr
        if owner in ("re", "regex") and name in OF_RE:
            yield node.args[0]
        elif name in OF_SPARK or (owner == "F" and name == "split"):
            yield node.args[1 if owner == "F" else 0]


def is_constant(part: ast.AST, names: set[str]) -> bool:
    """Whether it is a literal, or is put together of literals and of constants of modules."""
    if isinstance(part, ast.Constant):
        return True
    if isinstance(part, ast.Name):
        return part.id in names
    if isinstance(part, ast.Attribute):
        return part.attr == "pattern" and is_constant(part.value, names)
    if isinstance(part, ast.Call):
        is_lit = isinstance(part.func, ast.Attribute) and part.func.attr in ("lit", "join")
        return is_lit and all(is_constant(each, names) for each in part.args)
    if isinstance(part, ast.JoinedStr | ast.BinOp | ast.FormattedValue):
        kinds = ast.expr_context | ast.operator
        return all(is_constant(each, names) for each in ast.iter_child_nodes(part) if not isinstance(each, kinds))
    return False


def constants(tree: ast.Module) -> set[str]:
    """Names in capitals that the module binds or imports."""
    bound = {name.id for node in tree.body for name in ast.walk(node) if isinstance(name, ast.Name)}
    bound |= {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    return {name for name in bound if name.isupper()}


def test_expressions_from_outside_are_in_one_room() -> None:
    outside: dict[str, list[str]] = {}
    for file in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(file.read_text())
        if bad := [ast.unparse(text) for text in expressions_of(tree) if not is_constant(text, constants(tree))]:
            outside[str(file.relative_to(SOURCE))] = bad
    assert outside.keys() == FROM_OUTSIDE.keys(), outside
