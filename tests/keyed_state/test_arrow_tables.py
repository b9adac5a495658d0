"""Rows of Arrow tables by key, and aggregates in parts, against plain Python: nulls, NaN, chunks, few keys and many."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from pyspark.sql import types

from penstock.keyed_state import arrow_keys, description
from penstock.keyed_state.aggregates import OF, Aggregate, PartialColumn, fields, merged, partial, parts_of, result
from penstock.keyed_state.arrow_keys import (
    candidates,
    codes,
    concat,
    incomplete,
    newest,
    numbers,
    packed,
    partners,
    taken,
    unpacked,
)
from penstock.keyed_state.buckets import GONE, upserted, with_gone
from penstock.keyed_state.byte_index import KeyIndex

few = settings(max_examples=50)
TEXTS = st.none() | st.sampled_from(["", "a", "b", "aa", "é", "a\0"])
FLOATS = st.none() | st.sampled_from([0.0, 1.5, math.nan, math.inf])
ROWS = st.lists(st.tuples(TEXTS, FLOATS, st.none() | st.integers(-3, 3)), max_size=25)
SCHEMA = pa.schema({"s": pa.string(), "f": pa.float64(), "v": pa.int64()})
KEYS = ["s", "f"]


def table(rows: list[tuple[Any, ...]], schema: pa.Schema = SCHEMA, cut: int = 3) -> pa.Table:
    """A table of two chunks."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    whole = pa.table([pa.array(some, kind) for some, kind in zip(columns, schema.types, strict=True)], schema=schema)
    return pa.concat_tables([whole.slice(0, cut), whole.slice(cut)])


