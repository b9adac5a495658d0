"""Tumbling and hopping windows for real-time mode, by Spark's own aggregation: each row sends the windows it changes.

Spark drops a row whose window has ended before the watermark. Such rows are marked first, by their arrival in Kafka,
and each of them becomes a result of its own. For that they are grouped by a time that is not over yet: the arrival.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, functions as F, types as st

from penstock.errors import PenstockError
from penstock.keyed_state.aggregates import Aggregate
from penstock.spark_runtime.logical_plan import WATERMARK

ARRIVAL = "timestamp"
"""Kafka's time of a record, a column of `kafka.read`."""
START, END, LATE, ALONE, EXPIRES = "_start", "_end", "_late", "_alone", "_expires"


def native(
    rows: DataFrame, size: int, step: int, at: str, keys: Sequence[str], aggregates: Sequence[Aggregate], where: str
) -> DataFrame:
    """Keys, `_start`, `_end` (timestamps), the aggregates, and `_late`; `size` and `step` are in microseconds.

    `rows` has the aggregates' source columns. Raises PenstockError if it has no column `timestamp`.
    """
    _require_arrival(rows, where)
    delay = rows.schema[at].metadata[WATERMARK]
    time = F.unix_micros(at)
    newest = time - F.pmod(time, F.lit(step))
    starts = F.explode(F.array(*(newest - back for back in range(0, size, step))))
    spread = rows.withColumn(START, starts).withColumn(END, F.col(START) + size)
    late = spread.withColumn(LATE, F.col(END) <= F.unix_micros(ARRIVAL) - delay * 1000)
    alone = late.withColumn(ALONE, F.when(F.col(LATE), F.expr("uuid()")))
    expires = F.when(F.col(LATE), F.col(ARRIVAL)).otherwise(F.timestamp_micros(END))
    # Spark looks for the time of a group by this mark.
    timed = alone.withColumn(EXPIRES, expires.alias(EXPIRES, metadata={WATERMARK: delay}))
    grouped = timed.groupBy(*keys, START, END, LATE, ALONE, EXPIRES).agg(*map(_aggregate, aggregates))
    names = [aggregate.column for aggregate in aggregates]
    times = [F.timestamp_micros(name).alias(name) for name in (START, END)]
    return grouped.select(*keys, *times, *names, LATE)


def _require_arrival(rows: DataFrame, where: str) -> None:
    if ARRIVAL not in rows.columns or not isinstance(rows.schema[ARRIVAL].dataType, st.TimestampType):
        raise PenstockError(
            f"a window of real-time mode needs the column {ARRIVAL}, the arrival of a row in Kafka, to find late rows",
            where=where,
            next="keep this column of kafka.read",
        )


def _aggregate(aggregate: Aggregate) -> Column:
    functions = {"count": F.count, "sum": F.try_sum, "min": F.min, "max": F.max}
    first = aggregate.parts[0]
    aggregated = F.avg(first.source) if len(aggregate.parts) > 1 else functions[first.function](first.source)
    return aggregated.cast(aggregate.type).alias(aggregate.column)
