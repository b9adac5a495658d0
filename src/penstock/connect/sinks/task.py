"""The task's side of a sink connector: reads records of Kafka with converters, writes them, and gives away bad ones."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import pyarrow as pa
from pyspark import TaskContext

from penstock.connect.records.deserializers import HEADER, Deserializer, RawRecord
from penstock.connect.records.record import NOTHING, ConnectRecord, NoValue
from penstock.connect.records.semantic_types import SemanticTypes
from penstock.connect.sinks.destination import Bad, Destination, RecordsWriter
from penstock.connect.transforms.record_chain import RecordChain
from penstock.connect.transforms.steps import Step
from penstock.database.requests import RequestLimits
from penstock.errors import PenstockError
from penstock.kafka.security import Security
from penstock.metrics import delays
from penstock.query.packed_rows import unpacked
from penstock.wire.producer.blocking import BlockingProducer

log = logging.getLogger(__name__)

SHOWN = 1000
"""Bytes of a key or value in the log."""
CONTEXT = "__connect.errors."
"""Before the names of the headers that say what is wrong with a record (KIP-298)."""


def decoded(
    records: Iterable[RawRecord], key: Deserializer, value: Deserializer, header: Deserializer = HEADER
) -> Iterator[ConnectRecord | Bad]:
    """The records as their converters read them, or why one cannot be read."""
    for raw in records:
        side = "header"
        try:
            headers = tuple((name, header(data)) for name, data in raw.headers)
            side = "key"
            of_key = key(raw.key)
            side = "value"
            of_value = value(raw.value)
        except NoValue as error:
            unread = ConnectRecord(*raw[:4], NOTHING, NOTHING)
            yield Bad(unread, f"its {side} cannot be read: {error}", f"{side.upper()}_CONVERTER")
        else:
            yield ConnectRecord(*raw[:4], of_key, of_value, headers)


def transformed(records: Iterable[ConnectRecord | Bad], change: Step) -> Iterator[ConnectRecord | Bad]:
    """The records as the transforms change them, without those that they drop."""
    for record in records:
        if isinstance(record, Bad):
            yield record
            continue
        try:
            changed = change(record)
        except NoValue as error:
            yield Bad(record, str(error), "TRANSFORMATION")
        else:
            if changed is not None:
                yield changed


def meant(records: Iterable[ConnectRecord | Bad], meaning: SemanticTypes) -> Iterator[ConnectRecord | Bad]:
    """The records with values of the types that their schemas name."""
    for record in records:
        if not isinstance(record, Bad):
            key, value = meaning(record.key), meaning(record.value)
            if key is not record.key or value is not record.value:
                record = record._replace(key=key, value=value)
        yield record


@dataclass(frozen=True)
class DeadLetterTopic:
    """Where bad records go: with `context` they get headers that say where they are from and what is wrong."""

    topic: str
    servers: str
    connector: str
    context: bool
    security: Mapping[str, str] = field(default_factory=dict, repr=False)

    def send(self, letters: Sequence[tuple[RawRecord, Bad]]) -> None:
        """Write the records, and wait for the brokers."""
        security = Security.of(self.security)
        with BlockingProducer(self.servers, tls=security.tls(), authenticate=security.authenticate()) as producer:
            sent = [
                producer.send(self.topic, raw.value, key=raw.key, headers=self._headers(raw, bad))
                for raw, bad in letters
            ]
            for each in sent:
                each.result()

    def _headers(self, raw: RawRecord, bad: Bad) -> list[tuple[str, bytes | None]]:
        if not self.context:
            return [*raw.headers]
        context = {
            "topic": raw.topic,
            "partition": raw.partition,
            "offset": raw.offset,
            "connector.name": self.connector,
            "stage": bad.stage,
            "exception.class.name": "org.apache.kafka.connect.errors.DataException",
            "exception.message": bad.reason,
        }
        return [*raw.headers, *((CONTEXT + name, str(value).encode()) for name, value in context.items())]


@dataclass(frozen=True)
class SinkWriter:
    """Writes the records of a Spark task, and gives a row of counts (`delays`)."""

    destination: Destination
    key: Deserializer
    value: Deserializer
    header: Deserializer = HEADER
    letters: DeadLetterTopic | None = None
    transforms: RecordChain = field(default_factory=RecordChain)
    patience: timedelta = RequestLimits.patience
    shows: bool = False
    """Whether the log has the keys and values of records that are left out."""
    topic: str = ""
    again: bool = False
    """Whether the batch may have been written before, in part or whole."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        written, size = delays.DelayCounts(), 0
        task = TaskContext.get()
        again = self.again or (task is not None and task.attemptNumber() > 0)
        read = self._reader()
        with self.destination.writer(self.patience, again=again) as writer:
            for page in (page for batch in batches for page in unpacked(batch)):
                raw = list(raw_records(self.topic, page))
                written.left_out(self._write(writer, read(raw), raw))
                size += sum(len(data) for record in raw for data in (record.key, record.value) if data)
                written.acknowledged(page.num_rows, page.column("timestamp").cast(pa.int64()).to_numpy())
        yield written.counts(bytes=size).batch()

    def _reader(self) -> Callable[[Sequence[RawRecord]], list[ConnectRecord | Bad]]:
        """Reads records: by their converters, then the transforms, then what their schemas' names mean."""
        meaning, converters = SemanticTypes(), (self.key, self.value, self.header)
        if not self.transforms.transforms:
            return lambda raw: list(meant(decoded(raw, *converters), meaning))
        change = self.transforms.start()
        return lambda raw: list(meant(transformed(decoded(raw, *converters), change), meaning))

    def _write(self, writer: RecordsWriter, read: list[ConnectRecord | Bad], raw: Sequence[RawRecord]) -> int:
        """Write the good records; the number of those that are left out."""
        tolerance = self.destination.tolerance
        fails = tolerance in ("fail", "driver")
        first = next((number for number, record in enumerate(read) if isinstance(record, Bad)), len(read))
        bad = [record for record in read if isinstance(record, Bad)]
        good = [record for record in (read[:first] if fails else read) if not isinstance(record, Bad)]
        bad = writer.write(good, until_bad=fails) + bad
        for bad_record in bad:
            if fails and not (tolerance == "driver" and bad_record.refused):
                raise self._failure(bad_record)
        self._left_out(raw, bad)
        return len(bad)

    def _failure(self, bad: Bad) -> PenstockError:
        topic, partition, offset = bad.record.place
        return PenstockError(
            f"a record cannot be written: {bad.reason}",
            where=f"topic {topic}, partition {partition}, offset {offset}",
            next="correct the table or the configuration; or set errors.tolerance=all, and "
            "errors.deadletterqueue.topic.name to keep such records",
        )

    def _left_out(self, raw: Sequence[RawRecord], bad: Sequence[Bad]) -> None:
        """Report the records that are not written, and send them to the topic of dead letters."""
        if not bad:
            return
        by_place = {(record.topic, record.partition, record.offset): record for record in raw}
        letters = [(by_place[bad_record.record.place], bad_record) for bad_record in bad]
        if self.destination.tolerance != "ignore":
            for record, bad_record in letters:
                more = shown(record.key, record.value) if self.shows else ""
                log.warning("left out %s, %d, offset %d: %s%s", *bad_record.record.place, bad_record.reason, more)
        if self.letters is not None:
            self.letters.send(letters)


def shown(key: bytes | None, value: bytes | None) -> str:
    """The beginnings of a record's key and value at the end of a line of the log."""
    return f"; key {_beginning(key)}, value {_beginning(value)}"


def _beginning(data: bytes | None) -> str:
    if data is None:
        return "null"
    return ascii(data[:SHOWN].decode("utf-8", "backslashreplace")) + ("..." if len(data) > SHOWN else "")


def raw_records(topic: str, page: pa.RecordBatch) -> Iterator[RawRecord]:
    """The records of a page of packed records of `kafka_read.raw_records`."""
    partitions, offsets, keys, values = (
        page.column(name).to_pylist() for name in ("partition", "offset", "key", "value")
    )
    micros = page.column("timestamp").cast(pa.int64()).to_pylist()
    millis = [None if at < 0 else at // 1000 for at in micros]
    headers = [
        tuple((header["key"], header["value"]) for header in headers_of_record) if headers_of_record else ()
        for headers_of_record in page.column("headers").to_pylist()
    ]
    return map(RawRecord, itertools.repeat(topic), partitions, offsets, millis, keys, values, headers)