def key(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """The key of a row, with all NaNs equal."""
    return tuple("nan" if one != one else one for one in row[:2])


def plain(rows: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple("nan" if one != one else one for one in row.values()) for row in rows.to_pylist()]


@pytest.mark.parametrize("limit", [1, 2, arrow_keys.LIMIT])
@few
@given(ROWS, ROWS)
def test_codes_are_equal_where_keys_are_equal_and_nowhere_else(
    limit: int, ours: list[tuple[Any, ...]], theirs: list[tuple[Any, ...]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_keys, "LIMIT", limit)
        found = [code for some in codes([table(ours), table(theirs, cut=1)], KEYS) for code in some.tolist()]
    of_key: dict[tuple[Any, ...], int] = {}
    for row, code in zip([*ours, *theirs], found, strict=True):
        assert of_key.setdefault(key(row), code) == code
    assert len(set(of_key.values())) == len(of_key)


@few
@given(ROWS)
def test_the_newest_row_of_a_key_is_the_last_of_those_with_the_highest_version(rows: list[tuple[Any, ...]]) -> None:
    best: dict[tuple[Any, ...], tuple[float, int]] = {}
    for place, row in enumerate(rows):
        version = -math.inf if row[2] is None else row[2]
        if key(row) not in best or version >= best[key(row)][0]:
            best[key(row)] = version, place
    places = sorted(place for _, place in best.values())
    assert plain(newest(table(rows), KEYS, "v")) == plain(table([rows[place] for place in places]))


@few
@given(ROWS.map(lambda rows: list({key(row): row for row in rows}.values())), ROWS)
def test_in_a_join_null_equals_nothing(known: list[tuple[Any, ...]], asked: list[tuple[Any, ...]]) -> None:
    places = {key(row): place for place, row in enumerate(known) if None not in row[:2]}
    assert partners(table(known), table(asked), KEYS).tolist() == [places.get(key(row), -1) for row in asked]
    assert incomplete(table(asked), KEYS).tolist() == [None in row[:2] for row in asked]


@few
@given(ROWS, ROWS, st.sampled_from([0, 10**9]))
def test_candidates_have_all_rows_that_may_match(
    known: list[tuple[Any, ...]], asked: list[tuple[Any, ...]], few: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_keys, "FEW", few)
        found = candidates(table(known), table(asked), KEYS).tolist()
    wanted = {key(row) for row in asked}
    assert found == sorted(found)
    assert {place for place, row in enumerate(known) if key(row) in wanted} <= set(found)


def test_numbers_of_times_and_of_nulls() -> None:
    least = np.iinfo(np.int64).min
    assert numbers(pa.chunked_array([pa.array([3, None], pa.int16())])).tolist() == [3, least]
    times = pa.chunked_array([pa.array([7, None, -1], pa.timestamp("us", "UTC"))])
    assert numbers(times).tolist() == [7, least, -1]
    assert numbers(pa.chunked_array([], pa.int64())).tolist() == []


def test_rows_are_taken_by_position_with_nulls_for_none() -> None:
    rows = table([("a", 1.0, 1), ("b", 2.0, 2)])
    assert taken(rows, np.array([1, -1, 1, 0])).to_pydict()["v"] == [2, None, 2, 1]
    assert taken(rows.slice(0, 0), np.array([-1, -1])).to_pydict()["s"] == [None, None]


@few
@given(ROWS, ROWS)
def test_tables_as_bytes_are_the_same_tables(ours: list[tuple[Any, ...]], theirs: list[tuple[Any, ...]]) -> None:
    assert plain(unpacked(packed(table(ours)))) == plain(table(ours))
    both = concat([table(ours).select(["v", "f", "s"]), table(theirs)], SCHEMA)
    assert both.schema == SCHEMA and plain(both) == plain(table([*ours, *theirs]))
    assert concat([], SCHEMA) == SCHEMA.empty_table()


def test_what_describes_a_blob_is_read_from_it() -> None:
    told = description.About(["s"], ["s", "v"], {"mean": ["m_sum", "m_count"]})
    blob = packed(table([]).replace_schema_metadata(told.metadata))
    assert description.about(unpacked(blob).schema) == told
    assert description.about(unpacked(packed(table([]))).schema) is None


@few
@given(ROWS, ROWS, st.data())
def test_changed_rows_replace_those_with_their_key(
    rows: list[tuple[Any, ...]], changed: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    state = list({key(row): row for row in rows}.values())
    news = list({key(row): row for row in changed}.values())
    gone = data.draw(st.lists(st.booleans(), min_size=len(news), max_size=len(news)))
    expected = {key(row): row for row in state}
    for row, removed in zip(news, gone, strict=True):
        expected.pop(key(row), None)
        if not removed:
            expected[key(row)] = row
    found = upserted(table(state), with_gone(table(news), np.array(gone, bool)), KEYS)
    assert sorted(plain(found), key=repr) == sorted(plain(table(list(expected.values()))), key=repr)
    assert upserted(table(state), with_gone(table(state), True), KEYS).num_rows == 0
    assert with_gone(table(news), False)[GONE].to_pylist() == [False] * len(news)


NUMBERS = [("n", "count", pa.int64()), ("total", "sum", pa.int64()), ("low", "min", pa.int64())]
AGGREGATES = (
    *(
        Aggregate(name, (PartialColumn(f"{name}_{how}", OF + name, how, kind),), types.LongType())
        for name, how, kind in [*NUMBERS, ("high", "max", pa.int64())]
    ),
    Aggregate(
        "mean",
        (
            PartialColumn("mean_sum", OF + "mean", "sum", pa.float64()),
            PartialColumn("mean_count", OF + "mean", "count", pa.int64()),
        ),
        types.DoubleType(),
    ),
)


def with_arguments(rows: list[tuple[Any, ...]]) -> pa.Table:
    """The rows with a column for the argument of each aggregate."""
    made = table(rows)
    for aggregate in AGGREGATES:
        made = made.append_column(aggregate.parts[0].source, made["v"])
    return made


@few
@given(st.lists(ROWS, min_size=1, max_size=4))
def test_aggregates_of_parts_are_those_of_all_rows(parts: list[list[tuple[Any, ...]]]) -> None:
    made = [partial(with_arguments(rows), KEYS, AGGREGATES) for rows in parts]
    assert all(one.schema.names == [*KEYS, *(field.name for field in fields(AGGREGATES))] for one in made)
    found = merged(pa.concat_tables(made), KEYS, AGGREGATES)
    results = {
        key(tuple(row)): values
        for row, values in zip(
            zip(*(found[name].to_pylist() for name in KEYS), strict=True),
            zip(*(aggregate.value(found).to_pylist() for aggregate in AGGREGATES), strict=True),
            strict=True,
        )
    }
    groups = defaultdict[tuple[Any, ...], list[int]](list)
    for row in (row for rows in parts for row in rows):
        groups[key(row)] += [] if row[2] is None else [row[2]]
    assert results == {
        group: (
            len(some),
            sum(some) if some else None,
            min(some, default=None),
            max(some, default=None),
            pytest.approx(sum(some) / len(some)) if some else None,
        )
        for group, some in groups.items()
    }
    # Merging again changes nothing.
    assert sorted(plain(merged(found, KEYS, AGGREGATES)), key=repr) == sorted(plain(found), key=repr)


def test_a_mean_is_computed_from_its_two_parts() -> None:
    assert parts_of(AGGREGATES)["mean"] == ["mean_sum", "mean_count"] and parts_of(AGGREGATES)["n"] == ["n_count"]
    rows = pa.table({"s": [9.0, 0.0], "c": [2, 0]})
    assert result(rows, ["s", "c"], "mean").to_pylist() == [4.5, None]
    assert result(rows, ["c"], "n").to_pylist() == [2, 0]


WORDS = st.lists(st.binary(max_size=3), max_size=30)


@few
@given(st.lists(WORDS, max_size=4), WORDS, st.sampled_from([pa.binary(), pa.large_binary()]))
def test_an_index_numbers_keys_in_the_order_of_their_addition(
    added: list[list[bytes]], asked: list[bytes], kind: pa.DataType
) -> None:
    index, model = KeyIndex(), dict[bytes, int]()
    for keys in added:
        expected = [model.setdefault(key, len(model)) for key in keys]
        # A slice: the cells do not begin at the first byte.
        column = pa.array([b"before", *keys, b"after"], kind).slice(1, len(keys))
        assert index.add(column).tolist() == expected
    assert len(index) == len(model)
    wanted = pa.array([None, *asked], kind)
    assert index.find(wanted).tolist() == [-1, *(model.get(key, -1) for key in asked)]
    kept = [number for number in model.values() if number % 2]
    only = index.only(np.array(kept, np.int64))
    names = [key for key, number in model.items() if number % 2]
    assert len(only) == len(kept) and only.find(pa.array(names, kind)).tolist() == list(range(len(names)))
    assert only.find(pa.array([key for key, number in model.items() if not number % 2], kind)).tolist() == (
        [-1] * (len(model) - len(kept))
    )


def test_an_index_grows_in_keys_and_in_bytes() -> None:
    index = KeyIndex()
    keys = [b"%d" % number * (number % 50) for number in range(1, 20_000)]
    distinct = list(dict.fromkeys(keys))
    assert len(set(index.add(pa.array(keys, pa.binary())).tolist())) == len(distinct) == len(index)
    assert index.find(pa.array(distinct, pa.binary())).tolist() == list(range(len(distinct)))
    assert index.nbytes > sum(map(len, distinct))
