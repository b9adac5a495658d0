"""A Kafka record as people read it: its key and value as text, decoded where that is possible, and why where not.

A value is JSON, text, bytes, or has the wire format of a schema registry: a zero byte, four bytes with the id of a
schema, and Avro, Protobuf or JSON behind them. Records come from anybody, so what is decoded has limits of size, depth
and number, and schemas are remembered for a while, also those that cannot be had.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from penstock.codec.avro_value import AvroSchema, NotAvro
from penstock.durations import EPOCH
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.codec.registry import Registry

FRAME = 5
"""Bytes before the record in a registry's wire format."""
MOST_JSON = 1 << 20
"""Bytes of a value up to which is looked whether it is JSON."""
MOST_DECODED = 256 << 10
"""Bytes of a value up to which Avro and Protobuf are decoded: as objects they take hundreds of times as much."""
MOST_EXPANDED = 16 << 20
"""Characters that a Protobuf message may at most become: a byte may stand for the name of an enum's value."""
MOST_SCHEMAS, MOST_FAILED = 1000, 100
"""Remembered schemas of a registry, and such that could not be had: as many are asked for in vain in `AGAIN`."""
PATIENCE, AGAIN = 5.0, 30.0
"""Seconds that a record waits for its schema, and after which one that could not be had is asked for again."""
Decode = Callable[[bytes], str]
"""Makes the text of a record of the bytes behind its frame; raises ValueError."""


@dataclass(frozen=True)
class ShownValue:
    """A key or value: its text, None for null, its format, and why it is not decoded, "" if it is."""

    text: str | None
    format: str
    problem: str = ""


def view(record: Mapping[str, Any], registry: Registry | None = None, *, most: int | None = None) -> dict[str, Any]:
    """A record as JSON can hold it.

    `record` has `partition`, `offset`, `timestamp` (milliseconds since 1970), `key` and `value` (bytes or None) and
    `headers` (dicts of `key` and `value`), as rows of `wire.Reader` have them. Returns partition, offset, timestamp
    (ISO, UTC), key, value (text or None), key_format, value_format ("json", "text", "hex", "avro", "protobuf",
    "json-schema" or "null"), key_problem and value_problem (why the bytes are not decoded, or ""), headers (pairs),
    size (bytes of key and value), truncated (whether the value's text was cut after `most` characters).

    The first record of a schema asks the registry, which may take seconds. Nothing is raised for what is in a record.
    """
    key, value = shown(record["key"], registry), shown(record["value"], registry)
    text, truncated = value.text, False
    if most is not None and text is not None and len(text) > most:
        text, truncated = text[:most], True
    return {
        "partition": record["partition"],
        "offset": record["offset"],
        "timestamp": iso_time(record["timestamp"]),
        "key": key.text if most is None or key.text is None else key.text[:most],
        "value": text,
        "key_format": key.format,
        "value_format": value.format,
        "key_problem": key.problem,
        "value_problem": value.problem,
        "headers": [[header["key"], plain_text(header["value"])] for header in record["headers"]],
        "size": len(record["key"] or b"") + len(record["value"] or b""),
        "truncated": truncated,
    }


def shown(data: bytes | None, registry: Registry | None = None) -> ShownValue:
    """A key or value as text."""
    if data is None:
        return ShownValue(None, "null")
    if len(data) < FRAME or data[0]:
        return _unframed(data)
    number = int.from_bytes(data[1:FRAME], "big")
    if registry is None:
        return ShownValue(
            _hex(data), "hex", f"it begins like a record of the schema {number}; give the schema registry"
        )
    return _schemas(registry).shown(number, data)


