"""Dead letters: the records or changes with a `problem`, to a topic of their own, with their bytes as they came."""

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
    """Made by `dead_letters`."""

    kafka: KafkaSink

    @property
    def delivery(self) -> str:
        return self.kafka.delivery

    @property
    def target(self) -> tuple[str, str]:
        """What a checkpoint knows the sink by."""
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
    """A sink of the rows of a `kafka.read` frame that have a problem: `write(frame, dead_letters("clicks.dead", ...))`.

    Key, value and headers are those of the record; headers are added as in Kafka Connect's dead letters:
    `__connect.errors.topic`, `.partition`, `.offset` and `.exception.message`. Of a frame of `cdc.read` with
    `bad_values="problem"` each cell that could not be read becomes a letter: the key is the row's as JSON, the value
    the cell's bytes, and the headers are `__connect.errors.table`, `.stream`, `.time`, `.part`, `.column`, `.type` and
    `.exception.message`. The other settings are `kafka.sink`'s.
    """
    return DeadLetters(sink(topic, servers=servers, delivery=delivery, options=options))


def letters(frame: DataFrame) -> DataFrame:
    """`key binary, value binary, headers` of the rows with a problem."""
    kind = frame.schema[PROBLEM].dataType if PROBLEM in frame.columns else None
    if kind not in (TYPE, CHANGE_TYPE):
        raise PenstockError(
            'dead letters need the column `problem` of kafka.read, or of cdc.read with bad_values="problem"',
            where=f"columns {', '.join(frame.columns)}",
            next="give the frame of kafka.read or cdc.read itself, before a select or a where",
        )
    bad = frame.where(F.col(PROBLEM).isNotNull())
    if kind == CHANGE_TYPE:
        cells = bad.select(PROBLEM, F.explode("problem.cells").alias("cell"))
        key = F.col("problem.key").cast("binary").alias("key")
        return cells.select(key, F.col("cell.value").alias("value"), cell_headers("cell").alias("headers"))
    return bad.select(
        F.col("problem.key").alias("key"), F.col("problem.value").alias("value"), headers().alias("headers")
    )
