"""What each path of the REST API does: a function of the worker, the path's parts, the query and the ask.body."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock import __version__
from penstock.connect.connector import Connector
from penstock.connect.converters import CONVERTERS
from penstock.connect.errors import RestError
from penstock.connect.properties import ALIASES, CLASS, properties
from penstock.connect.shown import definitions, masked, validation
from penstock.connect.store import PAUSED, STARTED, STOPPED
from penstock.connect.transforms import CLASSES
from penstock.connect.worker import Worker


@dataclass(frozen=True)
class Ask:
    """A request: the parts of its path, the parameters of its query, and its body, decoded."""

    path: Mapping[str, str]
    query: Mapping[str, list[str]]
    body: Any

    @property
    def name(self) -> str:
        """The connector's."""
        return self.path["name"]

    def flag(self, name: str, default: str = "false") -> bool:
        return self.query.get(name, [default])[-1].lower() == "true"


Answer = tuple[int, Any]
Call = Callable[[Worker, Ask], Answer]

ROUTES: dict[tuple[str, str], Call] = {}
VERSION = "4.3.1"
"""The version of Kafka Connect whose API this is."""
CONFIGS = {"name": "the connector's name", "config": "its configuration as an object"}


def route(method: str, path: str) -> Callable[[Call], Call]:
    def mark(call: Call) -> Call:
        ROUTES[method, path] = call
        return call

    return mark


@route("GET", "/")
def _server(worker: Worker, ask: Ask) -> Answer:
    return 200, {
        "version": VERSION,
        "commit": f"penstock-{__version__}",
        "kafka_cluster_id": worker.store.cluster_id,
    }


@route("GET", "/health")
def _health(worker: Worker, ask: Ask) -> Answer:
    return 200, {"status": "healthy", "message": "Worker has completed startup and is ready to handle requests."}


@route("GET", "/connectors")
def _list(worker: Worker, ask: Ask) -> Answer:
    wanted = set(ask.query.get("expand", ()))
    if not wanted & {"info", "status"}:
        return 200, worker.names()
    parts: dict[str, Callable[[str], Any]] = {"info": lambda name: _info(worker.get(name)), "status": worker.status}
    return 200, {name: {part: make(name) for part, make in parts.items() if part in wanted} for name in worker.names()}


@route("POST", "/connectors")
def _create(worker: Worker, ask: Ask) -> Answer:
    if not isinstance(ask.body, dict) or not isinstance(ask.body.get("config"), dict):
        raise RestError(
            400, f"The body must be an object with {' and '.join(f'`{k}` ({v})' for k, v in CONFIGS.items())}"
        )
    config = _config(ask.body["config"])
    name = str(ask.body.get("name") or config.get("name") or "").strip()
    if not name:
        raise RestError(400, "Connector name must be given as `name`")
    worker.create(name, config, str(ask.body.get("initial_state") or STARTED))
    return 201, _info(worker.get(name))


@route("GET", "/connectors/{name}")
def _get(worker: Worker, ask: Ask) -> Answer:
    return 200, _info(worker.get(ask.name))


@route("DELETE", "/connectors/{name}")
def _delete(worker: Worker, ask: Ask) -> Answer:
    worker.delete(ask.name)
    return 204, None


@route("GET", "/connectors/{name}/config")
def _get_config(worker: Worker, ask: Ask) -> Answer:
    return 200, masked(worker.get(ask.name).kept.config)


@route("PUT", "/connectors/{name}/config")
def _put_config(worker: Worker, ask: Ask) -> Answer:
    new = worker.configure(ask.name, _config(ask.body))
    return 201 if new else 200, _info(worker.get(ask.name))


@route("PATCH", "/connectors/{name}/config")
def _patch_config(worker: Worker, ask: Ask) -> Answer:
    given = _object(ask.body)
    removed = dict.fromkeys(name for name, value in given.items() if value is None)
    worker.patch(ask.name, {**_config(given), **removed})
    return 200, _info(worker.get(ask.name))


@route("GET", "/connectors/{name}/status")
def _status(worker: Worker, ask: Ask) -> Answer:
    return 200, worker.status(ask.name)


@route("POST", "/connectors/{name}/restart")
def _restart(worker: Worker, ask: Ask) -> Answer:
    tasks, failed = ask.flag("includeTasks"), ask.flag("onlyFailed")
    worker.restart(ask.name, tasks=tasks, only_failed=failed)
    return (202, worker.status(ask.name)) if tasks or failed else (204, None)


@route("PUT", "/connectors/{name}/pause")
def _pause(worker: Worker, ask: Ask) -> Answer:
    worker.set_state(ask.name, PAUSED)
    return 202, None


@route("PUT", "/connectors/{name}/resume")
def _resume(worker: Worker, ask: Ask) -> Answer:
    worker.set_state(ask.name, STARTED)
    return 202, None


@route("PUT", "/connectors/{name}/stop")
def _stop(worker: Worker, ask: Ask) -> Answer:
    worker.set_state(ask.name, STOPPED)
    return 204, None


@route("GET", "/connectors/{name}/tasks")
def _tasks(worker: Worker, ask: Ask) -> Answer:
    connector = worker.get(ask.name)
    return 200, [
        {
            "id": {"connector": connector.name, "task": task.task.number},
            "config": {**masked(connector.kept.config), "scylla.table.names": ",".join(task.task.tables)},
        }
        for task in connector.tasks
    ]


