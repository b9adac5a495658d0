"""One schema registry with Confluent's REST API, on the loopback address: Apicurio, with its data in a file."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from penstock.local import jars
from penstock.local.java import Java
from penstock.local.ports import HOST
from penstock.local.service import Service, ServiceFolder, java_command, on_java
from penstock.serve.http_client import Address, NoHttpAnswer, fetch_blocking

API = "/apis/ccompat/v7"
"""The path of Confluent's API."""

# Apicurio's class files need Java 21.
JAVA = range(21, 100)
PATIENCE = 2.0
"""Seconds for the answer that shows that it is ready."""


def _command(java: Java, classpath: list[Path], place: ServiceFolder) -> list[str]:
    properties = {
        "quarkus.http.host": HOST,
        "quarkus.http.port": place.ports["client"],
        # Metrics and health checks, which listen on all addresses by default.
        "quarkus.management.host": HOST,
        "quarkus.management.port": place.ports["management"],
        "quarkus.http.access-log.enabled": "false",
        "quarkus.log.level": "WARN",
        # No delay: a killed registry could lose an id and give it to another schema; records would be decoded wrong.
        "apicurio.datasource.url": f"jdbc:h2:file:{place.data}/registry;WRITE_DELAY=0",
    }
    return [
        *java_command(java, "256m", place),
        # There are few requests: the second compiler costs more than it saves.
        "-XX:TieredStopAtLevel=1",
        *(f"-D{name}={value}" for name, value in properties.items()),
        "-jar",
        str(classpath[0]),
    ]


def _ready(place: ServiceFolder) -> bool:
    server = Address(f"http://{HOST}:{place.ports['client']}", None)
    try:
        return fetch_blocking(server, f"{API}/subjects", patience=PATIENCE).status == 200
    except NoHttpAnswer:
        return False


def _jars(say: Callable[[str], None]) -> list[Path]:
    """The jar that starts it; it loads the others from the folders beside it in the unpacked archive."""
    (archive,) = jars.fetch("registry", say)
    folder = archive.with_name(archive.name.removesuffix(".tar.gz"))
    if not folder.exists():
        say("unpacking the schema registry")
        _unpack(archive, folder)
    return [folder / "quarkus-run.jar"]


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack to a temporary folder and rename it: `folder` is always complete, also if several processes do this."""
    fresh = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        with tarfile.open(archive) as content:
            content.extractall(fresh, filter="data")
        fresh.rename(folder)
    except OSError:
        shutil.rmtree(fresh, ignore_errors=True)
        if not folder.exists():
            raise


SERVICE = Service("registry", ("client", "management"), "--registry-port", on_java(_jars, _command, JAVA), _ready)
