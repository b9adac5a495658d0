"""Rules in YAML: their meaning, round trips, and errors with their lines."""

from __future__ import annotations

import time
from datetime import timedelta as td
from pathlib import Path
from typing import Any

import pytest
import yaml
from waiting import patience

from penstock import segment
from penstock.errors import PenstockError
from penstock.segment.rule_definitions import spec
from penstock.segment.rule_files import LARGEST, parse, rule_of

FILE = """\
- name: returning
  when: event = 'visit'
  at_least: 3
  within: 7 days
  ttl: 14 days
  to: seg.back
- name: careful
  when:
    all:
      - any:
          - {sequence: ["event = 'cart'", "event = 'buy'"], within: 1 hour}
          - {absence: "event = 'buy'", after: "event = 'cart'", within: 2 hours}
          - {total: amount, when: "event = 'buy'", at_least: 99.5, within: 30 days}
      - latest: country = 'DE'
  ttl: 1 day
  to: seg.careful
  leave: event = 'optout'
  until_false: true
  prolong: 1 hour
"""
RETURNING = segment.rule(
    "returning", when="event = 'visit'", at_least=3, within=td(days=7), ttl=td(days=14), to="seg.back"
)
CAREFUL = segment.rule(
    "careful",
    when=segment.all_of(
        segment.any_of(
            segment.sequence("event = 'cart'", "event = 'buy'", within="1 hour"),
            segment.absence("event = 'buy'", after="event = 'cart'", within="2 hours"),
            segment.total("amount", when="event = 'buy'", at_least=99.5, within="30 days"),
        ),
        segment.latest("country = 'DE'"),
    ),
    ttl="1 day",
    to="seg.careful",
    leave="event = 'optout'",
    until_false=True,
    prolong="1 hour",
)


