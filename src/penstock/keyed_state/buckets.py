"""Keyed state in Arrow tables: one state call per bucket of keys and batch, instead of one per key.

Spark calls a Python processor once for each key, row by row, which costs three times a native operator. Here keys are
hashed into a fixed number of buckets and Spark's key is the bucket:

 1. before the shuffle, in Arrow batches, `Logic.before` reduces the rows (sums, newest versions), which are packed into
    one blob for each bucket;
 2. the processor gets a bucket's blobs, and `Logic.step` changes the bucket's state, a table, by array arithmetic;
 3. Spark keeps the state as a log of changes, one blob per batch; now and then the whole table replaces the log. The
    table itself stays in memory shared by the Python workers of an executor (`bucket_memory`). A worker reads only the
    unknown part of the log: the executor never had the bucket, or had it some batches ago.

Each blob has a random token, so that a table from a failed batch is never mistaken for the current one.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession, functions as F, types as st
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from penstock.errors import PenstockError
from penstock.keyed_state.arrow_keys import arrow_schema, concat, packed, positions, unpacked
from penstock.keyed_state.description import HEAD, TABLES, About
from penstock.native import shared_memory
from penstock.native.shared_memory import query
from penstock.spark_runtime.logical_plan import analyzed, each, nodes, require_classic

_VERSION, _COPY, _TOKEN = 1, 2, slice(3, 5)
"""Positions in the notes of a slot."""
_SPARE = 8
"""A copy gets an eighth more room than it needs, and a new array when it needs less than an eighth of its room."""
REUSE = "spark.sql.exchange.reuse"
"""Off for streams with state: Spark (4.2) finds no watermark below a shuffle that it reuses. Of two stages with the
same input, the second would wait forever for the end of its windows, and never say so."""
BUCKETS = 32
"""The number of buckets; fixed at the first start of a query. A stage runs on at most this many cores."""
BUCKET, BLOB, GONE = "_bucket", "_blob", "_gone"
ROWS = 1 << 17
"""Rows to reduce together before the shuffle."""
END_OF_TIME = 10**15
"""Milliseconds: a watermark after all times; negated, one before all times."""
LOG_FACTOR, LOG_LEAST, LOG_BLOBS = 2, 1 << 16, 100
"""The whole table replaces the log when the log exceeds this multiple of its size (and these bytes), or has this many
blobs."""


@dataclass(frozen=True)
class BucketStep:
    """What a batch does to a bucket: changed rows of the state with a column `_gone`, and output rows.

    The next call without rows is when the watermark, in milliseconds, reaches `wake`. `state` is the state after the
    changes, if already computed.
    """

    changed: pa.Table | None = None
    output: pa.Table | None = None
    wake: int | None = None
    state: pa.Table | None = None

    def after(self, state: pa.Table, key: Sequence[str]) -> pa.Table:
        """The state after the changes."""
        if self.state is not None:
            return self.state
        return state if self.changed is None else upserted(state, self.changed, key)


class Logic(Protocol):
    """The logic of a stage; pickled to the workers."""

    @property
    def state(self) -> pa.Schema:
        """The columns of the state."""

    @property
    def state_key(self) -> tuple[str, ...]:
        """The key columns of a row of the state."""

    @property
    def computed(self) -> Mapping[str, Sequence[str]]:
        """Columns that readers of the state see instead of others: see `description.About`."""

    def before(self, rows: pa.Table) -> pa.Table:
        """The rows to shuffle, possibly fewer; they must keep the column `_bucket`."""

    def step(self, state: pa.Table, rows: pa.Table | None, watermark: int, number: int) -> BucketStep:
        """Process one batch of a bucket; `rows` is None when `wake` is reached; `number` grows with each change."""


def stateful(
    frame: DataFrame, logic: Logic, *, name: str, key: Sequence[str], output: st.StructType, timed: bool
) -> DataFrame:
    """The output of `logic` for the frame's rows, in buckets of the columns `key`; `timed` needs a watermark."""
    require_name(name)
    _require_columns(frame, logic, key, output, f"state {name}")
    bucketed = frame.withColumn(BUCKET, F.pmod(F.hash(*key), F.lit(BUCKETS)))
    blobs = bucketed.mapInArrow(_Pack(logic), f"{BUCKET} int, {BLOB} binary")
    if not frame.isStreaming:
        rows = blobs.groupBy(BUCKET).applyInArrow(_once(logic), f"{BLOB} binary")
        return rows.mapInArrow(_Unpack(arrow_schema(output)), output)
    _set_reuse_off(frame.sparkSession, f"state {name}")
    outputs = blobs.groupBy(BUCKET).transformWithState(
        Bucket(logic, name, key), f"{BLOB} binary", "append", "eventTime" if timed else "none"
    )
    return outputs.mapInArrow(_Unpack(arrow_schema(output)), output)


