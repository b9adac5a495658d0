"""Rules of segments: what a person must do, how long a membership lasts, and which topic gets the membership events.

A rule's condition is a tree: counts, totals, sequences, absences and latest values, joined by `all_of` and `any_of`.
Predicates are Spark SQL over the columns of the events. They are checked when a stream is built from the rules.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

from penstock.border.public import public
from penstock.durations import Duration, duration, duration_text
from penstock.errors import PenstockError

MILLISECOND = timedelta(milliseconds=1)
LONGEST = timedelta(days=19 * 365)
"""The longest membership: its rows must stay below CQL's maximum time to live of 20 years."""
NAME = re.compile(r"\w[\w.]*(?:-[\w.]+)*")
"""A segment name: one token in an expression over segments."""
STEPS_OF_TTL = 64
"""Steps per time to live unless a rule sets `prolong`: each step prolongs a member at most once."""
SHOWN = 200
"""Maximum characters of a value in an error."""


def shown(value: Any) -> str:
    """The value's repr for an error, cut if it is long."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


@dataclass(frozen=True)
class Count:
    """At least `at_least` events that match `when` in the last `within`."""

    when: str
    at_least: int
    within: timedelta


@dataclass(frozen=True)
class Total:
    """The sum of `of` over the events that match `when` in the last `within`; the resolution is a 64th of `within`."""

    of: str
    when: str
    at_least: float
    within: timedelta


@dataclass(frozen=True)
class Chain:
    """An event that matches each of `steps`, in this order, all in the last `within`."""

    steps: tuple[str, ...]
    within: timedelta


@dataclass(frozen=True)
class Absence:
    """An event that matches `after`, followed by no event that matches `of` for the time `within`."""

    of: str
    after: str
    within: timedelta


@dataclass(frozen=True)
class Latest:
    """`when` is true for the newest event for which it is not null."""

    when: str


@dataclass(frozen=True)
class All:
    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class Any_:
    parts: tuple[Condition, ...]


Term: TypeAlias = Count | Total | Chain | Absence | Latest
Condition: TypeAlias = Term | All | Any_


@dataclass(frozen=True)
class Rule:
    """One segment, created and checked by `rule`; `line` is the file and line it was read from, or empty."""

    name: str
    condition: Condition
    ttl: timedelta
    to: str
    leave: str | None = None
    until_false: bool = False
    prolong: timedelta = timedelta(0)
    line: str = ""

    @property
    def where(self) -> str:
        return f"{self.line + ', ' if self.line else ''}rule {shown(self.name)}"

    @property
    def digest(self) -> str:
        """A hash of what the state of a person depends on: a rule with another digest starts with empty state."""
        parts = {name: value for name, value in spec(self).items() if name not in ("ttl", "to", "prolong")}
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


@public("segment.rule")
def rule(
    name: str,
    *,
    when: str | Condition,
    ttl: Duration,
    to: str,
    at_least: float | None = None,
    total: str | None = None,
    within: Duration | None = None,
    leave: str | None = None,
    until_false: bool = False,
    prolong: Duration | None = None,
) -> Rule:
    """A segment `name`: a person who meets `when` is a member for `ttl`; meeting it again prolongs the membership.

    `when` is a condition or a predicate. For a predicate, one event is enough by default; with `at_least`, that many
    events in the sliding time `within`; with `total`, the sum of that expression must reach `at_least`.
    `leave` is a predicate that ends the membership and deletes the person's state. With `until_false` a member also
    leaves as soon as the condition is false. `to` is the topic for the membership events. A membership ends at the
    first multiple of `prolong` (default: a 64th of `ttl`) that is not before its `ttl`.

    Durations are strings like "7 days", seconds, or `timedelta`. Raises PenstockError for an invalid name, duration or
    condition. Predicates are checked later, by `match`.
    """
    where = f"rule {shown(name)}"
    if not NAME.fullmatch(name):
        raise PenstockError(
            f"{shown(name)} is not a valid segment name",
            next="use letters, digits, dots, underscores, and dashes between them",
        )
    life = _positive(ttl, "ttl", where)
    condition: Condition
    if isinstance(when, str):
        condition = _simple(when, at_least, total, life if within is None else _positive(within, "within", where))
        if at_least is not None and within is None:
            raise PenstockError("at_least needs within", where=where, next='set within=, such as within="7 days"')
    elif at_least is not None or total is not None or within is not None:
        raise PenstockError(
            "at_least, total and within need a predicate in when",
            where=where,
            next="put them into the condition: segment.count(when, at_least=..., within=...)",
        )
    else:
        condition = when
    if total is not None and at_least is None:
        raise PenstockError("total needs at_least", where=where, next="set at_least= to the sum to reach")
    if not to:
        raise PenstockError("to is empty", where=where, next="set to= to the topic for the membership events")
    step = life / STEPS_OF_TTL if prolong is None else duration(prolong, name="prolong")
    checked = Rule(name, condition, life, to, leave, until_false, max(step, MILLISECOND))
    if life + checked.prolong > LONGEST:
        raise PenstockError(f"ttl plus prolong is {life + checked.prolong}", where=where, next="use at most 19 years")
    _check(condition, where)
    return checked


@public("segment.count")
def count(when: str, *, at_least: float, within: Duration) -> Count:
    """At least `at_least` events (an integer) that match `when` in the last `within`.

    Exact for `at_least` up to 64; above that the time has a resolution of a 64th of `within`. Raises PenstockError if
    `at_least` is not an integer.
    """
    if not math.isfinite(at_least) or at_least != int(at_least):
        raise PenstockError(f"at_least counts events, but {at_least:g} is not an integer", next="use total= for sums")
    return Count(when, int(at_least), duration(within, name="within"))


@public("segment.total")
def total(of: str, *, when: str = "true", at_least: float, within: Duration) -> Total:
    """The sum of the expression `of` over the events that match `when` in the last `within` is at least `at_least`."""
    return Total(of, when, at_least, duration(within, name="within"))


@public("segment.sequence")
def sequence(*steps: str, within: Duration) -> Chain:
    """Events that match these predicates (2 to 8) in this order, all in the last `within`."""
    return Chain(steps, duration(within, name="within"))


@public("segment.absence")
def absence(of: str, *, after: str, within: Duration) -> Absence:
    """No event matches `of` in the time `within` after an event that matches `after`; true when that time is over."""
    return Absence(of, after, duration(within, name="within"))


@public("segment.latest")
def latest(when: str) -> Latest:
    """The value of `when` for the newest event for which it is not null; forgotten after the rule's `ttl`."""
    return Latest(when)


