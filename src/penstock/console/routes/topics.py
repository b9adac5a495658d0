"""The topics of a Kafka, and how the panels of topics name a Kafka and a topic."""

from __future__ import annotations

from typing import Any

from penstock.console.calls import Call, NotFound, Parameter
from penstock.console.openapi import FLAG, NULL_OR_TEXT, TEXT, WHOLE, list_of, record
from penstock.console.panels import ApiRoute, ConsolePanel
from penstock.console.reading.topic_list import TopicList
from penstock.console.watched_systems import WatchedSystems
from penstock.wire.topic_names import is_topic_name

KAFKA = Parameter("kafka", "The Kafka, one of `kafkas` of the overview; by default that of --servers, or the only one.")
LIMIT = Parameter("limit", "The most records: 500 for a page, 10000 for a download.", whole=True)


async def topics_of(systems: WatchedSystems, call: Call) -> TopicList:
    """The topics of the Kafka that the request means, once all runs were asked for theirs."""
    await systems.runs.looked.wait()
    return systems.kafkas.topics(call.query.get(KAFKA.name))


def topic_of(call: Call) -> str:
    """The topic in the address; raises NotFound if it is not a name of one."""
    topic: str = call.path["topic"]
    if not is_topic_name(topic):
        raise NotFound(f"{topic[:100]!r} is not a name of a topic", next="choose one of /api/topics")
    return topic


async def _topics(systems: WatchedSystems, call: Call) -> Any:
    await systems.ready()
    topics = await topics_of(systems, call)
    listed = await topics.listed(systems.readers_and_writers(topics.brokers.servers))
    left_out = {"name": None, "listed": len(listed), "topics": len(listed) + topics.left_out}
    return [*listed, *([left_out] if topics.left_out else [])]


PANEL = ConsolePanel(
    routes=(
        ApiRoute(
            "/api/topics",
            "The topics of a Kafka with their records and rates; a last one without a name says if not all are listed",
            _topics,
            "Topics",
            (KAFKA,),
        ),
    ),
    schemas={
        "Topics": list_of(
            record(
                name=NULL_OR_TEXT,
                partitions=WHOLE,
                records=WHOLE,
                rate={"type": ["number", "null"]},
                writers=list_of(TEXT),
                readers=list_of(TEXT),
                internal=FLAG,
                listed=WHOLE,
                topics=WHOLE,
            )
        ),
    },
    statuses={"NoKafka": 404},
)
