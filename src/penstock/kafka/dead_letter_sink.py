"""Dead letters: the records or changes with a `problem` in a topic of their own, with their original bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.border.public import public
from penstock.codec.problem import CHANGE_TYPE, PROBLEM, TYPE, UNREADABLE, cell_headers, headers, reason_number
from penstock.errors import PenstockError
from penstock.kafka.kafka_sink import KafkaSink, sink
from penstock.metrics import delays
from penstock.query.delivery import AT_LEAST_ONCE, Client, Delivery
from penstock.query.query import AroundSink, Batch


@dataclass(frozen=True)
class DeadLetters(AroundSink):
    """A sink of dead letters; `dead_letters` makes it."""

    sink: KafkaSink

    @property
    def client(self) -> str | None:
        return self.sink.client

    def records(self, frame: DataFrame) -> DataFrame:
        return self.sink.records(letters(frame))

    def stream(self, frame: DataFrame) -> DataStreamWriter:
        return self.sink.stream(letters(frame))

    def early(self, frame: DataFrame) -> DataStreamWriter:
        """The writer of a query in real-time mode."""
        return self.sink.early(letters(frame))

    def save(self, frame: DataFrame, batch: Batch) -> None:
        self.sink.save(letters(frame), batch)


@public("kafka.dead_letters")
def dead_letters(
    topic: str,
    *,
    servers: str,
    delivery: Delivery = AT_LEAST_ONCE,
    client: Client | None = None,
    options: Mapping[str, str] | None = None,
) -> DeadLetters:
    """A sink for the bad rows of a `kafka.read` frame: `write(frame, dead_letters("clicks.dead", ...))`.

    A letter has the record's key, value and headers, plus headers as in Kafka Connect's dead letters:
    `__connect.errors.topic`, `.partition`, `.offset` and `.exception.message`. In a frame of `cdc.read` with
    `bad_values="problem"`, each cell that could not be read becomes a letter: its key is the row's key as JSON, its
    value the cell's bytes, and its headers are `__connect.errors.table`, `.stream`, `.time`, `.part`, `.column`,
    `.type` and `.exception.message`. The arguments are those of `kafka.sink`. `write` raises `PenstockError` if the
    frame has no column `problem`.
    """
    return DeadLetters(sink(topic, servers=servers, delivery=delivery, client=client, options=options))


def letters(frame: DataFrame) -> DataFrame:
    """`key binary, value binary, headers` of the rows with a problem, and the columns of `delays.HIDDEN`."""
    kind = frame.schema[PROBLEM].dataType if PROBLEM in frame.columns else None
    if kind not in (TYPE, CHANGE_TYPE):
        raise PenstockError(
            'dead letters need the column `problem` of kafka.read, or of cdc.read with bad_values="problem"',
            where=f"columns {', '.join(frame.columns)}",
            next="pass the frame of kafka.read or cdc.read itself, before any select or where",
        )
    bad, time = frame.where(F.col(PROBLEM).isNotNull()), delays.event_micros(frame)
    times = [] if time is None else [time]
    key = F.col("problem.key").cast("binary").alias("key")
    if kind == CHANGE_TYPE:
        cells = bad.select(PROBLEM, F.explode("problem.cells").alias("cell"), *times)
        event_times = [F.col(delays.TIME)] if times else []
        reason = F.lit(delays.REASONS.index(UNREADABLE)).alias(delays.REASON)
        value = F.col("cell.value").alias("value")
        return cells.select(key, value, cell_headers("cell").alias("headers"), reason, *event_times)
    reason = reason_number(F.col("problem.reason")).alias(delays.REASON)
    return bad.select(key, F.col("problem.value").alias("value"), headers().alias("headers"), reason, *times)
