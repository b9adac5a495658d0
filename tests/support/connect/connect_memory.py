"""A worker of `penstock connect` without Kafka and without Spark: its connectors are stored in memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.connect.source.properties import CLASS
from penstock.connect.worker import plugins
from penstock.connect.worker.connector_store import ConnectorStore, StoredConnector
from penstock.connect.worker.context import WorkerContext
from penstock.connect.worker.providers import Provided, Provider
from penstock.connect.worker.standalone import StandaloneHerder
from penstock.errors import PenstockError

JSON = "org.apache.kafka.connect.json.JsonConverter"
VALIDATE = "/connector-plugins/ScyllaConnector/config/validate"
RIGHT = {
    "connector.class": CLASS,
    "topic.prefix": "p",
    "scylla.cluster.ip.addresses": "127.0.0.1:1",
    "scylla.table.names": "ks.t",
}
"""A configuration without errors, if the database is not asked."""
SMALLEST: dict[str, dict[str, str]] = {
    plugins.SOURCE.name: RIGHT,
    plugins.SINK.name: {"topics": "t", "scylladb.keyspace": "ks"},
    plugins.DATASTAX_SINK.name: {"topics": "t", "topic.t.ks.t.mapping": "id=key.id"},
    plugins.JDBC_SINK.name: {"topics": "t", "connection.url": "jdbc:postgresql://db/shop?user=ada&password=hush"},
    plugins.FILE_STREAM_SINK.name: {"topics": "t", "file": "/data/lines"},
    plugins.FILES_SINK.name: {"topics": "t", "store.url": "/data", "flush.size": "3", "format.class": "JsonFormat"},
    plugins.REPLICATION_SINK.name: {"topics": "a.ks.t"},
}
"""By class: a configuration without errors, if the database is not asked. It has only what must be there."""


class Memory(ConnectorStore):
    """Stores connectors without Kafka; `down` makes it refuse records."""

    def __init__(self, stored: Mapping[str, StoredConnector] | None = None) -> None:
        super().__init__("localhost:9", "none", {})
        self.records: list[tuple[str, Mapping[str, Any] | None]] = []
        self.down = False
        self._stored = dict(stored or {})

    def load(self) -> dict[str, StoredConnector]:
        return self._stored

    def close(self) -> None: ...

    def _write(self, key: str, value: Mapping[str, Any] | None) -> None:
        if self.down:
            raise PenstockError("the configuration was not stored", next="check that Kafka is up")
        self.records.append((key, value))


PROVIDED = Provided({"dir": Provider("dir"), "file": Provider("file")})


def memory_worker(folder: Path, store: Memory | None = None, provided: Provided = PROVIDED) -> StandaloneHerder:
    """A worker with positions below `folder`."""
    spark: Any = None
    return StandaloneHerder(
        WorkerContext(spark, "localhost:9", folder / "positions", provided), store or Memory(), "here:1"
    )
