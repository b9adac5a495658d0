"""The tasks of the sink connector of a replication: extended events of topics become changes of tables.

Events are read and applied by `penstock.replicate`, as `penstock replicate --through` does; here are the connector's
positions, its dead letters, and what becomes of records that cannot be applied.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.codec.decode_columns import FRAME
from penstock.codec.problem import BEGINNINGS, PROBLEM
from penstock.codec.registry import Registry
from penstock.connect.records.deserializers import RawRecord
from penstock.connect.records.record import NOTHING, ConnectRecord
from penstock.connect.sinks.destination import Bad
from penstock.connect.sinks.record_sink import SinkTask
from penstock.connect.sinks.replication.properties import ReplicationSettings, Target, event_format, settings
from penstock.connect.sinks.task import DeadLetterTopic, shown
from penstock.cql.cql_writer import described
from penstock.errors import PenstockError
from penstock.metrics import delays
from penstock.query.query import Batch, Query, in_batches, write
from penstock.replicate.change_events import event_changes
from penstock.replicate.replicate_sink import ChangeWriter, ReplicateSink
from penstock.run.faults import RetriableFailure

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BadEvents:
    """What becomes of records that cannot be applied; `tolerated` ones are left out, and go to `letters`.

    A record with a schema that the registry got after the query was built is not bad: the query must start again.
    """

    tolerated: bool
    letters: DeadLetterTopic | None
    registry: Registry | None
    subject: str
    shows: bool = False
    """Whether the log has the keys and values of records that are left out."""

    def leave_out(self, problems: pa.Array) -> None:
        """Keep the records of these problems elsewhere; raises PenstockError if they may not be left out."""
        for problem in problems.to_pylist():
            if problem["reason"].startswith(BEGINNINGS["unknown_schema"]) and self._is_registered(problem["value"]):
                raise RetriableFailure("there is a new schema of events", where=_place(problem), next="start again")
            if not self.tolerated:
                raise PenstockError(
                    f"a record cannot be applied: {problem['reason']}",
                    where=_place(problem),
                    next="correct the table or the configuration; or set errors.tolerance=all, and "
                    "errors.deadletterqueue.topic.name to keep such records",
                )
            more = shown(problem["key"], problem["value"]) if self.shows else ""
            log.warning("left out %s: %s%s", _place(problem), problem["reason"], more)
        if self.letters is not None:
            self.letters.send([_letter(problem) for problem in problems.to_pylist()])

    def _is_registered(self, value: bytes) -> bool:
        id = int.from_bytes(value[1:FRAME], "big")
        return self.registry is not None and any(id == known for known, _, _ in self.registry.schemas(self.subject))


def _place(problem: Mapping[str, Any]) -> str:
    return f"topic {problem['topic']}, partition {problem['partition']}, offset {problem['offset']}"


def _letter(problem: Mapping[str, Any]) -> tuple[RawRecord, Bad]:
    """A record as it was, and why it is not applied."""
    place = problem["topic"], problem["partition"], problem["offset"]
    headers = tuple((header["key"], header["value"]) for header in problem["headers"] or ())
    raw = RawRecord(*place, None, problem["key"], problem["value"], headers)
    return raw, Bad(ConnectRecord(*place, None, NOTHING, NOTHING), problem["reason"])


@dataclass(frozen=True)
class EventWriter:
    """Applies the events of a task, and gives a row of counts (`delays`)."""

    writer: ChangeWriter
    bad: BadEvents

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        counts = delays.DelayCounts()
        yield from self.writer(self._good(batches, counts))
        yield counts.counts().batch()

    def _good(self, batches: Iterator[pa.RecordBatch], counts: delays.DelayCounts) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            problems = batch.column(PROBLEM)
            if problems.null_count < len(problems):
                bad = problems.drop_null()
                self.bad.leave_out(bad)
                counts.left_out(len(bad))
                batch = batch.filter(pc.is_null(problems))
            yield batch.select([name for name in batch.schema.names if name != PROBLEM])


@dataclass(frozen=True)
class EventSink:
    """Applies the events of a topic to a table."""

    counts_delays: ClassVar[bool] = True
    sink: ReplicateSink
    bad: BadEvents

    @property
    def delivery(self) -> str:
        return self.sink.delivery

    @property
    def target(self) -> tuple[str, str]:
        """The identity of the sink in a checkpoint."""
        return self.sink.target

    def records(self, frame: DataFrame) -> DataFrame:
        """The problem of each record, and the columns that statements are made of."""
        return frame.select(PROBLEM, *self.sink.columns(frame.drop(PROBLEM)))

    def stream(self, frame: DataFrame) -> DataStreamWriter:
        """The writer of a query with only this sink."""
        return in_batches(delays.timed(frame), self.save)

    def save(self, frame: DataFrame, batch: Batch) -> None:
        """Apply the events of one batch; applying them again changes nothing."""
        writer = EventWriter(self.sink.writer, self.bad)
        with delays.failures(batch.query):
            delays.add_rows(batch.query, self.records(frame).mapInArrow(writer, delays.SCHEMA).collect())


class NoEvents(PenstockError):
    """A topic of which the schema registry knows nothing yet."""

    retriable = True


@dataclass(frozen=True)
class ReplicationTask(SinkTask):
    """Some topics of a connector, each with extended events of one table."""

    def queries(self, spark: SparkSession) -> dict[str, Query]:
        """A query per topic, by the topic's name; creates the topic of dead letters."""
        letters = self.letters()
        return {
            topic: self._applied(topic, self.records(spark, topic, start, packed=False), letters)
            for topic, start in self.known_starts().items()
        }

    def _applied(self, topic: str, records: DataFrame, letters: DeadLetterTopic | None) -> Query:
        format = event_format(self.config)
        if isinstance(format.registry, Registry) and not format.registry.versions(f"{topic}-value"):
            raise NoEvents(
                f"the topic {topic} has no events yet: the schema registry has no subject {topic}-value",
                where=format.registry.url,
                next="start the source connector",
            )
        own, target = self._settings, self._target(topic)
        table = described(own.access, target.table, own.limits.patience)
        registry = format.registry if isinstance(format.registry, Registry) else None
        bad = BadEvents(own.tolerated, letters, registry, f"{topic}-value", own.shows)
        changes = event_changes(records, topic, table, format, source=target.source)
        return write(changes, EventSink(ReplicateSink(table, own.access, own.limits), bad))

    @cached_property
    def _settings(self) -> ReplicationSettings:
        return settings(self.values, self.config)

    def _target(self, topic: str) -> Target:
        target = self._settings.targets.target(topic)
        if target is None:
            raise PenstockError(
                f"the topic {topic} does not name its table at its end",
                where=f"connector {self.connector}",
                next=f"give topic.{topic}.table",
            )
        return target
