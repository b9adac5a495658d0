"""The REST API's paths for the worker itself: its version, its plugins, its loggers."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from penstock import __version__
from penstock.connect.definition import REQUIRED, Property, as_text, full_name
from penstock.connect.records.sink_converters import CLASSES, options as converter_options
from penstock.connect.transforms import definitions as transforms
from penstock.connect.worker.checks import CheckedConfig
from penstock.connect.worker.herder import Herder
from penstock.connect.worker.plugins import PLUGINS, ConnectorPlugin, plugin_named
from penstock.connect.worker.routes import Answer, RestRequest, Routes, as_config, as_object
from penstock.serve.rest_errors import RestError

Json = dict[str, Any]
VERSION = "4.3.1"
"""The version of Kafka Connect with this API."""
LEVELS = {
    "OFF": logging.CRITICAL + 1,
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": 1,
}
"""Java's log levels as Python's."""


def _server(worker: Herder, ask: RestRequest) -> Answer:
    return 200, {
        "version": VERSION,
        "commit": f"penstock-{__version__}",
        "kafka_cluster_id": worker.cluster_id,
    }


def _health(worker: Herder, ask: RestRequest) -> Answer:
    return 200, {"status": "healthy", "message": "Worker has completed startup and is ready to handle requests."}


def _plugins(worker: Herder, ask: RestRequest) -> Answer:
    plugins = [{"class": plugin.name, "type": plugin.type, "version": __version__} for plugin in PLUGINS]
    if not ask.flag("connectorsOnly", "true"):
        plugins += [{"class": name, "type": "converter", "version": __version__} for name in CLASSES]
        plugins += transforms.CLASSES
    return 200, plugins


def _plugin_config(worker: Herder, ask: RestRequest) -> Answer:
    name = ask.path["plugin"]
    if (full := full_name(name, CLASSES)) in CLASSES:
        return 200, definitions(converter_options(full))
    if (options := transforms.options(name)) is not None:
        return 200, definitions(options)
    return 200, definitions(_plugin(name).properties())


def _validate(worker: Herder, ask: RestRequest) -> Answer:
    config = as_config({name: value for name, value in as_object(ask.body).items() if value is not None})
    plugin = _plugin(ask.path["plugin"])
    if (chosen := config.get("connector.class", plugin.name)) not in plugin.names:
        raise RestError(400, f"Included connector type {chosen} does not match request type {ask.path['plugin']}")
    return 200, validation(plugin.name, worker.check(config, plugin))


def _loggers(worker: Herder, ask: RestRequest) -> Answer:
    named = [name for name, logger in logging.root.manager.loggerDict.items() if isinstance(logger, logging.Logger)]
    return 200, {
        "root": _level("root"),
        **{name: _level(name) for name in sorted(named) if logging.getLogger(name).level},
    }


def _logger(worker: Herder, ask: RestRequest) -> Answer:
    return 200, _level(_known(ask.path["logger"]))


def _set_level(worker: Herder, ask: RestRequest) -> Answer:
    level = as_object(ask.body).get("level")
    if not level:
        raise RestError(400, "Desired 'level' parameter was not specified in request.")
    if str(level).upper() not in LEVELS:
        raise RestError(404, f"invalid log level '{level}'; use one of {', '.join(LEVELS)}")
    _log_of(_known(ask.path["logger"])).setLevel(LEVELS[str(level).upper()])
    return (204, None) if ask.query.get("scope") == ["cluster"] else (200, [ask.path["logger"]])


def _known(logger: str) -> str:
    """The name of a logger that there is: Python would make each, and keep it for ever."""
    if logger not in ("root", *logging.root.manager.loggerDict):
        raise RestError(404, f"Logger {logger} not found.")
    return logger


def _log_of(name: str) -> logging.Logger:
    return logging.getLogger(None if name == "root" else name)


def _level(name: str) -> dict[str, Any]:
    level = _log_of(name).getEffectiveLevel()
    names = {number: text for text, number in LEVELS.items()}
    return {"level": names.get(level, logging.getLevelName(level)), "last_modified": None}


def _plugin(name: str) -> ConnectorPlugin:
    plugin = plugin_named(name)
    if plugin is None:
        raise RestError(
            404,
            f"Failed to find any class that implements Connector and which name matches {name}. "
            f"This worker runs {' and '.join(known.name for known in PLUGINS)}",
        )
    return plugin


ROUTES: Routes = {
    "/": {"GET": _server},
    "/health": {"GET": _health},
    "/connector-plugins": {"GET": _plugins},
    "/connector-plugins/{plugin}/config": {"GET": _plugin_config},
    "/connector-plugins/{plugin}/config/validate": {"PUT": _validate},
    "/admin/loggers": {"GET": _loggers},
    "/admin/loggers/{logger}": {"GET": _logger, "PUT": _set_level},
}


# Configurations in the REST API: definitions with values and errors.


def definitions(properties: Iterable[Property]) -> list[Json]:
    """Definitions of properties as in Connect's REST API."""
    orders: dict[str, int] = {}
    described = []
    for each in properties:
        orders[each.group] = orders.get(each.group, 0) + 1
        described.append(each.described(orders[each.group]))
    return described


def validation(name: str, checked: CheckedConfig) -> Json:
    """The answer to a request to validate a configuration."""
    named = {each.name for each in checked.definitions}
    others = sorted({*checked.unknown, *checked.errors} - named)
    unknown = [Property(each, "STRING", None, checked.unknown.get(each, ""), group="Unknown") for each in others]
    listed = [*checked.definitions, *unknown]
    configs = [
        {"definition": definition, "value": _value(each, checked)}
        for each, definition in zip(listed, definitions(listed), strict=True)
    ]
    return {
        "name": name,
        "error_count": len(checked.messages),
        "groups": list(dict.fromkeys(each["definition"]["group"] for each in configs)),
        "configs": configs,
    }


def _value(each: Property, checked: CheckedConfig) -> Json:
    text = checked.shown.get(each.name)
    return {
        "name": each.name,
        "value": as_text(each.default) if text is None and each.default is not REQUIRED else text,
        "recommended_values": list(each.allowed),
        "errors": checked.errors.get(each.name, []),
        "visible": True,
    }
