"""Rules of all kinds, events that meet them, and these as the engine takes them."""

from __future__ import annotations

import zlib
from collections import defaultdict

import numpy as np
from segment_model import Event

from penstock import segment
from penstock.segment.event_packing import Touches
from penstock.segment.rule_plan import RulePlan

VISIT, CART, BUY, OUT = (f"event = '{name}'" for name in ("visit", "cart", "buy", "out"))
SMALL, GERMAN = "event = 'buy' AND amount < 20", "country = 'DE'"
RULES = [
    segment.rule("twice", when=VISIT, at_least=2, within="40 milliseconds", ttl="90 milliseconds", to="a", leave=OUT),
    segment.rule("big", when=BUY, total="amount", at_least=30, within="64 milliseconds", ttl="30 milliseconds", to="b"),
    segment.rule(
        "lost", when=segment.absence(BUY, after=CART, within="30 milliseconds"), ttl="70 milliseconds", to="c"
    ),
    segment.rule(
        "german",
        when=segment.all_of(
            segment.any_of(
                segment.sequence(CART, BUY, within="50 milliseconds"),
                segment.count(SMALL, at_least=2, within="30 milliseconds"),
            ),
            segment.latest(GERMAN),
        ),
        ttl="120 milliseconds",
        to="d",
        until_false=True,
    ),
]
PERSONS = [f"person-{i}" for i in range(12)]


def rows(start: int) -> list[dict[str, object]]:
    """Events of 100 ms from `start`, the same each time."""
    made: list[dict[str, object]] = []
    for i in range(160):
        kind = ("visit", "cart", "buy", "visit", "buy", "out" if i % 5 == 0 else "cart")[(i * 7 + start) % 6]
        country = (None, "DE", "FR", "DE")[(i * 3 + i // 7) % 4]
        person, at = PERSONS[(i * i + start) % 12], start + i * 100 // 160 + 1
        made.append({"person": person, "event": kind, "amount": float(i % 40), "country": country, "at": at})
    return made


def modelled(row: dict[str, object]) -> Event:
    amount, country = row["amount"], row["country"]
    assert isinstance(amount, float)
    true = {f"event = '{row['event']}'"}
    if row["event"] == "buy" and amount < 20:
        true.add(SMALL)
    if country == "DE":
        true.add(GERMAN)
    false = frozenset({GERMAN}) if country == "FR" else frozenset()
    return Event(int(str(row["at"])), str(row["person"]), frozenset(true), false, amount)


def touches(made: RulePlan, events: list[Event]) -> Touches:
    """What the packing of a batch would give."""
    ends: list[int] = []
    rules: list[int] = []
    masks: list[int] = []
    for event in events:
        found: dict[int, int] = defaultdict(int)
        true = event.true | {f"NOT ({name})" for name in event.false}
        for predicate, uses in zip(made.predicates, made.uses, strict=True):
            for number, bit in uses if predicate in true else ():
                found[number] |= 1 << bit
        rules += found.keys()
        masks += found.values()
        ends.append(len(rules))
    ids = [event.person.encode() for event in events]
    return Touches(
        np.array([hash_of(event.person) for event in events], np.int64),
        np.array([event.time for event in events], np.int64),
        np.cumsum([0, *map(len, ids)], dtype=np.int64),
        np.frombuffer(b"".join(ids), np.uint8),
        np.array(ends, np.int64),
        np.array(rules, np.int32),
        np.array(masks, np.int64),
        np.array([[event.value] * len(made.values) for event in events], np.float64).reshape(
            len(events), len(made.values)
        ),
    )


def hash_of(person: str) -> int:
    return zlib.crc32(person.encode()) * -7
