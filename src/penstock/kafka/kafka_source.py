"""Our own Spark streaming source of Kafka topics, `format("penstock-kafka-topic")`, for `kafka.read`.

Offsets have the form of Spark's own source (`source_format`), so a query may change from one source to the other. Each
task reads some partitions, each in order.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql import types as st
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from penstock.errors import PenstockError
from penstock.kafka.group_position import GroupPosition
from penstock.kafka.kafka_resume import KafkaResume
from penstock.kafka.kafka_settings import AT_END, AT_START, EARLIEST, KafkaSettings
from penstock.kafka.source_format import FORMAT, TopicOffsets, schema, topics
from penstock.kafka.topic_reader import TopicReader, topic
from penstock.kafka.whole_chunks import WholeChunks
from penstock.query.packed_rows import packed, packed_schema

PAUSE = 0.02
"""Seconds to wait when there are no new records: Spark asks again at once."""
SETTLE = 5.0
"""Seconds that a query waits at its end for the commit of its position."""

Offsets = dict[int, int]


@dataclass
class Ranges(InputPartition):
    """What one task reads."""

    start: Offsets
    end: Offsets


class KafkaTopic(DataSource):
    """The source, registered under its name; `KafkaSettings` describes its options."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.settings = KafkaSettings.of(options)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> st.StructType:
        columns = schema(self.settings.members, tolerant=self.settings.tolerant)
        return packed_schema(columns) if self.settings.packed else columns

    def streamReader(self, schema: st.StructType) -> TopicStreamReader:
        return TopicStreamReader(self.settings)


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches in a Python process of the driver, and reads them in the executors' Python workers."""

    def __init__(self, settings: KafkaSettings) -> None:
        self.settings = settings
        self.target: Offsets | None = None
        self._newest: Offsets | None = None
        """The topic's ends when the last batch was planned."""

    @cached_property
    def topic(self) -> TopicReader:
        return topic(self.settings)

    @cached_property
    def chunks(self) -> WholeChunks | None:
        if not self.settings.chunk or self.target is not None:
            return None
        wait = self.settings.chunk_wait
        return WholeChunks(self.settings.chunk, None if wait is None else wait.total_seconds())

    @cached_property
    def resume(self) -> KafkaResume:
        return KafkaResume(self.settings, self.topic)

    @cached_property
    def position(self) -> GroupPosition | None:
        return GroupPosition(self.settings, self.topic) if self.settings.group else None

    def initialOffset(self) -> dict[str, Any]:
        start = self.settings.start
        if isinstance(start, str):
            return self._spark_offset(self.topic.earliest() if start == EARLIEST else self.topic.latest())
        offsets, meant = dict(start), {AT_START: self.topic.earliest(), AT_END: self.topic.latest()}
        if offsets.keys() != meant[AT_END].keys():
            raise self._wrong(
                f"start has the partitions {_listed(offsets)}", f"give the offset of each of {_listed(meant[AT_END])}"
            )
        return self._spark_offset({p: meant[at][p] if at in meant else at for p, at in offsets.items()})

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = self._offsets(start)
        self._mirror(begin)
        self._newest = latest = self.topic.latest()
        if moved := self.resume.moved(begin, latest, self.target):
            return moved.offset()
        at, end = begin.at, latest if self.target is None else self.target
        if all(end[p] == at.get(p) for p in end):
            if self.target is None:
                time.sleep(PAUSE)
            else:
                self._settle()
            return start
        begun = self._begun(at, end)
        ready = end if self.chunks is None else self.chunks.ready(begun, end)
        if self.chunks is not None and ready == begun:
            time.sleep(PAUSE)
            return start
        return self._spark_offset(self._limited(begun, ready, limit))

    def _limited(self, begun: Offsets, ready: Offsets, limit: ReadLimit) -> Offsets:
        if not isinstance(limit, ReadMaxRows):
            return ready
        cut = limited(begun, ready, limit.max_rows)
        return cut if self.chunks is None else self.chunks.limited(begun, ready, cut)

    def stop(self) -> None:
        self._settle()

    def _mirror(self, begin: TopicOffsets) -> None:
        """Tell the group that the batches before these offsets are finished; offsets that were set are not read yet."""
        if self.position and begin.time is None:
            self.position.finished(begin.at)

    def _settle(self) -> None:
        """Wait for the position of the last batch: the process may end now."""
        if self.position:
            self.position.wait(SETTLE)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self.settings.batch is None else ReadMaxRows(self.settings.batch)

    def reportLatestOffset(self) -> dict[str, Any]:
        # Spark asks right after `latestOffset`. Later ends would be a lag of records that came a moment after a batch
        # which reads all, and cost Kafka a second request for each batch.
        return self._spark_offset(self.topic.latest() if self._newest is None else self._newest)

    def prepareForTriggerAvailableNow(self) -> None:
        self.target = self.topic.latest()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        planned = self._offsets(end)
        if not self.resume.check(self._offsets(start), planned):
            return []
        until = planned.at
        begin = self._begun(self._offsets(start).at, until)
        if self.settings.lossy:
            first = self.topic.earliest()
            begin = {p: first[p] if at < first[p] or at > until[p] else at for p, at in begin.items()}
        tasks = split(begin, until, planned.tasks or self.settings.tasks)
        return [Ranges({p: begin[p] for p in some}, {p: until[p] for p in some}) for some in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Here, because Spark makes a process for each plan and each frame, and only the workers decode.
        from penstock.kafka.kafka_records import batches

        assert isinstance(partition, Ranges)
        record_batches = batches(self.settings, partition.start, partition.end)
        return packed(record_batches) if self.settings.packed else record_batches

    def _begun(self, start: Mapping[int, int], end: Mapping[int, int]) -> Offsets:
        """The start offset of each partition of `end`; new partitions start at their first offset."""
        if new := end.keys() - start.keys():
            first = self.topic.earliest()
            return dict(start) | {p: first[p] for p in new}
        return dict(start)

    def _offsets(self, offset: dict[str, Any]) -> TopicOffsets:
        try:
            return TopicOffsets.of(offset, self.settings.topic)
        except ValueError:
            topic_names = ", ".join(topics(offset))
            raise self._wrong(f"the checkpoint is of {topic_names}", "give the query its own checkpoint") from None

    def _spark_offset(self, offsets: Mapping[int, int]) -> dict[str, Any]:
        return TopicOffsets(self.settings.topic, offsets, self.topic.id(), tasks=self.settings.tasks).offset()

    def _wrong(self, what: str, next: str) -> PenstockError:
        return PenstockError(what, where=f"kafka.read of {self.settings.topic}", next=next)


def split(begin: Mapping[int, int], end: Mapping[int, int], most: int) -> list[list[int]]:
    """The partitions with records, divided among at most `most` tasks; the largest go to different tasks."""
    sizes = {p: end[p] - begin[p] for p in end if end[p] > begin[p]}
    tasks: list[list[int]] = [[] for _ in range(min(most, len(sizes)))]
    for p in sorted(sizes, key=lambda p: (-sizes[p], p)):
        min(tasks, key=lambda some: sum(sizes[each] for each in some)).append(p)
    return tasks


def limited(start: Mapping[int, int], end: Mapping[int, int], most: int) -> Offsets:
    """Offsets before `end` with `most` records from `start`; each partition gets a share by its remaining records."""
    left = {p: max(end[p] - start[p], 0) for p in end}
    total = sum(left.values())
    if total <= most:
        return dict(end)
    taken = {p: left[p] * most // total for p in left}
    for p in sorted(left, key=lambda p: -left[p])[: most - sum(taken.values())]:
        taken[p] += taken[p] < left[p]
    return {p: start[p] + taken[p] for p in end}


def _listed(partitions: Mapping[int, int] | set[int]) -> str:
    return ", ".join(map(str, sorted(partitions)))
