"""Dead letters: writes the records or changes with a `problem` to their own topic, with their original bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.codec.problem import CHANGE_TYPE, PROBLEM, TYPE, cell_headers, headers
from penstock.delivery import AT_LEAST_ONCE
from penstock.errors import PenstockError
from penstock.kafka.kafka_sink import KafkaSink, sink
from penstock.query import Batch


@dataclass(frozen=True)
class DeadLetters:
    """A sink of dead letters; `dead_letters` makes it."""

    kafka: KafkaSink

    @property
    def delivery(self) -> str:
        return self.kafka.delivery

    @property
    def target(self) -> tuple[str, str]:
        """How a checkpoint identifies the sink."""
        return self.kafka.target

    def records(self, frame: DataFrame) -> DataFrame:
        return self.kafka.records(letters(frame))

    def stream(self, frame: DataFrame) -> DataStreamWriter:
        return self.kafka.stream(letters(frame))

    def save(self, frame: DataFrame, batch: Batch) -> None:
        self.kafka.save(letters(frame), batch)


def dead_letters(
    topic: str, *, servers: str, delivery: str = AT_LEAST_ONCE, options: Mapping[str, str] | None = None
) -> DeadLetters:
    """A sink for the bad rows of a `kafka.read` frame: `write(frame, dead_letters("clicks.dead", ...))`.

    A letter has the record's key, value and headers, plus headers as in Kafka Connect's dead letters:
    `__connect.errors.topic`, `.partition`, `.offset` and `.exception.message`. In a frame of `cdc.read` with
    `bad_values="problem"`, each cell that could not be read becomes a letter: its key is the row's key as JSON, its
    value the cell's bytes, and its headers are `__connect.errors.table`, `.stream`, `.time`, `.part`, `.column`,
    `.type` and `.exception.message`. The arguments are those of `kafka.sink`. `write` raises `PenstockError` if the
    frame has no column `problem`.
    """
    return DeadLetters(sink(topic, servers=servers, delivery=delivery, options=options))


def letters(frame: DataFrame) -> DataFrame:
    """`key binary, value binary, headers` of the rows with a problem."""
    kind = frame.schema[PROBLEM].dataType if PROBLEM in frame.columns else None
    if kind not in (TYPE, CHANGE_TYPE):
        raise PenstockError(
            'dead letters need the column `problem` of kafka.read, or of cdc.read with bad_values="problem"',
            where=f"columns {', '.join(frame.columns)}",
            next="pass the frame of kafka.read or cdc.read itself, before any select or where",
        )
    bad = frame.where(F.col(PROBLEM).isNotNull())
    if kind == CHANGE_TYPE:
        cells = bad.select(PROBLEM, F.explode("problem.cells").alias("cell"))
        key = F.col("problem.key").cast("binary").alias("key")
        return cells.select(key, F.col("cell.value").alias("value"), cell_headers("cell").alias("headers"))
    return bad.select(
        F.col("problem.key").alias("key"), F.col("problem.value").alias("value"), headers().alias("headers")
    )
