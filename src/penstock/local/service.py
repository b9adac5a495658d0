"""What a service is: its configuration, its start, and the check that it is ready."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from penstock.local import java
from penstock.local.java import Java
from penstock.local.ports import HOST

Ports = Mapping[str, int]


@dataclass(frozen=True)
class ServiceFolder:
    """The folder of a service and its ports by name; applications use the port `client`."""

    folder: Path
    ports: Ports

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def log(self) -> Path:
        return self.folder / "log" / f"{self.folder.name}.log"

    def write(self, name: str, content: str) -> Path:
        """Write a configuration file of the service; returns its path."""
        path = self.folder / "conf" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return path


@dataclass(frozen=True)
class Launch:
    """What a service runs on, for messages, and the function that makes its command line for a folder."""

    what: str
    command: Callable[[ServiceFolder], list[str]]


@dataclass(frozen=True)
class Service:
    """A kind of server: `prepare` finds what it needs on this machine, `ready` checks the running server.

    `stop` is the signal that ends it cleanly.
    """

    name: str
    ports: tuple[str, ...]
    option: str
    prepare: Callable[[Callable[[str], None]], Launch]
    ready: Callable[[ServiceFolder], bool]
    stop: int = signal.SIGTERM


def on_java(
    jars: Callable[[Callable[[str], None]], list[Path]],
    command: Callable[[Java, list[Path], ServiceFolder], list[str]],
    accepted: Container[int] = java.ACCEPTED,
) -> Callable[[Callable[[str], None]], Launch]:
    """The `prepare` of a server in Java: `jars` finds its class path, `accepted` are the Java releases it runs on."""

    def prepare(say: Callable[[str], None]) -> Launch:
        runtime, classpath = java.find(accepted), jars(say)
        return Launch(f"Java {runtime.version}", partial(command, runtime, classpath))

    return prepare


def ask(port: int, request: bytes, size: int) -> bytes:
    """The first bytes of a server's answer; empty if there is no answer."""
    try:
        with socket.create_connection((HOST, port), timeout=2) as connection:
            connection.sendall(request)
            return connection.recv(size)
    except OSError:
        return b""


def java_command(java: Java, heap: str, place: ServiceFolder) -> list[str]:
    """The start of every command line: a small heap, one collector thread, and an exit when memory runs out."""
    place.log.parent.mkdir(parents=True, exist_ok=True)
    return [
        str(java.bin),
        f"-Xmx{heap}",
        "-Xms64m",
        "-XX:+UseSerialGC",
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:-UsePerfData",
        f"-XX:ErrorFile={place.log.parent}/crash-%p.log",
        "-Djava.awt.headless=true",
        "-Dfile.encoding=UTF-8",
    ]