def test_a_file_means_the_same_as_python(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(FILE)
    read = segment.rules(tmp_path / "rules.yaml")
    assert [spec(rule) for rule in read] == [spec(RETURNING), spec(CAREFUL)]
    assert [rule.where for rule in read] == [
        f"{tmp_path}/rules.yaml, line 1, rule 'returning'",
        f"{tmp_path}/rules.yaml, line 7, rule 'careful'",
    ]


@pytest.mark.parametrize("rule", [RETURNING, CAREFUL], ids=lambda rule: rule.name)
def test_a_rule_survives_its_own_text(rule: segment.Rule) -> None:
    again = rule_of(yaml.safe_load(yaml.safe_dump(spec(rule))), "")
    assert (spec(again), again.digest) == (spec(rule), rule.digest)


def test_the_digest_is_of_what_is_counted() -> None:
    other: dict[str, Any] = {"when": "event = 'visit'", "within": "7 days"}
    same = segment.rule("returning", **other, at_least=3, ttl="1 day", to="elsewhere")
    assert same.digest == RETURNING.digest
    assert segment.rule("returning", **other, at_least=4, ttl="14 days", to="seg.back").digest != RETURNING.digest


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "invalid YAML: .*(f.yaml, line [12])"),
        ("name: x", r"the file is not a list of rules \(f.yaml\).*start each rule with"),
        ("- name: x\n  when: a", r"ttl is missing \(f.yaml, line 1, rule 'x'\).*add a line ttl"),
        ("\n- {name: x, when: a, ttl: 1 day, to: t, foo: 1}", r"unknown 'foo' \(f.yaml, line 2, rule 'x'\).*use name"),
        ("- {name: x, when: a, ttl: 1 dya, to: t}", r"not a duration: '1 dya' \(f.yaml, line 1"),
        ("- {name: x, when: a, ttl: 5, to: t}", r"ttl is 5, not str"),
        ("- {name: x, when: a, at_least: 2, ttl: 1 day, to: t}", "at_least needs within"),
        ("- {name: x, when: a, at_least: 1.5, within: 1 day, ttl: 1 day, to: t}", "1.5 is not an integer"),
        ("- {name: x y, when: a, ttl: 1 day, to: t}", "'x y' is not a valid segment name"),
        (
            "- name: x\n  ttl: 1 day\n  to: t\n  when:\n    cout: a",
            r"{'cout': 'a'} is not a condition \(f.yaml, line 5\).*count, total",
        ),
        ("- name: x\n  ttl: 1 day\n  to: t\n  when:\n    {count: a}", r"count has no at_least \(f.yaml, line 5\)"),
        (
            "- name: x\n  ttl: 1 day\n  to: t\n  when:\n    all:\n    - latest: a\n    - {absence: b, within: 1 day}",
            r"absence has no after \(f.yaml, line 7\)",
        ),
        ("- {name: x, when: a, ttl: 1 day, to: t}\n- {name: x, when: b, ttl: 1 day, to: t}", "line 1.*line 2"),
        ("- {name: x, when: {sequence: [a], within: 1 day}, ttl: 1 day, to: t}", "a sequence has 1 steps"),
        ("- {name: x, when: a, when: b, ttl: 1 day, to: t}", r"'when' appears twice \(f.yaml, line 1\)"),
        ("- {name: \x00}", r"invalid YAML: .*special characters.* \(f.yaml\)"),
        ("- {name: x, when: a, ttl: 2026-13-45, to: t}", r"invalid YAML: '2026-13-45' is not a timestamp"),
        ("[" * 9999, r"invalid YAML: it is nested more than 50 levels"),
        ("- {name: x, when: a, ttl: 36500 days, to: t}", "ttl plus prolong is .*use at most 19 years"),
        ("- {name: x, when: a, ttl: 1 day, prolong: 9000 days, to: t}", "ttl plus prolong is"),
        ("- {name: x, when: {count: a, at_least: 2.5, within: 1 day}, ttl: 1 day, to: t}", "2.5 is not an integer"),
        ("- {name: x, when: {count: a, at_least: .nan, within: 1 day}, ttl: 1 day, to: t}", "nan is not an integer"),
        ("- {name: x, when: {total: a, at_least: .inf, within: 1 day}, ttl: 1 day, to: t}", "at_least is inf"),
        ("- {name: x, when: a, at_least: .inf, within: 1 day, ttl: 1 day, to: t}", "inf is not an integer"),
        ("- {name: x, when: {all: []}, ttl: 1 day, to: t}", "a condition has no parts"),
        ("- {name: x-, when: a, ttl: 1 day, to: t}", "'x-' is not a valid segment name"),
        ("- {name: a--b, when: a, ttl: 1 day, to: t}", "'a--b' is not a valid segment name"),
    ],
)
def test_an_error_says_what_is_wrong_and_on_which_line(text: str, said: str) -> None:
    with pytest.raises(PenstockError, match=f"(?s){said}"):
        parse(text, "f.yaml")


ALIASES = "- &a [1, 1, 1]\n" + "".join(f"- &{b} [{f'*{a}, ' * 9}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=True))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- &a {name: x, when: *a}", "an alias refers to a value that contains it"),
        (ALIASES, "aliases repeat"),
        ("[" * 100_000, "nested more than 50 levels"),
        ("- " + "9" * 101, "a number has more than 100 characters"),
        ("- 1" + ":59" * 100_000, "a number has more than 100 characters"),
        ("- {[a]: b}", "unhashable key"),
        ("- !!int ''", "'' is not a int"),
        ("- !!bool x", "'x' is not a bool"),
        ("- " + "x" * 100_000, "^'x{199}... is not a rule"),
        ("- {name: x, when: y, to: t, ttl: " + "1 s " * 100_000 + "}", "ttl of rule 'x' is not a duration: '1 s"),
    ],
)
def test_texts_that_would_take_time_or_memory_are_refused(text: str, message: str) -> None:
    began = time.process_time()
    with pytest.raises(PenstockError, match=message) as raised:
        parse(text, "f")
    assert len(str(raised.value)) < 1000
    assert time.process_time() - began < patience(5)


def test_a_file_of_any_size_is_refused_without_being_read_whole(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"- x\n" * (LARGEST // 4 + 1))
    with pytest.raises(PenstockError, match=f"has more than {LARGEST} bytes"):
        segment.rules(tmp_path / "large")
