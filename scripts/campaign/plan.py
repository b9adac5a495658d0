"""The plan of each round of a campaign, drawn only from the seed and the round's number; uses no service.

The first breaks of successive rounds are all kinds of breaks in a shuffled order, so a campaign that is long enough has
every kind; other breaks are drawn at random. A round's settings are drawn so that its breaks are possible.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from random import Random

LONG = 40.0
"""Seconds of a long pause: longer than the timeouts of sessions, transactional producers and heartbeats."""
GAP = 6.0
"""Seconds of load before the first break, between breaks, and after the last."""
RATES = {"shop": 80, "adtech": 60}
"""Writes or events per second."""
COMMON = (
    "kill driver",
    "kill worker",
    "kill jvm",
    "kill broker",
    "kill cql",
    "pause driver",
    "pause worker",
    "pause jvm",
    "pause broker",
    "pause cql",
    "cut kafka",
    "full checkpoints",
    "full broker",
    "add partitions",
    "kill postgres",
    "pause postgres",
    "cut postgres",
)
KINDS = {
    "shop": (*COMMON, "alter table", "new generation", "jump clock", "kill registry", "pause registry", "full files"),
    "adtech": (*COMMON, "kill ingest", "pause ingest", "kill ingest-worker", "cut http"),
}
"""The kinds of breaks by application: the action and the part."""
MOST = 3
"""The default for the largest number of breaks in a round."""
AT_ONCE = ("kill worker", "kill jvm", "kill ingest-worker", "alter table", "new generation", "add partitions")
"""Breaks without a duration: nothing has to be started again or undone."""
LASTING = {"kill": (1.0, 8.0), "pause": (3.0, 15.0), "cut": (3.0, 12.0), "full": (3.0, 10.0), "jump": (5.0, 12.0)}
"""Durations by action: from and to, in seconds."""


@dataclass(frozen=True)
class Break:
    """A break: `at` is the time since the start of the load at its full rate, `lasts` the time until it is undone.

    Times are in seconds. `pick` chooses among equal parts, such as nodes; `jump` is the error of a clock.
    """

    kind: str
    at: float
    lasts: float
    pick: int
    jump: float = 0.0

    def __str__(self) -> str:
        more = f" for {self.lasts:g} s" if self.lasts else ""
        return self.kind + (f" by {self.jump:+g} s" if self.jump else "") + more + f" at {self.at:g} s"


@dataclass(frozen=True)
class Round:
    """A round; `settings` are options of the application, `seconds` is the time of load at its full rate."""

    number: int
    seed: int
    application: str
    settings: dict[str, str]
    breaks: tuple[Break, ...]
    seconds: float

    def __str__(self) -> str:
        chosen = " ".join(self.settings.values())
        return f"--seed {self.seed} --round {self.number}: {self.application} ({chosen}): " + "; ".join(
            map(str, self.breaks)
        )


def pairs(only: Collection[str] = (), application: str | None = None) -> list[tuple[str, str]]:
    """Pairs of application and kind of break; each item of `only` is a kind, or one of its two words."""
    chosen = [application] if application else list(KINDS)
    return [
        (name, kind)
        for name in chosen
        for kind in KINDS[name]
        if not only or kind in only or not {*kind.split()}.isdisjoint(only)
    ]


def rounds(seed: int, only: Collection[str] = (), application: str | None = None, most: int = MOST) -> Iterator[Round]:
    """The endless rounds of a campaign; each has at least one break, and at most `most`."""
    deck = pairs(only, application)
    number = 0
    while deck:
        shuffled = Random(f"{seed}/{number}").sample(deck, len(deck))
        for name, kind in shuffled:
            number += 1
            yield _round(seed, number, name, kind, [other for of, other in deck if of == name], most)


def _round(seed: int, number: int, application: str, first: str, others: Sequence[str], most: int) -> Round:
    rng = Random(f"{seed}/{number}/{application}/{first}")
    kinds = [first]
    for _ in range(rng.randrange(most)):
        if more := [other for other in others if _go_together(other, kinds)]:
            kinds.append(rng.choice(more))
    settings = _shop(rng, kinds) if application == "shop" else _adtech(rng, kinds)
    breaks, at = [], GAP
    for kind in kinds:
        breaks.append(_break(rng, kind, at, settings))
        at += breaks[-1].lasts + GAP
    return Round(number, seed, application, settings, tuple(breaks), at)


def _go_together(kind: str, others: Sequence[str]) -> bool:
    """Whether a round can have both breaks: some sinks cannot take Avro keys, and a topic grows only once."""
    parts = {other.split()[1] for other in (kind, *others)}
    if kind == "add partitions" and kind in others:
        return False
    return "registry" not in parts or parts.isdisjoint({"postgres", "files"})


def _break(rng: Random, kind: str, at: float, settings: dict[str, str]) -> Break:
    done = kind.split()[0]
    lasts = 0.0 if kind in AT_ONCE else round(rng.uniform(*LASTING[done]), 1)
    if done == "pause" and rng.random() < 0.3:
        lasts = LONG
    jump = 0.0
    if done == "jump":
        # A clock that is ahead of the writers' by more than the confidence is outside of the guarantee.
        jump = float(rng.choice((-60, -20, 20) if settings["pace"] == "default" else (-60, -20)))
    return Break(kind, round(at + rng.uniform(0, 2), 1), lasts, rng.randrange(6), jump)


def _shop(rng: Random, kinds: Sequence[str]) -> dict[str, str]:
    needed = {kind.split()[1] for kind in kinds}
    format = "avro-keys" if "registry" in needed else "json"
    drawn = rng.choices(((), ("postgres",), ("files",)), (6, 2, 2))[0]
    sinks = {"postgres", "files"} & needed or {*(drawn if format == "json" else ())}
    # A key that moved to a new partition is repeated there, where a replay cannot be told from a duplicate.
    delivery = "exactly-once" if "add partitions" in kinds else rng.choice(("at-least-once", "exactly-once"))
    pace = "default" if rng.random() < 0.25 else "fast"
    # Each table is a source, and its processes take seconds to start.
    tables = rng.sample(("orders", "carts", "visits", "products"), 2)
    return {
        "pace": pace,
        "delivery": delivery,
        "sinks": "+".join(("kafka", *sorted(sinks))),
        "format": format,
        "tables": "+".join(sorted(tables)),
    }


def _adtech(rng: Random, kinds: Sequence[str]) -> dict[str, str]:
    workers = "2" if "kill ingest-worker" in kinds else rng.choice(("1", "2"))
    return {"pace": "fast", "workers": f"workers={workers}"}
