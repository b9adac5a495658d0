"""Reads the rows of a state store with Spark's state reader, at the last committed batch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from operator import and_
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Row, SparkSession, functions as F, types as st

from penstock.border.spark_refusals import refusal
from penstock.codec import exact_json
from penstock.errors import PenstockError
from penstock.keyed_state.description import TABLES
from penstock.query.real_time import FORMAT
from penstock.segment import processor
from penstock.spark_runtime.arrow_types import to_arrow_schema
from penstock.spark_runtime.failures import causes
from penstock.state import keys
from penstock.state.keys import Condition
from penstock.state.stores import (
    LIMIT,
    MOST,
    Freshness,
    StateRows,
    StateStore,
    cut,
    find,
    overview,
    require_some,
)
from penstock.state.unpacking import Unpacking, of_segments, of_tables

INTERNAL = "partition_id"


@dataclass(frozen=True)
class Checkpoints:
    """The states below a folder of checkpoints; `session` is called for Spark when rows are read."""

    folder: Path
    session: Callable[[], SparkSession]

    def overview(self) -> list[dict[str, Any]]:
        return overview(self.folder)

    def get(self, name: str, key: str, limit: int = LIMIT) -> StateRows:
        store = find(self.folder, name)
        with _format(self.session(), store, store.fresh()) as fresh:
            return self._get(store, fresh, key, min(limit, MOST))

    def scan(self, name: str, where: str | None = None, limit: int = LIMIT) -> StateRows:
        store = find(self.folder, name)
        with _format(self.session(), store, store.fresh()) as fresh:
            return self._scan(store, fresh, where, min(limit, MOST))

    def _get(self, store: StateStore, fresh: Freshness, key: str, limit: int) -> StateRows:
        frame, packed = _frame(self.session(), store, fresh)
        if store.packed and not packed:
            return require_some(StateRows(store.name, fresh, []), key)
        kind = _kind(frame)
        wanted = keys.wanted(kind, key, store, packed.by if packed else ())
        condition = reduce(and_, map(_fulfils, keys.conditions(kind, wanted, store)), F.lit(True))
        try:
            if packed:
                rows = _of_bucket(packed, packed.place(wanted), condition, store, limit)
            else:
                rows = _of_key(frame, wanted, condition, store, limit)
        except (PySparkException, Py4JJavaError) as error:
            raise _unreadable(store, error) from error
        return require_some(cut(store.name, fresh, rows, limit), key)

    def _scan(self, store: StateStore, fresh: Freshness, where: str | None, limit: int) -> StateRows:
        frame, _ = _frame(self.session(), store, fresh)
        try:
            chosen = frame.where(where) if where else frame
        except PySparkException as error:
            refused = refusal(error, frame.columns)
            raise PenstockError(
                f"this is not a valid condition: {refused.what}",
                where=where or "",
                next=f"{refused.hint}the columns are {frame.schema.simpleString()}",
            ) from error
        try:
            rows = _decoded(_texts(chosen).limit(limit + 1).collect())
        except (PySparkException, Py4JJavaError) as error:
            raise _unreadable(store, error) from error
        return cut(store.name, fresh, rows, limit)


@contextmanager
def _format(spark: SparkSession, store: StateStore, fresh: Freshness) -> Iterator[Freshness]:
    """The session with the batch's checkpoint format: Spark reads ids of versions only if it would write them."""
    assert fresh.batch is not None
    before = spark.conf.get(FORMAT)
    spark.conf.set(FORMAT, "2" if store.ids(fresh.batch) else "1")
    try:
        yield fresh
    finally:
        spark.conf.set(FORMAT, str(before))


def _frame(spark: SparkSession, store: StateStore, fresh: Freshness) -> tuple[DataFrame, Packed | None]:
    """The rows of a state; if it is packed, also the `Packed` that can unpack only some of them."""
    # Makes the coordinator that stores report to; a session that never ran a stream has none.
    spark.streams.active  # noqa: B018
    reader = spark.read.format("statestore").options(**store.options).option("batchId", fresh.batch)
    try:
        frame = reader.load(str(store.checkpoint)).drop(INTERNAL)
        packed = opened(frame, store.packed) if store.packed else None
    except (PySparkException, Py4JJavaError) as error:
        raise _unreadable(store, error) from error
    return (packed.rows() if packed else frame), packed


def _of_key(frame: DataFrame, wanted: dict[str, Any], condition: Column, store: StateStore, limit: int) -> list[Any]:
    """The rows of a key: from its partition if the whole key is given, from all partitions if that one has none.

    This assumes that Spark partitions the state by the key's columns, which is not true of each Spark operator.
    """
    rows = _texts(frame.where(condition))
    kind = _kind(frame)
    if keys.whole(kind, wanted):
        key = [F.lit(wanted[field.name]).try_cast(field.dataType) for field in kind.fields]
        if in_partition := first_rows(rows, partition(frame.sparkSession, key, store.partitions), limit + 1):
            return _decoded(in_partition)
    return _decoded(rows.limit(limit + 1).collect())


