"""Functions in rules that make much of little: they are refused with the rule, and a new one of Spark's is met."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock import segment
from penstock.errors import PenstockError
from penstock.segment.bounded_predicates import FOLDS, FORMATS, FUNCTION_WORDS, PRODUCTS, SERIES, SIZES, bounded

SCHEMA = "person string, url string, n int, tags array<string>, at timestamp"
REVIEWED = Path(__file__).parents[1] / "data" / "bounded_functions.txt"
"""Spark's functions whose results have a bound in their arguments, or that a predicate cannot have."""
ELSEWHERE = {"agg_funcs", "window_funcs", "generator_funcs"}
"""Groups of functions that Spark itself refuses in a predicate."""


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("ann", "x", 1, ["x"], None)], SCHEMA)


def match(frame: DataFrame, when: str | segment.Condition) -> None:
    rules = [segment.rule(name, when=text, ttl="1 day", to="t") for name, text in (("a", "n = 1"), ("bad", when))]
    segment.match(frame, rules, key="person", name="s", at="at")


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ("size(sequence(1, 1000000000)) > 0", "sequence makes as many elements as it is asked for"),
        ("size(sequence(1, n)) > 0", r"sequence makes .*sequence\(1, n\).*BETWEEN"),
        ("repeat('x', 1e9) = url", r"repeat is given CAST\(1.0E9D AS INT\).*at most 100"),
        ("repeat('x', 1e12) = url", r"repeat is given CAST\(1.0E12D AS INT\)"),
        ("repeat(url, n) = 'x'", "repeat is given n: .*at most 100"),
        ("REPEAT(repeat(repeat(url, 50), 50), 2) = 'x'", "repeat is given 50, in a function .* 100 times"),
        ("size(array_repeat(url, 1000000)) = 1", "array_repeat is given 1000000"),
        ("size(array_insert(tags, 1000000, url)) = 1", "array_insert is given 1000000"),
        ("space(1000000000) = url", "space is given 1000000000"),
        ("lpad(url, 1000000000, ' ') = url", "lpad is given 1000000000"),
        ("rpad(url, n) = url", "rpad is given n"),
        ("rpad(cast(url AS binary), 1000000000) = cast(url AS binary)", "rpad is given 1000000000"),
        ("randstr(1000000000) = url", "randstr is given 1000000000"),
        ("format_number(n, 1000000000) = url", "format_number is given 1000000000"),
        ("format_string('%-1000000000d', n) = url", "format_string has a width"),
        ("printf(url, n) = url", "(format_string|printf) has a width"),
        ("aggregate(tags, 'x', (all, tag) -> concat(all, all)) = 'x'", "aggregate may double its result"),
        ("reduce(tags, array('x'), (all, tag) -> all || all) = tags", "(aggregate|reduce) may double its result"),
        ("exists(tags, tag -> repeat(tag, 1000) = 'x')", "repeat is given 1000"),
        ("levenshtein(url, person) < 3", "levenshtein multiplies two texts"),
        ("replace(url, 'a', url) = 'x'", "replace multiplies two texts"),
        ("array_join(tags, url) = 'x'", "array_join multiplies two texts"),
        ("(SELECT count(*) FROM range(1000000000000)) = n", "it has a subquery"),
        ("EXISTS (FROM range(1000000000000))", "it has a subquery"),
        ("explode(tags) = 'x'", "(?i)spark refuses .*(generator|explode)"),
        (segment.total("length(space(1000000000))", at_least=1, within="1 day"), "space is given 1000000000"),
        (segment.latest("url LIKE '%a%b%' OR lpad(url, n) = 'x'"), "lpad is given n"),
    ],
    ids=str,
)
def test_a_function_without_a_bound_is_refused_with_the_rule(
    frame: DataFrame, when: str | segment.Condition, said: str
) -> None:
    with pytest.raises(PenstockError, match=f"(?s){said}") as error:
        match(frame, when)
    assert error.value.where == "rule 'bad'"


@pytest.mark.parametrize(
    "when",
    [
        "lpad(url, 12, '0') = '000000000012'",
        "repeat(url, 2) = 'xx'",
        "concat_ws(' ', url, tags) = 'x y'",
        "replace(url, 'a', 'b') = 'x'",
        "levenshtein(url, 'shop') < 2",
        "format_string('%08d', n) = '00000001'",
        "format_number(n, 2) = '1.00'",
        "date_format(at, 'yyyy-MM') = '2026-01'",
        "aggregate(tags, 0, (sum, tag) -> sum + length(tag)) > 3",
        "exists(tags, tag -> startswith(tag, url))",
        "extract(HOUR FROM at) = 5",
    ],
)
def test_functions_with_a_bound_are_left_alone(frame: DataFrame, when: str) -> None:
    assert bounded(frame, [when], str) == (frame, {})


def test_each_function_of_spark_is_reviewed(spark: SparkSession) -> None:
    """A new release may have one that generates: add it to `bounded_predicates`, or, if it cannot, to the file."""
    registry = spark._jsparkSession.sessionState().functionRegistry()
    listed = registry.listFunction()
    about = [registry.lookupFunction(listed.apply(number)).get() for number in range(listed.size())]
    builtin = [one for one in about if one.getSource() == "built-in" and one.getGroup() not in ELSEWHERE]
    classes = {one.getName(): one.getClassName().rpartition(".")[2] for one in builtin}
    known = {*SIZES, *FORMATS, *SERIES, *FOLDS, *PRODUCTS, "LPadExpressionBuilder", "RPadExpressionBuilder"}
    checked = {name for name, kind in classes.items() if kind in known}
    assert {name for name in checked if not FUNCTION_WORDS.search(name)} == set()
    assert classes.keys() - checked == set(REVIEWED.read_text().split())
