"""What the database and Kafka refuse of segments, told with the next step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.database.retrying import telling
from penstock.errors import PenstockError
from penstock.wire.errors import KafkaError


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
