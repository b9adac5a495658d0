"""Rules in Python: what is refused, round trips of any rule, and the arrays that the loops get."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta as td
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings, strategies as st

from penstock import segment
from penstock.errors import PenstockError
from penstock.segment import segment_match
from penstock.segment.rule_definitions import LONGEST, All, Any_, Condition, Rule, spec, terms
from penstock.segment.rule_files import parse
from penstock.segment.rule_plan import (
    ABSENCE,
    AND,
    AT,
    BEGIN,
    BIT,
    BITS,
    CHAIN,
    COUNT,
    FIRST_CODE,
    FIRST_TERM,
    HEAD,
    KEEP,
    KIND,
    LAST_CODE,
    LAST_TERM,
    LATEST,
    RESOLUTION,
    STEP,
    TOTAL,
    TTL,
    UNTIL_FALSE,
    VALUE,
    WIDTH,
    WITHIN,
    N,
    plan,
)

DAY = td(days=1)
TEXTS = st.sampled_from(
    ["event = 'visit'", "a", "true", "null", "5", "1.5", "a: b", "'", '"x"', "#", "- a", "{a}", "ü", " a ", "a\nb", "~"]
)
TIMES = st.timedeltas(td(milliseconds=1), td(days=400))
NUMBERS = st.floats(-1e12, 1e12, allow_nan=False) | st.integers(-(10**6), 10**6)
LEAVES: st.SearchStrategy[Condition] = st.one_of(
    st.builds(lambda w, n, t: segment.count(w, at_least=n, within=t), TEXTS, st.integers(1, 200), TIMES),
    st.builds(lambda v, w, n, t: segment.total(v, when=w, at_least=n, within=t), TEXTS, TEXTS, NUMBERS, TIMES),
    st.builds(lambda s, t: segment.sequence(*s, within=t), st.lists(TEXTS, min_size=2, max_size=8), TIMES),
    st.builds(lambda a, b, t: segment.absence(a, after=b, within=t), TEXTS, TEXTS, TIMES),
    TEXTS.map(segment.latest),
)


def joined(parts: st.SearchStrategy[Condition]) -> st.SearchStrategy[Condition]:
    some = st.lists(parts, min_size=1, max_size=3)
    return some.map(lambda found: segment.all_of(*found)) | some.map(lambda found: segment.any_of(*found))


CONDITIONS = st.recursive(LEAVES, joined, max_leaves=5)
NAMES = st.sampled_from(["a", "a.b", "seg-2", "true", "null", "5", "1.5", "é", "_", "a-b.-c", "2026-01-01"])
RULES = st.builds(
    lambda name, when, ttl, to, leave, off, step: segment.rule(
        name, when=when, ttl=ttl, to=to, leave=leave, until_false=off, prolong=step
    ),
    NAMES,
    CONDITIONS,
    TIMES,
    TEXTS,
    st.none() | TEXTS,
    st.booleans(),
    st.none() | TIMES,
)


@settings(max_examples=40)
@given(st.lists(RULES, min_size=1, max_size=3, unique_by=lambda rule: rule.name))
def test_rules_written_as_yaml_are_read_as_the_same(rules: list[Rule]) -> None:
    text = yaml.safe_dump([spec(rule) for rule in rules], allow_unicode=True)
    again = parse(text, "f.yaml")
    assert [replace(rule, line="") for rule in again] == rules
    assert [rule.digest for rule in again] == [rule.digest for rule in rules]


@settings(max_examples=40)
@given(RULES, TIMES, TEXTS)
def test_a_digest_depends_on_what_is_counted_and_on_nothing_else(rule: Rule, time: td, text: str) -> None:
    assert replace(rule, ttl=time, to=text, prolong=time, line="f, line 1").digest == rule.digest
    others = [
        replace(rule, name=f"{rule.name}x"),
        replace(rule, until_false=not rule.until_false),
        replace(rule, leave=f"{rule.leave} or x"),
        replace(rule, condition=segment.all_of(rule.condition)),
    ]
    assert rule.digest not in {other.digest for other in others}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": ""}, "'' is not a valid segment name"),
        ({"name": "-a"}, "'-a' is not a valid segment name"),
        ({"name": "a|b"}, "'a|b' is not a valid segment name"),
        ({"name": "a\n"}, r"'a\\n' is not a valid segment name"),
        ({"name": "x" * 300 + " "}, r"^'x{199}\.\.\. is not a valid segment name"),
        ({"to": ""}, "to is empty .rule 'r'.*set to= to the topic"),
        ({"ttl": "0 seconds"}, "ttl is 0:00:00 .rule 'r'"),
        ({"ttl": td(microseconds=999)}, "ttl is 0:00:00.000999"),
        ({"ttl": td(-1)}, "ttl of rule 'r' is negative"),
        ({"ttl": "soon"}, "ttl of rule 'r' is not a duration: 'soon'"),
        ({"ttl": LONGEST}, "ttl plus prolong is .*use at most 19 years"),
        ({"within": "0 days", "at_least": 2}, "within is 0:00:00"),
        ({"within": LONGEST + DAY, "at_least": 2}, "within is 6936 days.*above zero and at most 19 years"),
        ({"at_least": 2}, "at_least needs within .rule 'r'.*within=\"7 days\""),
        ({"at_least": 0, "within": DAY}, "at_least is 0 .rule 'r'.*set it to 1 or more"),
        ({"at_least": -3, "within": DAY}, "at_least is -3"),
        ({"total": "v", "within": DAY}, "total needs at_least .*the sum to reach"),
        ({"total": "v", "within": DAY, "at_least": float("nan")}, "at_least is nan .*finite number"),
        ({"when": segment.latest("a"), "within": DAY}, "at_least, total and within need a predicate in when"),
        ({"when": segment.latest("a"), "at_least": 1}, "need a predicate in when.*segment.count"),
        ({"when": segment.latest("a"), "total": "v"}, "need a predicate in when"),
        ({"when": segment.any_of()}, "a condition has no parts"),
        ({"when": segment.all_of(segment.latest("a"), segment.any_of())}, "a condition has no parts"),
        ({"when": segment.sequence(*"abcdefghi", within=DAY)}, "a sequence has 9 steps .*use 2 to 8"),
        ({"when": segment.sequence("a", within=DAY)}, "a sequence has 1 steps"),
        ({"when": segment.absence("a", after="b", within="0 days")}, "within is 0:00:00"),
        ({"prolong": "-1 day"}, "prolong is not a duration"),
    ],
)
def test_a_wrong_rule_is_refused_with_what_to_do(given: dict[str, Any], said: str) -> None:
    arguments: dict[str, Any] = {"name": "r", "when": "a", "ttl": DAY, "to": "t"} | given
    with pytest.raises(PenstockError, match=f"(?s){said}"):
        segment.rule(arguments.pop("name"), **arguments)


def test_what_a_rule_means_if_little_is_said() -> None:
    once = segment.rule("r", when="a", ttl="64 days", to="t")
    assert once.condition == segment.count("a", at_least=1, within="64 days")
    assert (once.prolong, once.leave, once.until_false) == (DAY, None, False)
    assert segment.rule("r", when="a", within="1 hour", ttl=DAY, to="t").condition == segment.count(
        "a", at_least=1, within="1 hour"
    )
    summed = segment.rule("r", when="a", total="v", at_least=1.5, within=DAY, ttl=DAY, to="t")
    assert summed.condition == segment.total("v", when="a", at_least=1.5, within=DAY)
    # A step below a millisecond is a millisecond: times are milliseconds.
    assert segment.rule("r", when="a", ttl=td(milliseconds=1), to="t").prolong == td(milliseconds=1)
    assert segment.rule("r", when="a", ttl=DAY, to="t", prolong="0 seconds").prolong == td(milliseconds=1)


def value_of(condition: Condition, truths: list[bool]) -> bool:
    """The condition's value if its terms, from left to right, have these values."""
    if isinstance(condition, All | Any_):
        found = [value_of(part, truths) for part in condition.parts]
        return all(found) if isinstance(condition, All) else any(found)
    return truths.pop(0)


