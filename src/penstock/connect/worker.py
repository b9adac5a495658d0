"""The connectors of a worker, and the operations of the REST API on them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from penstock.connect.checks import Checked, check, require_bounded
from penstock.connect.connector import Connector, World
from penstock.connect.connector_store import PAUSED, STARTED, STOPPED, ConnectorStore, Kept
from penstock.connect.plugins import Plugin, plugin_of
from penstock.connect.running_task import ENDED, FAILED, UNASSIGNED
from penstock.connect.secrets import restored
from penstock.serve.rest_errors import RestError

T = TypeVar("T")
Json = dict[str, Any]


class ConnectWorker:
    """Runs connectors; methods may be called from any thread, changes are done one after the other."""

    def __init__(self, world: World, store: ConnectorStore, address: str) -> None:
        self.world, self.store, self.address = world, store, address
        self._connectors: dict[str, Connector] = {}
        self._changes = threading.RLock()

    def start(self) -> None:
        """Start all stored connectors."""
        for name, kept in self.store.load().items():
            self._connectors[name] = Connector(name, kept, self.world)
            self._connectors[name].start()

    def close(self) -> None:
        """Stop all connectors; they continue when a worker starts again."""
        with self._changes:
            for connector in self._connectors.values():
                connector.halt()
            self.store.close()

    def names(self) -> list[str]:
        return sorted(self._connectors)

    def get(self, name: str) -> Connector:
        if name not in self._connectors:
            raise RestError(404, f"Connector {name} not found")
        return self._connectors[name]

    def create(self, name: str, config: Mapping[str, str], state: str = STARTED) -> None:
        """Create a connector; raises RestError if it exists or its configuration is wrong."""
        with self._changes:
            if name in self._connectors:
                raise RestError(409, f"Connector {name} already exists")
            self._keep(name, Kept(self._checked(name, config), state))

    def configure(self, name: str, config: Mapping[str, str]) -> bool:
        """Set a connector's configuration; True if the connector is new."""
        with self._changes:
            known = self._connectors.get(name)
            if known and plugin_of(config) is not known.plugin:
                raise RestError(
                    400, f"Connector {name} is of {known.plugin.name}, whose positions another class cannot continue. "
                    "Delete it, and create one with another name"
                )  # fmt: skip
            checked = self._checked(name, config if known is None else restored(config, known.kept.config))
            self._keep(name, replace(known.kept, config=checked) if known else Kept(checked))
            return known is None

    def patch(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Change some properties; None removes a property (RFC 7386)."""
        with self._changes:
            config = {**self.get(name).kept.config, **changes}
            self.configure(name, {key: text for key, text in config.items() if text is not None})

    def set_state(self, name: str, state: str) -> None:
        with self._changes:
            connector = self.get(name)
            if state != connector.kept.state or connector.trace:
                self.store.set_state(name, state)
                connector.change(replace(connector.kept, state=state))

    def delete(self, name: str) -> None:
        """Remove a connector; as in Connect its positions stay for a later connector with the same name."""
        with self._changes:
            connector = self.get(name)
            self.store.remove(name)
            connector.remove()
            del self._connectors[name]

    def restart(self, name: str, *, tasks: bool, only_failed: bool) -> None:
        with self._changes:
            connector = self.get(name)
            if connector.kept.state != STARTED:
                return  # As in Connect, a paused or stopped connector stays so.
            if connector.trace or (tasks and not only_failed):
                connector.change(connector.kept)
            elif tasks:
                for number, task in enumerate(connector.tasks):
                    if task.state == FAILED:
                        connector.restart_task(number)

    def restart_task(self, name: str, number: int) -> None:
        with self._changes:
            self.task(name, number)
            if self.get(name).kept.state == STARTED:
                self.get(name).restart_task(number)

    def task(self, name: str, number: int) -> Json:
        """The state of a task; raises RestError (404) if there is no such task."""
        tasks: list[Json] = self.status(name)["tasks"]
        if not 0 <= number < len(tasks):
            raise RestError(404, f"No status found for task {name}-{number}")
        return tasks[number]

    def status(self, name: str) -> Json:
        """Kafka Connect's status; `waits_for` says besides what keeps a part from running, or holds it up."""
        connector = self.get(name)
        about = {"state": connector.state, "worker_id": self.address}
        about |= _told(connector.trace, connector.waits_for)
        tasks: list[Json] = []
        for task in connector.tasks:
            # An ended task that did not fail is about to be replaced.
            state = UNASSIGNED if task.state == ENDED else task.state
            state = PAUSED if connector.kept.state == PAUSED else state
            waits_for = "" if state == PAUSED else task.waits_for
            about_task = {"id": task.task.number, "state": state, "worker_id": self.address}
            tasks.append(about_task | _told(task.trace, waits_for))
        return {"name": name, "connector": about, "tasks": tasks, "type": connector.plugin.type}

    def with_stopped(self, name: str, act: Callable[[Connector], T]) -> T:
        """Call `act` with a connector; raises RestError (400) if it is not stopped."""
        with self._changes:
            connector = self.get(name)
            if connector.kept.state != STOPPED:
                raise RestError(
                    400, "Connectors must be in the STOPPED state before their offsets can be modified. "
                    f"This can be done for {name} with the PUT /connectors/{name}/stop endpoint"
                )  # fmt: skip
            return act(connector)

    def check(self, config: Mapping[str, str], plugin: Plugin | None = None) -> Checked:
        """Check a configuration; hidden values of an existing connector are taken from its configuration."""
        known = self._connectors.get(config.get("name", ""))
        given = restored(config, known.kept.config) if known else config
        return check(given, self.world.provided, plugin=plugin)

    def _checked(self, name: str, config: Mapping[str, str]) -> dict[str, str]:
        """The configuration with its name; raises RestError (400) if it has errors."""
        if config.get("name", name) != name:
            raise RestError(
                400, f"Connector name configuration ({config['name']}) doesn't match connector name ({name})"
            )
        whole = {**config, "name": name}
        require_bounded(whole)
        checked = self.check(whole)
        if checked.messages:
            listed = "\n".join(checked.messages)
            raise RestError(
                400,
                f"Connector configuration is invalid and contains the following {len(checked.messages)} error(s):\n"
                f"{listed}\nYou can also find the above list of errors at the endpoint "
                "`/connector-plugins/{connectorType}/config/validate`",
            )
        return whole

    def _keep(self, name: str, kept: Kept) -> None:
        self.store.put(name, kept.config)
        self.store.set_state(name, kept.state)
        if name in self._connectors:
            self._connectors[name].change(kept)
        else:
            self._connectors[name] = Connector(name, kept, self.world)
            self._connectors[name].start()


def _told(trace: str, waits_for: str) -> Json:
    """The fields that a status has only if there is something to say."""
    return ({"trace": trace} if trace else {}) | ({"waits_for": waits_for} if waits_for else {})
