"""Where a query continues in a topic: at its checkpoint's offsets, if they belong to this topic and no data is gone.

Data can be gone because the topic was deleted and created again, partitions are missing, retention deleted records, or
a leader lost them. The error or warning says which offsets were not read. A query that continues without them starts at
the remaining records, with an empty batch, so that its checkpoint has the new offsets at once.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from penstock.errors import DataLost
from penstock.kafka.kafka_settings import KafkaSettings
from penstock.kafka.source_format import EARLIEST, TopicOffsets
from penstock.kafka.topic_reader import TopicReader

log = logging.getLogger(__name__)


class KafkaResume:
    """For one query; `topic` is its reader."""

    def __init__(self, settings: KafkaSettings, topic: TopicReader) -> None:
        self.settings, self.topic = settings, topic
        self._looked = False

    def moved(
        self, at: TopicOffsets, end: Mapping[int, int], target: Mapping[int, int] | None = None
    ) -> TopicOffsets | None:
        """The position at which to continue instead of `at`; None if it is `at`. Raises `DataLost`.

        `end` is the topic's current end; `target` is where a query ends that reads only the data present at its start.
        """
        if at.time is not None:
            return self._sought(at, at.time, target)
        id = self.topic.id()
        if at.id and id and at.id != id:
            self._lost("the topic was deleted and created again", f"its old records from offset {_listed(at.at)}")
            return self._begun(id)
        going = self._without_vanished(at, end)
        going = self._within(going, end)
        going = self._held(going)
        if going != at or (id and not at.id):
            return replace(going, id=id, moved=True)
        return None

    def check(self, begin: TopicOffsets, until: TopicOffsets) -> bool:
        """Whether to read the records of a planned batch; raises `DataLost` if they are gone."""
        if until.moved:
            return False
        id = self.topic.id()
        if until.id and id and until.id != id:
            self._lost(
                "the topic was deleted and created again", f"a batch from {_listed(begin.at)} to {_listed(until.at)}"
            )
            return False
        self._held(begin)
        return True

    def _sought(self, at: TopicOffsets, time: int, target: Mapping[int, int] | None) -> TopicOffsets:
        offsets = self.topic.earliest() if time == EARLIEST else self.topic.at_time(time)
        if target is not None:
            offsets = {p: min(offset, target.get(p, offset)) for p, offset in offsets.items()}
        since = "its beginning" if time == EARLIEST else _time(time)
        log.warning("%s continues at %s, offsets %s, as set", self._where, since, _listed(offsets))
        return TopicOffsets(at.topic, offsets, self.topic.id(), moved=True)

    def _begun(self, id: str) -> TopicOffsets:
        return TopicOffsets(self.settings.topic, self.topic.earliest(), id, moved=True)

    def _without_vanished(self, at: TopicOffsets, end: Mapping[int, int]) -> TopicOffsets:
        vanished = {p: offset for p, offset in at.at.items() if p not in end}
        if not vanished:
            return at
        self._lost("partitions are gone", f"their records from offset {_listed(vanished)}")
        return replace(at, at={p: offset for p, offset in at.at.items() if p in end})

    def _within(self, at: TopicOffsets, end: Mapping[int, int]) -> TopicOffsets:
        beyond = {p: offset for p, offset in at.at.items() if offset > end[p]}
        if not beyond:
            return at
        first = self.topic.earliest()
        self._lost(
            "the topic ends before the offsets that were read: was it created again?",
            f"records after its end, {_listed({p: end[p] for p in beyond})}, up to {_listed(beyond)}",
        )
        return replace(at, at=dict(at.at) | {p: first[p] for p in beyond})

    def _held(self, at: TopicOffsets) -> TopicOffsets:
        """Move to the earliest offsets where records are gone; checked at the query's start, later by its tasks."""
        if self._looked:
            return at
        first = self.topic.earliest()
        gone = {p: offset for p, offset in at.at.items() if p in first and offset < first[p]}
        if gone:
            spans = ", ".join(f"{gone[p]} to {first[p] - 1} of partition {p}" for p in sorted(gone))
            self._lost("records were deleted before they were read, for example by retention", f"offsets {spans}")
        self._looked = True
        return replace(at, at=dict(at.at) | {p: first[p] for p in gone}) if gone else at

    def _lost(self, what: str, span: str) -> None:
        """Report the loss: raise `DataLost`, or log a warning if the query continues without the data."""
        if self.settings.lossy:
            log.warning("%s continues although %s; not read: %s", self._where, what, span)
            return
        raise DataLost(
            f"{what}; not read: {span}",
            where=self._where,
            next="read what is left with fail_on_data_loss=False, or start over: `penstock checkpoints reset NAME`",
        )

    @property
    def _where(self) -> str:
        return f"kafka.read of {self.settings.topic} at {self.settings.servers}"


def _listed(offsets: Mapping[int, int]) -> str:
    return ", ".join(f"{offset} (partition {p})" for p, offset in sorted(offsets.items()))


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