def run(program: list[int], first: int, truths: list[bool]) -> bool:
    stack: list[bool] = []
    for code in program:
        if code >= 0:
            stack.append(truths[code - first])
        else:
            right, left = stack.pop(), stack.pop()
            stack.append(left and right if code == AND else left or right)
    (result,) = stack
    return result


@settings(max_examples=40)
@given(st.lists(RULES, min_size=1, max_size=3, unique_by=lambda rule: rule.name), st.data())
def test_the_arrays_of_rules_say_the_same_as_the_rules(rules: list[Rule], data: st.DataObject) -> None:
    made = plan(rules)
    uses = {(rule, bit): text for text, some in zip(made.predicates, made.uses, strict=True) for rule, bit in some}
    assert len(made.predicates) == len(set(made.predicates)) and len(made.values) == len(set(made.values))
    for number, (rule, row) in enumerate(zip(rules, made.rules.tolist(), strict=True)):
        leaves = list(terms(rule.condition))
        truths = data.draw(st.lists(st.booleans(), min_size=len(leaves), max_size=len(leaves)))
        program = made.program[row[FIRST_CODE] : row[LAST_CODE]].tolist()
        assert run(program, row[FIRST_TERM], truths) == value_of(rule.condition, [*truths])
        assert row[TTL] == max(1, rule.ttl // td(milliseconds=1)) and row[STEP] == rule.prolong // td(milliseconds=1)
        assert row[UNTIL_FALSE] == rule.until_false and row[LAST_TERM] - row[FIRST_TERM] == len(leaves)
        assert uses.get((number, 0)) == (rule.leave.strip() if rule.leave else None)
        rows = made.terms[row[FIRST_TERM] : row[LAST_TERM]].tolist()
        # The states of terms follow each other, and so do their bits.
        assert [one[AT] for one in rows] == sorted({one[AT] for one in rows}) and rows[0][AT] == HEAD < row[WIDTH]
        bits = sorted(bit for of, bit in uses if of == number and bit)
        assert bits == list(range(1, len(bits) + 1))
        assert row[BEGIN] == sum(1 << one[BIT] for one in rows)
        assert row[KEEP] >= max(one[WITHIN] for one in rows)


def test_each_kind_of_term_has_its_row() -> None:
    hour, ms = td(hours=1), td(milliseconds=1)
    when = segment.all_of(
        segment.count("a", at_least=64, within=hour),
        segment.count("a", at_least=65, within=65 * ms),
        segment.total(" v ", when="b", at_least=2.5, within=hour),
        segment.sequence("a", "b", "c", within=hour),
        segment.absence("a", after="b", within=hour),
        segment.latest("c"),
    )
    made = plan([segment.rule("r", when=when, ttl="2 hours", to="t")])
    count, many, total, chain, absence, latest = made.terms.tolist()
    kinds = [one[KIND] for one in (count, many, total, chain, absence, latest)]
    assert kinds == [COUNT, TOTAL, TOTAL, CHAIN, ABSENCE, LATEST]
    assert (count[N], chain[N], latest[WITHIN]) == (64, 3, 7_200_000)
    # Bins are rounded up to whole milliseconds, and records are kept for as long as their bins cover.
    assert (many[RESOLUTION], many[VALUE], made.limits[1]) == (2, -1, 65.0)
    assert (total[RESOLUTION], total[VALUE], made.limits[2]) == (56_250, 0, 2.5)
    assert made.values == ("v",)
    assert made.rules[0][KEEP] == 7_200_000
    assert made.rules[0][WIDTH] == HEAD + 64 + 65 + 65 + 6 + 3 + 2
    assert made.predicates == ("a", "b", "c", "NOT (c)")


def test_a_rule_may_have_as_many_predicates_as_a_mask_has_bits() -> None:
    def of(count: int) -> Rule:
        parts = [segment.count(f"p{number}", at_least=1, within=DAY) for number in range(count)]
        return segment.rule("r", when=segment.any_of(*parts), ttl=DAY, to="t", leave="out")

    made = plan([of(BITS)])
    assert max(bit for some in made.uses for _, bit in some) == BITS
    assert 0 < made.rules[0][BEGIN] == (1 << BITS + 1) - 2
    with pytest.raises(PenstockError, match=r"63 predicates in one rule .rule 'r'.*at most 62 are possible"):
        plan([of(BITS + 1)])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path / "none.yaml", r"none.yaml cannot be read: No such file"),
        (lambda path: path, r"cannot be read: Is a directory"),
        (lambda path: written(path, "- {name: ä}".encode("latin-1")), "is not UTF-8.*save it as UTF-8"),
        (lambda path: written(path, b""), "is not a list of rules"),
        (lambda path: written(path, b"[]"), "there are no rules"),
        (lambda path: written(path, b"- - name: x"), r"\['?.*is not a rule|is not a rule"),
    ],
)
def test_a_file_that_cannot_be_rules_is_refused(tmp_path: Path, make: Callable[[Path], Path], said: str) -> None:
    with pytest.raises(PenstockError, match=said):
        segment.rules(make(tmp_path))


