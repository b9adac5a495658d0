"""The servers of `penstock ingest`."""

from __future__ import annotations

from typing import Any

from penstock.console.calls import Call
from penstock.console.openapi import FLAG, TEXT, list_of, record
from penstock.console.panels import ApiRoute, ConsolePanel
from penstock.console.watched_systems import WatchedSystems


async def _ingest(systems: WatchedSystems, call: Call) -> Any:
    await systems.runs.looked.wait()
    return [
        {
            **(run.status or {}).get("ingest", {}),
            "run": id,
            "url": run.address.url,
            "state": (run.status or {}).get("state", "starting"),
            "reachable": run.reachable,
            "problem": run.problem,
        }
        for id, run in systems.of_kind("ingest").items()
    ]


PANEL = ConsolePanel(
    routes=(ApiRoute("/api/ingest", "The servers of penstock ingest", _ingest, "Ingest"),),
    schemas={"Ingest": list_of(record(run=TEXT, url=TEXT, state=TEXT, reachable=FLAG, problem=TEXT))},
)
