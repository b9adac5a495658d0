"""Keys of Arrow tables as integers, so that rows are matched by array arithmetic. Null is a key like any other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, types as st

from penstock.spark_runtime.arrow_types import to_arrow_schema

Numbers = npt.NDArray[np.int64]
LIMIT = 1 << 24
"""Codes above this are renumbered densely, so that tables indexed by them stay small."""

FEW = 4
"""Wanted rows are few if there are more than this many times as many rows to search."""


def arrow_schema(kind: st.StructType) -> pa.Schema:
    """The columns as Spark exchanges them in Arrow batches, all of them nullable."""
    return pa.schema([pa.field(field.name, field.type) for field in to_arrow_schema(kind, timezone="UTC")])


def columns_of(frame: DataFrame, names: Iterable[str]) -> st.StructType:
    """Columns of a frame with their types."""
    return st.StructType([st.StructField(name, frame.schema[name].dataType) for name in names])


def codes(tables: Sequence[pa.Table], names: Sequence[str]) -> list[Numbers]:
    """An integer for each row of each table, equal for rows that are equal in the columns `names`."""
    together, count = np.zeros(sum(len(table) for table in tables), np.int64), 1
    for name in names:
        column = pa.chunked_array([chunk for table in tables for chunk in table[name].chunks], tables[0][name].type)
        # One dictionary for all chunks.
        encoded = pc.dictionary_encode(column.combine_chunks(), null_encoding="encode")
        together = together * len(encoded.dictionary) + encoded.indices.to_numpy().astype(np.int64)
        count *= max(1, len(encoded.dictionary))
        if count > LIMIT:
            values, together = np.unique(together, return_inverse=True)
            count = len(values)
    ends = np.cumsum([len(table) for table in tables])[:-1]
    return np.split(together, ends)


def positions(known: pa.Table, asked: pa.Table, names: Sequence[str]) -> Numbers:
    """For each row of `asked` the position of the row of `known` (unique in `names`) with the same key, else -1."""
    likely = candidates(known, asked, names)
    if not len(likely) or not len(asked):
        return np.full(len(asked), -1, np.int64)
    there, here = codes([known.select(names).take(pa.array(likely)), asked], names)
    places = np.full(int(max(there.max(), here.max())) + 1, -1, np.int64)
    places[there] = likely
    known_rows: Numbers = places[here]
    return known_rows


def partners(known: pa.Table, asked: pa.Table, names: Sequence[str]) -> Numbers:
    """`positions` for joins: as in SQL, null equals nothing."""
    places = positions(known, asked, names)
    places[incomplete(asked, names)] = -1
    return places


def incomplete(rows: pa.Table, names: Sequence[str]) -> npt.NDArray[np.bool_]:
    """A mask of the rows with a null in one of the columns `names`."""
    mask = np.zeros(len(rows), bool)
    for name in names:
        mask |= rows[name].is_null().to_numpy()
    return mask


def candidates(known: pa.Table, asked: pa.Table, names: Sequence[str]) -> Numbers:
    """Positions of the rows of `known` that may equal a row of `asked` in the columns `names`; no other row does.

    Searching for a few keys in many is a quarter of the work of numbering the many.
    """
    places = np.arange(len(known))
    if FEW * len(asked) > len(known):
        return places
    for name in names:
        wanted = pc.unique(asked[name])
        column = known[name] if len(places) == len(known) else known[name].take(pa.array(places))
        places = places[pc.is_in(column, value_set=wanted).to_numpy()]
    return places


def newest(rows: pa.Table, names: Sequence[str], version: str) -> pa.Table:
    """The row with the highest version of each key, the last of equal ones; in their order in `rows`."""
    if len(rows) < 2:
        return rows
    (key,) = codes([rows], names)
    rank = np.argsort(numbers(rows[version]), kind="stable")
    last = np.zeros(int(key.max()) + 1, np.int64) - 1
    # For repeated indices the last assignment wins.
    last[key[rank]] = rank
    return rows.take(pa.array(np.sort(last[last >= 0])))


def numbers(column: pa.ChunkedArray) -> Numbers:
    """A column of integers or timestamps as integers; null is the smallest."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    filled = pc.fill_null(column.cast(pa.int64()), np.iinfo(np.int64).min)
    return np.asarray(filled.to_numpy(), np.int64)


def taken(table: pa.Table, places: Numbers) -> pa.Table:
    """Rows by position; nulls where a position is -1."""
    return table.take(pa.array(places, mask=places < 0))


def concat(tables: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
    """All rows, with the columns and types of `schema`."""
    cast_tables = [table.select(schema.names).cast(schema) for table in tables]
    return pa.concat_tables(cast_tables).combine_chunks() if cast_tables else schema.empty_table()


def packed(table: pa.Table) -> bytes:
    """A table as bytes in Arrow's stream format."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def unpacked(data: Any) -> pa.Table:
    return pa.ipc.open_stream(data).read_all()
