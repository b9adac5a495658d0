"""Topics of a cluster of three brokers, and their state."""

from __future__ import annotations

import uuid

from confluent_kafka.admin import AdminClient, NewTopic
from waiting import PATIENCE, until


def create(admin: AdminClient, partitions: int, *, leader: int | None = None) -> str:
    """A new topic on all three brokers, two of which must have each record; or only on this `leader`."""
    name = f"wire-{uuid.uuid4().hex[:8]}"
    if leader is None:
        new = NewTopic(name, partitions, 3, config={"min.insync.replicas": "2"})
    else:
        new = NewTopic(name, partitions, replica_assignment=[[leader]] * partitions)
    for done in admin.create_topics([new]).values():
        done.result()
    until(lambda: len(leaders(admin, name)) == partitions and min(leaders(admin, name)) > 0, "leaders")
    return name


def leaders(admin: AdminClient, topic: str) -> list[int]:
    found = admin.list_topics(topic, timeout=PATIENCE).topics[topic].partitions
    return [found[p].leader for p in sorted(found)]


def replicated(admin: AdminClient, topic: str) -> bool:
    """Whether all replicas of all partitions are in sync."""
    found = admin.list_topics(topic, timeout=PATIENCE).topics[topic].partitions.values()
    return all(len(one.isrs) == len(one.replicas) == 3 for one in found)
