"""A worker of a group: its REST API shows and changes the connectors of the whole group, wherever they run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from penstock.connect.group.group_configs import DividedConnector, GroupConfigs, Restart
from penstock.connect.group.group_work import ONCE, MemberMaker, SharedWork, wants_once
from penstock.connect.group.kafka_positions import KafkaPositions, KeptInKafka
from penstock.connect.group.states import GroupStates, ReportedStatus, of_connector, of_task
from penstock.connect.sinks.offsets import SinkOffsets
from penstock.connect.worker.checks import CheckedConfig
from penstock.connect.worker.connector_store import STARTED, STOPPED, StoredConnector
from penstock.connect.worker.connector_tasks import own
from penstock.connect.worker.context import WorkerContext
from penstock.connect.worker.herder import Herder, Json, ShownConnector, problem_fields
from penstock.connect.worker.offsets import Offsets, folder_of
from penstock.connect.worker.plugins import ConnectorPlugin, plugin_of
from penstock.connect.worker.running_task import UNASSIGNED
from penstock.errors import PenstockError
from penstock.serve.rest_errors import RestError

log = logging.getLogger(__name__)

T = TypeVar("T")
PATIENCE = timedelta(seconds=30)
"""For how long a request waits: until all configurations are read, and until the tasks of a stopped connector end."""
PAUSE = 0.1


@dataclass(frozen=True)
class GroupTopics:
    """What the workers of a group share in Kafka."""

    configs: GroupConfigs
    positions: KafkaPositions
    states: GroupStates

    def start(self) -> None:
        """Read all, and follow the topics from now on."""
        self.positions.start()
        self.states.start()
        self.configs.start()

    def close(self) -> None:
        self.configs.close()
        self.states.close()
        self.positions.close()


class GroupConnector:
    """A connector of the group."""

    def __init__(self, name: str, of: DividedConnector, topics: GroupTopics, work: SharedWork) -> None:
        self.name, self.stored, self.plugin = name, of.stored, plugin_of(of.stored.config)
        self._of, self._topics, self._work = of, topics, work
        kind = Offsets if self.plugin.type == "source" else SinkOffsets
        self.offsets = kind(KeptInKafka(topics.positions, name))

    @property
    def shares(self) -> list[dict[str, str]]:
        """What the configuration of each task has instead of the connector's."""
        divided = self._of.is_divided and self.stored.state != STOPPED
        return [own(self.plugin, share) for share in self._of.shares] if divided else []

    @property
    def active(self) -> set[str]:
        """The topics that it has used."""
        return self._topics.states.topics(self.name)

    def forget_topics(self) -> None:
        """Let `active` begin again."""
        self._topics.states.forget_topics(self.name)

    def forget_offsets(self) -> None:
        """Begin as if nothing had been read."""
        self._work.maker(self.name, self._of).forget_group()
        self.offsets.positions.forget_all()

    def sources(self) -> list[str]:
        """What it reads: the tables that the database has now, or the topics."""
        return self._work.maker(self.name, self._of).sources()


