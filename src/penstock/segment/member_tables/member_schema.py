"""The tables of segments: members, counts, deliveries. Every row has a time to live; partitions stay below 100 MB.

A hash of the person spreads the members of a segment over `BUCKETS` partitions. With n members of b bytes per row, a
partition has n * b / BUCKETS bytes: 50 million members of 100 bytes make 256 partitions of 20 MB (docs/segments.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import xxhash

from penstock.border.public import public
from penstock.database.retrying import telling
from penstock.errors import PenstockError
from penstock.wire.errors import KafkaError

BUCKETS = 256
"""Partitions of a segment's members. Existing data depends on it: another number needs another keyspace."""
DAY = 86_400
COUNTS_KEPT = {"minute": 8 * DAY, "ten": 8 * DAY, "hour": 100 * DAY, "quarter": 100 * DAY, "day": 800 * DAY}
"""Seconds that the counts of each level are kept."""
RECEIPTS_KEPT = 400 * DAY

TABLES = {
    # Small rows that expire one by one. A short grace period is safe: no older version of a row comes back.
    "members": "segment text, bucket int, person text, until timestamp, changed timestamp, "
    "PRIMARY KEY ((segment, bucket), person)",
    "delivered": "destination text, segment text, bucket int, person text, until timestamp, "
    "PRIMARY KEY ((destination, segment, bucket), person)",
    "syncs": "destination text, segment text, run timeuuid, mode text, began timestamp, ended timestamp, "
    "added bigint, removed bigint, digest text, PRIMARY KEY ((destination, segment), run)",
    "sync_steps": "destination text, segment text, run timeuuid, bucket int, "
    "added bigint, removed bigint, digest bigint, PRIMARY KEY ((destination, segment, run), bucket)",
    "counts": "segment text, level text, span text, at timestamp, members blob, "
    "PRIMARY KEY ((segment, level, span), at)",
}


def bucket_of(person: str) -> int:
    """The bucket of one person, as Spark's `pmod(xxhash64(person), BUCKETS)`, whose seed is 42."""
    return xxhash.xxh64_intdigest(person.encode(), 42) % BUCKETS


def aware(time: datetime) -> datetime:
    """The time with its zone; naive times, as the driver returns them, are UTC."""
    return time if time.tzinfo else time.replace(tzinfo=UTC)


@public("segment.create_tables")
def create_tables(session: Any, keyspace: str) -> None:
    """Create the missing tables in an existing keyspace; `session` is a session of the CQL driver.

    Raises PenstockError if the database refuses, for example if the keyspace does not exist.
    """
    hosts = ",".join(str(host.endpoint) for host in session.hosts)
    next = f"check the keyspace's name, or create it: CREATE KEYSPACE {keyspace} WITH replication = ..."
    with telling(where=f"{keyspace} at {hosts}", next=next):
        for name, columns in TABLES.items():
            session.execute(
                f"CREATE TABLE IF NOT EXISTS {keyspace}.{name} ({columns}) WITH gc_grace_seconds = 86400"
                f" AND default_time_to_live = {RECEIPTS_KEPT}"
            )


# Errors of the database and Kafka, with the next step.


@contextmanager
def explained(keyspace: str, hosts: str, servers: str = "") -> Iterator[None]:
    """Explain errors of the tables of a keyspace and, with `servers`, of a destination's topic."""
    next = f"check the keyspace, and create its missing tables: penstock segment tables --keyspace {keyspace}"
    try:
        with telling(where=f"{keyspace} at {hosts}", next=next):
            yield
    except KafkaError as error:
        raise PenstockError(
            str(error),
            where=f"Kafka at {servers}",
            next=error.next or "check --servers and the topic: penstock topics list",
        ) from error
