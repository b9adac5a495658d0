"""Kafka's own Java classes as the reference for our record batches and partitions, in the JVM of a Spark session.

A call through py4j costs 0.3 ms, so loops over records and keys run in Java: method handles are made into the functions
that Java's streams take.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from pyspark.sql import SparkSession

_BUILDER = "org.apache.kafka.common.record.MemoryRecordsBuilder"
_RECORD = "org.apache.kafka.common.record.Record"


class JavaRecords:
    """Java's reading, writing and hashing."""

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark.sparkContext._jvm
        self._jvm, self._kafka = jvm, jvm.org.apache.kafka.common

    def batches(self, data: bytes) -> list[Any]:
        """The batches in `data`; Java has verified their checksums."""
        records = self._kafka.record.MemoryRecords.readableRecords(self._buffer(data))
        found, batches = [], records.batches().iterator()
        while batches.hasNext():
            found.append(batches.next())
            found[-1].ensureValid()
        return found

    def copy(self, data: bytes, codec: str) -> bytes:
        """One batch with all records of `data`, written by Java with that codec."""
        builder, out = self.builder(codec, 2 * len(data) + 4096)
        append = self._method(_BUILDER, "append", _RECORD).bindTo(builder)
        for batch in self.batches(data):
            # py4j finds no default methods of interfaces, such as forEach.
            records = self._jvm.java.util.Spliterators.spliteratorUnknownSize(batch.iterator(), 0)
            stream = self._jvm.java.util.stream.StreamSupport.stream(records, False)
            stream.forEach(self._as("java.util.function.Consumer", append))
        return self.built(builder, out)

    def builder(self, codec: str, size: int, *, offset: int = 0) -> tuple[Any, Any]:
        """Java's builder of a batch, and the buffer it writes to."""
        out = self._jvm.java.nio.ByteBuffer.allocate(size)
        kind, made = self._kafka.record.TimestampType.CREATE_TIME, self._kafka.compress.Compression.of(codec).build()
        return self._kafka.record.MemoryRecords.builder(out, made, kind, offset), out

    def transactional(self, offset: int, producer: int, size: int = 4096) -> tuple[Any, Any]:
        """Java's builder of a batch within a transaction."""
        out = self._jvm.java.nio.ByteBuffer.allocate(size)
        none = self._kafka.compress.Compression.NONE
        kind = self._kafka.record.TimestampType.CREATE_TIME
        place = (offset, 0, producer, 0, 0, True, -1)
        return self._kafka.record.MemoryRecords.builder(out, 2, none, kind, *place), out

    def marker(self, offset: int, producer: int, kind: str) -> bytes:
        """A control batch: "ABORT" or "COMMIT"."""
        marker = self._kafka.record.EndTransactionMarker(getattr(self._kafka.record.ControlRecordType, kind), 0)
        made = self._kafka.record.MemoryRecords.withEndTransactionMarker(offset, 0, -1, producer, 0, marker)
        return bytes(made.buffer().array())[: made.sizeInBytes()]

    def built(self, builder: Any, out: Any) -> bytes:
        """The bytes of a batch that is complete."""
        size = builder.build().sizeInBytes()
        return bytes(builder.buffer().array())[:size]

    def murmur2(self, keys: list[bytes]) -> list[int]:
        """Java's hashes."""
        hash_one = self._method("org.apache.kafka.common.utils.Utils", "murmur2", "[B")
        decode = self._method("java.util.Base64$Decoder", "decode", "java.lang.String")
        decoder = decode.bindTo(self._jvm.java.util.Base64.getDecoder())
        lines = ",".join(b64encode(key).decode() for key in keys)
        stream = self._jvm.java.util.regex.Pattern.compile(",").splitAsStream(lines)
        decoded = stream.map(self._as("java.util.function.Function", decoder))
        hashes = decoded.mapToInt(self._as("java.util.function.ToIntFunction", hash_one)).toArray()
        return [int(text) for text in self._jvm.java.util.Arrays.toString(hashes)[1:-1].split(",")]

    def _buffer(self, data: bytes) -> Any:
        return self._jvm.java.nio.ByteBuffer.wrap(data)

    def _class(self, name: str) -> Any:
        loader = self._jvm.java.lang.Thread.currentThread().getContextClassLoader()
        return self._jvm.java.lang.Class.forName(name, True, loader)

    def _method(self, owner: str, name: str, argument: str) -> Any:
        """The handle of a public method of one argument."""
        for method in self._class(owner).getMethods():
            if method.getName() == name and [kind.getName() for kind in method.getParameterTypes()] == [argument]:
                return self._jvm.java.lang.invoke.MethodHandles.publicLookup().unreflect(method)
        raise LookupError(f"{owner} has no {name}({argument})")

    def _as(self, function: str, handle: Any) -> Any:
        return self._jvm.java.lang.invoke.MethodHandleProxies.asInterfaceInstance(self._class(function), handle)
