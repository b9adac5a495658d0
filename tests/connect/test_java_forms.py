"""Java's own classes as judges: its regular expressions and its formats of times, which configurations use."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pyspark import SparkContext
from pyspark.sql import SparkSession, functions as F
from smt_chains import KAFKA, config_of, errors

from penstock.connect.java.simple_date_format import problem
from penstock.connect.transforms.fast.times import formatted
from penstock.connect.transforms.fields import path_problem, path_steps
from penstock.connect.transforms.source_chain import chain
from penstock.errors import PenstockError


def kafka(name: str, **options: str) -> dict[str, str]:
    return {"type": KAFKA + name, **options}


@pytest.fixture(scope="module")
def java(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?<table>\w+)\k<table>", r"\p{Alpha}++", r"\Qa.(\E", "a(?i)b", "(?d:b)", "[a-z&&[^b]]", r"\h*\z",
        "(?<=a{1,3})b", r"\x{1F600}", r"\cA", r"[\Q]\E]", "x{2}+",
    ],
)  # fmt: skip
@pytest.mark.usefixtures("spark")
def test_regular_expressions_are_java_s(pattern: str) -> None:
    assert errors(config_of(kafka("RegexRouter", regex=pattern, replacement="x"))) == {}


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(", "Unclosed group near index 1"),
        ("a**b", "Dangling meta character"),
        ("*", "Dangling meta character"),
        ("a)", "Unmatched closing"),
        ("a{,3}", "Illegal repetition"),
        ("(?P<a>b)", "Unknown inline modifier|Unknown look-behind|Unknown group type"),
        (r"\N{DIGIT ONE", "Unclosed character name escape"),
    ],
)
@pytest.mark.usefixtures("spark")
def test_what_java_refuses_is_refused_with_its_reason(pattern: str, why: str) -> None:
    for step, name in (
        (kafka("RegexRouter", regex=pattern, replacement="x"), "transforms.t0.regex"),
        (kafka("Filter") | {"predicate": "p"}, "predicates.p.pattern"),
    ):
        found = errors(config_of(step, p=kafka("predicates.TopicNameMatches", pattern=pattern)))[name]
        assert found[0].startswith(f"Invalid value {pattern} for configuration {name}: Invalid regex: ")
        assert re.search(why, found[0])


LETTERS = {"G": 3, "y": 6, "M": 4, "L": 4, "d": 2, "D": 3, "E": 4, "a": 1, "z": 4, "Z": 3, "X": 3}
LETTERS |= dict.fromkeys("HhkKms", 2)
FORMATS = [letter * count for letter, most in LETTERS.items() for count in range(1, most + 1)]
FORMATS += [
    "SSS",
    "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'",
    "''yyyy'y''y'",
    "EEE, d MMM yyyy",
    "dd/MM/yy hh:mm a",
    "'é'é",
    "yyyyMMddHHmmssSSS",
]
TIMES = [0, -1, -86_400_001, 1_709_208_000_123, 1_735_689_599_999, 951_825_600_000]


def test_times_are_written_as_java_s_simple_date_format_writes_them(spark: SparkSession, java: Any) -> None:
    assert [problem(pattern) for pattern in FORMATS] == [None] * len(FORMATS)
    # All in one, which Spark compiles once.
    pattern = " | ".join(FORMATS)
    frame = spark.createDataFrame([(time,) for time in TIMES], "time bigint")
    found = [row.text for row in frame.select(formatted(F.col("time"), pattern).alias("text")).collect()]
    judge = java.java.text.SimpleDateFormat(pattern, java.java.util.Locale.US)
    judge.setTimeZone(java.java.util.TimeZone.getTimeZone("UTC"))
    expected = [judge.format(java.java.util.Date(time)) for time in TIMES]
    for time, mine, java_s in zip(TIMES, found, expected, strict=True):
        assert dict(zip(FORMATS, mine.split(" | "), strict=True)) == dict(
            zip(FORMATS, java_s.split(" | "), strict=True)
        ), time


@pytest.mark.parametrize(
    "letters", ["YYYY", "w", "W", "u", "F", "S", "SS", "SSSS", "MMMMM", "ddd", "GGGG", "n", "Q", "{", "[", "#"]
)
def test_letters_of_another_meaning_are_refused(letters: str) -> None:
    for pattern in (letters, f"yyyy {letters}", f"'quoted'{letters}"):
        assert str(problem(pattern)).startswith(f"{letters} is not supported; use G y M")
    assert problem(f"'{letters}'") is None


@pytest.mark.parametrize(
    "step", [kafka("RegexRouter", regex="a{", replacement="b"), kafka("Filter") | {"predicate": "p"}]
)
def test_an_expression_is_checked_without_a_session(step: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    config = config_of(step, p=kafka("predicates.TopicNameMatches", pattern="a{"))
    with pytest.raises(PenstockError, match=r"Invalid value a\{ for configuration .*Invalid regex: Unclosed counted"):
        chain(config)


NAMES = st.text(st.sampled_from("ab.\\ é-"), min_size=1, max_size=5).filter(lambda name: not name.endswith("\\"))


@given(st.lists(NAMES, min_size=1, max_size=4))
def test_quoted_names_are_read_as_they_are_written(names: list[str]) -> None:
    assert path_steps(".".join(f"`{name}`" for name in names), "V2") == names
    plain = [name.replace(".", "") or "x" for name in names]
    assert path_steps(".".join(plain), "V2") == plain
    assert path_steps(".".join(names), "V1") == [".".join(names)]


@given(st.text(st.sampled_from("a.`\\"), max_size=8))
def test_a_path_is_read_or_refused_with_its_place(path: str) -> None:
    problem = path_problem(path, "v2")
    if problem is None:
        assert path_steps(path, "V2")
    else:
        assert problem.startswith(f"Incomplete backtick pair in path: [{path}]") and "`" in path
    assert path_problem(path, "v1") is None


def test_the_first_unpaired_backtick_is_named() -> None:
    assert "backtick at position 2 to escape" in str(path_problem("a.`b", "V2"))
