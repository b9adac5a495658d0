"""Erases persons from segments: their memberships and deliveries, verified by reading both again.

A destination that has a person gets a `remove` record before its row is deleted. Counts are sketches of hashes, from
which nobody can be removed; they expire by their time to live.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from penstock.border.public import public
from penstock.database.access import Access, AccessOptions
from penstock.database.cql_connection import connection
from penstock.errors import PenstockError
from penstock.kafka.security import require_servers
from penstock.segment.member_tables.delivery_sync import record
from penstock.segment.member_tables.member_schema import bucket_of, explained
from penstock.wire.producer.blocking import BlockingProducer

ROUNDS = 3
"""How often rows that streams wrote meanwhile are deleted again before `erase` gives up."""
MEMBERS, DELIVERED = "members", "delivered"
_PLACES = {MEMBERS: ("segment", "bucket"), DELIVERED: ("destination", "segment", "bucket")}

Row = tuple[Any, ...]
"""The key of a row: its partition, then the person."""


@dataclass(frozen=True)
class Erased:
    """The erased rows: (segment, person) of memberships, (destination, segment, person) of deliveries."""

    memberships: tuple[tuple[str, str], ...]
    deliveries: tuple[tuple[str, str, str], ...]

    def lines(self) -> list[str]:
        """One line of text for each row."""
        gone = [f"erased {person} from segment {segment}" for segment, person in self.memberships]
        sent = [f"sent {to} the removal of {person} from segment {segment}" for to, segment, person in self.deliveries]
        return [*gone, *sent] or ["no segment has this person"]


@public("segment.erase")
def erase(
    persons: Iterable[str], *, keyspace: str, hosts: str, servers: str = "", **access: Unpack[AccessOptions]
) -> Erased:
    """Delete the memberships of these persons, and send `remove` records to the destinations that have them.

    `servers` is the Kafka of the destinations. Without it, raises PenstockError and deletes nothing if a destination
    has one of the persons. Reads all rows again before it returns; raises PenstockError if streams keep writing new
    ones.
    """
    named, reach = _named(persons), Access.of(hosts, access, where="segment.erase", function=erase)
    if servers:
        require_servers(servers, "segment.erase")
    with explained(keyspace, hosts, servers):
        return _erase(named, keyspace, reach, servers)


def _named(persons: Iterable[str]) -> tuple[str, ...]:
    """The persons, of which an iterator may give what is not a string."""
    named = tuple(persons)
    if wrong := [person for person in named if not isinstance(person, str)]:
        raise PenstockError(
            f"{wrong[0]!r} is not a string", where="segment.erase", next="pass each person as segment.match returns it"
        )
    return named


def _erase(persons: Sequence[str], keyspace: str, reach: Access, servers: str) -> Erased:
    memberships, deliveries = set[Row](), set[Row]()
    for _ in range(ROUNDS + 1):
        members, delivered = (_rows_of(reach, keyspace, table, persons) for table in (MEMBERS, DELIVERED))
        if not members and not delivered:
            removals = [(place, segment, person) for place, segment, _, person in sorted(deliveries)]
            return Erased(tuple((segment, person) for segment, _, person in sorted(memberships)), tuple(removals))
        if delivered and not servers:
            raise PenstockError(
                f"{', '.join(sorted({row[0] for row in delivered}))} got this person and must get the removal",
                where=f"{keyspace} at {reach.hosts}",
                next="set --servers to the Kafka of these topics; nothing was deleted",
            )
        _delete(reach, keyspace, MEMBERS, members)
        _tell(servers, delivered)
        _delete(reach, keyspace, DELIVERED, delivered)
        memberships.update(members)
        deliveries.update(delivered)
    raise PenstockError(
        f"streams write {', '.join(persons)} as fast as it is erased",
        where=f"{keyspace} at {reach.hosts}",
        next="keep the person's events from the queries that match segments, then erase again",
    )


def _rows_of(access: Access, keyspace: str, table: str, persons: Sequence[str]) -> list[Row]:
    session, place = connection(access).rows, _PLACES[table]
    where = " AND ".join(f"{name} = ?" for name in (*place, "person"))
    select = session.prepare(f"SELECT person FROM {keyspace}.{table} WHERE {where}")
    partitions = list(session.execute(f"SELECT DISTINCT {', '.join(place)} FROM {keyspace}.{table}"))
    asked = [
        (*partition, person)
        for person in dict.fromkeys(persons)
        for partition in partitions
        if partition[-1] == bucket_of(person)
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
        for future in sent:
            future.result()
