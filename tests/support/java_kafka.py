"""Kafka's own Java classes as the judge of our bytes: a jar of kafka-clients, loaded beside the one of Spark.

The classes live in a class loader of their own, so that several versions can be asked in one JVM.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from penstock.wire.schema import Api, Direction

COMMON = "org.apache.kafka.common"


class Parsed(NamedTuple):
    """What Java reads in a frame: its header, whether the body is the expected one, and the bytes left over."""

    correlation_id: int
    client_id: str | None
    same: bool
    left: int


class JavaKafka:
    """The classes of one kafka-clients jar."""

    def __init__(self, spark: SparkSession, jar: Path) -> None:
        gateway: Any = spark.sparkContext._gateway
        self._jvm, self._array = gateway.jvm, gateway.new_array
        urls = self._array(self._jvm.java.net.URL, 1)
        urls[0] = self._jvm.java.io.File(str(jar)).toURI().toURL()
        system = self._jvm.java.lang.ClassLoader.getSystemClassLoader()
        self._loader = self._jvm.java.net.URLClassLoader(urls, system)
        self._json = self._jvm.com.fasterxml.jackson.databind.ObjectMapper()
        (self._accessor,) = self._class("protocol.ByteBufferAccessor").getConstructors()
        self._cache = self._new("protocol.ObjectSerializationCache")
        keys = self._class("protocol.ApiKeys").getEnumConstants()
        self._keys = {key.id: key for key in map(_Key, keys)}

    @property
    def version(self) -> str:
        parser = self._class("utils.AppInfoParser")
        found: str = parser.getMethod("getVersion", self._array(self._jvm.Class, 0)).invoke(None, self._objects())
        return found

    def versions(self, api: Api) -> tuple[int, int]:
        """The lowest version of an API that this Java client can speak, and its highest stable one."""
        key = self._keys[api.key].key
        return key.oldestVersion(), key.latestVersion(False)

    def message(self, api: Api, direction: Direction, version: int, body: dict[str, Any]) -> Any:
        """Java's object for a body in Java's JSON."""
        converter = self._new(self._name(api, direction) + "JsonConverter")
        return converter.read(self._json.readTree(json.dumps(body)), version)

    def written(self, message: Any, version: int) -> bytes:
        """The bytes that Java makes of a message."""
        buffer = self._jvm.java.nio.ByteBuffer.allocate(message.size(self._cache, version))
        message.write(self._accessor.newInstance(self._objects(buffer)), self._cache, version)
        return bytes(buffer.array())

    def parsed(self, api: Api, direction: Direction, version: int, frame: bytes, expected: Any) -> Parsed:
        """What Java finds in a frame, which comes without its length."""
        buffer = self._jvm.java.nio.ByteBuffer.wrap(frame)
        readable = self._accessor.newInstance(self._objects(buffer))
        key, kind = self._keys[api.key].key, direction.title()
        header = self._new(f"message.{kind}HeaderData")
        header.read(readable, getattr(key, f"{direction}HeaderVersion")(version))
        if direction == "request":
            assert (header.requestApiKey(), header.requestApiVersion()) == (api.key, version)
        message = self._new(self._name(api, direction))
        message.read(readable, version)
        client_id = header.clientId() if direction == "request" else None
        return Parsed(header.correlationId(), client_id, message.equals(expected), buffer.remaining())

    def errors(self) -> dict[int, tuple[str, bool, bool]]:
        """Each error code's name, whether it is retriable, and whether it makes metadata invalid."""
        retriable = self._class("errors.RetriableException")
        stale = self._class("errors.InvalidMetadataException")
        found = {}
        for one in self._class("protocol.Errors").getEnumConstants():
            error = one.exception()
            found[one.code()] = (one.name(), retriable.isInstance(error), stale.isInstance(error))
        return found

    def _name(self, api: Api, direction: Direction) -> str:
        return f"message.{api.name}{direction.title()}Data"

    def _class(self, name: str) -> Any:
        return self._jvm.java.lang.Class.forName(f"{COMMON}.{name}", True, self._loader)

    def _new(self, name: str) -> Any:
        return self._class(name).newInstance()

    def _objects(self, *values: Any) -> Any:
        array = self._array(self._jvm.Object, len(values))
        for at, value in enumerate(values):
            array[at] = value
        return array


class _Key:
    """An API key of Java with its number, which is a field and not a method."""

    def __init__(self, key: Any) -> None:
        self.key, self.id = key, key.messageType.apiKey() if False else key.id
