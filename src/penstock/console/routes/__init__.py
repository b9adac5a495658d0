"""The panels of the console, each in a module of its own: a new one is a module with a `PANEL`, named here."""

from __future__ import annotations

from importlib import import_module

from penstock.console.panels import ConsolePanel

_NAMES = (
    "overview",
    "pipeline",
    "topics",
    "messages",
    "dead_letters",
    "connectors",
    "state",
    "ingest",
)
PANELS: tuple[ConsolePanel, ...] = tuple(import_module(f"{__name__}.{name}").PANEL for name in _NAMES)
"""In the order of the description."""
