"""All runs, their graph, and what is wrong: once, and as events whenever it changed."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from penstock.console.calls import Call
from penstock.console.openapi import FLAG, FREE, NULL_OR_TEXT, NUMBER, TEXT, list_of, record, ref
from penstock.console.panels import ApiRoute, ConsolePanel
from penstock.console.watched_systems import WatchedSystems


async def _overview(systems: WatchedSystems, call: Call) -> Any:
    await systems.ready()
    return systems.overview()


async def _events(systems: WatchedSystems, call: Call) -> Response:
    await systems.runs.looked.wait()
    systems.changes.look()
    return systems.streams.response(systems.changes.events(call.request.headers.get("last-event-id", "")))


PANEL = ConsolePanel(
    routes=(
        ApiRoute("/api/overview", "All runs, their graph, and what is wrong, worst first", _overview, "Overview"),
        ApiRoute("/api/events", "The overview as server-sent events, whenever it changed", _events, "events"),
    ),
    schemas={
        "Problem": record(
            **dict.fromkeys(("severity", "what", "where", "next", "run"), TEXT),
            query=NULL_OR_TEXT,
            cluster={"type": ["integer", "null"]},
        ),
        "Graph": record(nodes=list_of(FREE), edges=list_of(record(source=TEXT, target=TEXT, rate=NUMBER))),
        "Run": record(
            id=TEXT,
            name=TEXT,
            kind=TEXT,
            url=NULL_OR_TEXT,
            state=TEXT,
            reachable=FLAG,
            problem=TEXT,
            queries=list_of(FREE),
            errors=list_of(FREE),
            graph=ref("Graph"),
        ),
        "Overview": record(
            now=TEXT,
            version=TEXT,
            read_only=FLAG,
            messages=FLAG,
            history=FLAG,
            kafkas=list_of(TEXT),
            kafka=NULL_OR_TEXT,
            targets=list_of(FREE),
            runs=list_of(ref("Run")),
            graph=ref("Graph"),
            problems=list_of(ref("Problem")),
        ),
    },
)
