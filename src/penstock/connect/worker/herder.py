"""The operations of the REST API on connectors that do not depend on where these run."""

from __future__ import annotations

import json
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from penstock.connect.source import database
from penstock.connect.source.signal_format import BadSignal, object_of, signal_of
from penstock.connect.source.signal_watch import progress
from penstock.connect.worker.checks import CheckedConfig, check, require_bounded
from penstock.connect.worker.connector_store import STARTED, STOPPED, StoredConnector
from penstock.connect.worker.context import WorkerContext
from penstock.connect.worker.offsets import Offsets
from penstock.connect.worker.plugins import ConnectorPlugin, plugin_of
from penstock.connect.worker.secrets import restored
from penstock.serve.rest_errors import RestError

T = TypeVar("T")
MOST_ASKED = 100
"""Signals that wait until a connector looks at them."""
Json = dict[str, Any]


class ShownConnector(Protocol):
    """A connector as the REST API shows it."""

    name: str
    stored: StoredConnector
    plugin: ConnectorPlugin
    offsets: Offsets

    @property
    def shares(self) -> list[dict[str, str]]:
        """What the configuration of each task has instead of the connector's."""

    @property
    def active(self) -> set[str]:
        """The topics that it has used."""

    def forget_topics(self) -> None:
        """Let `active` begin again."""

    def forget_offsets(self) -> None:
        """Begin as if nothing had been read; raises PenstockError if that cannot be stored."""

    def sources(self) -> list[str]:
        """What it reads: the tables that the database has now, or the topics."""


class Herder(ABC):
    """The connectors of a worker or of its group; methods may be called in any thread, changes are done one by one."""

    def __init__(self, context: WorkerContext, address: str) -> None:
        self.context, self.address = context, address
        self._changes = threading.RLock()

    @property
    @abstractmethod
    def cluster_id(self) -> str:
        """The id of the Kafka cluster."""

    @abstractmethod
    def start(self) -> None:
        """Start what is stored."""

    @abstractmethod
    def close(self) -> None:
        """Stop all; it continues when a worker starts again."""

    @abstractmethod
    def require(self) -> None:
        """Raise PenstockError if this worker cannot go on."""

    @abstractmethod
    def names(self) -> list[str]:
        """The names of all connectors, sorted."""

    @abstractmethod
    def find(self, name: str) -> ShownConnector | None:
        """A connector; None if there is none."""

    @abstractmethod
    def set_state(self, name: str, state: str) -> None:
        """Set the state that the user wants."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove a connector; as in Connect its positions stay for a later connector with the same name."""

    @abstractmethod
    def restart(self, name: str, *, tasks: bool, only_failed: bool) -> None:
        """Start a failed connector again, and with `tasks` all its tasks, or only failed ones."""

    @abstractmethod
    def restart_task(self, name: str, number: int) -> None:
        """Start a task again."""

    @abstractmethod
    def status(self, name: str) -> Json:
        """Kafka Connect's status; `waits_for` says besides what keeps a part from running, or holds it up."""

    @abstractmethod
    def _keep(self, name: str, stored: StoredConnector) -> None:
        """Store a connector, new or known."""

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """One change at a time."""
        with self._changes:
            yield

    def get(self, name: str) -> ShownConnector:
        """A connector; raises RestError (404) if there is none."""
        if (connector := self.find(name)) is None:
            raise RestError(404, f"Connector {name} not found")
        return connector

    def here(self) -> Iterator[Json]:
        """The status of each connector, with what of it runs on this worker."""
        for name in self.names():
            # A connector may be deleted meanwhile.
            with suppress(RestError):
                yield self.status(name)

    def create(self, name: str, config: Mapping[str, str], state: str = STARTED) -> None:
        """Create a connector; raises RestError if it exists or its configuration is wrong."""
        with self._changing():
            if self.find(name) is not None:
                raise RestError(409, f"Connector {name} already exists")
            self._keep(name, StoredConnector(self._checked(name, config), state))

    def configure(self, name: str, config: Mapping[str, str]) -> bool:
        """Set a connector's configuration; True if the connector is new."""
        with self._changing():
            known = self.find(name)
            if known and plugin_of(config) is not known.plugin:
                raise RestError(
                    400, f"Connector {name} is of {known.plugin.name}, whose positions another class cannot continue. "
                    "Delete it, and create one with another name"
                )  # fmt: skip
            checked = self._checked(name, config if known is None else restored(config, known.stored.config))
            self._keep(name, replace(known.stored, config=checked) if known else StoredConnector(checked))
            return known is None

    def patch(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Change some properties; None removes a property (RFC 7386)."""
        with self._changing():
            config = {**self.get(name).stored.config, **changes}
            self.configure(name, {key: text for key, text in config.items() if text is not None})

    def task(self, name: str, number: int) -> Json:
        """The state of a task; raises RestError (404) if there is no such task."""
        tasks: list[Json] = self.status(name)["tasks"]
        if not 0 <= number < len(tasks):
            raise RestError(404, f"No status found for task {name}-{number}")
        return tasks[number]

    def with_stopped(self, name: str, act: Callable[[ShownConnector], T]) -> T:
        """Call `act` with a connector; raises RestError (400) if it is not stopped."""
        with self._changing():
            connector = self.get(name)
            if connector.stored.state != STOPPED:
                raise RestError(
                    400, "Connectors must be in the STOPPED state before their offsets can be modified. "
                    f"This can be done for {name} with the PUT /connectors/{name}/stop endpoint"
                )  # fmt: skip
            return act(connector)

    def signal(self, name: str, about: Mapping[str, Any]) -> str:
        """Give a signal to a running source connector; returns its id.

        Raises RestError if the signal is wrong, or cannot be acted on now.
        """
        with self._changing():
            connector = self._signalled(name)
            if connector.stored.state != STARTED:
                raise RestError(409, f"Connector {name} is {connector.stored.state}; resume it before it gets a signal")
            if len(connector.offsets.positions.asked()) >= MOST_ASKED:
                raise RestError(503, f"{MOST_ASKED} signals to connector {name} wait already; try again later")
            id = str(about.get("id") or uuid.uuid4())
            values = self.check(connector.stored.config).values
            try:
                object_of(json.dumps(about), "the body")
                signal_of(
                    {**about, "id": id},
                    connector.sources(),
                    lambda table, filter: database.filter_refused(values, table, filter),
                    "",
                )
            except BadSignal as error:
                raise RestError(400, str(error)) from error
            connector.offsets.positions.ask(uuid.uuid4().hex, {**about, "id": id})
            return id

    def snapshots(self, name: str) -> list[Json]:
        """The ad-hoc snapshots of a source connector that run or wait."""
        connector = self._signalled(name)
        return progress(connector.offsets.positions, sorted(connector.offsets.positions.begun()))

    def _signalled(self, name: str) -> ShownConnector:
        connector = self.get(name)
        if connector.plugin.type != "source":
            raise RestError(400, f"Connector {name} is a sink; signals are for source connectors")
        return connector

    def check(self, config: Mapping[str, str], plugin: ConnectorPlugin | None = None) -> CheckedConfig:
        """Check a configuration; hidden values of an existing connector are taken from its configuration."""
        known = self.find(config.get("name", ""))
        with_secrets = restored(config, known.stored.config) if known else config
        return check(with_secrets, self.context.provided, plugin=plugin)

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


def problem_fields(trace: str, waits_for: str) -> Json:
    """The fields that a status has only if there is something to say."""
    return ({"trace": trace} if trace else {}) | ({"waits_for": waits_for} if waits_for else {})
