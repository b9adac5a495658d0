"""Visitors and what they do, as the load posts it; knows nothing of HTTP.

A visitor has up to three groups of identities that are not linked yet. The visitor signs in with each group, acts under
it, then an event links two groups, which continue as one person. After each sign-in or link the visitor waits until the
pipeline's output shows it, and before a link until the pipeline has finished the visitor's actions: so the person of
each action follows from the earlier links.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from penstock_demo.adtech.site import ACTIONS, CAMPAIGNS, FRESH, SIGN_IN

Event = dict[str, Any]
Identity = tuple[str, str]
"""Kind and value."""

SHARES = (45, 30, 10, 12, 3)
"""The shares of the actions, in the order of `ACTIONS`."""
PRICES = (1_500, 12_000)
LINK_AFTER = (4, 10)
LIFE = (30, 80)
"""Actions of a visitor before the next link, and in all: at least and at most."""
LAYOUTS = (("cookie", "email_hash"), ("device", "cookie"), ("email_hash", "device"))
"""The kinds in each group of a visitor; any two groups have identities of different kinds."""
GROUPS = (50, 35, 15)
"""Of 100 visitors, those with one, two and three groups."""
PAUSE = 1.5 * FRESH / 1000
"""Seconds from the answer to a sign-in until the next action: then no process has an older answer in its cache."""


@dataclass
class Visitor:
    """`groups` are the identities under which the visitor acts now, a list for each person as which they are known.

    `waits_for` has the sign-ins whose persons are not known yet, `unseen` the actions; `acted_at` is when the last
    action was acknowledged, in milliseconds.
    """

    groups: list[list[Identity]]
    life: int
    link_after: int
    pending: deque[Event] = field(default_factory=deque)
    waits_for: set[str] = field(default_factory=set)
    unseen: set[str] = field(default_factory=set)
    able_at: float = 0.0
    acted_at: int = 0

    @property
    def links_next(self) -> bool:
        return len(self.groups) > 1 and self.link_after <= 0

    def is_able(self, now: float) -> bool:
        return not (self.pending or self.waits_for or self.links_next) and now >= self.able_at

    def may_link(self, passed: int) -> bool:
        return self.links_next and not self.unseen and self.acted_at < passed


class Traffic:
    """The visitors of one tracker, `size` at a time; every event has an id of its own, and no time yet."""

    def __init__(self, tracker: str, seed: int, size: int) -> None:
        self._tracker, self._rng, self._size = tracker, Random(seed), size
        self._visitors: list[Visitor] = []
        self._waiting: dict[str, Visitor] = {}
        """The visitors of posted events whose persons are not known yet, by the event's id."""
        self._numbers = self._events = 0

    def able(self, now: float) -> int:
        """How many visitors may act."""
        return sum(one.is_able(now) for one in self._visitors)

    def next(self, most: int, now: float, *, acts: int, passed: int) -> list[Event]:
        """Up to `most` events, at most `acts` of them actions, and at most one of each visitor.

        So the times of requests order the events of a person. The pipeline has finished the actions that were
        acknowledged before `passed`, in milliseconds.
        """
        self._visitors = [one for one in self._visitors if one.life > 0 or one.pending]
        for visitor in self._visitors:
            if visitor.may_link(passed):
                self._link(visitor)
        while len(self._visitors) < self._size:
            self._visitors.append(self._arrives())
        able = [one for one in self._visitors if one.is_able(now)]
        chosen = self._rng.sample(able, min(len(able), acts))
        events = [self._acts(visitor) for visitor in chosen]
        return events + list(self._sign_ins(most - len(events), set(map(id, chosen))))

    def acknowledged(self, events: Iterable[Event], at: int) -> None:
        """Call this when these events are acknowledged; `at` is the time in milliseconds."""
        for event in events:
            if visitor := self._waiting.get(event["id"]):
                visitor.acted_at = max(visitor.acted_at, at)

    def known(self, id: str, now: float) -> None:
        """Call this when the pipeline has reported the person of this event."""
        if visitor := self._waiting.pop(id, None):
            if id in visitor.waits_for:
                visitor.able_at = now + PAUSE
            visitor.waits_for.discard(id)
            visitor.unseen.discard(id)

    def _sign_ins(self, most: int, without: set[int]) -> Iterator[Event]:
        for visitor in self._visitors:
            if most > 0 and visitor.pending and id(visitor) not in without:
                most -= 1
                yield visitor.pending.popleft()

    def _arrives(self) -> Visitor:
        rng, self._numbers = self._rng, self._numbers + 1
        count = rng.choices((1, 2, 3), GROUPS)[0]
        name = f"{self._tracker}-{self._numbers}"
        groups = [[(kind, f"{kind[0]}-{name}-{g}") for kind in LAYOUTS[g]] for g in range(count)]
        visitor = Visitor(groups, rng.randint(*LIFE), rng.randint(*LINK_AFTER))
        for group in groups:
            self._sign_in(visitor, group)
        return visitor

    def _sign_in(self, visitor: Visitor, identities: list[Identity]) -> None:
        event = self._event(SIGN_IN, identities)
        visitor.pending.append(event)
        visitor.waits_for.add(event["id"])
        self._waiting[event["id"]] = visitor

    def _acts(self, visitor: Visitor) -> Event:
        rng = self._rng
        group = rng.choice(visitor.groups)
        identities = rng.sample(group, rng.randint(1, 2))
        event = self._event(rng.choices(ACTIONS, SHARES)[0], identities)
        event["campaign"] = rng.choice(CAMPAIGNS)
        if event["event"] == "buy":
            event["price"] = rng.randint(*PRICES)
        visitor.life -= 1
        visitor.link_after -= 1
        visitor.unseen.add(event["id"])
        self._waiting[event["id"]] = visitor
        return event

    def _link(self, visitor: Visitor) -> None:
        """An event with an identity of each of two groups makes them one."""
        one, other = visitor.groups.pop(), visitor.groups.pop()
        pairs = [(a, b) for a in one for b in other if a[0] != b[0]]
        self._sign_in(visitor, list(self._rng.choice(pairs)))
        visitor.groups.append(one + other)
        visitor.link_after = self._rng.randint(*LINK_AFTER)

    def _event(self, kind: str, identities: list[Identity]) -> Event:
        self._events += 1
        return {
            "id": f"{self._tracker}-{self._events}",
            "tracker": self._tracker,
            "event": kind,
            **dict(identities),
        }
