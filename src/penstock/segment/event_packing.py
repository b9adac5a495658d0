"""From rows to touches: Spark evaluates predicates in one projection, an Arrow stage packs events by bucket.

Predicates become bits of a few 64-bit columns; rules share equal predicates. The Arrow stage looks up predicates about
strings (`predicate_index`), turns each row's bits into (rule, mask) pairs, drops rows that touch nothing, and packs the
events of each bucket of persons: the stage with the state then gets a few rows per batch, whatever the number of
events.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, functions as F

from penstock.native import Array
from penstock.native.jit import compiled
from penstock.segment.predicate_index import PLACES, WORD, Index, place
from penstock.segment.rule_plan import RulePlan
from penstock.wire.records.encode_kernel import group

# Events on their way to a bucket: columns of numbers, compressed as one bytes value.
#
# Each event touches rules, each with a mask of the rule's predicates that are true for it (`rule_plan`).


CODEC = "lz4"


@dataclass(frozen=True)
class Touches:
    """Events in any order.

    `keys` are hashes of the persons, `times` are in milliseconds, `offsets` delimit the ids in `ids`; `ends[i]` is
    where the touches of event i end in `rules` and `masks`; `values` has a row for each event.
    """

    keys: Array
    times: Array
    offsets: Array
    ids: Array
    ends: Array
    rules: Array
    masks: Array
    values: Array

    def __len__(self) -> int:
        return len(self.keys)

    def pack(self) -> bytes:
        """The events as bytes, with the sizes first."""
        columns = (self.keys, self.times, self.offsets, self.ends, self.masks, self.values, self.rules, self.ids)
        head = np.array([len(self.keys), len(self.rules), len(self.ids), self.values.shape[1]], np.int64)
        body = b"".join(column.tobytes() for column in columns)
        return bytes(head.tobytes() + len(body).to_bytes(8, "little") + pa.compress(body, CODEC, asbytes=True))


def unpack(data: bytes) -> Touches:
    """The events that `Touches.pack` packed."""
    n, touches, size, wide = np.frombuffer(data, np.int64, 4).tolist()
    # A writable copy: read-only arrays are another type to Numba, and all loops would be compiled again for it.
    body = bytearray(pa.decompress(data[40:], int.from_bytes(data[32:40], "little"), CODEC))
    at = 0

    def column(kind: type[np.generic], count: int) -> Array:
        nonlocal at
        values: Array = np.frombuffer(body, kind, count, at)
        at += values.nbytes
        return values

    keys, times, offsets, ends = (column(np.int64, c) for c in (n, n, n + 1, n))
    masks, values = column(np.int64, touches), column(np.float64, n * wide).reshape(n, wide)
    rules, ids = column(np.int32, touches), column(np.uint8, size)
    return Touches(keys, times, offsets, ids, ends, rules, masks, values)


def joined(parts: Sequence[Touches]) -> Touches:
    """The events of all parts, in order."""
    if len(parts) == 1:
        return parts[0]
    offsets = _ends([part.offsets[1:] for part in parts], [len(part.ids) for part in parts])
    return Touches(
        np.concatenate([part.keys for part in parts]),
        np.concatenate([part.times for part in parts]),
        np.concatenate([np.zeros(1, np.int64), offsets]),
        np.concatenate([part.ids for part in parts]),
        _ends([part.ends for part in parts], [len(part.rules) for part in parts]),
        np.concatenate([part.rules for part in parts]),
        np.concatenate([part.masks for part in parts]),
        np.concatenate([part.values for part in parts]),
    )


def _ends(parts: Sequence[Array], sizes: Sequence[int]) -> Array:
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    return np.concatenate([part + start for part, start in zip(parts, starts, strict=False)])


GATHERED = 1 << 17
"""Rows to pack together."""
SCHEMA = "bucket int, events binary, newest timestamp"


def projected(
    frame: DataFrame, plan: RulePlan, index: Index, person: Column, at: str, names: Mapping[str, str]
) -> DataFrame:
    """The columns that `Packer` needs: hash, id, time, strings, bits, values.

    Some predicates and values are columns of the frame, which `names` has by their text.
    """
    asked = [names.get(text, text) for text in index.asked]
    texts = [F.col(name).alias(f"t{i}") for i, name in enumerate(index.columns)]
    bits = [_bits(asked[first : first + WORD]).alias(f"b{first // WORD}") for first in range(0, len(asked), WORD)]
    values = [F.expr(amount(names.get(text, text))).alias(f"v{i}") for i, text in enumerate(plan.values)]
    named = frame.select(
        F.xxhash64(person).alias("hash"),
        person.alias("id"),
        F.unix_millis(F.col(at)).alias("at"),
        *texts,
        *bits,
        *values,
    )
    return named.where("id IS NOT NULL AND at IS NOT NULL")


def flag(predicate: str, bit: int = 1) -> str:
    """SQL for `bit` if a predicate is true, else 0."""
    return f"if({predicate}, {bit}L, 0L)"


def amount(value: str) -> str:
    """SQL for what a sum adds for an event."""
    return f"coalesce(CAST({value} AS DOUBLE), 0D)"


@dataclass(frozen=True, eq=False)
class Packer:
    """The Arrow stage, for `mapInArrow` with `SCHEMA`; created by `packer`.

    `starts`, `rules` and `bits` are the arguments of `spread`, `values` is the number of value columns, `count` the
    number of rules. A class, since a closure would be pickled with the compiled loops: these lose their cache on disk,
    and each worker would spend seconds to compile them again.
    """

    index: Index
    starts: Array
    rules: Array
    bits: Array
    values: int
    count: int
    buckets: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in _gathered(batches):
            texts = [table[f"t{i}"].combine_chunks() for i in range(len(self.index.columns))]
            masks = self.index.masks(texts, _numbers(table, "b", -(-len(self.index.asked) // WORD), np.int64))
            touches = spread(masks, self.starts, self.rules, self.bits, self.count, PLACES)
            amounts = _numbers(table, "v", self.values, np.float64)
            yield _by_bucket(
                table["hash"].to_numpy(), table["at"].to_numpy(), table["id"], amounts, touches, self.buckets
            )


def packer(plan: RulePlan, index: Index, buckets: int) -> Packer:
    """The stage for these rules; `index` is the index of their predicates."""
    starts = np.cumsum([0, *map(len, plan.uses)], dtype=np.int64)
    uses = np.array([use for uses in plan.uses for use in uses], np.int64).reshape(-1, 2)
    return Packer(index, starts, uses[:, 0].copy(), uses[:, 1].copy(), len(plan.values), len(plan.rules), buckets)


def _numbers(table: pa.Table, prefix: str, count: int, kind: type) -> Array:
    """The columns as one array of shape (rows, count)."""
    out = np.empty((table.num_rows, count), kind)
    for i in range(count):
        out[:, i] = table[f"{prefix}{i}"].to_numpy()
    return out


def _bits(predicates: Sequence[str]) -> Column:
    """A column whose bit i is set if predicate i is true; a balanced tree keeps the expression shallow."""
    parts = [flag(text, _bit(i)) for i, text in enumerate(predicates)]
    while len(parts) > 1:
        pairs = zip(parts[::2], [*parts[1::2], ""], strict=False)
        parts = [f"({a} | {b})" if b else a for a, b in pairs]
    return F.expr(parts[0])


def _bit(i: int) -> int:
    return 1 << i if i < WORD - 1 else -(1 << i)


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    some: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        some.append(batch)
        rows += batch.num_rows
        if rows >= GATHERED:
            yield pa.Table.from_batches(some)
            some, rows = [], 0
    if rows:
        yield pa.Table.from_batches(some)


def _by_bucket(
    keys: Array, times: Array, ids: pa.ChunkedArray, values: Array, touches: tuple[Array, Array, Array], buckets: int
) -> pa.RecordBatch:
    """A row for each bucket that has events."""
    ends, rules, masks = touches
    touched = np.flatnonzero(np.diff(ends, prepend=0))
    starts, order = np.zeros(buckets + 1, np.int64), np.empty(len(touched), np.int64)
    group(keys[touched] % buckets, starts, order)
    rows = touched[order]
    new_ends, new_rules, new_masks = pick(ends, rules, masks, rows)
    names = ids.combine_chunks().take(pa.array(rows))
    offsets = np.frombuffer(names.buffers()[1], np.int32, len(rows) + 1, 4 * names.offset).astype(np.int64)
    text = np.frombuffer(names.buffers()[2] or b"", np.uint8)
    filled = np.flatnonzero(np.diff(starts))
    packed = []
    for bucket in filled.tolist():
        first, stop = int(starts[bucket]), int(starts[bucket + 1])
        touch = int(new_ends[first - 1]) if first else 0
        packed.append(
            Touches(
                keys[rows[first:stop]],
                times[rows[first:stop]],
                offsets[first : stop + 1] - offsets[first],
                text[offsets[first] : offsets[stop]],
                new_ends[first:stop] - touch,
                new_rules[touch : new_ends[stop - 1]],
                new_masks[touch : new_ends[stop - 1]],
                values[rows[first:stop]],
            ).pack()
        )
    newest = np.maximum.reduceat(times[rows], starts[filled]) if len(rows) else np.empty(0, np.int64)
    return pa.record_batch(
        {
            "bucket": pa.array(filled.astype(np.int32)),
            "events": pa.array(packed, pa.binary()),
            "newest": pa.array(newest * 1000, pa.int64()).cast(pa.timestamp("us", "UTC")),
        }
    )


@compiled
def spread(
    bits: Array, starts: Array, rules: Array, rule_bits: Array, count: int, places: Array
) -> tuple[Array, Array, Array]:
    """Returns the touches of each row: where they end, the rules, and the masks."""
    ends = np.empty(len(bits), np.int64)
    touched, masks = np.empty(2 * len(bits) + count, np.int32), np.empty(2 * len(bits) + count, np.int64)
    row_of, place_of = np.full(count, -1, np.int64), np.empty(count, np.int64)
    size = 0
    for row in range(len(bits)):
        if size + count > len(touched):
            more, more_masks = np.empty(2 * len(touched), np.int32), np.empty(2 * len(touched), np.int64)
            more[:size], more_masks[:size] = touched[:size], masks[:size]
            touched, masks = more, more_masks
        for w in range(bits.shape[1]):
            left = np.uint64(bits[row, w])
            while left:
                low = left & (~left + np.uint64(1))
                left ^= low
                predicate = w * WORD + place(low, places)
                for use in range(starts[predicate], starts[predicate + 1]):
                    rule = rules[use]
                    if row_of[rule] != row:
                        row_of[rule], place_of[rule] = row, size
                        touched[size], masks[size] = rule, 0
                        size += 1
                    masks[place_of[rule]] |= np.int64(1) << rule_bits[use]
        ends[row] = size
    return ends, touched[:size], masks[:size]


@compiled
def pick(ends: Array, rules: Array, masks: Array, rows: Array) -> tuple[Array, Array, Array]:
    """The touches of these rows, in their order."""
    new_ends = np.empty(len(rows), np.int64)
    size = 0
    for i in range(len(rows)):
        row = rows[i]
        size += ends[row] - (ends[row - 1] if row else 0)
        new_ends[i] = size
    new_rules, new_masks = np.empty(size, np.int32), np.empty(size, np.int64)
    at = 0
    for i in range(len(rows)):
        row = rows[i]
        for touch in range(ends[row - 1] if row else 0, ends[row]):
            new_rules[at], new_masks[at] = rules[touch], masks[touch]
            at += 1
    return new_ends, new_rules, new_masks
