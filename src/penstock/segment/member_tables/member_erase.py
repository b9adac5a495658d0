"""Erasing persons from segments: memberships and what destinations have, verified by reading both again.

A destination that has a person is told so by a record `remove` before its row is deleted. Counts are sketches of
hashes, from which nobody can be taken out; they end by their time to live.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.database.access import Access
from penstock.database.cql_connection import connection
from penstock.errors import PenstockError
from penstock.kafka.security import require_servers
from penstock.segment.member_tables.delivery_sync import record
from penstock.segment.member_tables.member_schema import BUCKETS, explained
from penstock.segment.member_tables.person_hash import xxhash64
from penstock.wire.producer.blocking import BlockingProducer

ROUNDS = 3
"""How often what streams have written meanwhile is deleted as well, before it is given up."""
MEMBERS, DELIVERED = "members", "delivered"
_PLACES = {MEMBERS: ("segment", "bucket"), DELIVERED: ("destination", "segment", "bucket")}

Row = tuple[Any, ...]
"""The key of a row: its partition, then the person."""


@dataclass(frozen=True)
class Erased:
    """What was erased: (segment, person) of memberships, (destination, segment, person) of deliveries."""

    memberships: tuple[tuple[str, str], ...]
    deliveries: tuple[tuple[str, str, str], ...]

    def lines(self) -> list[str]:
        """The same, told in lines."""
        gone = [f"erased {person} from segment {segment}" for segment, person in self.memberships]
        told = [f"told {to} that {person} is no more in segment {segment}" for to, segment, person in self.deliveries]
        return [*gone, *told] or ["no segment has this person"]


def erase(persons: Iterable[str], *, keyspace: str, hosts: str, servers: str = "", **access: Any) -> Erased:
    """Delete the memberships of these persons, and tell the destinations that have them.

    `servers` is the Kafka of the destinations; without it a person that was delivered raises, and nothing is deleted.
    Before it returns it reads all these rows again and finds none; raises if streams keep writing new ones.
    """
    named, reach = _named(persons), Access.of(hosts, access, where="segment.erase")
    if servers:
        require_servers(servers, "segment.erase")
    with explained(keyspace, hosts, servers):
        return _erase(named, keyspace, reach, servers)


def _named(persons: Iterable[str]) -> tuple[str, ...]:
    """Refuses a text, which is a sequence of letters: erasing these would leave the person without a word."""
    if isinstance(persons, str):
        what, next = f"persons is a text, {persons!r}", f"give a list: segment.erase([{persons!r}], ...)"
        raise PenstockError(what, where="segment.erase", next=next)
    named = tuple(persons)
    if wrong := [person for person in named if not isinstance(person, str)]:
        raise PenstockError(
            f"{wrong[0]!r} is no text", where="segment.erase", next="give each person as segment.match has it"
        )
    return named


def _erase(persons: Sequence[str], keyspace: str, reach: Access, servers: str) -> Erased:
    memberships, deliveries = set[Row](), set[Row]()
    for _ in range(ROUNDS + 1):
        members, delivered = (_found(reach, keyspace, table, persons) for table in (MEMBERS, DELIVERED))
        if not members and not delivered:
            told = [(place, segment, person) for place, segment, _, person in sorted(deliveries)]
            return Erased(tuple((segment, person) for segment, _, person in sorted(memberships)), tuple(told))
        if delivered and not servers:
            raise PenstockError(
                f"{', '.join(sorted({row[0] for row in delivered}))} got this person, and must be told",
                where=f"{keyspace} at {reach.hosts}",
                next="give --servers, the Kafka of these topics; nothing was deleted",
            )
        _delete(reach, keyspace, MEMBERS, members)
        _tell(servers, delivered)
        _delete(reach, keyspace, DELIVERED, delivered)
        memberships.update(members)
        deliveries.update(delivered)
    raise PenstockError(
        f"{', '.join(persons)} is written as fast as it is erased",
        where=f"{keyspace} at {reach.hosts}",
        next="keep the person's events from the queries that match segments, and erase it again",
    )


def _found(access: Access, keyspace: str, table: str, persons: Sequence[str]) -> list[Row]:
    session, place = connection(access).rows, _PLACES[table]
    where = " AND ".join(f"{name} = ?" for name in (*place, "person"))
    select = session.prepare(f"SELECT person FROM {keyspace}.{table} WHERE {where}")
    partitions = list(session.execute(f"SELECT DISTINCT {', '.join(place)} FROM {keyspace}.{table}"))
    asked = [
        (*partition, person)
        for person in dict.fromkeys(persons)
        for partition in partitions
        if partition[-1] == xxhash64(person) % BUCKETS
    ]
    return [row for row in asked if session.execute(select, row).one()]


def _delete(access: Access, keyspace: str, table: str, rows: Sequence[Row]) -> None:
    session, where = connection(access).rows, " AND ".join(f"{name} = ?" for name in (*_PLACES[table], "person"))
    delete = session.prepare(f"DELETE FROM {keyspace}.{table} WHERE {where}")
    for row in rows:
        session.execute(delete, row)


def _tell(servers: str, delivered: Sequence[Row]) -> None:
    if not delivered:
        return
    with BlockingProducer(servers) as producer:
        sent = [
            producer.send(destination, record(segment, "remove", person, None), key=person.encode())
            for destination, segment, _, person in delivered
        ]
        for one in sent:
            one.result()
