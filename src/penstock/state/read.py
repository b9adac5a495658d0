"""Reads the rows of a state store with Spark's state reader, at the last committed batch."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from operator import and_
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Row, SparkSession, functions as F, types as st

from penstock.errors import PenstockError
from penstock.query import causes
from penstock.state.packed import Packed, opened
from penstock.state.stores import (
    LIMIT,
    MOST,
    Answer,
    Freshness,
    StateStore,
    cut,
    find,
    of_columns,
    require_some,
    stores,
)

INTERNAL = "partition_id"
_TOLD = {st.StructType: dict, st.ArrayType: list}
"""The JSON types of key columns that are not single values."""


@dataclass(frozen=True)
class Checkpoints:
    """The states below a folder of checkpoints; `session` is called for Spark when rows are read."""

    folder: Path
    session: Callable[[], SparkSession]

    def overview(self) -> list[dict[str, Any]]:
        found = stores(self.folder)
        return [{"name": one.name, "operator": one.operator, **one.fresh().told()} for one in found if one.committed]

    def get(self, name: str, key: str, limit: int = LIMIT) -> Answer:
        store, limit = find(self.folder, name), min(limit, MOST)
        fresh = store.fresh()
        frame, packed = _frame(self.session(), store, fresh)
        if store.packed and not packed:
            return require_some(Answer(store.name, fresh, []), key)
        wanted = _wanted(frame, key, store, packed.by if packed else None)
        condition = reduce(and_, _fields(F.col("key"), _kind(frame), wanted, store), F.lit(True))
        try:
            if packed:
                found = _of_bucket(packed, packed.place(wanted), condition, store, limit)
            else:
                found = _of_key(frame, wanted, condition, store, limit)
        except (PySparkException, Py4JJavaError) as error:
            raise _unreadable(store, error) from error
        return require_some(cut(store.name, fresh, found, limit), key)

    def scan(self, name: str, where: str | None = None, limit: int = LIMIT) -> Answer:
        store, limit = find(self.folder, name), min(limit, MOST)
        fresh = store.fresh()
        frame, _ = _frame(self.session(), store, fresh)
        try:
            chosen = frame.where(where) if where else frame
        except PySparkException as error:
            raise PenstockError(
                f"this is not a valid condition: {str(error).splitlines()[0]}",
                where=where or "",
                next=f"the columns are {frame.schema.simpleString()}",
            ) from error
        try:
            found = _told(_texts(chosen).limit(limit + 1).collect())
        except (PySparkException, Py4JJavaError) as error:
            raise _unreadable(store, error) from error
        return cut(store.name, fresh, found, limit)


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
    if wanted.keys() == set(kind.names) and not any(isinstance(one.dataType, st.StructType) for one in kind.fields):
        key = [F.lit(wanted[one.name]).try_cast(one.dataType) for one in kind.fields]
        if found := first_rows(rows, partition(frame.sparkSession, key, store.partitions), limit + 1):
            return _told(found)
    return _told(rows.limit(limit + 1).collect())


def _of_bucket(packed: Packed, bucket: Column | None, condition: Column, store: StateStore, limit: int) -> list[Any]:
    frame = None
    if bucket is not None:
        pieces = packed.within(bucket)
        spark = pieces.sparkSession
        if found := first_rows(pieces, partition(spark, [bucket], store.partitions), sys.maxsize):
            frame = spark.createDataFrame(packed.table(found)).coalesce(1)
    frame = packed.rows(bucket) if frame is None else frame
    return _told(_texts(frame.where(condition)).limit(limit + 1).collect())


def _texts(frame: DataFrame) -> DataFrame:
    return frame.select(F.to_json(F.struct(*_columns(frame))).alias("json"))


def _told(rows: Sequence[Row]) -> list[Any]:
    return [json.loads(row.json) for row in rows]


def _columns(frame: DataFrame) -> Iterator[Column]:
    """The columns with their structs rebuilt: a join's rows have one field more than their schema says."""
    for one in frame.schema.fields:
        column, kind = F.col(one.name), one.dataType
        if isinstance(kind, st.StructType):
            column = F.when(column.isNotNull(), F.struct(*[column[name].alias(name) for name in kind.names]))
        yield column.alias(one.name)


def _unreadable(store: StateStore, error: Exception) -> PenstockError:
    origin = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    said = next((text for _, text in reversed(list(causes(origin))) if text.strip()), str(error))
    return PenstockError(
        f"Spark cannot read the state {store.name}: {said.splitlines()[0]}",
        where=f"checkpoint {store.checkpoint}",
        next="ask again if the query is running: the batch may be gone; else it is of another version of Spark",
    )


def _wanted(frame: DataFrame, key: str, store: StateStore, by: Sequence[str] | None) -> dict[str, Any]:
    """The wanted key by column; a string is the only column of `by`, or the only column that is not a window."""
    kind = _kind(frame)
    if (wanted := of_columns(key)) is not None:
        return wanted
    plain = by or [one.name for one in kind.fields if not isinstance(one.dataType, st.StructType)]
    if len(plain) != 1:
        raise _no_key(key, kind, store)
    return {plain[0]: key}


def _kind(frame: DataFrame) -> st.StructType:
    kind = frame.schema["key"].dataType
    assert isinstance(kind, st.StructType)
    return kind


def _fields(column: Column, kind: st.StructType, wanted: dict[str, Any], store: StateStore) -> Iterator[Column]:
    for name, value in wanted.items():
        if name not in kind.names:
            raise _no_key(json.dumps(wanted), kind, store)
        inner = kind[name].dataType
        if isinstance(inner, st.StructType) and isinstance(value, dict):
            yield from _fields(column[name], inner, value, store)
        elif value is not None and not isinstance(value, _TOLD.get(type(inner), str | int | float)):
            raise _no_key(json.dumps(wanted), kind, store)
        else:
            yield column[name].eqNullSafe(F.lit(value).try_cast(inner))


def _no_key(key: str, kind: st.StructType, store: StateStore) -> PenstockError:
    example = json.dumps({one.name: f"<{one.dataType.simpleString()}>" for one in kind.fields})
    return PenstockError(
        f"{key} is not a key of {store.name}", where=f"its key is {kind.simpleString()}", next=f"give {example}"
    )


# Reads one partition of a state: the partition of a key's hash.
#
# Spark's state reader has a task for each partition, in order (StateScan.planInputPartitions of Spark 4). It takes no
# filter, and its option for one partition needs the batch of a snapshot, which may not exist yet. So this runs a job
# with that one task only.


def partition(spark: SparkSession, key: Sequence[Column], partitions: int) -> int:
    """The partition of the rows with this key (HashPartitioning: Murmur3 with seed 42, modulo the partitions)."""
    one = spark.sql("SELECT 1").select(F.pmod(F.hash(*key), F.lit(partitions)))
    return int(one.collect()[0][0])


def first_rows(frame: DataFrame, partition: int, most: int) -> list[Row]:
    """The first `most` rows of a partition; the frame reads a state without a shuffle."""

    def first(rows: Iterable[Row]) -> Iterable[Row]:
        return islice(rows, most)

    found: list[Row] = frame.sparkSession.sparkContext.runJob(frame.rdd, first, [partition])
    return found