def _set_reuse_off(spark: SparkSession, where: str) -> None:
    if str(spark.conf.get(REUSE)).lower() == "false":
        return
    try:
        spark.conf.set(REUSE, "false")
    except PySparkException as error:
        # Where a declarative pipeline is defined, settings cannot be changed.
        next = f"set {REUSE} to false in Spark's configuration, or before the pipeline is defined"
        raise PenstockError(f"a state needs the setting {REUSE}=false", where=where, next=next) from error


def require_name(name: str) -> None:
    if not name.isidentifier():
        raise PenstockError(
            f"{name!r} is not a valid state name",
            next="use letters, digits and underscores; keep the name when the code around it changes",
        )


def _require_columns(frame: DataFrame, logic: Logic, key: Sequence[str], output: st.StructType, where: str) -> None:
    for names in (output.names, logic.state.names):
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise PenstockError(
                f"two columns would have the name {', '.join(twice)}",
                where=where,
                next="rename the aggregate or the column; the name may be one that every result has",
            )
    for kind in (frame.schema[name] for name in key):
        if isinstance(kind.dataType, st.ArrayType | st.MapType | st.StructType | st.VariantType):
            raise PenstockError(
                f"the column {kind.name} is {kind.dataType.simpleString()} and cannot be a key",
                where=where,
                next="extract a value from it, or use its JSON: F.to_json(...)",
            )


