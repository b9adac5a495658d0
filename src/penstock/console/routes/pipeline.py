"""One pipeline: its batches of the last minutes, and charts of days from Prometheus."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.console.calls import Call, NotFound, Parameter
from penstock.console.openapi import NUMBER, TEXT, WHOLE, list_of, record
from penstock.console.panels import ApiRoute, ConsolePanel
from penstock.console.reading import prometheus_history
from penstock.console.watched_systems import WatchedSystems


async def _pipeline(systems: WatchedSystems, call: Call) -> Any:
    await systems.ready()
    pipeline = await asyncio.to_thread(systems.run, call.path["id"])
    if pipeline is None:
        raise NotFound(f"there is no pipeline {call.path['id'][:200]}", next="choose one of /api/overview")
    return pipeline


async def _history(systems: WatchedSystems, call: Call) -> Any:
    pipeline, query, span = (call.query.get(name, "") for name in ("pipeline", "query", "range"))
    return await prometheus_history.history(systems.settings.prometheus, pipeline, query, span or "1h")


PANEL = ConsolePanel(
    routes=(
        ApiRoute("/api/pipelines/{id:path}", "A run with the batches of the last 15 minutes", _pipeline, "Run"),
        ApiRoute(
            "/api/history",
            "Charts of a pipeline from Prometheus",
            _history,
            "History",
            (
                Parameter("pipeline", "The name of the pipeline."),
                Parameter("query", "The name of a query of it."),
                Parameter("range", "How far back.", tuple(prometheus_history.RANGES)),
            ),
        ),
    ),
    schemas={
        "History": record(
            range=TEXT, step=WHOLE, series={"type": "object", "additionalProperties": list_of(list_of(NUMBER))}
        ),
    },
    statuses={"NoPrometheus": 404},
)
