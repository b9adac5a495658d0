"""ScyllaDB's own connectors as the peers: Kafka Connect with the user's jars of both, in a JVM on this machine.

Nothing of the connectors is part of this project. `jars` is a folder with a connector's jar and what it needs,
`connect` one with Kafka Connect's runtime (`org.apache.kafka:connect-runtime` and what it depends on).
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from penstock.errors import PenstockError
from penstock.local import java, ports

CONNECTOR = "com.scylladb.cdc.debezium.connector.ScyllaConnector"
PATIENCE = 120.0  # seconds for a start
END = 20.0  # seconds for an end
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
    """A running worker with Kafka Connect's REST API, which has no connectors yet."""

    pid: int
    url: str
    log: Path

    def start(self, name: str, settings: Mapping[str, str]) -> None:
        """Create a connector, of changes if the settings name no class, and wait until its tasks run."""
        self.ask("POST", "/connectors", {"name": name, "config": {"connector.class": CONNECTOR, **settings}})
        deadline = time.monotonic() + PATIENCE
        while not self.runs(name):
            if time.monotonic() > deadline:
                raise PenstockError(f"connector {name} does not run", where=str(self.log), next="read that log")
            time.sleep(POLL)

    def runs(self, name: str) -> bool:
        """Whether it has tasks and all run; raises with the trace of one that failed."""
        for trace in self.failures(name):
            raise PenstockError(f"connector {name} failed: {trace}", where=str(self.log))
        tasks = self.tasks(name)
        return bool(tasks) and all(task["state"] == "RUNNING" for task in tasks)

    def failures(self, name: str) -> list[str]:
        """The traces of its tasks that have failed."""
        return [task["trace"] for task in self.tasks(name) if task["state"] == "FAILED"]

    def tasks(self, name: str) -> list[dict[str, Any]]:
        """The state of each task; none while its creation is under way."""
        try:
            return list(self.ask("GET", f"/connectors/{name}/status")["tasks"])
        except HTTPError as error:
            if error.code == 404:
                return []
            raise

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
                raise PenstockError(f"the worker refuses: {error.read().decode()}", where=path) from error
            raise
        return json.loads(text) if text else None


@contextmanager
def running(
    reference: Reference, folder: Path, servers: str, *, schemas: bool = False, settings: str = ""
) -> Iterator[Connect]:
    """Kafka Connect, standalone, until the end of the block; its files and log are in `folder`.

    `settings` are further lines of the worker's properties.
    """
    folder.mkdir(parents=True, exist_ok=True)
    plugins = folder / "plugins"
    plugins.mkdir(exist_ok=True)
    (plugins / "reference").unlink(missing_ok=True)
    (plugins / "reference").symlink_to(reference.jars.absolute())
    port = ports.free(set())
    values = {"servers": servers, "host": ports.HOST, "port": port, "plugins": plugins, "folder": folder}
    worker = folder / "worker.properties"
    worker.write_text(WORKER.format(**values, schemas=str(schemas).lower()) + settings)
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
    with serving(command, f"http://{ports.HOST}:{port}", folder / "connect.log") as connect:
        yield connect


@contextmanager
def serving(command: Sequence[str], url: str, log: Path) -> Iterator[Connect]:
    """The worker that a command starts, from when it answers at the URL until the end of the block."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        connect = Connect(process.pid, url, log)
        _await(connect, process)
        yield connect
    finally:
        process.terminate()
        try:
            process.wait(END)
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
    raise PenstockError(f"the worker did not start; its log ends with\n{tail}", where=str(connect.log))
