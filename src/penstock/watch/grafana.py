"""Grafana's classic JSON from a short description: rows of panels with expressions of PromQL, and variables.

The same description gives the same bytes, with fixed identities: Grafana replaces its copy when files are provisioned
again. The fields are those that Grafana 11 writes; those left out have its defaults.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.watch.alert_rules import WRITTEN

Json = dict[str, Any]

SCHEMA = 39
"""Of Grafana 11; later ones read it."""
WIDTH = 24
"""Columns of the grid."""
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
NOW = ("stat", "table", "bargauge")
"""Kinds of panels that show one value instead of a range of time."""


@dataclass(frozen=True)
class Panel:
    """A panel; `shown` has expressions by their legend, `unit` is Grafana's name of it, `width` is in columns."""

    title: str
    about: str
    unit: str
    shown: Mapping[str, str]
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """More defaults of its fields."""
    options: Mapping[str, Any] = field(default_factory=dict)
    transformations: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Row:
    """Panels below a title, from left to right."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Variable:
    """A choice at the head of a dashboard: the values of a label; `of` is a selector."""

    label: str
    of: str


@dataclass(frozen=True)
class Dashboard:
    """`name` is the end of its identity and of its file's name."""

    name: str
    title: str
    about: str
    variables: Sequence[Variable]
    rows: Sequence[Row]

    @property
    def uid(self) -> str:
        return f"penstock-{self.name}"

    def text(self) -> str:
        """Its file."""
        return json.dumps(_dashboard(self), indent=1) + "\n"


def _dashboard(board: Dashboard) -> Json:
    links = {"type": "dashboards", "title": "Penstock", "tags": ["penstock"], "asDropdown": True, "keepTime": True}
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    return {
        "uid": board.uid,
        "title": board.title,
        "description": f"{board.about} {WRITTEN}.",
        "tags": ["penstock"],
        "schemaVersion": SCHEMA,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [links],
        "templating": {"list": [source, *map(_variable, board.variables)]},
        "panels": list(_placed(board.rows)),
    }


def _variable(variable: Variable) -> Json:
    asked = f"label_values({variable.of}, {variable.label})"
    return {
        "name": variable.label,
        "label": variable.label.capitalize(),
        "type": "query",
        "datasource": SOURCE,
        "definition": asked,
        "query": {"query": asked, "refId": "values"},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"], "selected": True},
    }


def _placed(rows: Sequence[Row]) -> Iterator[Json]:
    """The panels with their places: each row below the one before, its panels side by side as far as they fit."""
    number = top = 0
    for row in rows:
        number += 1
        place = {"x": 0, "y": top, "w": WIDTH, "h": 1}
        yield {"id": number, "type": "row", "title": row.title, "collapsed": False, "gridPos": place, "panels": []}
        top, left, tallest = top + 1, 0, 0
        for panel in row.panels:
            if left + panel.width > WIDTH:
                top, left, tallest = top + tallest, 0, 0
            number += 1
            yield _panel(panel, number, {"x": left, "y": top, "w": panel.width, "h": panel.height})
            left, tallest = left + panel.width, max(tallest, panel.height)
        top += tallest


def _panel(panel: Panel, number: int, place: Json) -> Json:
    # An axis that does not begin at zero makes small changes look large.
    base = {"unit": panel.unit, "min": 0} if panel.kind == "timeseries" else {"unit": panel.unit}
    model: Json = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {**base, **panel.defaults}, "overrides": []},
        "targets": [_target(panel.kind, at, *shown) for at, shown in enumerate(panel.shown.items())],
    }
    if panel.options:
        model["options"] = panel.options
    if panel.transformations:
        model["transformations"] = panel.transformations
    return model


def _target(kind: str, number: int, legend: str, expression: str) -> Json:
    return {
        "refId": chr(ord("A") + number),
        "datasource": SOURCE,
        "expr": expression,
        "legendFormat": legend,
        "format": kind if kind in ("table", "heatmap") else "time_series",
        "instant": kind in NOW,
        "range": kind not in NOW,
    }