@dataclass(frozen=True)
class _Pack:
    """Packs Arrow batches into blobs, one for each bucket."""

    logic: Logic

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        waiting: list[pa.RecordBatch] = []
        for batch in batches:
            waiting.append(batch)
            if sum(map(len, waiting)) >= ROWS:
                yield self._packed(waiting)
                waiting = []
        if any(map(len, waiting)):
            yield self._packed(waiting)

    def _packed(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        rows = self.logic.before(nullable(pa.Table.from_batches(batches)).combine_chunks())
        bucket = rows[BUCKET].to_numpy()
        order = np.argsort(bucket, kind="stable")
        sorted_rows = rows.drop_columns([BUCKET]).take(pa.array(order)).combine_chunks()
        numbers, starts = np.unique(bucket[order], return_index=True)
        ends = [*starts[1:], len(rows)]
        blobs = [packed(sorted_rows.slice(a, b - a)) for a, b in zip(starts, ends, strict=True)]
        return pa.RecordBatch.from_arrays([pa.array(numbers, pa.int32()), pa.array(blobs, pa.binary())], [BUCKET, BLOB])


@dataclass(frozen=True)
class _Unpack:
    """Unpacks blobs into their rows."""

    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for blob in batch.column(0):
                yield from unpacked(blob.as_buffer()).cast(self.schema).to_batches()


def _once(logic: Logic) -> Callable[[pa.Table], pa.Table]:
    """All rows of a bucket as one batch, followed by the end of time: for a frame that is not a stream."""

    # A function, because Spark counts the arguments, and a method has `self`.
    def run(blobs: pa.Table) -> pa.Table:
        rows = pa.concat_tables([unpacked(blob.as_buffer()) for blob in blobs[BLOB]]).combine_chunks()
        state = logic.state.empty_table()
        first = logic.step(state, rows, -END_OF_TIME, 1)
        last = logic.step(first.after(state, logic.state_key), None, END_OF_TIME, 2)
        outputs = [packed(step.output) for step in (first, last) if step.output is not None]
        return pa.table({BLOB: pa.array(outputs, pa.binary())})

    return run


class Bucket(StatefulProcessor):
    """Spark's processor for one stage, in buckets of the columns `key`."""

    def __init__(self, logic: Logic, name: str, key: Sequence[str]) -> None:
        self._logic, self.name = logic, name
        self._about = About(tuple(key), logic.state_key, logic.computed).metadata

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle, self._query = handle, query()
        self._head = handle.getValueState(
            self.name + HEAD, "version long, base long, token string, size long, wake long"
        )
        self._log = handle.getMapState(self.name + TABLES, "version long", "token string, change binary")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        tables = [unpacked(row[BLOB]) for row in rows]
        yield from self._step(key[0], pa.concat_tables(tables).combine_chunks(), timerValues)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield from self._step(key[0], None, timerValues)

    def close(self) -> None:
        pass

    def _step(self, bucket: int, rows: pa.Table | None, times: Any) -> Iterator[Row]:
        with place(f"{self._query}/{self.name}/{bucket}") as own:
            own.kept, output = self._stepped(own.kept, rows, times)
        if output is not None:
            yield Row(**{BLOB: output})

    def _stepped(self, known: Known | None, rows: pa.Table | None, times: Any) -> tuple[Known | None, bytes | None]:
        """The bucket's table after a batch, and the batch's output."""
        head = self._head.get()
        version, base, token, size, wake = head if head else (0, 0, "", 0, None)
        known = self._current(known, version, base, token)
        state = known.table if known else self._logic.state.empty_table()
        step = self._logic.step(state, rows, times.getCurrentWatermarkInMs(), version + 1)
        if step.wake is not None and step.wake != wake:
            self._handle.registerTimer(step.wake)
        if step.changed is not None and len(step.changed):
            known = Known(version + 1, uuid.uuid4().hex, step.after(state, self._logic.state_key))
            base, size = self._write(known, base, size, step.changed)
            self._head.update((known.version, base, known.token, size, step.wake))
        elif step.wake != wake:
            self._head.update((version, base, token, size, step.wake))
        return known, packed(step.output) if step.output is not None and len(step.output) else None

    def _current(self, known: Known | None, version: int, base: int, token: str) -> Known | None:
        """The bucket's table after the change `version`, from memory as far as that is current."""
        if known and known.table.column_names != self._logic.state.names:
            # From the query before a restart.
            known = None
        if not version or (known and known.token == token):
            return known if version else None
        after, table = base - 1, self._logic.state.empty_table()
        if known and base <= known.version < version and self._logged(known.version)[0] == known.token:
            after, table = known.version, known.table
        for number in range(after + 1, version + 1):
            table = upserted(table, self._change(number), self._logic.state_key)
        return Known(version, token, concat([table], self._logic.state))

    def _change(self, version: int) -> pa.Table:
        """A change in the log; raises if its columns are not those of this query."""
        change = unpacked(self._logged(version)[1])
        had, has = (
            [name for name in names if name != GONE] for names in (change.column_names, self._logic.state.names)
        )
        if set(had) != set(has):
            raise PenstockError(
                f"the state has the columns {', '.join(had)}, but this query has {', '.join(has)}",
                where=f"the state {self.name} of the checkpoint",
                next="give the stage another name= to start with empty state, or its former columns and aggregates",
            )
        return change

    def _logged(self, version: int) -> tuple[Any, ...]:
        """Token and change of a version in the log."""
        entry = self._log.getValue((version,))
        assert entry is not None, f"the state {self.name} lacks its change {version}"
        return entry

    def _write(self, known: Known, base: int, size: int, changed: pa.Table) -> tuple[int, int]:
        """Add a change to the log, or start a new log with the whole table; returns its first version and its size."""
        version, state = known.version, known.table
        blob = packed(changed.replace_schema_metadata(self._about))
        full = size + len(blob) > max(LOG_LEAST, LOG_FACTOR * state.nbytes) or version - base >= LOG_BLOBS
        if base and not full:
            self._log.updateValue((version,), (known.token, blob))
            return base, size + len(blob)
        whole = packed(with_gone(state, False).replace_schema_metadata(self._about))
        for number in range(base, version) if base else ():
            self._log.removeKey((number,))
        self._log.updateValue((version,), (known.token, whole))
        return version, 0


def nullable(rows: pa.Table) -> pa.Table:
    """The rows with nullable columns, so that they can be concatenated with other tables."""
    return pa.table(rows.columns, pa.schema([pa.field(field.name, field.type) for field in rows.schema]))


def upserted(state: pa.Table, changed: pa.Table, key: Sequence[str]) -> pa.Table:
    """The state with the changed rows instead of those with the same key, without rows that are gone."""
    places = positions(state, changed, key)
    unchanged = np.ones(len(state), bool)
    unchanged[places[places >= 0]] = False
    fresh = changed.filter(pc.invert(changed[GONE])).drop_columns([GONE])
    return concat([state.filter(pa.array(unchanged)), fresh], state.schema)


def with_gone(rows: pa.Table, gone: Any) -> pa.Table:
    """Rows of a state as a change; `gone` is one value for all rows, or an array."""
    values = np.full(len(rows), gone) if isinstance(gone, bool) else gone
    return rows.append_column(GONE, pa.array(values))


# Refuses a stage that waits for event time after a window.
#
# A query's watermark is the lowest of all its watermarks. A window emits its rows when the watermark has passed them.
# If these rows had a watermark of their own, it would wait for rows that wait for it: forever, and without an error.

STAGE, TIMED = "TransformWithStateInPySpark", "EventTime"


def require_no_window(frame: DataFrame, where: str) -> None:
    """Raise PenstockError for a stream that contains a window or another stage of `buckets` over event time."""
    # The plan shows it even if the columns were recomputed, renamed or dropped.
    if not frame.isStreaming:
        return
    require_classic(frame, where)
    if any(map(_is_window, nodes(analyzed(frame)))):
        raise PenstockError(
            "these rows come from a window, and a window over windows would wait forever",
            where=where,
            next="write the first window's rows to a topic, and read it in another query",
        )


def _is_window(node: Any) -> bool:
    if node.nodeName() != STAGE or node.timeMode().toString() != TIMED:
        return False
    return BLOB in [str(column.name()) for column in each(node.output())]


# The tables of buckets between batches, in memory shared by an executor's workers.
#
# A slot has two copies in Arrow's stream format, written alternately: a new table may refer to parts of the old one.


@dataclass(frozen=True)
class Known:
    """A bucket's state after the change `version`, with its token: a UUID in hexadecimal digits."""

    version: int
    token: str
    table: pa.Table


def place(name: str) -> AbstractContextManager[shared_memory.SharedValue[Known]]:
    """The slot of a bucket's table (see `shared_memory.place`); do not use the table outside the `with` block."""
    return shared_memory.place(name, _FORM)


def _take(slot: shared_memory.Slot) -> Known:
    notes = slot.notes
    table = unpacked(pa.py_buffer(slot.array(int(notes[_COPY]))))
    return Known(int(notes[_VERSION]), notes[_TOKEN].tobytes().hex(), table)


def _size(known: Known) -> int:
    return int(known.table.nbytes)


def _put(slot: shared_memory.Slot, known: Known) -> None:
    notes, token = slot.notes, bytes.fromhex(known.token)
    if notes[_TOKEN].tobytes() == token:
        return
    copy = 1 - int(notes[_COPY])
    _write(slot, copy, known.table)
    notes[_VERSION], notes[_COPY] = known.version, copy
    notes.view("u1")[8 * _TOKEN.start : 8 * _TOKEN.stop] = bytearray(token)


def _write(slot: shared_memory.Slot, copy: int, table: pa.Table) -> None:
    sized = pa.MockOutputStream()
    _send(sized, table)
    words, room = -(-sized.size() // 8), slot.array(copy)
    if not len(room) // _SPARE <= words <= len(room):
        room = slot.zeros(copy, words + words // _SPARE)
    _send(pa.FixedSizeBufferWriter(pa.py_buffer(room)), table)
    slot.needed[:] = 0
    slot.needed[copy] = words


def _send(to: pa.NativeFile, table: pa.Table) -> None:
    with pa.ipc.new_stream(to, table.schema) as writer:
        writer.write_table(table)


_FORM = shared_memory.Form(_take, _put, _size)
