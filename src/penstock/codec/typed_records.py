"""Records between the change frame and Kafka: typed keys and values, which transforms change and codecs encode.

A payload is a Spark expression with the Kafka Connect schema of its values. A chain of transforms and codecs therefore
becomes one expression, which Spark evaluates next to the sink.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from pyspark.sql import Column, DataFrame, functions as F

from penstock.codec.connect_schema import Schema

Side = Literal["key", "value"]


@dataclass(frozen=True)
class RecordPart:
    """A key or a value: an expression, null where the record has no key or value, and its schema."""

    payload: Column
    schema: Schema


class Codec(Protocol):
    """Encodes keys or values."""

    def encode(self, part: RecordPart, *, topic: str, side: Side) -> Column:
        """Return a string or binary column, null where the payload is null. Errors name the topic."""


@dataclass(frozen=True)
class Records:
    """Typed records over the rows of `frame`, one record per row.

    `values` are alternatives: at most one of them is not null in a row, and a tombstone has none. `keep` selects the
    rows that are written; None keeps every row. `other_keys` are alternatives to `key`: in a row at most one of `key`
    and `other_keys` is not null.
    """

    frame: DataFrame
    topic: str | Column
    key: RecordPart | None
    values: tuple[RecordPart, ...]
    headers: Column | None = None
    keep: Column | None = None
    other_keys: tuple[RecordPart, ...] = ()

    def only(self, condition: Column) -> Records:
        """The records where `condition` is true, in addition to earlier conditions."""
        return replace(self, keep=condition if self.keep is None else self.keep & condition)

    def encoded(self, key: Codec, value: Codec) -> DataFrame:
        """A frame with `topic string`, `key`, `value`, and `headers` if there are headers."""
        # A topic that is computed for each row cannot name a subject; the subject is then the name of the schema.
        topic = self.topic if isinstance(self.topic, str) else ""
        parts = () if self.key is None else (self.key, *self.other_keys)
        keys = [key.encode(part, topic=topic, side="key") for part in parts]
        values = [value.encode(part, topic=topic, side="value") for part in self.values]
        columns = [
            (F.lit(self.topic) if isinstance(self.topic, str) else self.topic).alias("topic"),
            (_first(keys) if keys else F.lit(None).cast("string")).alias("key"),
            _first(values).alias("value"),
        ]
        if self.headers is not None:
            columns.append(self.headers.alias("headers"))
        kept = self.frame if self.keep is None else self.frame.where(self.keep)
        return kept.select(*columns)


def _first(columns: Sequence[Column]) -> Column:
    return columns[0] if len(columns) == 1 else F.coalesce(*columns)


Transform = Callable[[Records], Records]
"""Changes records before they are encoded, like a single message transform of Kafka Connect."""
