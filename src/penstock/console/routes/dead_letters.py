"""Dead letters: the topics that have them, their reasons, and sending them again."""

from __future__ import annotations

from typing import Any

from penstock.console.calls import Call, Parameter, while_connected
from penstock.console.openapi import COUNTS, FLAG, FREE, NULL_OR_TEXT, TEXT, WHOLE, list_of, record, ref
from penstock.console.panels import ApiRoute, ConsolePanel
from penstock.console.reading.reader_process import ENDED, ReaderError
from penstock.console.routes.messages import MESSAGE
from penstock.console.routes.topics import KAFKA, LIMIT, topic_of, topics_of
from penstock.console.watched_systems import WatchedSystems


async def _topics(systems: WatchedSystems, call: Call) -> Any:
    topic_list = await topics_of(systems, call)
    topics = await topic_list.with_records()
    kafka = topic_list.brokers.as_json()
    mask = list(systems.settings.mask)
    work = systems.reader.call("count_dead_letters", kafka=kafka, topics=topics, mask=mask)
    answer = await while_connected(call.request, work)
    every = len(topics) + topic_list.left_out
    left_out = {"topic": None, "looked_at": answer["looked_at"], "topics": every}
    return [*answer["topics"], *([left_out] if answer["looked_at"] < every else [])]


async def _letters(systems: WatchedSystems, call: Call) -> Any:
    work = systems.reader.call(
        "dead_letters",
        kafka=(await topics_of(systems, call)).brokers.as_json(),
        topic=topic_of(call),
        parameters=call.query,
        mask=list(systems.settings.mask),
        registry=systems.settings.registry,
        messages=systems.settings.messages,
    )
    return await while_connected(call.request, work)


async def _send(systems: WatchedSystems, call: Call) -> Any:
    which = await call.body()
    kafka = (await topics_of(systems, call)).brokers.as_json()
    arguments = {"kafka": kafka, "topic": topic_of(call), "which": which, "mask": list(systems.settings.mask)}
    try:
        return await systems.reader.call("send_letters", **arguments)
    except ReaderError as error:
        if error.kind == ENDED:
            error.next = "some may have been sent: see the topics that the letters name before you send them again"
        raise


_between = {"from": TEXT, "until": TEXT}
PANEL = ConsolePanel(
    routes=(
        ApiRoute(
            "/api/dead-letters",
            "The topics that have dead letters; a last one without a name says if not all were looked at",
            _topics,
            "DeadLetterTopics",
            (KAFKA,),
        ),
        ApiRoute(
            "/api/dead-letters/{topic}",
            "The reasons of a topic's newest dead letters, and the letters",
            _letters,
            "DeadLetters",
            (KAFKA, Parameter("reason", "Only letters with this reason."), LIMIT),
        ),
        ApiRoute(
            "/api/dead-letters/{topic}/send",
            "Send dead letters again to the topic in their headers; nothing prevents sending them twice",
            _send,
            "Sent",
            (KAFKA,),
            method="POST",
            body="Letters",
        ),
    ),
    schemas={
        "DeadLetterTopics": list_of(
            record(topic=NULL_OR_TEXT, records=WHOLE, reasons=COUNTS, looked_at=WHOLE, topics=WHOLE)
        ),
        "DeadLetters": record(
            topic=TEXT,
            reasons=list_of(record(reason=TEXT, count=WHOLE, first=TEXT, last=TEXT)),
            records=list_of(record(**MESSAGE, reason=TEXT, origin=FREE)),
            more=FLAG,
            looked_at_all=FLAG,
        ),
        "Letters": {
            "oneOf": [
                record(letters=list_of({"type": "array", "items": WHOLE, "minItems": 2, "maxItems": 2}))
                | {"required": ["letters"]},
                record(reason=TEXT, **_between) | {"required": ["reason"]},
                record(all={"const": True}, **_between) | {"required": ["all"]},
            ]
        },
        "Sent": record(
            sent=WHOLE,
            topics=COUNTS,
            failed=list_of(record(partition=WHOLE, offset=WHOLE, why=TEXT)),
            left=WHOLE,
            next={"oneOf": [ref("Letters"), {"type": "null"}]},
            error=NULL_OR_TEXT,
        ),
    },
    statuses={"AlreadySending": 409},
)