def plain_text(data: bytes | None) -> str | None:
    """Bytes as text: as they are if they are UTF-8, else in hex."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _hex(data)


def iso_time(ms: int) -> str:
    """Milliseconds since 1970 as an ISO time in UTC; as the number if no such year has four digits."""
    try:
        return (EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return str(ms)


def _hex(data: bytes) -> str:
    return f"0x{data.hex()}"


def _unframed(data: bytes) -> ShownValue:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return ShownValue(_hex(data), "hex", "not UTF-8")
    if len(data) > MOST_JSON:
        return ShownValue(text, "text", f"larger than {MOST_JSON} bytes, so it was not read as JSON")
    return ShownValue(text, "json" if _is_json(text) else "text")


def _is_json(text: str) -> bool:
    """Whether it is an object or an array: a number or a word in quotes is rather meant as text."""
    if text.lstrip()[:1] not in ("{", "["):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


class _Schemas:
    """The schemas of a registry that records named, by id."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._lock, self._asking = threading.Lock(), threading.Lock()
        self._known: OrderedDict[int, tuple[str, Decode]] = OrderedDict()
        self._failed: OrderedDict[int, tuple[float, str]] = OrderedDict()
        self._away: tuple[float, str] = 0.0, ""

    def shown(self, number: int, data: bytes) -> ShownValue:
        decoder = self._schema(number)
        if isinstance(decoder, str):
            return ShownValue(_hex(data), "hex", decoder)
        format, decode = decoder
        if len(data) > MOST_DECODED:
            return ShownValue(_hex(data), "hex", f"larger than {MOST_DECODED} bytes, so it was not decoded as {format}")
        try:
            return ShownValue(decode(data), format)
        except ValueError as error:
            return ShownValue(_hex(data), "hex", f"not valid {format} of the schema {number}: {error}")

    def _schema(self, number: int) -> tuple[str, Decode] | str:
        """The format and the decoder of a schema, or why there is none."""
        decoder = self._remembered(number)
        if decoder is not None:
            return decoder
        # One asks at a time; records of known schemas do not wait for it.
        with self._asking:
            return self._remembered(number) or self._asked(number)

    def _remembered(self, number: int) -> tuple[str, Decode] | str | None:
        """The schema, or why it was not to be had a moment ago."""
        with self._lock:
            if number in self._known:
                self._known.move_to_end(number)
                return self._known[number]
            now, flood = time.monotonic(), (0.0, "")
            if len(self._failed) >= MOST_FAILED:
                # Bytes that only look like records of a registry may name as many schemas as there are records.
                until = next(iter(self._failed.values()))[0]
                flood = until, f"{MOST_FAILED} schemas could not be had; others are asked for after {AGAIN:g} s"
            until, problem = max(self._failed.get(number, (0.0, "")), self._away, flood)
            return problem if now < until else None

    def _asked(self, number: int) -> tuple[str, Decode] | str:
        try:
            decoder = _decoder(number, *_within(PATIENCE, lambda: self._registry.schema(number), self._registry.url))
        except (PenstockError, NotAvro, TypeError) as error:  # TypeError: descriptors that make no Protobuf file
            return self._failure(number, error)
        with self._lock:
            self._known[number] = decoder
            if len(self._known) > MOST_SCHEMAS:
                self._known.popitem(last=False)
        return decoder

    def _failure(self, number: int, error: Exception) -> str:
        """Remember it, so that not each record asks again; if the registry is away, for all schemas."""
        failure = time.monotonic() + AGAIN, str(error)
        with self._lock:
            if getattr(error, "retriable", False):
                self._away = failure
            else:
                self._failed[number] = failure
                self._failed.move_to_end(number)
                if len(self._failed) > MOST_FAILED:
                    self._failed.popitem(last=False)
        return failure[1]


class NoAnswer(PenstockError):
    """The registry has not answered in time."""

    retriable = True


def _within(seconds: float, ask: Callable[[], tuple[str, str]], where: str) -> tuple[str, str]:
    """The answer; raises NoAnswer without one in time, and leaves the request to end by itself.

    The client of the registry tries again for up to three quarters of a minute, which a page does not wait.
    """
    answers: queue.SimpleQueue[tuple[str, str] | Exception] = queue.SimpleQueue()

    def asked() -> None:
        try:
            answers.put(ask())
        except Exception as error:
            answers.put(error)

    threading.Thread(target=asked, name="schema", daemon=True).start()
    try:
        answer = answers.get(timeout=seconds)
    except queue.Empty:
        raise NoAnswer(
            f"the schema registry has not answered within {seconds:g} s",
            where=where,
            next="check the address and that the registry runs",
        ) from None
    if isinstance(answer, Exception):
        raise answer
    return answer


@lru_cache(maxsize=16)
def _schemas(registry: Registry) -> _Schemas:
    return _Schemas(registry)


def _decoder(number: int, text: str, kind: str) -> tuple[str, Decode]:
    """The format's name and the decoder of a schema; raises PenstockError or NotAvro."""
    if kind == "AVRO":
        schema = AvroSchema.of(text)
        return "avro", lambda data: json.dumps(schema.value(data[FRAME:]), ensure_ascii=False)
    if kind == "PROTOBUF":
        return "protobuf", _protobuf(number, text)
    if kind == "JSON":
        return "json-schema", _checked_json
    raise PenstockError(f"the schema {number} has the unknown type {kind}")


def _checked_json(data: bytes) -> str:
    text = data[FRAME:].decode()
    try:
        json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return text


def _longest(file: Any) -> int:
    """The length of the longest name of a field or of an enum's value in a Protobuf file and those that it uses."""
    files, names = [file], [0]
    for descriptor in files:
        files += [other for other in descriptor.dependencies if other not in files]
        messages = list(descriptor.message_types_by_name.values())
        enums = list(descriptor.enum_types_by_name.values())
        for message in messages:
            messages += message.nested_types
            enums += message.enum_types
            names += [len(field.name) for field in message.fields]
        names += [len(value.name) for enum in enums for value in enum.values]
    return max(names)


def _protobuf(number: int, text: str) -> Decode:
    # Here, because only this format needs them, and they take a quarter of a second.
    from google.protobuf.json_format import MessageToDict
    from google.protobuf.message import DecodeError

    from penstock.codec.decode_protobuf import class_at, compiled, indexes, messages_of

    tops = list(messages_of(compiled(text, f"schema {number}")))
    longest = max(map(_longest, {top.file for top in tops}), default=0)

    def decode(data: bytes) -> str:
        header = indexes(data, FRAME)
        kind = None if header is None else class_at(tops, header[0])
        if header is None or kind is None:
            raise ValueError("it names no message of the schema")
        if len(data) * longest > MOST_EXPANDED:
            raise ValueError(f"with names of {longest} characters it may become too large")
        try:
            message = kind.FromString(data[header[1] :])
            return json.dumps(MessageToDict(message, preserving_proto_field_name=True), ensure_ascii=False)
        except (DecodeError, TypeError, RecursionError) as error:
            raise ValueError(str(error) or "it cannot be read") from None

    return decode
