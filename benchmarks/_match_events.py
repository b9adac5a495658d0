"""Events with identities for the benchmark of matching: the mix, the topic they are written to, and the true persons.

Of 100 events 10 bring a person whom nobody knows, with two identities; 2 bring a new cookie of one of five persons who
get ever more of them; 1 links two known persons; the others carry a cookie of a known person, half of them of the
twentieth who come most often. An event follows from its number, so that what was written need not be kept.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Producer

from penstock.cql.matching.linking import node_of
from penstock.native import Array

KINDS = ("cookie", "email_hash")
SCHEMA = "n long, cookie string, email_hash string"
NEW, HUB, LINK = 10, 2, 1
"""Of 100 events."""
HUBS = 5
HUB_EMAIL = 10**12
"""The number of the first hub's e-mail; others have that of the person or event that brought them."""
NONE = -1
TICK = 0.05
AT_ONCE = 10_000


def numbers_of(events: Array, persons: int) -> tuple[Array, Array]:
    """The numbers of each event's cookie and e-mail; `NONE` if it has no e-mail."""
    lot, one, other = (_drawn(events, salt) for salt in range(3))
    kind = lot % 100
    known = np.where(lot // 100 % 2 == 0, one % (persons // 20), one % persons)
    brought = kind < NEW + HUB
    emails = np.full(len(events), NONE)
    emails[kind < NEW] = persons + events[kind < NEW]
    hub, link = brought & (kind >= NEW), (kind >= NEW + HUB) & (kind < NEW + HUB + LINK)
    emails[hub] = HUB_EMAIL + other[hub] % HUBS
    emails[link] = other[link] % persons
    return np.where(brought, persons + events, known), emails


def _drawn(numbers: Array, salt: int) -> Array:
    """A number below 2^31 for each, as if by chance (the finalizer of SplitMix64)."""
    with np.errstate(over="ignore"):
        mixed = (numbers.astype(np.uint64) * np.uint64(3) + np.uint64(salt + 1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed >> np.uint64(33)).astype(np.int64)


def identities(numbers: Array, kind: str) -> pa.Array:
    """The texts of identities; null for `NONE`."""
    text = pc.utf8_lpad(pa.array(numbers, mask=numbers == NONE).cast(pa.string()), 24, "0")
    return pc.binary_join_element_wise(kind[0], text, "")


def records(events: Array, persons: int) -> list[bytes]:
    """The events as JSON."""
    columns = [identities(numbers, kind) for kind, numbers in zip(KINDS, numbers_of(events, persons), strict=True)]
    parts = [
        pc.binary_join_element_wise(f',"{kind}":"', ids, '"', "") for kind, ids in zip(KINDS, columns, strict=True)
    ]
    number = pa.array(events).cast(pa.string())
    made = pc.binary_join_element_wise('{"n":', number, *(part.fill_null("") for part in parts), "}", "")
    return [text.encode() for text in made.to_pylist()]


def feed(servers: str, topic: str, persons: int, events: range, rate: int) -> None:
    """Write events at this rate; at once if it is 0."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000})
    start, sent = time.monotonic(), events.start
    try:
        while sent < events.stop:
            due = events.start + int((time.monotonic() - start) * rate) if rate else sent + AT_ONCE
            until = min(due, events.stop)
            for value in records(np.arange(sent, until), persons):
                producer.produce(topic, value)
            sent = max(sent, until)
            producer.poll(0)
            time.sleep(TICK if rate else 0)
    finally:
        producer.flush()


def _stop(number: int, frame: object) -> None:
    raise SystemExit


class Truth:
    """The persons that follow from all identities seen together: the known ones', and those of the first events."""

    def __init__(self, persons: int, events: int) -> None:
        self.links = list(self._links(persons, events))
        self.parents: dict[tuple[str, int], tuple[str, int]] = {}
        for one, other in self.links:
            low, high = sorted((self.root(one), self.root(other)))
            self.parents[high] = low
        self.names: dict[tuple[str, int], str] = {}
        """Of each set of identities, by its root: the person's name."""
        self.sets: dict[str, tuple[str, int]] = {}
        """Of each identity's own name, which a person may have had, the root of its set."""
        for identity in {each for pair in self.links for each in pair}:
            name = str(UUID(bytes=node_of(*_text(identity))))
            root = self.root(identity)
            self.sets[name] = root
            self.names[root] = min(name, self.names.get(root, name))

    @staticmethod
    def _links(persons: int, events: int) -> Iterator[tuple[tuple[str, int], tuple[str, int]]]:
        known = np.arange(persons)
        for cookies, emails in ((known, known), numbers_of(np.arange(events), persons)):
            for cookie, email in zip(cookies.tolist(), emails.tolist(), strict=True):
                one = (KINDS[0], cookie)
                yield one, one if email == NONE else (KINDS[1], email)

    def root(self, identity: tuple[str, int]) -> tuple[str, int]:
        while (parent := self.parents.get(identity, identity)) != identity:
            self.parents[identity] = self.parents.get(parent, parent)
            identity = parent
        return identity


def _text(identity: tuple[str, int]) -> tuple[str, str]:
    kind, number = identity
    return kind, f"{kind[0]}{number:024d}"


if __name__ == "__main__":
    servers, topic, persons, first, last, rate = sys.argv[1:]
    signal.signal(signal.SIGTERM, _stop)
    feed(servers, topic, int(persons), range(int(first), int(last)), int(rate))