@public("segment.all_of")
def all_of(*parts: Condition) -> All:
    """All of these conditions are true."""
    return All(parts)


@public("segment.any_of")
def any_of(*parts: Condition) -> Any_:
    """At least one of these conditions is true."""
    return Any_(parts)


def terms(condition: Condition) -> Iterator[Term]:
    """The leaves of a condition, from left to right."""
    if isinstance(condition, All | Any_):
        for part in condition.parts:
            yield from terms(part)
    else:
        yield condition


def predicates(term: Term) -> tuple[str, ...]:
    """The predicates of a term in the order of their bits in a touch."""
    match term:
        case Count(when=when) | Total(when=when):
            return (when,)
        case Chain(steps=steps):
            return steps
        case Absence(of=of, after=after):
            return (after, of)
        case Latest(when=when):
            return (when, f"NOT ({when})")


def check_names(rules: Sequence[Rule]) -> None:
    """Raise if there are no rules, or if two have the same name."""
    if not rules:
        raise PenstockError("there are no rules", next='create one: segment.rule("back", when=..., ttl=..., to=...)')
    seen: dict[str, Rule] = {}
    for rule in rules:
        if (other := seen.setdefault(rule.name, rule)) is not rule:
            raise PenstockError(
                f"two rules are named {shown(rule.name)}",
                where=f"{other.where}; {rule.where}",
                next="keep one rule per segment; combine conditions with segment.any_of(...)",
            )


def spec(rule: Rule) -> dict[str, Any]:
    """The rule as its mapping in a YAML file."""
    fields = {"name": rule.name, "when": _condition_spec(rule.condition), "ttl": duration_text(rule.ttl), "to": rule.to}
    extra = {"leave": rule.leave, "until_false": rule.until_false or None, "prolong": duration_text(rule.prolong)}
    return fields | {name: value for name, value in extra.items() if value is not None}


def _condition_spec(condition: Condition) -> dict[str, Any]:
    match condition:
        case All(parts):
            return {"all": [_condition_spec(part) for part in parts]}
        case Any_(parts):
            return {"any": [_condition_spec(part) for part in parts]}
        case Count(when, at_least, within):
            return {"count": when, "at_least": at_least, "within": duration_text(within)}
        case Total(of, when, limit, within):
            return {"total": of, "when": when, "at_least": limit, "within": duration_text(within)}
        case Chain(steps, within):
            return {"sequence": list(steps), "within": duration_text(within)}
        case Absence(of, after, within):
            return {"absence": of, "after": after, "within": duration_text(within)}
        case Latest(when):
            return {"latest": when}


def _simple(when: str, at_least: float | None, total: str | None, within: timedelta) -> Term:
    if total is not None:
        return Total(total, when, at_least or 0.0, within)
    return count(when, at_least=1 if at_least is None else at_least, within=within)


def _check(condition: Condition, where: str) -> None:
    if isinstance(condition, All | Any_):
        if not condition.parts:
            raise PenstockError("a condition has no parts", where=where, next="add a part, or remove the condition")
        for part in condition.parts:
            _check(part, where)
    else:
        _check_term(condition, where)


def _check_term(term: Term, where: str) -> None:
    if not isinstance(term, Latest) and not MILLISECOND <= term.within <= LONGEST:
        raise PenstockError(
            f"within is {term.within}",
            where=where,
            next='set it to a string such as "7 days" or a timedelta, above zero and at most 19 years',
        )
    if isinstance(term, Total) and not math.isfinite(term.at_least):
        raise PenstockError(f"at_least is {term.at_least}", where=where, next="set it to a finite number")
    if isinstance(term, Count) and term.at_least < 1:
        raise PenstockError(f"at_least is {term.at_least}", where=where, next="set it to 1 or more")
    if isinstance(term, Chain) and not 2 <= len(term.steps) <= 8:
        raise PenstockError(f"a sequence has {len(term.steps)} steps", where=where, next="use 2 to 8 steps")


def _positive(value: Duration, name: str, where: str) -> timedelta:
    period = duration(value, name=f"{name} of {where}")
    if period < MILLISECOND:
        raise PenstockError(
            f"{name} is {period}", where=where, next='use a string such as "14 days" or a positive timedelta'
        )
    return period
