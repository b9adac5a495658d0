"""What the paths for the worker itself do: its version, its plugins, its log."""

from __future__ import annotations

import logging
from typing import Any

from penstock import __version__
from penstock.connect.converters import CONVERTERS
from penstock.connect.definition import full_name
from penstock.connect.properties import ALIASES, CLASS, properties
from penstock.connect.rest_errors import RestError
from penstock.connect.routing import Answer, Ask, Routes, as_config, as_object, route
from penstock.connect.shown import definitions, validation
from penstock.connect.transforms import transform_chain
from penstock.connect.worker import ConnectWorker

ROUTES: Routes = {}
VERSION = "4.3.1"
"""The version of Kafka Connect whose API this is."""
LEVELS = {
    "OFF": logging.CRITICAL + 1,
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": 1,
}
"""Java's levels, as Python's."""


@route(ROUTES, "GET", "/")
def _server(worker: ConnectWorker, ask: Ask) -> Answer:
    return 200, {
        "version": VERSION,
        "commit": f"penstock-{__version__}",
        "kafka_cluster_id": worker.store.cluster_id,
    }


@route(ROUTES, "GET", "/health")
def _health(worker: ConnectWorker, ask: Ask) -> Answer:
    return 200, {"status": "healthy", "message": "Worker has completed startup and is ready to handle requests."}


@route(ROUTES, "GET", "/connector-plugins")
def _plugins(worker: ConnectWorker, ask: Ask) -> Answer:
    found = [{"class": CLASS, "type": "source", "version": __version__}]
    if not ask.flag("connectorsOnly", "true"):
        found += [{"class": name, "type": "converter", "version": __version__} for name in CONVERTERS]
        found += transform_chain.CLASSES
    return 200, found


@route(ROUTES, "GET", "/connector-plugins/{plugin}/config")
def _plugin_config(worker: ConnectWorker, ask: Ask) -> Answer:
    name = ask.path["plugin"]
    if kind := CONVERTERS.get(full_name(name, CONVERTERS)):
        return 200, definitions(kind.options)
    if (options := transform_chain.options(name)) is not None:
        return 200, definitions(options)
    _require_plugin(name)
    return 200, definitions(properties())


@route(ROUTES, "PUT", "/connector-plugins/{plugin}/config/validate")
def _validate(worker: ConnectWorker, ask: Ask) -> Answer:
    config = as_config({name: value for name, value in as_object(ask.body).items() if value is not None})
    _require_plugin(ask.path["plugin"])
    if (chosen := config.get("connector.class", CLASS)) not in ALIASES:
        raise RestError(400, f"Included connector type {chosen} does not match request type {ask.path['plugin']}")
    return 200, validation(CLASS, worker.check(config))


@route(ROUTES, "GET", "/admin/loggers")
def _loggers(worker: ConnectWorker, ask: Ask) -> Answer:
    named = [name for name, logger in logging.root.manager.loggerDict.items() if isinstance(logger, logging.Logger)]
    return 200, {
        "root": _level("root"),
        **{name: _level(name) for name in sorted(named) if logging.getLogger(name).level},
    }


@route(ROUTES, "GET", "/admin/loggers/{logger}")
def _logger(worker: ConnectWorker, ask: Ask) -> Answer:
    if ask.path["logger"] not in ("root", *logging.root.manager.loggerDict):
        raise RestError(404, f"Logger {ask.path['logger']} not found.")
    return 200, _level(ask.path["logger"])


@route(ROUTES, "PUT", "/admin/loggers/{logger}")
def _set_level(worker: ConnectWorker, ask: Ask) -> Answer:
    level = as_object(ask.body).get("level")
    if not level:
        raise RestError(400, "Desired 'level' parameter was not specified in request.")
    if str(level).upper() not in LEVELS:
        raise RestError(404, f"invalid log level '{level}'; use one of {', '.join(LEVELS)}")
    _log_of(ask.path["logger"]).setLevel(LEVELS[str(level).upper()])
    return (204, None) if ask.query.get("scope") == ["cluster"] else (200, [ask.path["logger"]])


def _log_of(name: str) -> logging.Logger:
    return logging.getLogger(None if name == "root" else name)


def _level(name: str) -> dict[str, Any]:
    level = _log_of(name).getEffectiveLevel()
    names = {number: text for text, number in LEVELS.items()}
    return {"level": names.get(level, logging.getLevelName(level)), "last_modified": None}


def _require_plugin(name: str) -> None:
    if name not in ALIASES:
        raise RestError(
            404,
            f"Failed to find any class that implements Connector and which name matches {name}. "
            f"This worker runs {CLASS}",
        )