def _of_bucket(packed: Packed, bucket: Column | None, condition: Column, store: StateStore, limit: int) -> list[Any]:
    frame = None
    if bucket is not None:
        pieces = packed.within(bucket)
        spark = pieces.sparkSession
        if in_partition := first_rows(pieces, partition(spark, [bucket], store.partitions), sys.maxsize):
            frame = spark.createDataFrame(packed.table(in_partition)).coalesce(1)
    frame = packed.rows(bucket) if frame is None else frame
    return _decoded(_texts(frame.where(condition)).limit(limit + 1).collect())


def _texts(frame: DataFrame) -> DataFrame:
    return frame.select(F.to_json(F.struct(*_columns(frame))).alias("json"))


def _decoded(rows: Sequence[Row]) -> list[Any]:
    return [exact_json.loads(row.json) for row in rows]


def _columns(frame: DataFrame) -> Iterator[Column]:
    """The columns with their structs rebuilt: a join's rows have one field more than their schema says."""
    for field in frame.schema.fields:
        column, kind = F.col(field.name), field.dataType
        if isinstance(kind, st.StructType):
            column = F.when(column.isNotNull(), F.struct(*[column[name].alias(name) for name in kind.names]))
        yield column.alias(field.name)


def _unreadable(store: StateStore, error: Exception) -> PenstockError:
    origin = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    said = next((text for _, text in reversed(list(causes(origin))) if text.strip()), str(error))
    return PenstockError(
        f"Spark cannot read the state {store.name}: {said.splitlines()[0]}",
        where=f"checkpoint {store.checkpoint}",
        next="ask again if the query is running: the batch may be gone; else it is of another version of Spark",
    )


def _kind(frame: DataFrame) -> st.StructType:
    kind = frame.schema["key"].dataType
    assert isinstance(kind, st.StructType)
    return kind


def _fulfils(condition: Condition) -> Column:
    column = reduce(lambda outer, name: outer[name], condition.path, F.col("key"))
    return column.eqNullSafe(F.lit(condition.value).try_cast(condition.kind))


# Reads one partition of a state: the partition of a key's hash.
#
# Spark's state reader has a task for each partition, in order (StateScan.planInputPartitions of Spark 4). It takes no
# filter, and its option for one partition needs the batch of a snapshot, which may not exist yet. So this runs a job
# with that one task only.


def partition(spark: SparkSession, key: Sequence[Column], partitions: int) -> int:
    """The partition of the rows with this key (HashPartitioning: Murmur3 with seed 42, modulo the partitions)."""
    hashed = spark.sql("SELECT 1").select(F.pmod(F.hash(*key), F.lit(partitions)))
    return int(hashed.collect()[0][0])


def first_rows(frame: DataFrame, partition: int, most: int) -> list[Row]:
    """The first `most` rows of a partition; the frame reads a state without a shuffle."""

    def first(rows: Iterable[Row]) -> Iterable[Row]:
        return islice(rows, most)

    in_partition: list[Row] = frame.sparkSession.sparkContext.runJob(frame.rdd, first, [partition])
    return in_partition


# Packed state, in the frames of the reader.


@dataclass(frozen=True)
class Packed:
    """A state that can be unpacked."""

    pieces: DataFrame
    how: Unpacking

    @property
    def by(self) -> tuple[str, ...]:
        """The columns of the key whose hash is the bucket."""
        return self.how.by

    def place(self, wanted: Mapping[str, Any]) -> Column | None:
        """The bucket of a key that has these columns; None if they do not determine it."""
        if not all(name in wanted for name in self.by):
            return None
        values = [F.lit(wanted[name]).try_cast(self.how.key[name].dataType) for name in self.by]
        bucket = F.pmod(getattr(F, self.how.hash)(*values), F.lit(self.how.buckets))
        return bucket.cast(self.pieces.schema["bucket"].dataType)

    def within(self, bucket: Column) -> DataFrame:
        """The pieces of a bucket."""
        return self.pieces.where(F.col("bucket") == bucket)

    def rows(self, bucket: Column | None = None) -> DataFrame:
        """All rows, or the rows of one bucket."""
        pieces = self.pieces if bucket is None else self.within(bucket)
        unpack = self.how.unpack
        # Spark counts the arguments, also those that a partial has bound.
        return pieces.groupBy("bucket").applyInArrow(lambda table: unpack(table), self.how.schema)

    def table(self, pieces: Sequence[Row]) -> pa.Table:
        """The rows of a bucket, from all of its pieces."""
        kinds = to_arrow_schema(self.pieces.schema)
        return self.how.unpack(pa.Table.from_pylist([piece.asDict() for piece in pieces], kinds))


def opened(frame: DataFrame, kind: str) -> Packed | None:
    """The packed state in the frame of Spark's reader; None if it is empty."""
    if kind == TABLES:
        pieces = frame.selectExpr("key._bucket bucket", "user_map_key.version number", "user_map_value.change data")
        first = pieces.select("data").head()
        return None if first is None else Packed(pieces, of_tables(first.data))
    pieces = frame.selectExpr("key.bucket", "user_map_key.number", "user_map_value.*")
    entry = [name for name in pieces.columns if name not in ("bucket", "number")]
    first = pieces.where(F.col("number") == processor.SNAPSHOT).select(*entry).head()
    return None if first is None else Packed(pieces, of_segments(first))
