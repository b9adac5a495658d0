"""Offsets of a topic as checkpoints have them: in the form of Spark's own source, with what that need not know.

    {"clicks": {"0": 12, "1": 7}, "id:4f2c...": {}}

Spark reads a map from topics to maps from partitions to offsets. A name with a colon, which no topic has, and without
partitions means nothing to it: so a query may change from our source to Spark's and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

EARLIEST = -2
"""Instead of a time: the beginning of the topic."""


@dataclass(frozen=True)
class TopicOffsets:
    """The next offset to read of each partition, and the id of their topic; "" if it is not known.

    `moved`: the records before were not read in order; the query was to go on here. `time`: instead of offsets, the
    point in time (milliseconds since 1970, or EARLIEST) from which to go on, which is looked up at the next start.
    `tasks`: how many tasks at most read the batch that ends here, so that it gives each the same records when it is run
    again with another number of cores; 0 if it is not known.
    """

    topic: str
    at: Mapping[int, int]
    id: str = ""
    moved: bool = False
    time: int | None = None
    tasks: int = field(default=0, compare=False)

    def offset(self) -> dict[str, Any]:
        """What Spark keeps."""
        told: dict[str, Any] = {self.topic: {str(p): self.at[p] for p in sorted(self.at)}}
        if self.id:
            told[f"id:{self.id}"] = {}
        if self.moved:
            told["moved:"] = {}
        if self.time is not None:
            told[f"time:{self.time}"] = {}
        if self.tasks:
            told[f"tasks:{self.tasks}"] = {}
        return told

    @classmethod
    def of(cls, told: Mapping[str, Any], topic: str) -> TopicOffsets:
        """Raises ValueError if these are not offsets of this topic."""
        try:
            about = dict(name.split(":", 1) for name in told if ":" in name)
            at = {int(p): int(offset) for p, offset in told[topic].items()}
            time = int(about["time"]) if "time" in about else None
            tasks = int(about.get("tasks", 0))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"no offsets of {topic}: {dict(told)}") from error
        return cls(topic, at, about.get("id", ""), "moved" in about, time, tasks)


def topics(told: Mapping[str, Any]) -> list[str]:
    """The topics that a checkpoint's offsets are of."""
    return [name for name in told if ":" not in name]
