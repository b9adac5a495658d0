"""Rules of segments in YAML: any bytes give rules or a `PenstockError`, and rules are what PyYAML's safe loader reads.

A rule that was read is written again by `spec`, and read from that as the same.
"""

from __future__ import annotations

import random as randoms
from dataclasses import replace
from typing import Any

import yaml

from penstock.errors import PenstockError
from penstock.segment.rule_definitions import spec
from penstock.segment.rule_files import LARGEST, parse, rule_of

from .mutate import mutated
from .runner import Decoder, Difference

_TEXTS = (
    "event = 'visit'",
    "true",
    "shop.de",
    "a: b",
    "",
    "x" * 40,
    "ü",
    "price > 1",
    "5",
    "null",
    "'",
    "#",
    "- a",
    "=",
)
_TIMES = (
    "10 minutes",
    "7 days",
    "1 hour 30 minutes",
    "0 days",
    "1 microsecond",
    "6935 days",
    "99999999 weeks",
    "1e3 s",
    "",
)
_NUMBERS = (1, 0, -1, 3, 2.5, 64, 10**9, 10**30, 1e308, float("inf"), float("nan"), True, "3")
_ODD = (
    "!!python/object:os.system x",
    "!!binary QQ==",
    "!!set {a, b}",
    "!!omap [a: b]",
    "!!int ''",
    "!!bool x",
    "!!map x",
    "2026-13-01",
    "2026-01-01",
    "1:59:59",
    ":59" * 200,
    "9" * 5000,
    "0x_",
    ".nan",
    "{? [a] : b}",
    "{<<: {a: b}}",
    "&a [*a]",
    "*a",
    "=",
    "[" * 2000,
    "- " * 200,
    '"\\ud800"',
    "\x85",
    "%YAML 9.9\n---",
    "...",
)
_BOMB = "- name: &a [x,x,x,x,x,x,x,x,x]\n  {}"


def _pick(random: randoms.Random, usual: tuple[Any, ...], good: Any) -> Any:
    return good if random.random() < 0.97 else random.choice(usual)


def _condition(random: randoms.Random, depth: int) -> dict[str, Any]:

    def text() -> Any:
        return _pick(random, _TEXTS, f"event = 'e{random.randrange(9)}'")

    def time() -> Any:
        return _pick(random, _TIMES, f"{random.randrange(1, 90)} days")

    def number() -> Any:
        return _pick(random, _NUMBERS, random.randrange(1, 9))

    kind = random.choice(("count", "total", "sequence", "absence", "latest", "all", "any"))
    if kind in ("all", "any"):
        parts = range(random.randrange(1, 4) if depth < 4 else 0)
        return {kind: [_condition(random, depth + 1) for _ in parts]}
    made: dict[str, Any] = {
        "count": lambda: {"count": text(), "at_least": number(), "within": time()},
        "total": lambda: {"total": text(), "at_least": number(), "within": time(), "when": text()},
        "sequence": lambda: {"sequence": [text() for _ in range(random.randrange(1, 5))], "within": time()},
        "absence": lambda: {"absence": text(), "after": text(), "within": time()},
        "latest": lambda: {"latest": text()},
    }[kind]()
    return made


def _rule(random: randoms.Random, number: int) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": _pick(random, _TEXTS, f"r{number}"),
        "when": "event = 'a'" if random.random() < 0.4 else _condition(random, 0),
        "ttl": _pick(random, _TIMES, "30 days"),
        "to": _pick(random, _TEXTS, "topic"),
    }
    extra: dict[str, Any] = {"leave": "b", "until_false": True, "prolong": "1 hour"}
    if isinstance(made["when"], str):
        extra |= {"at_least": 3, "within": "1 day"}
    for name, value in extra.items():
        if random.random() < 0.1:
            made[name] = value if random.random() < 0.8 else random.choice((*_TEXTS, *_NUMBERS))
    if random.random() < 0.03:
        made.pop(random.choice([*made]))
    return made


def _draw(random: randoms.Random) -> bytes:
    rules = [_rule(random, number) for number in range(random.randrange(1, 4))]
    if random.random() < 0.1:
        rules.append(random.choice(rules))  # an alias, and a name that is there twice
    text = yaml.safe_dump(rules, default_flow_style=random.choice((True, False, None)), allow_unicode=True)
    if random.random() < 0.2:
        places = [at for at, letter in enumerate(text) if letter in " \n"] or [0]
        at = random.choice(places)
        text = f"{text[: at + 1]}{random.choice(_ODD)}{text[at + 1 :]}"
    if random.random() < 0.05:
        levels = (f"b{i}: &b{i} [{','.join([f'*b{i - 1}' if i else '*a'] * 9)}]" for i in range(random.randrange(1, 9)))
        text = _BOMB.format("\n  ".join(levels)) + "\n" + text
    data = text.encode("utf-8", "surrogatepass")
    return mutated(random, data) if random.random() < 0.5 else data


def _check(data: bytes) -> bool:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return False
    if len(data) > LARGEST:
        return False
    try:
        rules = parse(text, "f")
    except PenstockError as error:
        if len(str(error)) > 5000:
            raise Difference(f"an error of {len(str(error))} characters") from error
        return False
    found = yaml.load(text, yaml.SafeLoader)
    if [one.name for one in rules] != [each["name"] for each in found]:
        raise Difference(f"{rules} and {found}")
    for one, each in zip(rules, found, strict=True):
        if one.to != each["to"] or one.until_false != each.get("until_false", False) or one.leave != each.get("leave"):
            raise Difference(f"{one} and {each}")
        if (again := rule_of(spec(one), "again")) != replace(one, line=again.line):
            raise Difference(f"{one} and again {again}")
    return True


DECODER = Decoder(name="rules_yaml", draw=_draw, check=_check)
