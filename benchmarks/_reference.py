"""ScyllaDB's own CDC connector as the peer: Kafka Connect with the user's jars of both, in a JVM on this machine.

Nothing of the connector is part of this project. `jars` is a folder with the connector's jar and what it needs,
`connect` one with Kafka Connect's runtime (`org.apache.kafka:connect-runtime` and what it depends on).
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from penstock.errors import PenstockError
from penstock.local import java, ports

CONNECTOR = "com.scylladb.cdc.debezium.connector.ScyllaConnector"
PATIENCE = 60.0  # seconds for a start
POLL = 0.1
WORKER = """\
bootstrap.servers={servers}
listeners=http://{host}:{port}
plugin.path={plugins}
plugin.discovery=only_scan
offset.storage.file.filename={folder}/offsets
key.converter=org.apache.kafka.connect.json.JsonConverter
value.converter=org.apache.kafka.connect.json.JsonConverter
key.converter.schemas.enable={schemas}
value.converter.schemas.enable={schemas}
producer.compression.type=lz4
"""
# The connector tells each event in two lines at INFO; a user who measures turns that off.
LOG4J = """\
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d %p %m (%c{1})%n%throwable
rootLogger.level=WARN
rootLogger.appenderRef.console.ref=console
"""
JUL = "handlers=java.util.logging.ConsoleHandler\n.level=WARNING\n"


@dataclass(frozen=True)
class Reference:
    """The connector's jars, and Kafka Connect's."""

    jars: Path
    connect: Path


@dataclass(frozen=True)
class Connect:
    """A running Kafka Connect without connectors."""

    pid: int
    url: str
    log: Path

    def start(self, name: str, settings: Mapping[str, str]) -> None:
        """Create a connector and wait until its tasks run."""
        self.ask("POST", "/connectors", {"name": name, "config": {"connector.class": CONNECTOR, **settings}})
        deadline = time.monotonic() + PATIENCE
        while not self.runs(name):
            if time.monotonic() > deadline:
                raise PenstockError(f"connector {name} does not run", where=str(self.log), next="read that log")
            time.sleep(POLL)

    def runs(self, name: str) -> bool:
        """Whether it has tasks and all run; raises with the trace of one that failed."""
        try:
            status = self.ask("GET", f"/connectors/{name}/status")
        except HTTPError as error:
            if error.code == 404:  # its creation is still under way
                return False
            raise
        for task in status["tasks"]:
            if task["state"] == "FAILED":
                raise PenstockError(f"connector {name} failed: {task['trace']}", where=str(self.log))
        return bool(status["tasks"]) and all(task["state"] == "RUNNING" for task in status["tasks"])

    def check(self) -> None:
        """Raise if a task of a connector has failed."""
        for name in self.ask("GET", "/connectors"):
            self.runs(name)

    def stop(self, name: str) -> None:
        self.ask("DELETE", f"/connectors/{name}")

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urlopen(request, timeout=PATIENCE) as answer:
                text = answer.read()
        except HTTPError as error:
            if error.code == 400:
                raise PenstockError(f"Kafka Connect refuses: {error.read().decode()}", where=path) from error
            raise
        return json.loads(text) if text else None


@contextmanager
def running(reference: Reference, folder: Path, servers: str, *, schemas: bool = False) -> Iterator[Connect]:
    """Kafka Connect, standalone, until the end of the block; its files and log are in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    plugins = folder / "plugins"
    plugins.mkdir(exist_ok=True)
    (plugins / "reference").unlink(missing_ok=True)
    (plugins / "reference").symlink_to(reference.jars.absolute())
    port = ports.free(set())
    values = {"servers": servers, "host": ports.HOST, "port": port, "plugins": plugins, "folder": folder}
    worker = folder / "worker.properties"
    worker.write_text(WORKER.format(**values, schemas=str(schemas).lower()))
    (folder / "log4j2.properties").write_text(LOG4J)
    (folder / "jul.properties").write_text(JUL)
    command = [
        str(java.find().bin),
        "-Xmx1g",
        f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}",
        f"-Djava.util.logging.config.file={folder / 'jul.properties'}",
        "-cp",
        f"{reference.connect.absolute()}/*",
        "org.apache.kafka.connect.cli.ConnectStandalone",
        str(worker),
    ]
    log = folder / "connect.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        connect = Connect(process.pid, f"http://{ports.HOST}:{port}", log)
        _await(connect, process)
        yield connect
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await(connect: Connect, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(URLError, ConnectionError):
            connect.ask("GET", "/")
            return
        time.sleep(POLL)
    tail = connect.log.read_text(errors="replace")[-2000:]
    raise PenstockError(f"Kafka Connect did not start; its log ends with\n{tail}", where=str(connect.log))
