"""Requests of the REST API, and the paths below /connectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from penstock.connect.worker.checks import require_bounded
from penstock.connect.worker.connector_store import PAUSED, STARTED, STOPPED
from penstock.connect.worker.herder import Herder, ShownConnector
from penstock.connect.worker.providers import references
from penstock.connect.worker.secrets import masked
from penstock.durations import whole
from penstock.serve.json_bodies import MOST
from penstock.serve.rest_errors import RestError

INITIAL = {"RUNNING": STARTED, "PAUSED": PAUSED, "STOPPED": STOPPED}
KINDS = {dict: "an object", list: "an array"}


@dataclass(frozen=True)
class RestRequest:
    """A request: the parameters of its path and its query, and its decoded body."""

    path: Mapping[str, str]
    query: Mapping[str, list[str]]
    body: Any

    @property
    def name(self) -> str:
        """The connector's name."""
        return self.path["name"]

    def flag(self, name: str, default: str = "false") -> bool:
        return self.query.get(name, [default])[-1].lower() == "true"


Answer = tuple[int, Any]
"""The HTTP status, and the body; None for no body."""
Call = Callable[[Herder, RestRequest], Answer]
Routes = dict[str, dict[str, Call]]
"""By path and method."""


def _list(worker: Herder, ask: RestRequest) -> Answer:
    if "expand" not in ask.query:
        return 200, worker.names()
    parts: dict[str, Callable[[str], dict[str, Any]]] = {
        "info": lambda name: _listed_info(worker.get(name)),
        "status": lambda name: {"status": worker.status(name)},
    }
    wanted = [parts[part] for part in dict.fromkeys(ask.query["expand"]) if part in parts]
    listed = {}
    for name in worker.names():
        # A connector may be deleted meanwhile.
        with suppress(RestError):
            listed[name] = {key: about for make in wanted for key, about in make(name).items()}
    return 200, listed


def _create(worker: Herder, ask: RestRequest) -> Answer:
    if not isinstance(ask.body, dict) or not isinstance(ask.body.get("config"), dict):
        form = "`name` (the connector's name) and `config` (its configuration as an object)"
        raise RestError(400, f"The body must be an object with {form}")
    config = as_config(ask.body["config"])
    name = str(ask.body.get("name") or config.get("name") or "").strip()
    if not name:
        raise RestError(400, "Connector name must be given as `name`")
    wanted = str(ask.body.get("initial_state") or "RUNNING")
    state = INITIAL.get(wanted.upper())
    if state is None:
        raise RestError(400, f"Invalid initial state {wanted}; it must be one of {', '.join(INITIAL)}")
    worker.create(name, config, state)
    return 201, _info_of_new(worker.get(name))


def _get(worker: Herder, ask: RestRequest) -> Answer:
    return 200, _info(worker.get(ask.name))


def _delete(worker: Herder, ask: RestRequest) -> Answer:
    worker.delete(ask.name)
    return 204, None


def _get_config(worker: Herder, ask: RestRequest) -> Answer:
    return 200, masked(worker.get(ask.name).stored.config)


def _put_config(worker: Herder, ask: RestRequest) -> Answer:
    if worker.configure(ask.name, as_config(ask.body)):
        return 201, _info_of_new(worker.get(ask.name))
    return 200, _info(worker.get(ask.name))


def _patch_config(worker: Herder, ask: RestRequest) -> Answer:
    patch = as_object(ask.body)
    changed = as_config({name: value for name, value in patch.items() if value is not None})
    worker.patch(ask.name, {**dict.fromkeys(patch), **changed})
    return 200, _info(worker.get(ask.name))


def _status(worker: Herder, ask: RestRequest) -> Answer:
    return 200, worker.status(ask.name)


def _restart(worker: Herder, ask: RestRequest) -> Answer:
    tasks, failed = ask.flag("includeTasks"), ask.flag("onlyFailed")
    worker.restart(ask.name, tasks=tasks, only_failed=failed)
    return (202, worker.status(ask.name)) if tasks or failed else (204, None)


def _wanting(state: str, status: int) -> Call:
    """Sets the state that the user wants."""

    def call(worker: Herder, ask: RestRequest) -> Answer:
        worker.set_state(ask.name, state)
        return status, None

    return call


def _tasks(worker: Herder, ask: RestRequest) -> Answer:
    connector = worker.get(ask.name)
    return 200, [
        {
            "id": {"connector": connector.name, "task": number},
            "config": {**masked(connector.stored.config), **_own(connector, share)},
        }
        for number, share in enumerate(connector.shares)
    ]


def _task_status(worker: Herder, ask: RestRequest) -> Answer:
    return 200, worker.task(ask.name, _number(ask.path["task"]))


def _restart_task(worker: Herder, ask: RestRequest) -> Answer:
    worker.restart_task(ask.name, _number(ask.path["task"]))
    return 204, None