class GroupHerder(Herder):
    """A worker that shares the connectors of `topics` with all others of its group.

    Positions in `before`, the folder of a worker without a group, are taken over if the group has none.
    """

    def __init__(
        self, context: WorkerContext, topics: GroupTopics, address: str, member: MemberMaker, before: Path | None = None
    ) -> None:
        super().__init__(context, address)
        self._topics, self._before = topics, before
        self.work = SharedWork(context, topics.configs, topics.positions, topics.states, address, member)

    @property
    def cluster_id(self) -> str:
        return self._topics.configs.cluster_id

    def start(self) -> None:
        """Join the group, and run what it gives this worker; raises PenstockError if that is not possible."""
        self._topics.start()
        if self._before is not None:
            self._adopt(self._before)
        self.work.start()
        self.require()

    def require(self) -> None:
        """Raise PenstockError if this worker cannot take part in its group any more."""
        if error := self.work.failure:
            raise PenstockError(
                f"this worker cannot take part in its group: {error}",
                next="check group.id and session.timeout.ms in the worker's file, and that all workers of the group "
                "are Penstock's",
            )

    def close(self) -> None:
        self.work.close()
        self._topics.close()

    def names(self) -> list[str]:
        return sorted(self._topics.configs.known())

    def find(self, name: str) -> ShownConnector | None:
        of = self._topics.configs.of(name)
        return None if of is None else GroupConnector(name, of, self._topics, self.work)

    def get(self, name: str) -> ShownConnector:
        if self._topics.configs.of(name) is None:
            # It may have been created at another worker a moment ago: a 404 would be wrong until all is read.
            self._topics.configs.refresh(PATIENCE)
        return super().get(name)

    def here(self) -> Iterator[Json]:
        for status in super().here():
            tasks = [task for task in status["tasks"] if task["worker_id"] == self.address]
            if tasks or status["connector"]["worker_id"] == self.address:
                yield {**status, "tasks": tasks}

    def set_state(self, name: str, state: str) -> None:
        with self._changing():
            before = self.get(name).stored.state
            if state == before:
                self.restart(name, tasks=False, only_failed=False)
                return
            if state == STOPPED or before == STOPPED:
                # A stopped connector has no tasks; it looks for its tables again when it starts.
                self._topics.configs.undivide(name)
            self._topics.configs.set_state(name, state)

    def delete(self, name: str) -> None:
        with self._changing():
            self.get(name)
            self._topics.configs.remove(name)

    def restart(self, name: str, *, tasks: bool, only_failed: bool) -> None:
        with self._changing():
            if self.get(name).stored.state == STARTED:
                self._topics.configs.ask_restart(Restart(name, tasks, only_failed))

    def restart_task(self, name: str, number: int) -> None:
        with self._changing():
            self.task(name, number)
            if self.get(name).stored.state == STARTED:
                self._topics.configs.ask_restart(Restart(name, number=number))

    def status(self, name: str) -> Json:
        connector = self.get(name)
        about = self._state(connector, of_connector(name))
        tasks = [
            {"id": number} | self._state(connector, of_task(name, number)) for number in range(len(connector.shares))
        ]
        return {"name": name, "connector": about, "tasks": tasks, "type": connector.plugin.type}

    def _state(self, connector: ShownConnector, key: str) -> Json:
        """What is reported of a connector or a task; nothing that a worker said which is not in the group any more."""
        said = self._topics.states.of(key)
        if said is None or said.worker not in self.work.workers:
            said = ReportedStatus(UNASSIGNED, "", waits_for="a worker of its group")
        if connector.stored.state != STARTED:
            return {"state": connector.stored.state, "worker_id": said.worker} | problem_fields(said.trace, "")
        return {"state": said.state, "worker_id": said.worker} | problem_fields(said.trace, said.waits_for)

    def with_stopped(self, name: str, act: Callable[[ShownConnector], T]) -> T:
        def checked(connector: ShownConnector) -> T:
            self._await_end(name)
            return act(connector)

        return super().with_stopped(name, checked)

    def check(self, config: Mapping[str, str], plugin: ConnectorPlugin | None = None) -> CheckedConfig:
        checked = super().check(config, plugin)
        if wants_once(checked):
            checked.errors.setdefault(ONCE, []).append(
                f"Invalid value required for configuration {ONCE}: the positions of a group of workers are in Kafka, "
                "and not in the transactions of events; run the connector on a worker without group.id"
            )
        return checked

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with super()._changing():
            # Another worker may have been asked a moment ago.
            self._topics.configs.refresh(PATIENCE)
            yield

    def _keep(self, name: str, stored: StoredConnector) -> None:
        # The state first: a connector that is created as a stopped one must not start before.
        self._topics.configs.set_state(name, stored.state)
        self._topics.configs.put(name, stored.config)

    def _await_end(self, name: str) -> None:
        """Wait until no worker of the group runs a task of a stopped connector."""
        if not self.work.workers:
            raise RestError(409, "This worker is not in its group now; ask another worker, or try again")
        deadline = time.monotonic() + PATIENCE.total_seconds()
        while running := self._topics.states.running(name, self.work.workers):
            if time.monotonic() > deadline:
                raise RestError(
                    409, f"Tasks of connector {name} have not ended yet, at {', '.join(sorted(running))}; try again"
                )
            time.sleep(PAUSE)

    def _adopt(self, folder: Path) -> None:
        for name in self._topics.configs.known():
            if taken := KeptInKafka(self._topics.positions, name).adopt(folder_of(folder, name)):
                log.warning("connector %s goes on from its positions in %s: %s", name, folder, ", ".join(taken))
