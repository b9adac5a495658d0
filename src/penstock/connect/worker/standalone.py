"""A worker on its own: all connectors run in this process, and their positions are in its folder."""

from __future__ import annotations

from dataclasses import replace

from penstock.connect.worker.connector import Connector
from penstock.connect.worker.connector_files import ConnectorFiles
from penstock.connect.worker.connector_store import PAUSED, STARTED, ConnectorStore, StoredConnector
from penstock.connect.worker.context import WorkerContext
from penstock.connect.worker.herder import Herder, Json, problem_fields
from penstock.connect.worker.only_worker import OnlyWorker
from penstock.connect.worker.running_task import ENDED, FAILED, UNASSIGNED
from penstock.serve.rest_errors import RestError


class StandaloneHerder(Herder):
    """Runs the connectors of a store; `only` says whether no other worker does."""

    def __init__(
        self,
        context: WorkerContext,
        store: ConnectorStore | ConnectorFiles,
        address: str,
        only: OnlyWorker | None = None,
    ) -> None:
        super().__init__(context, address)
        self.store, self._only = store, only
        self._connectors: dict[str, Connector] = {}

    @property
    def cluster_id(self) -> str:
        return self.store.cluster_id

    def start(self) -> None:
        """Start all stored connectors; raises PenstockError if another worker runs them."""
        if self._only:
            self._only.begin()
        for name, stored in self.store.load().items():
            self._connectors[name] = Connector(name, stored, self.context)
            self._connectors[name].start()

    def require(self) -> None:
        """Raise PenstockError if another worker runs the connectors."""
        if self._only:
            self._only.require()

    def close(self) -> None:
        with self._changing():
            for connector in self._connectors.values():
                connector.halt()
            self.store.close()

    def names(self) -> list[str]:
        return sorted(self._connectors)

    def find(self, name: str) -> Connector | None:
        return self._connectors.get(name)

    def get(self, name: str) -> Connector:
        if name not in self._connectors:
            raise RestError(404, f"Connector {name} not found")
        return self._connectors[name]

    def set_state(self, name: str, state: str) -> None:
        with self._changing():
            connector = self.get(name)
            if state != connector.stored.state or connector.trace:
                self.store.set_state(name, state)
                connector.change(replace(connector.stored, state=state))

    def delete(self, name: str) -> None:
        with self._changing():
            connector = self.get(name)
            self.store.remove(name)
            connector.remove()
            del self._connectors[name]

    def restart(self, name: str, *, tasks: bool, only_failed: bool) -> None:
        with self._changing():
            connector = self.get(name)
            if connector.stored.state != STARTED:
                return  # As in Connect, a paused or stopped connector stays so.
            if connector.trace or (tasks and not only_failed):
                connector.change(connector.stored)
            elif tasks:
                for number, task in enumerate(connector.tasks):
                    if task.state == FAILED:
                        connector.restart_task(number)

    def restart_task(self, name: str, number: int) -> None:
        with self._changing():
            self.task(name, number)
            if self.get(name).stored.state == STARTED:
                self.get(name).restart_task(number)

    def status(self, name: str) -> Json:
        connector = self.get(name)
        about = {"state": connector.state, "worker_id": self.address}
        about |= problem_fields(connector.trace, connector.waits_for)
        tasks: list[Json] = []
        for task in connector.tasks:
            # An ended task that did not fail is about to be replaced.
            state = UNASSIGNED if task.state == ENDED else task.state
            state = PAUSED if connector.stored.state == PAUSED else state
            waits_for = "" if state == PAUSED else task.waits_for
            about_task = {"id": task.task.number, "state": state, "worker_id": self.address}
            tasks.append(about_task | problem_fields(task.trace, waits_for))
        return {"name": name, "connector": about, "tasks": tasks, "type": connector.plugin.type}

    def _keep(self, name: str, stored: StoredConnector) -> None:
        self.store.put(name, stored.config)
        self.store.set_state(name, stored.state)
        if name in self._connectors:
            self._connectors[name].change(stored)
        else:
            self._connectors[name] = Connector(name, stored, self.context)
            self._connectors[name].start()
