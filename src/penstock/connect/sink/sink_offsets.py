"""A sink connector's positions by partition of its topics: reads, sets and removes them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from penstock.connect.offsets import Offsets
from penstock.connect.sink.record_sink import next_offsets
from penstock.serve.rest_errors import RestError

EXAMPLE = (
    '{"offsets": [{"partition": {"kafka_topic": "orders", "kafka_partition": 0}, "offset": {"kafka_offset": 12}}]}'
)


class SinkOffsets(Offsets):
    """The positions of a sink connector, in the form of Kafka Connect's REST API."""

    def read(self) -> list[dict[str, Any]]:
        return [_entry(*place, at) for place, at in sorted(self._all().items())]

    def alter(self, offsets: Iterable[Any], sources: Iterable[str]) -> None:
        """Set the positions of some partitions of the connector's topics; None means the beginning.

        Raises RestError (400), before any change, if one is wrong.
        """
        topics = set(sources)
        changes = dict(_change(entry, topics) for entry in offsets)
        known = self._all() | changes
        for topic in {topic for topic, _ in changes}:
            of = {str(partition): at for (name, partition), at in known.items() if name == topic}
            self.kept.set_start(topic, json.dumps({topic: of}))

    def _all(self) -> dict[tuple[str, int], int]:
        found: dict[tuple[str, int], int] = {}
        for text in self.kept.starts().values():
            found |= next_offsets(json.loads(text))
        for topic in self.kept.begun():
            if (end := self.kept.end(topic)) is not None:
                found |= next_offsets(end)
        return found


def _entry(topic: str, partition: int, at: int) -> dict[str, Any]:
    return {"partition": {"kafka_topic": topic, "kafka_partition": partition}, "offset": {"kafka_offset": at}}


BEGINNING = -2
"""The offset of Spark's JSON that means the beginning of a partition."""


def _change(entry: Any, topics: set[str]) -> tuple[tuple[str, int], int]:
    try:
        place = entry["partition"]["kafka_topic"], int(entry["partition"]["kafka_partition"])
        at = BEGINNING if entry["offset"] is None else int(entry["offset"]["kafka_offset"])
    except (KeyError, TypeError, ValueError):
        raise RestError(400, f"Offsets do not have the required form; example: {EXAMPLE}") from None
    if place[0] not in topics:
        raise RestError(400, f"The connector does not read the topic {place[0]}; it reads {', '.join(sorted(topics))}")
    return place, at
