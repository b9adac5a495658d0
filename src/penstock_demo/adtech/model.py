"""The demo's rules again, in plain Python: persons, memberships and counts. It imports nothing of what it checks.

Times are milliseconds since 1970. Events come in the order of their times; those of one person have different times.
What is due at a time happens before an event of the same time.

A membership lasts for its rule's time from its last match, up to the next multiple of the rule's step, and then
expires. A match that moves the end is an "enter", or a "prolong" of a member. An opt-out is a "leave", which also
resets the counts.

A person is all identities that are linked, directly or indirectly, by earlier events with several of them. The name is
the smallest of their hashes: the first 16 bytes of the SHA-256 of kind, a zero byte and value, as a UUID.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple
from uuid import UUID

from penstock_demo.adtech.site import KINDS, SIGN_IN

SECOND = 1000
NEVER = 1 << 62

Identity = tuple[str, str]
"""Kind and value."""


class Persons:
    """Union-find over identities, by the names of their hashes."""

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}
        self._identities: dict[str, dict[str, Identity]] = {}

    def link(self, event: Mapping[str, Any]) -> None:
        """Link the identities of an event: they are of one person."""
        for name, identity in names_of(event).items():
            if name not in self._parents:
                self._parents[name], self._identities[name] = name, {name: identity}
        low, *others = sorted({self.person(name) for name in names_of(event)})
        for other in others:
            self._parents[other] = low
            self._identities[low] = self._identities[low] | self._identities.pop(other)

    def all_of(self, person: str) -> dict[str, Identity]:
        """The identities of a person by name."""
        return self._identities[person]

    def person(self, name: str) -> str:
        """The smallest name of all identities that are linked with this one."""
        while (parent := self._parents[name]) != name:
            self._parents[name] = self._parents[parent]
            name = parent
        return name

    def last(self, name: str) -> str | None:
        """As `person`; None for an unknown name."""
        return self.person(name) if name in self._parents else None

    def of(self, event: Mapping[str, Any]) -> str:
        """The person of an event whose identities are linked."""
        return self.person(next(iter(names_of(event))))


def names_of(event: Mapping[str, Any]) -> dict[str, Identity]:
    """The identities of an event by name."""
    values = [(kind, event[kind]) for kind in KINDS if event.get(kind)]
    return {str(UUID(bytes=sha256(f"{kind}\0{value}".encode()).digest()[:16])): (kind, value) for kind, value in values}


class Act(NamedTuple):
    """An event other than a sign-in, with the person's name and all identities at that time."""

    id: str
    at: int
    person: str
    identities: frozenset[Identity]
    event: str
    campaign: str
    price: int


class Change(NamedTuple):
    person: str
    segment: str
    event: str
    at: int
    until: int


