"""A sink connector's positions by partition of its topics: reads, sets and removes them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from penstock.connect.sinks.record_sink import next_offsets
from penstock.connect.worker.offsets import Offsets
from penstock.serve.json_bodies import whole_number
from penstock.serve.rest_errors import RestError

EXAMPLE = (
    '{"offsets": [{"partition": {"kafka_topic": "orders", "kafka_partition": 0}, "offset": {"kafka_offset": 12}}]}'
)


class SinkOffsets(Offsets):
    """The positions of a sink connector, in the form of Kafka Connect's REST API."""

    def read(self) -> list[dict[str, Any]]:
        # A partition that was set to its beginning has no position yet.
        return [_entry(*place, at) for place, at in sorted(self._all().items()) if at >= 0]

    def alter(self, offsets: Iterable[Any], sources: Iterable[str]) -> None:
        """Set the positions of some partitions of the connector's topics; None means the beginning.

        Raises RestError (400), before any change, if one is wrong.
        """
        topics = set(sources)
        changes = dict(_change(entry, topics) for entry in offsets)
        known = self._all() | changes
        for topic in {topic for topic, _ in changes}:
            of = {str(partition): at for (name, partition), at in known.items() if name == topic}
            self.positions.set_start(topic, json.dumps({topic: of}))

    def _all(self) -> dict[tuple[str, int], int]:
        offsets: dict[tuple[str, int], int] = {}
        for text in self.positions.starts().values():
            offsets |= next_offsets(json.loads(text))
        for topic in self.positions.begun():
            if (end := self.positions.end(topic)) is not None:
                offsets |= next_offsets(end)
        return offsets


def _entry(topic: str, partition: int, at: int) -> dict[str, Any]:
    return {"partition": {"kafka_topic": topic, "kafka_partition": partition}, "offset": {"kafka_offset": at}}


BEGINNING = -2
"""The offset of Spark's JSON that means the beginning of a partition; -1, its end, is nothing that a user may set."""
LAST_PARTITION, LAST_OFFSET = (1 << 31) - 1, (1 << 63) - 1


def _change(entry: Any, topics: set[str]) -> tuple[tuple[str, int], int]:
    try:
        topic, partition = entry["partition"]["kafka_topic"], entry["partition"]["kafka_partition"]
        at = None if entry["offset"] is None else entry["offset"]["kafka_offset"]
        known = topic in topics
    except (KeyError, TypeError):
        raise RestError(400, f"Offsets do not have the required form; example: {EXAMPLE}") from None
    if not known:
        raise RestError(400, f"The connector does not read the topic {topic}; it reads {', '.join(sorted(topics))}")
    number = _number("partition", partition, LAST_PARTITION)
    return (topic, number), BEGINNING if entry["offset"] is None else _number("offset", at, LAST_OFFSET)


def _number(what: str, value: Any, most: int) -> int:
    """As in Kafka Connect it may be a string; unlike there, nothing below 0 gets as far as Kafka."""
    number = whole_number(value, 0, most, as_text=True)
    if number is None:
        raise RestError(
            400,
            f"Failed to parse the following Kafka {what} value in the provided offsets: {json.dumps(value)}. "
            f"{what.capitalize()} values for sink connectors need to be whole numbers from 0 to {most}; "
            f"example: {EXAMPLE}",
        )
    return number
