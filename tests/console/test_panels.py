"""A panel is a module of `console/routes`: what serves it knows it from its registration alone."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import validate
from starlette.testclient import TestClient

from penstock.console import app as console_app, routes
from penstock.console.calls import Call, Parameter
from penstock.console.openapi import TEXT, WHOLE, record
from penstock.console.panels import ApiRoute, ConsolePanel
from penstock.console.routes import PANELS
from penstock.console.settings import ConsoleSettings
from penstock.console.watched_systems import WatchedSystems
from penstock.errors import PenstockError

CONSOLE = Path(console_app.__file__).parent
MODULES = sorted({file.stem for file in Path(routes.__file__).parent.glob("*.py")} - {"__init__"})


class NoTurbine(PenstockError):
    """No turbine has this number."""


async def _turbine(systems: WatchedSystems, call: Call) -> Any:
    if call.path["number"] > 2:
        raise NoTurbine("there is no such turbine", next="choose 1 or 2")
    return {"number": call.path["number"], "unit": call.query.get("unit", "MW")}


TURBINES = ConsolePanel(
    routes=(
        ApiRoute(
            "/api/turbines/{number:int}", "A turbine", _turbine, "Turbine", (Parameter("unit", "MW.", ("MW", "kW")),)
        ),
    ),
    schemas={"Turbine": record(number=WHOLE, unit=TEXT)},
    statuses={"NoTurbine": 410},
)


def test_a_panel_that_nobody_knows_is_served_described_and_counted() -> None:
    with TestClient(console_app.app(WatchedSystems(ConsoleSettings()), (TURBINES,))) as client:
        assert client.get("/api/turbines/2").json() == {"number": 2, "unit": "MW"}
        assert client.get("/api/turbines/2?unit=W").json()["next"] == "give MW or kW"
        refused = client.get("/api/turbines/3")
        assert (refused.status_code, refused.json()["error"]) == (410, "there is no such turbine")
        document = client.get("/openapi.json").json()
        validate(document)
        assert set(document["components"]["schemas"]) == {"Error", "Turbine"}
        metrics = client.get("/metrics").text
        assert 'penstock_console_requests_total{route="GET /api/turbines/{number:int}",status="410"} 1.0' in metrics
        assert client.get("/api/overview").status_code == 404


def test_each_module_of_routes_is_a_panel_and_no_two_have_the_same_names() -> None:
    assert len(PANELS) == len(MODULES)
    names = [
        *(f"{route.method} {route.path}" for panel in PANELS for route in panel.routes),
        *(f"schema {name}" for panel in PANELS for name in panel.schemas),
        *(f"status {name}" for panel in PANELS for name in panel.statuses),
    ]
    assert [name for name, count in Counter(names).items() if count > 1] == []


@pytest.mark.parametrize("file", sorted(CONSOLE.glob("*.py")), ids=lambda file: str(file.name))
def test_what_serves_panels_names_none(file: Path) -> None:
    text = file.read_text()
    assert not re.findall(rf"console\.routes\.(?:{'|'.join(MODULES)})", text)
    assert not re.findall(r"/api/\w+", text)
