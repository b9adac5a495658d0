"""An independent model of segments: it keeps every event, looks at each millisecond, and works all out anew.

It reads the rules' data classes and shares no code with the engine. Events are (time, person, the predicates that are
true, the predicates that are false, value); what is in neither set is null.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

from penstock.segment.rule_definitions import Absence, All, Any_, Chain, Condition, Count, Latest, Rule, Total, terms


class Event(NamedTuple):
    time: int
    person: str
    true: frozenset[str]
    false: frozenset[str] = frozenset()
    value: float = 0.0


class Change(NamedTuple):
    person: str
    segment: str
    event: str
    at: int
    until: int


def ms(time: timedelta) -> int:
    return time // timedelta(milliseconds=1)


def holds(condition: Condition, rule: Rule, seen: list[Event], t: int) -> bool:
    """Whether the condition is true at `t`, from all events seen so far in their order."""
    match condition:
        case All(parts):
            return all(holds(part, rule, seen, t) for part in parts)
        case Any_(parts):
            return any(holds(part, rule, seen, t) for part in parts)
        case Count(when, at_least, within) if at_least <= 64:
            return sum(when in e.true and t - ms(within) < e.time <= t for e in seen) >= at_least
        case Count(when, at_least, within):
            return _sum([(e.time, 1.0) for e in seen if when in e.true], ms(within), t) >= at_least
        case Total(_, when, at_least, within):
            return _sum([(e.time, e.value) for e in seen if when in e.true], ms(within), t) >= at_least
        case Chain(steps, within):
            return chained(steps, [e for e in seen if t - ms(within) < e.time <= t])
        case Absence():
            return (fired := waits(condition, seen, t)[1]) is not None and fired > t - ms(condition.within)
        case Latest(when):
            told = [e for e in seen if when in e.true | e.false]
            if not told:
                return False
            newest = max(range(len(told)), key=lambda i: (told[i].time, i))
            return when in told[newest].true and told[newest].time > t - ms(rule.ttl)


def _sum(values: list[tuple[int, float]], within: int, t: int) -> float:
    part = -(-within // 64)
    return sum(value for time, value in values if t // part - 64 < time // part <= t // part)


def chained(steps: tuple[str, ...], seen: list[Event]) -> bool:
    """Whether the steps occur in this order, each in an event of its own."""
    if not steps:
        return True
    return any(
        steps[-1] in last.true and chained(steps[:-1], [e for e in seen[:i] if e.time <= last.time])
        for i, last in reversed(list(enumerate(seen)))
    )


def waits(term: Absence, seen: list[Event], t: int) -> tuple[list[int], int | None]:
    """The moments up to `t` at which an absence became certain, and the last one that no `of` has ended since."""
    fired: list[int] = []
    waiting: list[int] = []
    last: int | None = None
    for now in range(1, t + 1):
        if waiting and now == waiting[0] + ms(term.within):
            fired.append(now)
            last, waiting = now, waiting[-1:] if len(waiting) > 1 and waiting[-1] > waiting[0] else []
        for e in seen:
            if e.time == now and term.of in e.true:
                waiting, last = [], None
            elif e.time == now and term.after in e.true:
                waiting.append(now)
    return fired, last


@dataclass
class Member:
    """One person and one rule."""

    person: str
    rule: Rule
    seen: list[Event] = field(default_factory=list)
    until: int = 0
    last: int = 0
    known: bool = False
    changes: list[Change] = field(default_factory=list)

    def say(self, event: str, at: int) -> None:
        self.changes.append(Change(self.person, self.rule.name, event, at, self.until))

    def judge(self, t: int) -> None:
        if holds(self.rule.condition, self.rule, self.seen, t):
            step = ms(self.rule.prolong)
            until = -(-(t + ms(self.rule.ttl)) // step) * step
            if until > self.until:
                event = "prolong" if self.until else "enter"
                self.until = until
                self.say(event, t)

    def end(self, event: str, at: int) -> None:
        if self.until:
            self.say(event, at)
            self.until = 0

    def left(self, t: int) -> bool:
        if self.until and self.rule.until_false and not holds(self.rule.condition, self.rule, self.seen, t):
            self.end("leave", t)
            return True
        return False

    def live(self, t: int) -> None:
        """Every millisecond until `t`."""
        for now in range(self.last + 1, t + 1):
            absences = [term for term in terms(self.rule.condition) if isinstance(term, Absence)]
            if any(now in waits(term, self.seen, now)[0] for term in absences):
                self.last = now
                self.judge(now)
            if self.until == now:
                self.last = now
                self.end("expire", now)
            self.left(now)

    def take(self, event: Event) -> None:
        self.live(event.time)
        now = self.last = max(self.last, event.time)
        if self.rule.leave and self.rule.leave in event.true:
            self.end("leave", now)
            self.seen.clear()
            return
        self.seen.append(event)
        if not self.left(now) and any(self.matches(term, event) for term in terms(self.rule.condition)):
            self.judge(now)

    def matches(self, term: Condition, event: Event) -> bool:
        """Whether the event is one that can make the term true."""
        match term:
            case Count(when=when) | Total(when=when) | Latest(when=when):
                return when in event.true
            case Chain(steps, within):
                before = [e for e in self.seen[:-1] if event.time - ms(within) < e.time <= event.time]
                return steps[-1] in event.true and chained(steps[:-1], before)
        return False


def changes(rules: list[Rule], batches: list[tuple[list[Event], int]]) -> dict[tuple[str, str], list[Change]]:
    """The membership events of each person and segment. A batch is its events, and the clock at its end."""
    members: dict[tuple[str, str], Member] = {}
    for events, clock in batches:
        for event in sorted(events, key=lambda e: e.time):
            for rule in rules:
                member = members.setdefault((event.person, rule.name), Member(event.person, rule))
                member.known = member.known or begins(rule, event)
                if member.known and touches(rule, event):
                    member.take(event)
        for member in members.values():
            member.live(clock)
    return {key: member.changes for key, member in members.items() if member.changes}


def begins(rule: Rule, event: Event) -> bool:
    """Whether the event means something for somebody of whom the rule knows nothing."""
    first = {
        term.steps[0] if isinstance(term, Chain) else term.after if isinstance(term, Absence) else term.when
        for term in terms(rule.condition)
    }
    return bool(first & event.true)


def touches(rule: Rule, event: Event) -> bool:
    """Whether the event means anything for the rule."""
    told: set[str] = {rule.leave} if rule.leave else set()
    for term in terms(rule.condition):
        match term:
            case Count(when=when) | Total(when=when):
                told.add(when)
            case Chain(steps=steps):
                told.update(steps)
            case Absence(of=of, after=after):
                told |= {of, after}
            case Latest(when=when):
                if when in event.false:
                    return True
                told.add(when)
    return bool(told & event.true)
