"""Records of a topic: pages of them, new ones as they come, and a download."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.responses import Response, StreamingResponse

from penstock.console.calls import Call, Json, Parameter, while_connected
from penstock.console.event_stream import event
from penstock.console.openapi import FLAG, NULL_OR_TEXT, TEXT, WHOLE, list_of, record, ref
from penstock.console.panels import ApiRoute, ConsolePanel, Schema
from penstock.console.routes.topics import KAFKA, LIMIT, topic_of, topics_of
from penstock.console.watched_systems import WatchedSystems
from penstock.errors import PenstockError
from penstock.serve.access.page import Refused

MESSAGE: dict[str, Schema] = {
    "partition": WHOLE,
    "offset": WHOLE,
    "timestamp": NULL_OR_TEXT,
    "key": NULL_OR_TEXT,
    "value": NULL_OR_TEXT,
    "key_format": TEXT,
    "value_format": TEXT,
    "key_problem": TEXT,
    "value_problem": TEXT,
    "headers": list_of({"type": "array", "items": NULL_OR_TEXT, "minItems": 2, "maxItems": 2}),
    "size": WHOLE,
    "truncated": FLAG,
}
"""The fields of a record."""


async def _record_arguments(systems: WatchedSystems, call: Call) -> Json:
    """What the process that reads records needs for those of a topic."""
    settings = systems.settings
    if not settings.messages:
        raise Refused("the console shows no messages", next="start it without --no-messages")
    return {
        "kafka": (await topics_of(systems, call)).brokers.as_json(),
        "parameters": {**call.query, "topic": topic_of(call)},
        "mask": list(settings.mask),
        "registry": settings.registry,
    }


async def _records(systems: WatchedSystems, call: Call) -> Any:
    arguments = await _record_arguments(systems, call)
    return await while_connected(call.request, systems.reader.call("records", **arguments))


async def _tail(systems: WatchedSystems, call: Call) -> Response:
    arguments = await _record_arguments(systems, call)

    async def events() -> AsyncGenerator[str, None]:
        async with aclosing(systems.reader.items("tail", **arguments)) as items:
            try:
                async for item in items:
                    yield event("records", json.dumps(item))
            except PenstockError as error:
                # The answer has begun: its status can no longer say it.
                yield event("problem", json.dumps({"error": error.what, "where": error.where, "next": error.next}))

    return systems.streams.response(events())


async def _download(systems: WatchedSystems, call: Call) -> Response:
    form = call.query.get("as", "ndjson")
    arguments = (await _record_arguments(systems, call)) | {"form": form}
    chunks = systems.reader.items("download", **arguments)
    # The first chunk comes before the answer, so that an error becomes one.
    first = await while_connected(call.request, _first(chunks))

    async def sent() -> AsyncGenerator[str, None]:
        async with aclosing(chunks):
            yield first
            async for chunk in chunks:
                yield chunk

    kind = {"ndjson": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}[form]
    headers = {"Content-Disposition": f'attachment; filename="{topic_of(call)}.{form}"'}
    return StreamingResponse(sent(), media_type=kind, headers=headers)


async def _first(chunks: AsyncGenerator[str, None]) -> str:
    return await anext(chunks, "")


SEARCH = (
    KAFKA,
    Parameter("partition", "Only this partition.", whole=True),
    Parameter("from", "latest, earliest, an ISO time, an offset, or partition:offset,partition:offset."),
    Parameter("before", "With from=latest: the records before these offsets, written as partition:offset,..."),
    LIMIT,
    Parameter("key", "Only records with this key, as the page shows it."),
    Parameter("filter", "Only records with this text in the key, the value or a header; case does not matter."),
)
PANEL = ConsolePanel(
    routes=(
        ApiRoute("/api/topics/{topic}/records", "Records of a topic", _records, "Records", SEARCH),
        ApiRoute("/api/topics/{topic}/tail", "New records as server-sent events", _tail, "events", SEARCH),
        ApiRoute(
            "/api/topics/{topic}/download",
            "Records as a file",
            _download,
            "file",
            (*SEARCH, Parameter("as", "The form of the file.", ("ndjson", "csv"))),
        ),
    ),
    schemas={
        "Record": record(**MESSAGE),
        "Records": record(
            records=list_of(ref("Record")), more=FLAG, newer=TEXT, older=TEXT, skipped_batches=WHOLE, searched=WHOLE
        ),
    },
    statuses={"NoTopic": 404},
)