@route("GET", "/connectors/{name}/tasks/{task}/status")
def _task_status(worker: Worker, ask: Ask) -> Answer:
    return 200, worker.task(ask.name, _number(ask.path["task"]))


@route("POST", "/connectors/{name}/tasks/{task}/restart")
def _restart_task(worker: Worker, ask: Ask) -> Answer:
    worker.restart_task(ask.name, _number(ask.path["task"]))
    return 204, None


@route("GET", "/connectors/{name}/topics")
def _topics(worker: Worker, ask: Ask) -> Answer:
    return 200, {ask.name: {"topics": sorted(worker.get(ask.name).active)}}


@route("PUT", "/connectors/{name}/topics/reset")
def _reset_topics(worker: Worker, ask: Ask) -> Answer:
    worker.get(ask.name).active.clear()
    return 200, None


@route("GET", "/connectors/{name}/offsets")
def _offsets(worker: Worker, ask: Ask) -> Answer:
    return 200, {"offsets": worker.get(ask.name).offsets.read()}


@route("PATCH", "/connectors/{name}/offsets")
def _alter_offsets(worker: Worker, ask: Ask) -> Answer:
    entries = _object(ask.body).get("offsets")
    if not isinstance(entries, list) or not entries:
        raise RestError(400, "Partitions / offsets need to be provided for an alter offsets request")
    worker.with_stopped(ask.name, lambda connector: connector.offsets.alter(entries, connector.tables()))
    return 200, {"message": "The offsets for this connector have been altered successfully"}


@route("DELETE", "/connectors/{name}/offsets")
def _forget_offsets(worker: Worker, ask: Ask) -> Answer:
    worker.with_stopped(ask.name, lambda connector: connector.offsets.forget())
    return 200, {"message": "The offsets for this connector have been reset successfully"}


@route("GET", "/connector-plugins")
def _plugins(worker: Worker, ask: Ask) -> Answer:
    found = [{"class": CLASS, "type": "source", "version": __version__}]
    if not ask.flag("connectorsOnly", "true"):
        found += [{"class": name, "type": "converter", "version": __version__} for name in CONVERTERS]
        found += CLASSES
    return 200, found


@route("GET", "/connector-plugins/{plugin}/config")
def _plugin_config(worker: Worker, ask: Ask) -> Answer:
    _require_plugin(ask.path["plugin"])
    return 200, definitions(properties())


@route("PUT", "/connector-plugins/{plugin}/config/validate")
def _validate(worker: Worker, ask: Ask) -> Answer:
    config = _config(ask.body)
    _require_plugin(ask.path["plugin"])
    _require_plugin(config.get("connector.class", ask.path["plugin"]))
    return 200, validation(CLASS, worker.check(config))


@route("GET", "/admin/loggers")
def _loggers(worker: Worker, ask: Ask) -> Answer:
    named = [name for name, logger in logging.root.manager.loggerDict.items() if isinstance(logger, logging.Logger)]
    levels = {name: logging.getLogger(name).level for name in named}
    shown = {name: _level(name) for name, level in sorted(levels.items()) if level}
    return 200, {"root": _level("root"), **shown}


@route("GET", "/admin/loggers/{logger}")
def _logger(worker: Worker, ask: Ask) -> Answer:
    return 200, _level(ask.path["logger"])


@route("PUT", "/admin/loggers/{logger}")
def _set_level(worker: Worker, ask: Ask) -> Answer:
    level = str(_object(ask.body).get("level", "")).upper()
    if level not in logging.getLevelNamesMapping():
        raise RestError(404, f"invalid log level '{level}'; use DEBUG, INFO, WARNING or ERROR")
    logging.getLogger(None if ask.path["logger"] == "root" else ask.path["logger"]).setLevel(level)
    return 200, [ask.path["logger"]]


def _level(name: str) -> dict[str, Any]:
    logger = logging.getLogger(None if name == "root" else name)
    return {"level": logging.getLevelName(logger.getEffectiveLevel()), "last_modified": None}


def _info(connector: Connector) -> dict[str, Any]:
    return {
        "name": connector.name,
        "config": masked(connector.kept.config),
        "tasks": [{"connector": connector.name, "task": task.task.number} for task in connector.tasks],
        "type": "source",
    }


def _require_plugin(name: str) -> None:
    if name not in ALIASES:
        raise RestError(
            404,
            f"Failed to find any class that implements Connector and which name matches {name}. "
            f"This worker runs {CLASS}",
        )


def _object(body: Any) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise RestError(400, "The body must be a JSON object")
    return body


def _config(body: Any) -> dict[str, str]:
    """A configuration of a body: values that are no text become the text that Connect makes of them."""
    config = {}
    for name, value in _object(body).items():
        if isinstance(value, dict | list):
            raise RestError(400, f"The value of {name} must be text, a number or a truth value, not {value!r}")
        if value is not None:
            config[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return config


def _number(text: str) -> int:
    if not text.isdigit():
        raise RestError(404, f"HTTP 404 Not Found: {text} is no task's number")
    return int(text)
