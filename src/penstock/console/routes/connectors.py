"""The connectors of Kafka Connect clusters, and what can be done with one."""

from __future__ import annotations

from typing import Any

from penstock.console.calls import Call, NotFound
from penstock.console.openapi import FLAG, FREE, NULL_OR_TEXT, NUMBER, TEXT, WHOLE, list_of, record
from penstock.console.panels import ApiRoute, ConsolePanel, Schema
from penstock.console.reading.connect_clusters import ACTIONS, ConnectRefused
from penstock.console.watched_systems import WatchedSystems


async def _connectors(systems: WatchedSystems, call: Call) -> Any:
    return await systems.listed_connectors()


async def _connector(systems: WatchedSystems, call: Call) -> Any:
    return await systems.connector(call.path["cluster"], call.path["name"])


async def _act(systems: WatchedSystems, call: Call) -> Any:
    action = call.path["action"]
    if action not in ACTIONS:
        raise NotFound(f"there is no action {action[:100]}", next=f"choose {', '.join(ACTIONS)}")
    return await systems.clusters.act(call.path["cluster"], call.path["name"], action)


def _status_of_refusal(error: ConnectRefused) -> int:
    """The cluster is asked for the page: its refusal of a name is the console's answer, other ones are failures."""
    return error.status if error.status in (404, 409) else 502


_task = record(
    **{"id": NUMBER, "state": TEXT, "worker": TEXT, "trace": TEXT},
    **{"records_total": WHOLE, "dead_letters_total": WHOLE, "mostly_bad": FLAG},
)
_fields: dict[str, Schema] = {
    "cluster": WHOLE,
    "url": TEXT,
    "name": NULL_OR_TEXT,
    "type": TEXT,
    "state": TEXT,
    "worker": TEXT,
    "trace": TEXT,
    "tasks": list_of(_task),
}
PANEL = ConsolePanel(
    routes=(
        ApiRoute("/api/connectors", "The connectors of all Connect clusters", _connectors, "Connectors"),
        ApiRoute(
            "/api/connectors/{cluster:int}/{name:path}",
            "A connector with its configuration, without secrets, and its offsets",
            _connector,
            "Connector",
        ),
        ApiRoute(
            "/api/connectors/{cluster:int}/{name:path}/{action}",
            "pause, resume, stop or restart a connector, and wait for the result",
            _act,
            "Acted",
            method="POST",
            choices={"action": tuple(ACTIONS)},
        ),
    ),
    schemas={
        "Connectors": list_of(record(**_fields, letters=NULL_OR_TEXT, kafka=NULL_OR_TEXT, error=TEXT, problem=TEXT)),
        "Connector": record(**_fields, config=FREE, offsets={}, problem=TEXT),
        "Acted": record(action=TEXT, done=FLAG, waited_seconds=NUMBER, connector=record(**_fields)),
    },
    statuses={ConnectRefused.__name__: _status_of_refusal},
)