def _topics(worker: Herder, ask: RestRequest) -> Answer:
    return 200, {ask.name: {"topics": sorted(worker.get(ask.name).active)}}


def _reset_topics(worker: Herder, ask: RestRequest) -> Answer:
    worker.get(ask.name).forget_topics()
    return 202, None


def _offsets(worker: Herder, ask: RestRequest) -> Answer:
    return 200, {"offsets": worker.get(ask.name).offsets.read()}


def _alter_offsets(worker: Herder, ask: RestRequest) -> Answer:
    entries = as_object(ask.body).get("offsets")
    if not isinstance(entries, list) or not entries:
        raise RestError(400, "Partitions / offsets need to be provided for an alter offsets request")
    worker.with_stopped(ask.name, lambda connector: connector.offsets.alter(entries, connector.sources()))
    return 200, {"message": "The offsets for this connector have been altered successfully"}


def _forget_offsets(worker: Herder, ask: RestRequest) -> Answer:
    worker.with_stopped(ask.name, lambda connector: connector.forget_offsets())
    return 200, {"message": "The offsets for this connector have been reset successfully"}


def _signal(worker: Herder, ask: RestRequest) -> Answer:
    return 202, {"id": worker.signal(ask.name, as_object(ask.body))}


def _snapshots(worker: Herder, ask: RestRequest) -> Answer:
    return 200, {"snapshots": worker.snapshots(ask.name)}


def _own(connector: ShownConnector, share: Mapping[str, str]) -> dict[str, str]:
    """What a task's configuration has instead of the connector's, unless that comes from a reference."""
    config = connector.stored.config
    return {name: text for name, text in share.items() if not any(references(config.get(name, "")))}


def _info_of_new(connector: ShownConnector) -> dict[str, Any]:
    """As in Connect the answer to a creation names no tasks, even if some have started meanwhile."""
    return {**_info(connector), "tasks": []}


def _info(connector: ShownConnector) -> dict[str, Any]:
    return {
        "name": connector.name,
        "config": masked(connector.stored.config),
        "tasks": [{"connector": connector.name, "task": number} for number in range(len(connector.shares))],
        "type": connector.plugin.type,
    }


def _listed_info(connector: ShownConnector) -> dict[str, Any]:
    """`info` in a list, or why it is not there: one record in the topic must not make the list of all unreadable."""
    size = sum(len(name) + len(text) for name, text in connector.stored.config.items())
    if size <= MOST:
        return {"info": _info(connector)}
    return {
        "error": f"its configuration is not listed: it has {size} characters, and a request may have {MOST} bytes, "
        "so another program wrote it to the topic of configurations; delete the connector, or configure it again"
    }


def _number(text: str) -> int:
    number = whole(text)
    if number is None:
        raise RestError(404, f"HTTP 404 Not Found: {text} is not a task's number")
    return number


def as_object(body: Any) -> dict[str, Any]:
    """The body as a JSON object; raises RestError (400) if it is not an object."""
    if not isinstance(body, dict):
        raise RestError(400, "The body must be a JSON object")
    return body


def as_config(body: Any) -> dict[str, str]:
    """The body as a configuration; scalars become strings as in Connect. Raises RestError (400) for other
    values, and for more than a connector needs.
    """
    config = {}
    for name, value in as_object(body).items():
        if value is None:
            raise RestError(400, f"Null value can not be supplied as the configuration value: {name}; omit it")
        if isinstance(value, dict | list):
            raise RestError(
                400, f"The value of {name} must be a string, a number or a boolean, not {KINDS[type(value)]}"
            )
        config[name] = str(value).lower() if isinstance(value, bool) else str(value)
    require_bounded(config)
    return config


ROUTES: Routes = {
    "/connectors": {"GET": _list, "POST": _create},
    "/connectors/{name}": {"GET": _get, "DELETE": _delete},
    "/connectors/{name}/config": {"GET": _get_config, "PUT": _put_config, "PATCH": _patch_config},
    "/connectors/{name}/status": {"GET": _status},
    "/connectors/{name}/restart": {"POST": _restart},
    "/connectors/{name}/pause": {"PUT": _wanting(PAUSED, 202)},
    "/connectors/{name}/resume": {"PUT": _wanting(STARTED, 202)},
    "/connectors/{name}/stop": {"PUT": _wanting(STOPPED, 204)},
    "/connectors/{name}/tasks": {"GET": _tasks},
    "/connectors/{name}/tasks/{task}/status": {"GET": _task_status},
    "/connectors/{name}/tasks/{task}/restart": {"POST": _restart_task},
    "/connectors/{name}/topics": {"GET": _topics},
    "/connectors/{name}/topics/reset": {"PUT": _reset_topics},
    "/connectors/{name}/signals": {"GET": _snapshots, "POST": _signal},
    "/connectors/{name}/offsets": {"GET": _offsets, "PATCH": _alter_offsets, "DELETE": _forget_offsets},
}
