"""Shows rows of a streaming frame, as in a notebook: a query of its own reads what is there, and nothing of it stays.

Spark runs the query in batches over the present data (`availableNow`), with a checkpoint in a temporary folder. Without
state a batch gives a limited number of rows, and its tasks read no further. A batch with state is read to its end,
because Spark saves the state of a partition only then; each partition gives its first rows.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, functions as F

from penstock.border.public import public
from penstock.durations import Duration, duration
from penstock.errors import PenstockError
from penstock.process.signals import kept_interrupt
from penstock.query.query import MODES, KeyedFrame, Mode
from penstock.run import faults
from penstock.spark_runtime.logical_plan import analyzed, nodes, require_classic, require_streamable
from penstock.spark_runtime.running_query import end_after_batch

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

log = logging.getLogger(__name__)

WHERE = "preview()"
MOST = 100_000
"""Rows that a preview may ask for: they are in the memory of this process."""
LOOK = 0.1
"""Seconds between checks whether the query still runs."""
END_PATIENCE = 5
"""Seconds for a batch to end that has given enough rows."""
COMPLETE = "complete"
ROW_NUMBER = (1 << 33) - 1
"""The bits of `monotonically_increasing_id` that count the rows of a partition."""
WITH_STATE = {
    "Aggregate",
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "Distinct",
    "FlatMapGroupsInPandasWithState",
    "FlatMapGroupsWithState",
    "GlobalLimit",
    "TransformWithState",
    "TransformWithStateInPySpark",
}
"""Nodes of Spark's plans that keep state over a stream; a join of two streams does so, too."""


@public("preview")
def preview(
    frame: DataFrame | KeyedFrame, rows: int = 10, *, timeout: Duration = "30 seconds", mode: Mode = "append"
) -> pd.DataFrame:
    """The first `rows` rows of a frame, at most 100 000, as a pandas DataFrame with its columns; writes nothing.

    A stream is read from its start until it has given that many rows, all present data is read, or `timeout` is over:
    then the result has fewer rows, or none, and a warning is logged. `mode` is Spark's output mode, as in `write`; with
    "complete" all present data is read, and the result is the newest one. Of a `Table` it shows the revisions.
    The query has a temporary checkpoint, and has ended when this returns or raises.

    Raises `PenstockError` for an invalid argument, if Spark refuses the frame in this mode, and if reading fails.
    """
    shown = _frame(frame)
    _require(rows, mode)
    patience = duration(timeout, name="timeout")
    if not patience:
        raise _wrong("timeout is zero", 'give it time to read, such as timeout="30 seconds"')
    try:
        if shown.isStreaming:
            require_classic(shown, "preview() of a stream")
        collected = _Rows(rows, whole=mode == COMPLETE, state=shown.isStreaming and _keeps_state(shown))
        if not shown.isStreaming:
            collected.take(shown, 0)
            return collected.pandas(shown)
        _require_mode(shown, mode)
        with TemporaryDirectory(prefix="penstock-preview-") as folder:
            _read(shown, collected, mode, folder, patience)
        return collected.pandas(shown)
    except PySparkException as error:
        raise faults.of_spark(error, WHERE) from error


def _frame(frame: DataFrame | KeyedFrame) -> DataFrame:
    spark_frame = frame if isinstance(frame, DataFrame) else getattr(frame, "df", None)
    if not isinstance(spark_frame, DataFrame):
        next = "give it a DataFrame, such as that of kafka.read, or a Table"
        raise _wrong(f"{type(frame).__name__} is not a frame", next)
    return spark_frame


def _require(rows: int, mode: str) -> None:
    if not 1 <= rows <= MOST:
        raise _wrong(f"rows is {rows!r}", f"give an integer from 1 to {MOST}; to keep more rows, write them to a sink")
    if mode not in MODES:
        raise _wrong(f"unknown mode {mode!r}", f"use one of {', '.join(map(repr, MODES))}")


def _require_mode(frame: DataFrame, mode: Mode) -> None:
    try:
        require_streamable(frame, mode)
    except AnalysisException as error:
        others = " or ".join(f"mode={other!r}" for other in MODES if other != mode)
        said = faults.of_spark(error, WHERE).what
        raise PenstockError(said, where=WHERE, next=f"give another output mode: {others}") from error


def _wrong(what: str, next: str) -> PenstockError:
    return PenstockError(what, where=WHERE, next=next)


def _keeps_state(frame: DataFrame) -> bool:
    return any(node.isStreaming() and _has_state(node) for node in nodes(analyzed(frame)))


def _has_state(node: Any) -> bool:
    name = str(node.nodeName())
    return name in WITH_STATE or (name == "Join" and node.left().isStreaming() and node.right().isStreaming())


@dataclass
class _Rows:
    """What the batches gave; `whole` if each has the whole result, `state` if they are read to their end."""

    wanted: int
    whole: bool
    state: bool
    tables: list[pa.Table] = field(default_factory=list)
    failure: PySparkException | None = None
    enough: threading.Event = field(default_factory=threading.Event)

    def take(self, batch: DataFrame, number: int) -> None:
        """Spark calls it with each batch, in a thread of its own."""
        if self.enough.is_set():
            return
        wanted = self.wanted if self.whole else self.wanted - self.count
        if self.state:
            row = F.monotonically_increasing_id().bitwiseAND(F.lit(ROW_NUMBER))
            some = batch.where(row < wanted)
        else:
            some = batch.limit(wanted)
        try:
            table = some.toArrow().slice(0, wanted)
        except PySparkException as error:
            # Spark keeps only the text of an error in this thread.
            self.failure = error
            raise
        if self.whole:
            self.tables.clear()
        # Spark reads no further than an empty chunk of a table.
        if len(table):
            self.tables.append(table)
        if not self.whole and self.count == self.wanted:
            self.enough.set()

    @property
    def count(self) -> int:
        return sum(map(len, self.tables))

    def pandas(self, frame: DataFrame) -> pd.DataFrame:
        """As Spark converts the frame's types."""
        session = frame.sparkSession
        rows = pa.concat_tables(self.tables).combine_chunks() if self.tables else []
        return session.createDataFrame(rows, frame.schema).toPandas()


def _read(frame: DataFrame, collected: _Rows, mode: Mode, folder: str, patience: timedelta) -> None:
    """Run the query until it has enough rows, it has read all, or the time is over."""
    end = time.monotonic() + patience.total_seconds()
    writer = frame.writeStream.foreachBatch(collected.take).outputMode(mode).option("checkpointLocation", folder)
    with kept_interrupt() as interrupted:
        query = writer.trigger(availableNow=True).start()
        try:
            while query.isActive and time.monotonic() < end and not interrupted.is_set():
                if collected.enough.wait(LOOK):
                    break
            timed_out = query.isActive and not collected.enough.is_set()
            if collected.enough.is_set():
                # Spark logs two warnings, and at times a stack, when it must interrupt the end of a batch.
                end_after_batch(frame.sparkSession, query)
                query.awaitTermination(END_PATIENCE)
        finally:
            query.stop()
        if interrupted.is_set():
            raise KeyboardInterrupt
    if timed_out:
        log.warning(
            "preview: %d of %d rows within %g s; give a longer timeout=, or a smaller batch= to kafka.read",
            *(collected.count, collected.wanted, patience.total_seconds()),
        )
    elif not collected.enough.is_set() and (fault := faults.of_query(query)):
        raise faults.as_error(fault, WHERE) from collected.failure
