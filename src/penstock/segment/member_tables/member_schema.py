"""The tables of segments: members, counts, deliveries. Every row has a time to live; partitions stay below 100 MB.

Members of a segment are spread over `BUCKETS` partitions by a hash of the person. With n members of b bytes a row, a
partition has n * b / BUCKETS bytes: 50 million members of 100 bytes make 256 partitions of 20 MB (docs/segments.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.database.retrying import telling
from penstock.errors import PenstockError
from penstock.wire.errors import KafkaError

BUCKETS = 256
"""Partitions of a segment's members. It belongs to the data: another number is another keyspace."""
DAY = 86_400
COUNTS_KEPT = {"minute": 8 * DAY, "ten": 8 * DAY, "hour": 100 * DAY, "quarter": 100 * DAY, "day": 800 * DAY}
"""For how many seconds the counts of each level are kept."""
RECEIPTS_KEPT = 400 * DAY

TABLES = {
    # Small rows that expire one by one: tombstones of a time to live are dropped soon, as no row comes back older.
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


def create_tables(session: Any, keyspace: str) -> None:
    """Make the tables that are not there yet, in a keyspace that is; `session` is one of the CQL driver."""
    hosts = ",".join(str(host.endpoint) for host in session.hosts)
    next = f"check the keyspace's name, and make it: CREATE KEYSPACE {keyspace} WITH replication = ..."
    with telling(where=f"{keyspace} at {hosts}", next=next):
        for name, columns in TABLES.items():
            session.execute(
                f"CREATE TABLE IF NOT EXISTS {keyspace}.{name} ({columns}) WITH gc_grace_seconds = 86400"
                f" AND default_time_to_live = {RECEIPTS_KEPT}"
            )


# What the database and Kafka refuse of segments, told with the next step.


@contextmanager
def explained(keyspace: str, hosts: str, servers: str = "") -> Iterator[None]:
    """For all that is done with the tables of a keyspace and, with `servers`, with a destination's topic."""
    next = f"check the keyspace, and make its missing tables: penstock segment tables --keyspace {keyspace}"
    try:
        with telling(where=f"{keyspace} at {hosts}", next=next):
            yield
    except KafkaError as error:
        raise PenstockError(
            str(error), where=f"Kafka at {servers}", next="check --servers and the topic: penstock topics list"
        ) from error