def written(folder: Path, data: bytes) -> Path:
    (folder / "rules.yaml").write_bytes(data)
    return folder / "rules.yaml"


VALID = "- {name: x, when: a, ttl: 1 day, to: t}"


@pytest.mark.parametrize("data", [b"\xef\xbb\xbf" + VALID.encode(), VALID.encode() + b"\r\n# end\r\n", VALID.encode()])
def test_an_unchanged_file_is_not_parsed_again(tmp_path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    file = segment.rules(written(tmp_path, data))
    assert [rule.name for rule in file] == ["x"] and file.rules[0].line == f"{file.path}, line 1"
    monkeypatch.setattr(segment_match, "parse", pytest.fail)
    segment_match.require_same(file, file.text)


def test_a_changed_file_ends_a_query_only_if_its_rules_are_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = segment.rules(written(tmp_path, VALID.encode()))

    def after(text: str) -> None:
        written(tmp_path, text.encode())
        segment_match.require_same(file, file.text)

    after(f"# a comment\n{VALID}\n")
    assert capsys.readouterr().err == ""
    after(VALID.replace("a,", "[],"))
    assert "the rules stay as they are: when is [], not str or dict" in capsys.readouterr().err
    many = ", ".join(f"{{latest: p{number}}}" for number in range(32))
    after(f"- {{name: x, when: {{all: [{many}]}}, ttl: 1 day, to: t}}")
    assert "64 predicates in one rule" in capsys.readouterr().err
    for text in (VALID.replace("to: t", "to: u"), f"{VALID}\n{VALID.replace('x', 'y')}"):
        with pytest.raises(segment_match.RulesChanged, match=r"the rules in .*rules\.yaml changed"):
            after(text)
    file.path.unlink()
    segment_match.require_same(file, file.text)


def test_a_stage_of_a_file_looks_at_the_file_before_each_run(tmp_path: Path) -> None:
    def stage(batches: Any) -> Any:
        yield from batches

    file = segment.rules(written(tmp_path, VALID.encode()))
    watched = segment_match.watching(file, stage)
    assert list(watched(iter([]))) == []
    written(tmp_path, VALID.replace("to: t", "to: u").encode())
    with pytest.raises(segment_match.RulesChanged):
        list(watched(iter([])))
    assert segment_match.watching(file.rules, stage) is stage
