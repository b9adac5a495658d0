"""Records as Kafka Connect's converters read them: plain values with their schemas.

A schema is an object as JsonConverter writes it (`codec.connect_schema`), or None. Values are bool, int, float, str,
bytes, `Decimal`, a list of an array's elements, a dict of a map's entries or a struct's fields, or one of the classes
here. A 32-bit float is the double with the same value; a number without a schema that a double does not have as it is
written is a `Decimal`.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, ClassVar, NamedTuple

from penstock.codec.connect_schema import Schema

INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
NOWHERE = -1
"""The partition and the offset of records that Kafka does not have yet."""
DATA = "org.apache.kafka.connect.data."
Reader = Callable[[Any], Any]


class Date(int):
    """Days since 1970."""


class TimeSpan(int):
    """A length of time as a count of `nanos` nanoseconds: milliseconds."""

    nanos: ClassVar[int] = 1_000_000

    def count_of(self, nanos: int) -> int:
        """The length in units of so many nanoseconds, rounded down."""
        return int(self) * self.nanos // nanos


class TimeOfDay(TimeSpan):
    """The time since midnight."""


class Timestamp(TimeSpan):
    """The time since 1970."""


def type_name(value: Any) -> str:
    """What a value is, in the words of Kafka Connect."""
    return next((name for kind, name in _TYPE_NAMES if isinstance(value, kind)), type(value).__name__)


_TYPE_NAMES = (
    (type(None), "null"),
    (bool, "boolean"),
    (Date, "date"),
    (TimeOfDay, "time of day"),
    (Timestamp, "timestamp"),
    (int, "integer"),
    (float, "double"),
    (Decimal, "decimal"),
    (str, "string"),
    (bytes, "bytes"),
    (list, "array"),
    (dict, "struct or map"),
)


class NoValue(ValueError):
    """Bytes that are no value of a converter's format, a value that does not fit its schema or a transform."""


class PassingFault(NoValue):
    """A fault of a transform for which trying again can help."""


class Part(NamedTuple):
    """The key, the value or a header of a record."""

    schema: Schema | None
    value: Any


NOTHING = Part(None, None)


class ConnectRecord(NamedTuple):
    """A record, with its time in milliseconds since 1970; None if Kafka has none."""

    topic: str
    partition: int
    offset: int
    millis: int | None
    key: Part
    value: Part
    headers: tuple[tuple[str, Part], ...] = ()
    origin: str = ""
    """The topic that it was read from, if a transform has changed its topic."""

    @property
    def place(self) -> tuple[str, int, int]:
        """Where Kafka has it: topic, partition and offset."""
        return self.origin or self.topic, self.partition, self.offset
