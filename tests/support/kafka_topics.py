"""Topics of a real broker for the time of one test."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka.admin import AdminClient, NewTopic


@contextmanager
def new_topic(servers: str, prefix: str, partitions: int, config: dict[str, str] | None = None) -> Iterator[str]:
    """A new topic, deleted afterwards; its name."""
    name = f"{prefix}-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": servers})
    for done in admin.create_topics([NewTopic(name, partitions, 1, config=config or {})]).values():
        done.result()
    yield name
    for done in admin.delete_topics([name]).values():
        done.result()
