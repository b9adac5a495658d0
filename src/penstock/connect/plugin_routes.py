"""What the paths for the worker itself do: its version, its plugins, its log."""

from __future__ import annotations

import logging
from typing import Any

from penstock import __version__
from penstock.connect.converters import CONVERTERS
from penstock.connect.errors import RestError
from penstock.connect.properties import ALIASES, CLASS, properties
from penstock.connect.routing import Answer, Ask, Routes, as_config, as_object, route
from penstock.connect.shown import definitions, validation
from penstock.connect.transforms import CLASSES
from penstock.connect.worker import Worker

ROUTES: Routes = {}
VERSION = "4.3.1"
"""The version of Kafka Connect whose API this is."""


@route(ROUTES, "GET", "/")
def _server(worker: Worker, ask: Ask) -> Answer:
    return 200, {
        "version": VERSION,
        "commit": f"penstock-{__version__}",
        "kafka_cluster_id": worker.store.cluster_id,
    }


@route(ROUTES, "GET", "/health")
def _health(worker: Worker, ask: Ask) -> Answer:
    return 200, {"status": "healthy", "message": "Worker has completed startup and is ready to handle requests."}


@route(ROUTES, "GET", "/connector-plugins")
def _plugins(worker: Worker, ask: Ask) -> Answer:
    found = [{"class": CLASS, "type": "source", "version": __version__}]
    if not ask.flag("connectorsOnly", "true"):
        found += [{"class": name, "type": "converter", "version": __version__} for name in CONVERTERS]
        found += CLASSES
    return 200, found


@route(ROUTES, "GET", "/connector-plugins/{plugin}/config")
def _plugin_config(worker: Worker, ask: Ask) -> Answer:
    _require_plugin(ask.path["plugin"])
    return 200, definitions(properties())


@route(ROUTES, "PUT", "/connector-plugins/{plugin}/config/validate")
def _validate(worker: Worker, ask: Ask) -> Answer:
    config = as_config(ask.body)
    _require_plugin(ask.path["plugin"])
    _require_plugin(config.get("connector.class", ask.path["plugin"]))
    return 200, validation(CLASS, worker.check(config))


@route(ROUTES, "GET", "/admin/loggers")
def _loggers(worker: Worker, ask: Ask) -> Answer:
    named = [name for name, logger in logging.root.manager.loggerDict.items() if isinstance(logger, logging.Logger)]
    levels = {name: logging.getLogger(name).level for name in named}
    shown = {name: _level(name) for name, level in sorted(levels.items()) if level}
    return 200, {"root": _level("root"), **shown}


@route(ROUTES, "GET", "/admin/loggers/{logger}")
def _logger(worker: Worker, ask: Ask) -> Answer:
    return 200, _level(ask.path["logger"])


@route(ROUTES, "PUT", "/admin/loggers/{logger}")
def _set_level(worker: Worker, ask: Ask) -> Answer:
    level = str(as_object(ask.body).get("level", "")).upper()
    if level not in logging.getLevelNamesMapping():
        raise RestError(404, f"invalid log level '{level}'; use DEBUG, INFO, WARNING or ERROR")
    logging.getLogger(None if ask.path["logger"] == "root" else ask.path["logger"]).setLevel(level)
    return 200, [ask.path["logger"]]


def _level(name: str) -> dict[str, Any]:
    logger = logging.getLogger(None if name == "root" else name)
    return {"level": logging.getLevelName(logger.getEffectiveLevel()), "last_modified": None}


def _require_plugin(name: str) -> None:
    if name not in ALIASES:
        raise RestError(
            404,
            f"Failed to find any class that implements Connector and which name matches {name}. "
            f"This worker runs {CLASS}",
        )