@dataclass
class Membership:
    """A person in a segment: what all rules have in common."""

    segment: str = ""
    lasts: int = 0
    step: int = SECOND
    opt_out: bool = False
    person: str = ""
    until: int = 0
    changes: list[Change] = field(default_factory=list)

    def take(self, act: Act) -> None:
        self.pass_to(act.at)
        if act.event == "optout" and self.opt_out:
            self.end("leave", act.at)
            self.forget()
        elif self.matches(act):
            self.match(act.at)

    def pass_to(self, now: int) -> None:
        """Apply everything that is due by this time."""
        while (due := min(self.own_due(), self.until or NEVER)) <= now:
            if self.own_due() == due:
                self.happens(due)
            if self.until and self.until <= due:
                self.end("expire", self.until)

    def match(self, at: int) -> None:
        until = -(-(at + self.lasts) // self.step) * self.step
        if until > self.until:
            event, self.until = "prolong" if self.until else "enter", until
            self.say(event, at)

    def end(self, event: str, at: int) -> None:
        if self.until:
            self.say(event, at)
            self.until = 0

    def say(self, event: str, at: int) -> None:
        self.changes.append(Change(self.person, self.segment, event, at, self.until))

    def matches(self, act: Act) -> bool:
        """Record the act; returns whether it makes the condition true."""
        raise NotImplementedError

    def forget(self) -> None:
        """Reset the counts, after an opt-out."""

    def own_due(self) -> int:
        """When the rule's own timer is due."""
        return NEVER

    def happens(self, at: int) -> None:
        """The rule's own timer is due."""


@dataclass
class Interested(Membership):
    """Three clicks in the last ten seconds."""

    segment: str = "interested"
    lasts: int = 6 * SECOND
    opt_out: bool = True
    clicks: deque[int] = field(default_factory=lambda: deque(maxlen=3))

    def matches(self, act: Act) -> bool:
        if act.event != "click":
            return False
        self.clicks.append(act.at)
        return len(self.clicks) == 3 and self.clicks[0] > act.at - 10 * SECOND

    def forget(self) -> None:
        self.clicks.clear()


@dataclass
class Browsing(Membership):
    """Two views in the last four seconds; ends when that is no longer true."""

    segment: str = "browsing"
    lasts: int = 30 * SECOND
    step: int = 5 * SECOND
    views: deque[int] = field(default_factory=lambda: deque(maxlen=2))

    def matches(self, act: Act) -> bool:
        if act.event != "view":
            return False
        self.views.append(act.at)
        return len(self.views) == 2 and self.views[0] > act.at - 4 * SECOND

    def own_due(self) -> int:
        return self.views[0] + 4 * SECOND if self.until else NEVER

    def happens(self, at: int) -> None:
        self.end("leave", at)


@dataclass
class Abandoned(Membership):
    """No buy within three seconds after a cart; of the waiting carts, the first and the last match."""

    segment: str = "abandoned"
    lasts: int = 5 * SECOND
    carts: list[int] = field(default_factory=list)

    def matches(self, act: Act) -> bool:
        if act.event == "buy":
            self.carts = []
        elif act.event == "cart":
            self.carts = [*self.carts[:1], act.at]
        return False

    def own_due(self) -> int:
        return self.carts[0] + 3 * SECOND if self.carts else NEVER

    def happens(self, at: int) -> None:
        self.carts = self.carts[1:]
        self.match(at)


@dataclass
class Returning(Membership):
    """A click and then a buy, both in the last fifteen seconds."""

    segment: str = "returning"
    lasts: int = 8 * SECOND
    clicked: int = -NEVER

    def matches(self, act: Act) -> bool:
        if act.event == "click":
            self.clicked = act.at
        return act.event == "buy" and self.clicked > act.at - 15 * SECOND


@dataclass
class Spenders(Membership):
    """200.00 or more in the last sixteen seconds, counted in 64 parts of a quarter of a second."""

    segment: str = "spenders"
    lasts: int = 8 * SECOND
    spent: list[tuple[int, int]] = field(default_factory=list)

    def matches(self, act: Act) -> bool:
        if act.event != "buy":
            return False
        part = act.at // 250
        self.spent = [(p, price) for p, price in self.spent if p > part - 64] + [(part, act.price)]
        return sum(price for _, price in self.spent) >= 20_000


@dataclass
class Buyers(Membership):
    """Everybody who bought, until an opt-out."""

    segment: str = "buyers"
    lasts: int = 3600 * SECOND
    step: int = 10 * SECOND
    opt_out: bool = True

    def matches(self, act: Act) -> bool:
        return act.event == "buy"


SEGMENTS: tuple[type[Membership], ...] = (Interested, Browsing, Abandoned, Returning, Spenders, Buyers)


def changes_of(acts: Iterable[Act], until: int) -> list[Change]:
    """All membership events up to a time; the acts must be in the order of their times."""
    memberships: dict[str, list[Membership]] = {}
    for act in acts:
        if act.person not in memberships:
            memberships[act.person] = [kind(person=act.person) for kind in SEGMENTS]
        for one in memberships[act.person]:
            one.take(act)
    found: list[Change] = []
    for of_person in memberships.values():
        for one in of_person:
            one.pass_to(until)
            found += one.changes
    return found


def members_at(changes: Iterable[Change], now: int) -> dict[tuple[str, str], int]:
    """The end of each membership that lasts beyond `now`, by segment and person."""
    last: dict[tuple[str, str], Change] = {}
    for change in changes:
        if change.at <= now:
            last[change.segment, change.person] = change
    members = {key: change.until for key, change in last.items() if change.event in ("enter", "prolong")}
    return {key: until for key, until in members.items() if until > now}


def entered(changes: Iterable[Change]) -> dict[str, int]:
    """The number of persons who entered or prolonged each segment."""
    persons: dict[str, set[str]] = defaultdict(set)
    for change in changes:
        if change.event in ("enter", "prolong"):
            persons[change.segment].add(change.person)
    return {segment: len(some) for segment, some in persons.items()}


def minutes_of(acts: Iterable[Act]) -> dict[tuple[str, int], tuple[int, int, int]]:
    """Events, clicks and revenue by campaign and minute (its begin)."""
    counts: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    for act in acts:
        counts[act.campaign, act.at // 60_000 * 60_000].update(
            events=1, clicks=int(act.event == "click"), revenue=act.price
        )
    return {key: (some["events"], some["clicks"], some["revenue"]) for key, some in counts.items()}


def acts_of(events: Iterable[Mapping[str, Any]], persons: Persons) -> Iterator[Act]:
    """The acts in events, which include sign-ins and must be in the order of their times; adds links to `persons`."""
    for event in events:
        persons.link(event)
        if event["event"] != SIGN_IN:
            person = persons.of(event)
            known = frozenset(persons.all_of(person).values())
            price = event.get("price", 0)
            yield Act(event["id"], event["ts"], person, known, event["event"], event["campaign"], price)
