"""The form of what our own Kafka source gives Spark: its name, its columns, and its offsets in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import types as st

from penstock.codec.problem import HEADERS

FORMAT = "penstock-kafka-topic"
READ = "read"
"""The column that says whether a value's members were read; Spark reads the other values."""
UNREADABLE = "unreadable"
"""The column that says why the record batch at this offset cannot be read; null in records."""
RECORD = (
    st.StructType()
    .add("key", st.BinaryType())
    .add("value", st.BinaryType())
    .add("partition", st.IntegerType(), False)
    .add("offset", st.LongType(), False)
    .add("timestamp", st.TimestampType(), False)
    .add("headers", HEADERS)
)


def member(number: int) -> str:
    """The column of a member of JSON values."""
    return f"member{number}"


def schema(members: st.StructType | None, *, tolerant: bool) -> st.StructType:
    """The columns of the source."""
    fields = [*RECORD]
    if tolerant:
        fields.append(st.StructField(UNREADABLE, st.StringType()))
    if members is not None:
        fields.append(st.StructField(READ, st.BooleanType(), False))
        fields += [st.StructField(member(n), field.dataType) for n, field in enumerate(members)]
    return st.StructType(fields)


# Offsets have the form of those of Spark's own source, with additional entries.
#
#     {"clicks": {"0": 12, "1": 7}, "id:4f2c...": {}}
#
# Spark reads a map from topics to maps from partitions to offsets. It ignores an entry without partitions whose name
# has a colon, which no topic name has. So a query may change from our source to Spark's and back.

EARLIEST = -2
"""The value of `time` that means the beginning of the topic."""


@dataclass(frozen=True)
class TopicOffsets:
    """The next offset to read in each partition, and the id of the topic; "" if it is not known.

    `moved`: the query was set to continue here, and did not read the records before. `time`: continue at this time
    (milliseconds since 1970, or EARLIEST) instead of the offsets; it is looked up at the next start. `tasks`: the most
    tasks that read the batch that ends here, so that each gets the same records when the batch is run again with
    another number of cores; 0 if it is not known.
    """

    topic: str
    at: Mapping[int, int]
    id: str = ""
    moved: bool = False
    time: int | None = None
    tasks: int = field(default=0, compare=False)

    def offset(self) -> dict[str, Any]:
        """The offsets in the form that Spark stores."""
        offset: dict[str, Any] = {self.topic: {str(p): self.at[p] for p in sorted(self.at)}}
        if self.id:
            offset[f"id:{self.id}"] = {}
        if self.moved:
            offset["moved:"] = {}
        if self.time is not None:
            offset[f"time:{self.time}"] = {}
        if self.tasks:
            offset[f"tasks:{self.tasks}"] = {}
        return offset

    @classmethod
    def of(cls, offset: Mapping[str, Any], topic: str) -> TopicOffsets:
        """Reads what `offset` returned; raises ValueError if these are not offsets of this topic."""
        try:
            about = dict(name.split(":", 1) for name in offset if ":" in name)
            at = {int(p): int(number) for p, number in offset[topic].items()}
            time = int(about["time"]) if "time" in about else None
            tasks = int(about.get("tasks", 0))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"not offsets of {topic}: {dict(offset)}") from error
        return cls(topic, at, about.get("id", ""), "moved" in about, time, tasks)


def topics(offset: Mapping[str, Any]) -> list[str]:
    """The topics in a checkpoint's offsets."""
    return [name for name in offset if ":" not in name]
