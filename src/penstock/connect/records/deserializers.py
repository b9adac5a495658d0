"""Reads the bytes of Kafka's records as Kafka Connect's converters do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from penstock.codec import exact_json
from penstock.connect.records.avro_data import HEAD, schema_id
from penstock.connect.records.json_data import of_json
from penstock.connect.records.record import NOTHING, NoValue, Part

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]


class RawRecord(NamedTuple):
    """A record as Kafka has it; the time is in milliseconds since 1970, None if there is none."""

    topic: str
    partition: int
    offset: int
    millis: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers


class Deserializer(Protocol):
    """A converter's reader."""

    def __call__(self, data: bytes | None) -> Part:
        """The part that these bytes are; raises NoValue."""


@dataclass(frozen=True)
class JsonBytes:
    """JsonConverter; with `enveloped` (`schemas.enable`) records have their schemas."""

    enveloped: bool

    def __call__(self, data: bytes | None) -> Part:
        return of_json(data, enveloped=self.enveloped)


@dataclass(frozen=True)
class JsonSchemaBytes:
    """JsonSchemaConverter, in Confluent's wire format; values are read as JSON has them, without their schema."""

    def __call__(self, data: bytes | None) -> Part:
        if data is None:
            return NOTHING
        schema_id(data)
        return of_json(data[HEAD:], enveloped=False)


@dataclass(frozen=True)
class TextBytes:
    """StringConverter."""

    def __call__(self, data: bytes | None) -> Part:
        try:
            return Part({"type": "string", "optional": True}, None if data is None else data.decode())
        except UnicodeDecodeError:
            raise NoValue("it is not UTF-8") from None


@dataclass(frozen=True)
class SimpleHeader:
    """SimpleHeaderConverter: an array or a map if it is JSON of one, else text, or bytes."""

    def __call__(self, data: bytes | None) -> Part:
        if data is None:
            return NOTHING
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return Part(None, data)
        if text[:1] in ("{", "["):
            try:
                return Part(None, exact_json.loads(text))
            except (ValueError, RecursionError):
                pass
        return Part(None, text)


HEADER = SimpleHeader()
"""The converter of headers that is used if none is named."""
