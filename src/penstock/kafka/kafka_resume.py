"""Where a query goes on in a topic: where its checkpoint says, if that is a position of this topic and nothing is gone.

What can be gone: the topic, which was deleted and made again; partitions; records that retention deleted, or that a
leader lost. All of it is told with the offsets that were not read. A query that is to go on without them begins where
there are records: at once, in a batch of no records, so that its checkpoint knows.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from penstock.errors import DataLost
from penstock.kafka.kafka_offsets import EARLIEST, TopicOffsets
from penstock.kafka.kafka_settings import KafkaSettings
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
        """The position from which to go on instead of `at`; None if it is `at`. Raises `DataLost`.

        The topic ends at `end` now; a query that reads only what was there when it started ends at `target`.
        """
        if at.time is not None:
            return self._sought(at, at.time, target)
        id = self.topic.id()
        if at.id and id and at.id != id:
            self._lost("the topic was deleted and made again since", f"what it had from offset {_listed(at.at)} on")
            return self._begun(id)
        going = self._without_vanished(at, end)
        going = self._within(going, end)
        going = self._held(going)
        if going != at or (id and not at.id):
            return replace(going, id=id, moved=True)
        return None

    def check(self, begin: TopicOffsets, until: TopicOffsets) -> bool:
        """Whether the records of a planned batch are to be read; raises `DataLost` if they are gone."""
        if until.moved:
            return False
        id = self.topic.id()
        if until.id and id and until.id != id:
            self._lost(
                "the topic was deleted and made again since", f"a batch from {_listed(begin.at)} to {_listed(until.at)}"
            )
            return False
        self._held(begin)
        return True

    def _sought(self, at: TopicOffsets, time: int, target: Mapping[int, int] | None) -> TopicOffsets:
        found = self.topic.earliest() if time == EARLIEST else self.topic.at_time(time)
        if target is not None:
            found = {p: min(offset, target.get(p, offset)) for p, offset in found.items()}
        since = "its beginning" if time == EARLIEST else _time(time)
        log.warning("%s goes on at %s, offsets %s, as was set", self._where, since, _listed(found))
        return TopicOffsets(at.topic, found, self.topic.id(), moved=True)

    def _begun(self, id: str) -> TopicOffsets:
        return TopicOffsets(self.settings.topic, self.topic.earliest(), id, moved=True)

    def _without_vanished(self, at: TopicOffsets, end: Mapping[int, int]) -> TopicOffsets:
        vanished = {p: offset for p, offset in at.at.items() if p not in end}
        if not vanished:
            return at
        self._lost("partitions are gone", f"what they had from offset {_listed(vanished)} on")
        return replace(at, at={p: offset for p, offset in at.at.items() if p in end})

    def _within(self, at: TopicOffsets, end: Mapping[int, int]) -> TopicOffsets:
        beyond = {p: offset for p, offset in at.at.items() if offset > end[p]}
        if not beyond:
            return at
        first = self.topic.earliest()
        self._lost(
            "the topic ends before the offsets that were read: was it made again?",
            f"what came after its end, {_listed({p: end[p] for p in beyond})}, up to {_listed(beyond)}",
        )
        return replace(at, at=dict(at.at) | {p: first[p] for p in beyond})

    def _held(self, at: TopicOffsets) -> TopicOffsets:
        """Looked at when the query starts; later the tasks that read find out."""
        if self._looked:
            return at
        first = self.topic.earliest()
        gone = {p: offset for p, offset in at.at.items() if p in first and offset < first[p]}
        if gone:
            spans = ", ".join(f"{gone[p]} to {first[p] - 1} of partition {p}" for p in sorted(gone))
            self._lost("records were deleted before they were read, as retention does", f"offsets {spans}")
        self._looked = True
        return replace(at, at=dict(at.at) | {p: first[p] for p in gone}) if gone else at

    def _lost(self, what: str, span: str) -> None:
        """Tell what is lost: as an error, unless the query is to go on."""
        if self.settings.lossy:
            log.warning("%s goes on though %s; not read: %s", self._where, what, span)
            return
        raise DataLost(
            f"{what}; not read: {span}",
            where=self._where,
            next="read what there is with fail_on_data_loss=False, or begin anew: `penstock checkpoints reset NAME`",
        )

    @property
    def _where(self) -> str:
        return f"kafka.read of {self.settings.topic} at {self.settings.servers}"


def _listed(offsets: Mapping[int, int]) -> str:
    return ", ".join(f"{offset} (partition {p})" for p, offset in sorted(offsets.items()))


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
