"""What the paths below /connectors do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.connect.connector import Connector
from penstock.connect.connector_store import PAUSED, STARTED, STOPPED
from penstock.connect.database import TABLES
from penstock.connect.providers import REFERENCE
from penstock.connect.rest_errors import RestError
from penstock.connect.routing import Answer, Ask, Routes, as_config, as_object, route
from penstock.connect.secrets import masked
from penstock.connect.worker import ConnectWorker

ROUTES: Routes = {}
INITIAL = {"RUNNING": STARTED, "PAUSED": PAUSED, "STOPPED": STOPPED}
CONFIGS = {"name": "the connector's name", "config": "its configuration as an object"}


@route(ROUTES, "GET", "/connectors")
def _list(worker: ConnectWorker, ask: Ask) -> Answer:
    wanted = set(ask.query.get("expand", ()))
    if not wanted & {"info", "status"}:
        return 200, worker.names()
    parts: dict[str, Callable[[str], Any]] = {"info": lambda name: _info(worker.get(name)), "status": worker.status}
    return 200, {name: {part: make(name) for part, make in parts.items() if part in wanted} for name in worker.names()}


@route(ROUTES, "POST", "/connectors")
def _create(worker: ConnectWorker, ask: Ask) -> Answer:
    if not isinstance(ask.body, dict) or not isinstance(ask.body.get("config"), dict):
        raise RestError(
            400, f"The body must be an object with {' and '.join(f'`{k}` ({v})' for k, v in CONFIGS.items())}"
        )
    config = as_config(ask.body["config"])
    name = str(ask.body.get("name") or config.get("name") or "").strip()
    if not name:
        raise RestError(400, "Connector name must be given as `name`")
    wanted = str(ask.body.get("initial_state") or "RUNNING")
    state = INITIAL.get(wanted.upper())
    if state is None:
        raise RestError(400, f"Invalid initial state {wanted}; it must be one of {', '.join(INITIAL)}")
    worker.create(name, config, state)
    return 201, _info(worker.get(name))


@route(ROUTES, "GET", "/connectors/{name}")
def _get(worker: ConnectWorker, ask: Ask) -> Answer:
    return 200, _info(worker.get(ask.name))


@route(ROUTES, "DELETE", "/connectors/{name}")
def _delete(worker: ConnectWorker, ask: Ask) -> Answer:
    worker.delete(ask.name)
    return 204, None


@route(ROUTES, "GET", "/connectors/{name}/config")
def _get_config(worker: ConnectWorker, ask: Ask) -> Answer:
    return 200, masked(worker.get(ask.name).kept.config)


@route(ROUTES, "PUT", "/connectors/{name}/config")
def _put_config(worker: ConnectWorker, ask: Ask) -> Answer:
    new = worker.configure(ask.name, as_config(ask.body))
    return 201 if new else 200, _info(worker.get(ask.name))


@route(ROUTES, "PATCH", "/connectors/{name}/config")
def _patch_config(worker: ConnectWorker, ask: Ask) -> Answer:
    given = as_object(ask.body)
    changed = as_config({name: value for name, value in given.items() if value is not None})
    worker.patch(ask.name, {**dict.fromkeys(given), **changed})
    return 200, _info(worker.get(ask.name))


@route(ROUTES, "GET", "/connectors/{name}/status")
def _status(worker: ConnectWorker, ask: Ask) -> Answer:
    return 200, worker.status(ask.name)


@route(ROUTES, "POST", "/connectors/{name}/restart")
def _restart(worker: ConnectWorker, ask: Ask) -> Answer:
    tasks, failed = ask.flag("includeTasks"), ask.flag("onlyFailed")
    worker.restart(ask.name, tasks=tasks, only_failed=failed)
    return (202, worker.status(ask.name)) if tasks or failed else (204, None)


@route(ROUTES, "PUT", "/connectors/{name}/pause")
def _pause(worker: ConnectWorker, ask: Ask) -> Answer:
    worker.set_state(ask.name, PAUSED)
    return 202, None


@route(ROUTES, "PUT", "/connectors/{name}/resume")
def _resume(worker: ConnectWorker, ask: Ask) -> Answer:
    worker.set_state(ask.name, STARTED)
    return 202, None


@route(ROUTES, "PUT", "/connectors/{name}/stop")
def _stop(worker: ConnectWorker, ask: Ask) -> Answer:
    worker.set_state(ask.name, STOPPED)
    return 204, None


@route(ROUTES, "GET", "/connectors/{name}/tasks")
def _tasks(worker: ConnectWorker, ask: Ask) -> Answer:
    connector = worker.get(ask.name)
    return 200, [
        {
            "id": {"connector": connector.name, "task": task.task.number},
            "config": {**masked(connector.kept.config), **_tables(connector, task.task.tables)},
        }
        for task in connector.tasks
    ]


@route(ROUTES, "GET", "/connectors/{name}/tasks/{task}/status")
def _task_status(worker: ConnectWorker, ask: Ask) -> Answer:
    return 200, worker.task(ask.name, _number(ask.path["task"]))


@route(ROUTES, "POST", "/connectors/{name}/tasks/{task}/restart")
def _restart_task(worker: ConnectWorker, ask: Ask) -> Answer:
    worker.restart_task(ask.name, _number(ask.path["task"]))
    return 204, None


@route(ROUTES, "GET", "/connectors/{name}/topics")
def _topics(worker: ConnectWorker, ask: Ask) -> Answer:
    return 200, {ask.name: {"topics": sorted(worker.get(ask.name).active)}}


@route(ROUTES, "PUT", "/connectors/{name}/topics/reset")
def _reset_topics(worker: ConnectWorker, ask: Ask) -> Answer:
    worker.get(ask.name).active.clear()
    return 202, None


@route(ROUTES, "GET", "/connectors/{name}/offsets")
def _offsets(worker: ConnectWorker, ask: Ask) -> Answer:
    return 200, {"offsets": worker.get(ask.name).offsets.read()}


@route(ROUTES, "PATCH", "/connectors/{name}/offsets")
def _alter_offsets(worker: ConnectWorker, ask: Ask) -> Answer:
    entries = as_object(ask.body).get("offsets")
    if not isinstance(entries, list) or not entries:
        raise RestError(400, "Partitions / offsets need to be provided for an alter offsets request")
    worker.with_stopped(ask.name, lambda connector: connector.offsets.alter(entries, connector.tables()))
    return 200, {"message": "The offsets for this connector have been altered successfully"}


@route(ROUTES, "DELETE", "/connectors/{name}/offsets")
def _forget_offsets(worker: ConnectWorker, ask: Ask) -> Answer:
    worker.with_stopped(ask.name, lambda connector: connector.offsets.forget())
    return 200, {"message": "The offsets for this connector have been reset successfully"}


def _tables(connector: Connector, tables: Sequence[str]) -> dict[str, str]:
    """The tables of a task, unless their names stand elsewhere."""
    refers = REFERENCE.search(connector.kept.config.get(TABLES, ""))
    return {} if refers else {TABLES: ",".join(tables)}


def _info(connector: Connector) -> dict[str, Any]:
    return {
        "name": connector.name,
        "config": masked(connector.kept.config),
        "tasks": [{"connector": connector.name, "task": task.task.number} for task in connector.tasks],
        "type": "source",
    }


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise RestError(404, f"HTTP 404 Not Found: {text} is no task's number")
    return int(text)
