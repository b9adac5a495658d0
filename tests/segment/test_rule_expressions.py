"""Regular expressions in rules: they mean what they mean in Spark, and none of them holds a task."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from java_expressions import NAMES, expressions
from pyspark.sql import DataFrame, SparkSession
from waiting import PATIENCE

from penstock import segment
from penstock.errors import PenstockError
from penstock.segment import linear_regex
from penstock.segment.backtracking import Ambiguous, require_linear
from penstock.segment.bounded_predicates import LIKES, PATTERNS, REFLECTION, REGEX_WORDS, bounded
from penstock.segment.linear_regex import linear_like

SCHEMA = "person string, url string, n int, tags array<string>, at timestamp"
LONG = "a" * 200_000
ATTACKS = {
    "url RLIKE '(a+)+b'": "xab",
    "url RLIKE '^(a|aa)+$' AND n = 1": "aaa",
    "url REGEXP '(.*a){12}b'": "a" * 12 + "b",
    "url LIKE '%a%a%a%a%a%a%b'": "aaaaaa.b",
    "url LIKE '%a%a%a%a%a%a_c%'": "aaaaaa.c",
    "url NOT LIKE ALL ('%a%a%a%a_b', 'a%a%a%a%a%c')": "c",
    "regexp_extract(url, '(a+)*c', 1) = '' AND url <> ''": "c",
    "regexp_replace(url, 'a.*a.*b', '<$0>') = 'x'": "x",
    "exists(tags, tag -> tag LIKE '%a%a%a%a%b')": "aaaab",
}
"""Predicates that Java would never end for LONG, and a text for which each is true."""


def rule(name: str, when: str) -> segment.Rule:
    return segment.rule(name, when=when, ttl="1 day", to="t")


def line(person: str, url: str) -> str:
    return json.dumps({"person": person, "url": url, "n": 1, "tags": [url], "at": "2026-03-01T00:00:00Z"})


def test_long_texts_hold_no_task(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "events"
    source.mkdir()
    texts = list(ATTACKS.values())
    people = [line(f"p{number}", text) for number, text in enumerate(texts)]
    (source / "events.json").write_text("\n".join([*people, line("attacker", LONG)]))
    frame = spark.readStream.schema(SCHEMA).json(str(source))
    rules = [rule(f"r{number}", when) for number, when in enumerate(ATTACKS)]
    changes = segment.match(frame, rules, key="person", name="expressions", at="at", clock="events")
    to = changes.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = to.trigger(availableNow=True).start(str(tmp_path / "out"))
    try:
        assert query.awaitTermination(int(PATIENCE)), "the batch does not end"
    finally:
        query.stop()
    found = spark.read.parquet(str(tmp_path / "out")).where("event = 'enter'").collect()
    members = {(row.person, row.segment) for row in found}
    assert {(f"p{number}", f"r{number}") for number in range(len(texts))} <= members
    assert {name for person, name in members if person == "attacker"} == {"r1", "r5", "r6"}


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("ann", "x", 1, ["x"], None)], SCHEMA)


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ("url RLIKE n", r"the pattern 'CAST\(n AS STRING\)' is not a constant.*contains\(a, b\)"),
        ("url LIKE person", "the pattern 'person' is not a constant"),
        (
            "url RLIKE '(?=(a+)+b)x'",
            r"takes too long.*\(a\+\)\+ repeats a group.*RE2 cannot evaluate it: it has a look-around",
        ),
        (r"url RLIKE '(\\w+)-\\1'", r"\\1 stands for a text of any length"),
        (
            "size(split(url, 'a.*b')) > 1",
            r"the start of the search and to \.\*; and RE2 cannot evaluate it: RE2 has no such function",
        ),
        ("exists(tags, t -> t RLIKE 'a.*b')", "in a function of arrays there is no faster way"),
        ("parse_url(url, 'QUERY', '(a+)+b') = 'x'", "repeats a group"),
        ("n > 3 AND CAST(CAST(url AS INT) AS STRING) RLIKE '(a+)+b'", "for which it may fail.*make it a column"),
        ("url RLIKE '['", "cannot be read: Unclosed character class.*correct it"),
        ("reflect('java.lang.System', 'exit', 1) = 1", "a rule may not call a method of Java"),
        ("(SELECT count(*) FROM range(2) WHERE 'a' RLIKE '(a+)+b') = 1", "it has a subquery"),
        ("true, 2L, 0L) + if(false", "Spark refuses 'true, 2L"),
        ("url LIKE '" + "%a" * 1001 + "'", "more than 1000 pieces"),
    ],
)
def test_what_could_hold_a_task_is_refused_with_the_rule(frame: DataFrame, when: str, said: str) -> None:
    with pytest.raises(PenstockError, match=f"(?s){said}.*") as error:
        segment.match(frame, [rule("other", "n = 1"), rule("bad", when)], key="person", name="s", at="at")
    assert error.value.where == "rule 'bad'"


@pytest.mark.parametrize(
    "when",
    [
        "url RLIKE '^https?://[^/]+/shop'",
        "url RLIKE '(?i)^(?!.*bot).*chrome'",
        "url RLIKE 'utm_source=(?!google)[a-z]+'",
        "regexp_extract(url, '[?&]id=([0-9]+)(&|$)', 1) = '5'",
        "size(split(url, '[,;] *')) > 1",
        "exists(tags, t -> t RLIKE 'iphone|ipad')",
        "url LIKE 'a%b'",
        "url LIKE '%a%'",
        "split_part(url, '/', 2) = 'x'",
    ],
)
def test_harmless_predicates_stay_with_spark(frame: DataFrame, when: str) -> None:
    assert bounded(frame, [when], str) == (frame, {})


def test_functions_with_expressions_are_known_by_their_names(spark: SparkSession) -> None:
    """A new release of Spark may have more of them."""
    registry = spark._jsparkSession.sessionState().functionRegistry()
    listed = registry.listFunction()
    about = [registry.lookupFunction(listed.apply(number)).get() for number in range(listed.size())]
    classes = {one.getName(): one.getClassName().rpartition(".")[2] for one in about}
    known = {*PATTERNS, *LIKES, *REFLECTION, "Like", "ILike", "RegExpCount", "RegExpSubStr"}
    own = {name for name, kind in classes.items() if kind in known or re.search("RegExp|Like$|Regex", kind)}
    assert len(own) > 15 and {name for name in own if not REGEX_WORDS.search(name)} == set()
    assert {classes[name] for name in own} <= known


# What expressions mean.


@pytest.fixture(scope="module")
def java(spark: SparkSession) -> Iterator[Any]:
    yield spark.sparkContext._jvm


LETTERS = st.sampled_from([*"abAB%_\\#.\n\r", "é", "\U0001f600", "\u2028"])


@settings(max_examples=400, deadline=None, derandomize=True, database=None)
@given(
    st.text(LETTERS, max_size=9), st.lists(st.text(LETTERS, max_size=9), min_size=1, max_size=6), st.sampled_from("\\#")
)
def test_like_means_what_it_means_in_spark(java: Any, pattern: str, texts: list[str], escape: str) -> None:
    written = linear_like(pattern, escape)
    if written is None:
        return
    sparks = java.org.apache.spark.sql.catalyst.util.StringUtils.escapeLikeRegex(pattern, escape)
    theirs, ours = (java.java.util.regex.Pattern.compile(one) for one in (sparks, written))
    near = re.sub("[%_]", "a", pattern.replace(escape, ""))
    for text in [*texts, near, pattern, near.replace("a", "ab"), near + near]:
        assert ours.matcher(text).find() == theirs.matcher(text).matches(), text


TEXTS = [*NAMES, "a\n", "a\r\n", "\r\n", "ab\rb\n", "é", "aéb", "\u2028", "b\u2028", "\U0001f600a", "a b"]


def is_of_java_19(pattern: str, text: str) -> bool:
    """Whether letters beyond ASCII would be parts of words for Java 17, and not for later ones."""
    return not text.isascii() and bool(re.search(r"\\[bB]", pattern))


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(expressions())
def test_expressions_mean_in_re2_what_they_mean_in_java(java: Any, pattern: str) -> None:
    try:
        judge = java.java.util.regex.Pattern.compile(pattern)
        found = linear_regex.matching(pattern)(pa.array(TEXTS)).to_pylist()
    except Exception:
        return
    for text, is_found in zip(TEXTS, found, strict=True):
        if not is_of_java_19(pattern, text):
            assert judge.matcher(text).find() == is_found, text
    try:
        first = linear_regex.extracting(pattern, 0)(pa.array([*TEXTS, None])).to_pylist()
    except ValueError:
        return
    for text, part in zip(TEXTS, first[:-1], strict=True):
        if is_of_java_19(pattern, text):
            continue
        matcher = judge.matcher(text)
        assert (matcher.group() if matcher.find() else "") == part, text
    assert first[-1] is None


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(expressions(), st.sampled_from(["", "-", "<$0>", r"\$", r"\\"]))
def test_replacements_mean_in_re2_what_they_mean_in_java(java: Any, pattern: str, replacement: str) -> None:
    try:
        judge = java.java.util.regex.Pattern.compile(pattern)
        found = linear_regex.replacing(pattern, replacement)(pa.array(TEXTS)).to_pylist()
    except Exception:
        return
    for text, replaced in zip(TEXTS, found, strict=True):
        if is_of_java_19(pattern, text):
            continue
        assert judge.matcher(text).replaceAll(replacement) == replaced, text


# What Java may run.


@pytest.mark.parametrize(
    "pattern",
    [
        *("(a+)+b", "(a|aa)+b", "(a|b)*", "foo.*bar", "^a.*b.*c", r"\d+$", "(a?){30}b", "(?:a|a){12}b", "(?=(a+)+b)x"),
        *(r"(\w+)\1", "(.*a){20}b", r"^(\w+\.)*com$", "[a-z]+[0-9a-z]*x", "x*y?x*z", "(?i)^[a-c]*[B-D]*x"),
        *(".{0,90}.{0,90}b", r"^\p{L}*[à-ü]*x"),
    ],
)
def test_ambiguous_expressions_are_found(pattern: str) -> None:
    with pytest.raises(Ambiguous):
        require_linear(pattern)


WORDS_OF_ATTACKS = ["a", "b", "ab", "A", "1", "-", "aab", "\n", "k", " ", "&", "é"]
ATTACK_TEXTS = [word * (100_000 // len(word)) + end for word in WORDS_OF_ATTACKS for end in ("", "!", "\n\n")]


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(expressions())
def test_what_java_may_run_ends_for_long_texts(java: Any, pattern: str) -> None:
    try:
        judge = java.java.util.regex.Pattern.compile(pattern)
        require_linear(pattern)
    except Exception:
        return
    problems: list[Exception] = []

    def attack() -> None:
        try:
            for text in ATTACK_TEXTS:
                judge.matcher(text).find()
        except Exception as error:
            problems.append(error)

    thread = threading.Thread(target=attack, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive() and not problems, problems
