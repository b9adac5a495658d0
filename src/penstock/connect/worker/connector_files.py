"""Connectors in files, as Kafka Connect's standalone worker reads them: Java properties, or JSON.

A JSON file has the configuration itself, or an object with `name` and `config`, as for the REST API (KIP-863).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from penstock.connect.worker.checks import check
from penstock.connect.worker.connector_store import ConnectorWriter, StoredConnector
from penstock.connect.worker.providers import Provided, read_properties
from penstock.connect.worker.routes import as_config
from penstock.errors import PenstockError
from penstock.kafka.compacted_topic import PATIENCE
from penstock.process.paths import is_file
from penstock.wire.admin import Admin
from penstock.wire.errors import KafkaError

LARGEST = 1 << 20
"""Bytes of a file."""


class ConnectorFiles(ConnectorWriter):
    """The connectors of some files; what is changed later is not stored. `security` are the options of the client."""

    def __init__(self, servers: str, security: Mapping[str, Any], configs: Mapping[str, Mapping[str, str]]) -> None:
        self._servers, self._security, self._configs = servers, dict(security), configs
        self.cluster_id = ""

    def load(self) -> dict[str, StoredConnector]:
        """The connectors by name; raises PenstockError if Kafka does not answer."""
        try:
            self.cluster_id = asyncio.run(self._ask())
        except KafkaError as error:
            raise PenstockError(
                f"Kafka does not answer: {error}", where=self._servers, next="check bootstrap.servers, and Kafka"
            ) from error
        return {name: StoredConnector(dict(config)) for name, config in self._configs.items()}

    def close(self) -> None:
        """Nothing is open."""

    async def _ask(self) -> str:
        async with Admin(self._servers, patience=PATIENCE, **self._security) as admin:
            return await admin.cluster_id()

    def _write(self, key: str, value: Mapping[str, Any] | None) -> None:
        """Files stay as they are."""


def read(files: Iterable[Path], provided: Provided) -> dict[str, dict[str, str]]:
    """The configurations by name; raises PenstockError, with the file, for one that is not valid.

    The databases are not asked: a connector waits for one that is down.
    """
    configs: dict[str, dict[str, str]] = {}
    for file in files:
        config = _config(file)
        name = config.get("name", "").strip()
        if not name:
            raise PenstockError("the connector has no name", where=str(file), next="set name")
        if name in configs:
            raise PenstockError(f"two files have the connector {name}", where=str(file), next="give each its own name")
        checked = check(config, provided, ask=False)
        if checked.messages:
            raise PenstockError("; ".join(checked.messages), where=str(file), next="correct the configuration")
        configs[name] = config
    return configs


def _config(file: Path) -> dict[str, str]:
    if not is_file(file):
        raise PenstockError(f"there is no file {file}", next="give the connector's file, or omit it")
    if (size := file.stat().st_size) > LARGEST:
        raise PenstockError(f"it has {size} bytes; a connector has at most {LARGEST}", where=str(file))
    try:
        text = file.read_text()
        return _of_json(text) if text.lstrip().startswith("{") else read_properties(text)
    except (ValueError, RecursionError) as error:
        raise PenstockError(
            f"neither a Java properties file nor JSON: {error}", where=str(file), next="correct this file"
        ) from error
    except PenstockError as error:
        raise PenstockError(error.what, where=str(file), next="correct this file") from error


def _of_json(text: str) -> dict[str, str]:
    fields = json.loads(text)
    if isinstance(fields.get("config"), dict):
        return {**as_config(fields["config"]), "name": str(fields.get("name") or fields["config"].get("name") or "")}
    return as_config(fields)
