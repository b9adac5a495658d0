"""Kafka's own Java classes as the reference for our bytes: one JVM for each version of kafka-clients."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyspark
from py4j.java_gateway import (
    GatewayParameters,
    JavaGateway,
    launch_gateway,
)

from penstock.local import jars, java
from penstock.wire.protocol.message_schema import Api, Direction


class Parsed(NamedTuple):
    """Java's reading of a frame: its header, whether the body is as expected, and the bytes left over."""

    correlation_id: int
    client_id: str | None
    same: bool
    left: int


def client_jar(service: str) -> Path:
    """The kafka-clients jar of a lock file: "kafka" has the broker's, "spark" an older one."""
    (found,) = (jar for jar in jars.fetch(service) if jar.name.startswith("kafka-clients-"))
    return found


def definition(api: Api, direction: Direction) -> Any:
    """Kafka's own definition of a message, which its newest jar has as JSON with comments."""
    with zipfile.ZipFile(client_jar("kafka")) as jar:
        text = jar.read(f"common/message/{api.name}{direction.title()}.json").decode()
    return json.loads(re.sub(r"^\s*//.*$|//[^\"\n]*$", "", text, flags=re.MULTILINE))


@contextmanager
def java_kafka(service: str) -> Iterator[JavaKafka]:
    """The messages of that kafka-clients."""
    with jvm_of(service) as jvm:
        yield JavaKafka(jvm)


@contextmanager
def jvm_of(service: str) -> Iterator[Any]:
    """The classes of that kafka-clients, in a separate JVM: py4j keeps one class per name."""
    others = [jar for jar in jars.fetch("kafka") if not jar.name.startswith("kafka-clients-")]
    with jvm_with([client_jar(service), *others]) as jvm:
        yield jvm


@contextmanager
def jvm_with(classpath: Sequence[Path]) -> Iterator[Any]:
    """The classes of these jars, in a separate JVM."""
    (bridge,) = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
    port, process = launch_gateway(
        jarpath=str(bridge),
        classpath=":".join(map(str, classpath)),
        java_path=str(java.find().bin),
        die_on_exit=True,
        return_proc=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    try:
        yield gateway.jvm
    finally:
        gateway.shutdown()
        process.stdin.close()
        process.wait()


class JavaKafka:
    """Java's messages, by our APIs and directions."""

    def __init__(self, jvm: Any) -> None:
        self._common, self._buffers = jvm.org.apache.kafka.common, jvm.java.nio.ByteBuffer
        self._json = jvm.com.fasterxml.jackson.databind.ObjectMapper()
        self._cache = self._common.protocol.ObjectSerializationCache()
        self._keys = self._common.protocol.ApiKeys
        self._class = jvm.java.lang.Class

    @property
    def version(self) -> str:
        found: str = self._common.utils.AppInfoParser.getVersion()
        return found

    def versions(self, api: Api) -> tuple[int, int]:
        """The lowest version of an API that this Java client supports, and its highest stable version."""
        key = self._keys.forId(api.key)
        return key.oldestVersion(), key.latestVersion(False)

    def message(self, api: Api, direction: Direction, version: int, body: dict[str, Any]) -> Any:
        """Java's object for a body in Java's JSON."""
        converter = getattr(self._common.message, f"{api.name}{direction.title()}DataJsonConverter")
        return converter.read(self._json.readTree(json.dumps(body)), version)

    def written(self, message: Any, version: int) -> bytes:
        """A message as encoded by Java."""
        size = self._common.protocol.MessageSizeAccumulator()
        message.addSize(size, self._cache, version)
        buffer = self._buffers.allocate(size.totalSize())
        message.write(self._common.protocol.ByteBufferAccessor(buffer), self._cache, version)
        return bytes(buffer.array())

    def parsed(self, api: Api, direction: Direction, version: int, frame: bytes, expected: Any) -> Parsed:
        """Java's reading of a frame without its length."""
        buffer = self._buffers.wrap(frame)
        readable = self._common.protocol.ByteBufferAccessor(buffer)
        header = getattr(self._common.message, f"{direction.title()}HeaderData")()
        header.read(readable, getattr(self._keys.forId(api.key), f"{direction}HeaderVersion")(version))
        if direction == "request":
            assert (header.requestApiKey(), header.requestApiVersion()) == (api.key, version)
        message = getattr(self._common.message, f"{api.name}{direction.title()}Data")()
        message.read(readable, version)
        client_id = header.clientId() if direction == "request" else None
        return Parsed(header.correlationId(), client_id, message.equals(expected), buffer.remaining())

    def errors(self) -> dict[int, tuple[str, bool, bool]]:
        """Each error code's name, whether it is retriable, and whether it makes metadata invalid."""
        retriable = self._class.forName("org.apache.kafka.common.errors.RetriableException")
        stale = self._class.forName("org.apache.kafka.common.errors.InvalidMetadataException")
        found = {}
        for one in self._common.protocol.Errors.values():
            error = one.exception()
            found[one.code()] = (one.name(), retriable.isInstance(error), stale.isInstance(error))
        return found
