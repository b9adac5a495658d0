"""Stores connectors in a compacted Kafka topic, in Kafka Connect's own record format.

`connector-<name>` has `{"properties": {...}}` and `target-state-<name>` the state that the user wants; a tombstone
removes a connector. Reading all records, oldest first, gives all connectors.
"""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from penstock.errors import PenstockError
from penstock.kafka.compacted_topic import CompactedTopic
from penstock.process.log_lines import quoted

log = logging.getLogger(__name__)

STARTED, PAUSED, STOPPED = "STARTED", "PAUSED", "STOPPED"
STATES = (STARTED, PAUSED, STOPPED)
OURS = _CONNECTOR, _STATE = "connector-", "target-state-"
LONGEST = 500
"""The most characters of a connector's name."""


@dataclass(frozen=True)
class StoredConnector:
    """A connector in the topic."""

    config: dict[str, str]
    state: str = STARTED


class ConnectorWriter(ABC):
    """Writes what users change."""

    def put(self, name: str, config: Mapping[str, str]) -> None:
        """Store a configuration; returns when all replicas have it."""
        self._write(_CONNECTOR + name, {"properties": dict(config)})

    def set_state(self, name: str, state: str) -> None:
        """Store the state that the user wants."""
        # Older workers do not know the state STOPPED: they pause the connector.
        known = PAUSED if state == STOPPED else state
        self._write(_STATE + name, {"state": known, "state.v2": state})

    def remove(self, name: str) -> None:
        self._write(_CONNECTOR + name, None)
        self._write(_STATE + name, None)

    @abstractmethod
    def _write(self, key: str, value: Mapping[str, Any] | None) -> None:
        """Write a record; returns when all replicas have it."""


class ConnectorStore(ConnectorWriter):
    """The topic; `security` are the client's `tls` and `authenticate`, `max_decompressed` limits its record batches."""

    def __init__(
        self, servers: str, topic: str, security: Mapping[str, Any], max_decompressed: int | None = None
    ) -> None:
        self._topic = CompactedTopic(
            servers,
            topic,
            self._seen,
            security=security,
            max_decompressed=max_decompressed,
            require=partial(require_order, where=f"topic {topic} at {servers}"),
        )
        self._records: dict[str, bytes | None] = {}
        self._reads = False

    @property
    def cluster_id(self) -> str:
        """The id of the Kafka cluster."""
        return self._topic.cluster_id

    def load(self) -> dict[str, StoredConnector]:
        """All connectors by name; creates the topic if it is missing. Raises PenstockError if it cannot be read."""
        if self._reads:
            self._topic.refresh()
        else:
            self._topic.start()
            self._reads = True
        return connectors(list(self._records.items()))

    def close(self) -> None:
        self._topic.close()

    def _write(self, key: str, value: Mapping[str, Any] | None) -> None:
        self._topic.put(key, None if value is None else json.dumps(value).encode())

    def _seen(self, key: str, value: bytes | None, offset: int) -> None:
        self._records[key] = value


def require_order(partitions: range, where: str) -> None:
    """Raise PenstockError for a topic of configurations with several partitions."""
    if len(partitions) != 1:
        raise PenstockError(
            "the topic of configurations has several partitions, so its records have no order",
            where=where,
            next="set config.storage.topic to another topic",
        )


def connectors(records: Iterable[tuple[str, bytes | None]]) -> dict[str, StoredConnector]:
    """The connectors in these records, oldest first; ignores Connect's own records of tasks and sessions.

    The state of a connector may come before its configuration: Connect writes an initial state first, and compaction
    leaves only the latest record of each key.
    """
    latest = {key: object_of(key, value) for key, value in dict(records).items() if value and key.startswith(OURS)}
    stored = {}
    for key, said in latest.items():
        if key.startswith(_CONNECTOR) and said is not None:
            name, properties = key.removeprefix(_CONNECTOR), said.get("properties")
            if not name.isprintable() or len(name) > LONGEST:
                # The REST API refuses such names. They would be in lines of the log, in paths and in names of queries.
                _leave_out(key, f"the name has control characters, or more than {LONGEST} characters")
            elif isinstance(properties, dict) and all(isinstance(text, str | None) for text in properties.values()):
                config = {each: text for each, text in properties.items() if text is not None}
                stored[name] = StoredConnector(config, _state(latest.get(_STATE + name)))
            else:
                _leave_out(key, "its properties are not strings")
    return stored


def object_of(key: str, value: bytes) -> dict[str, Any] | None:
    """The JSON object of a record; None for other values, which must not stop the other connectors."""
    try:
        said = json.loads(value)
        json.dumps(said, ensure_ascii=False).encode()  # refuse half a surrogate pair
    except (ValueError, RecursionError) as error:
        _leave_out(key, f"{type(error).__name__}")
        return None
    if not isinstance(said, dict):
        _leave_out(key, "it is not a JSON object")
        return None
    return said


def _leave_out(key: str, why: str) -> None:
    log.warning("ignored the record %s of the configurations: %s", quoted(key), why)


def _state(said: Mapping[str, Any] | None) -> str:
    state = said and (said.get("state.v2") or said.get("state"))
    return state if isinstance(state, str) and state in STATES else STARTED
