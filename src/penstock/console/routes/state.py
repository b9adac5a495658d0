"""The states of queries: from servers of state, else from the checkpoints."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

from penstock.console.calls import Call, NotFound, Parameter
from penstock.console.openapi import FLAG, NUMBER, TEXT, WHOLE, list_of, record
from penstock.console.panels import ApiRoute, ConsolePanel
from penstock.console.watched_systems import WatchedSystems
from penstock.errors import PenstockError
from penstock.serve.http_client import fetch


async def _states(systems: WatchedSystems, call: Call) -> Any:
    await systems.runs.looked.wait()
    states = []
    for name, address in systems.state_servers():
        answer = await fetch(address, "/state")
        if answer.status == 200 and isinstance(listed := answer.parsed(address.url), list):
            states += [{**state, "run": name} for state in listed if isinstance(state, dict)]
    if folders := [str(root) for root in systems.roots()]:
        for state in await systems.reader.call("states", folders=folders):
            states.append({**state, "run": state["name"].split("/")[0]})
    return states


async def _rows(systems: WatchedSystems, call: Call) -> Any:
    await systems.runs.looked.wait()
    name, key, limit = call.path["name"], call.query.get("key"), call.query.get("limit") or "100"
    if {".", ".."} & set(name.split("/")):
        # A server of state, or a proxy before it, would take it for a path to another page.
        raise NotFound(f"{name[:100]!r} is not a name of a state", next="see /api/state")
    asked = {"limit": limit} | ({} if key is None else {"key": key})
    problem: PenstockError | None = None
    for _, address in systems.state_servers():
        try:
            answer = await fetch(address, f"/state/{quote(name, safe='/')}?{urlencode(asked)}")
        except PenstockError as error:
            # Another one may have the state.
            problem = error
            continue
        document = answer.parsed(address.url)
        if answer.status == 200 and isinstance(document, dict):
            return {**document, "rows": systems.mask.value(document.get("rows", []))}
        what = document.get("error") if isinstance(document, dict) else None
        problem = NotFound(str(what or f"HTTP {answer.status}")[:500], where=address.url, next="see /api/state")
    if folders := [str(root) for root in systems.roots()]:
        mask = list(systems.settings.mask)
        return await systems.reader.call("state", folders=folders, name=name, key=key, limit=int(limit), mask=mask)
    raise problem or NotFound(f"there is no state {name[:200]}", next="give --checkpoints DIR or --state URL")


PANEL = ConsolePanel(
    routes=(
        ApiRoute("/api/state", "The states of queries", _states, "States"),
        ApiRoute(
            "/api/state/{name:path}",
            "Rows of a state",
            _rows,
            "StateRows",
            (
                Parameter("key", "The key, as a string or as a JSON object of its columns."),
                Parameter("limit", "The most rows (100).", whole=True),
            ),
        ),
    ),
    schemas={
        "States": list_of(record(run=TEXT, name=TEXT, operator=TEXT, batch=WHOLE, committed=TEXT, age_seconds=NUMBER)),
        "StateRows": record(name=TEXT, batch=WHOLE, committed=TEXT, age_seconds=NUMBER, rows=list_of({}), more=FLAG),
    },
    statuses={"NoSuchState": 404},
)
