"""Finding rows of a state by keys: few among many and many among few, with nulls and NaN in the keys."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, strategies as st

from penstock.keyed_state.arrow_keys import positions

TEXTS = st.none() | st.sampled_from(["", "a", "b", "aa", "ä", "a\0"])
NUMBERS = st.none() | st.sampled_from([0.0, 1.5, math.nan, math.inf])
KEYS = st.tuples(TEXTS, NUMBERS, st.none() | st.integers(0, 5))
SCHEMA = pa.schema({"s": pa.string(), "f": pa.float64(), "i": pa.int64()})


def told(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """The key with all NaNs equal."""
    return tuple("nan" if one != one else one for one in key)


def table(keys: list[tuple[Any, ...]]) -> pa.Table:
    columns = zip(*keys, strict=True) if keys else ((), (), ())
    chunks = [pa.array(column, kind) for column, kind in zip(columns, SCHEMA.types, strict=True)]
    whole = pa.table(chunks, schema=SCHEMA)
    return pa.concat_tables([whole.slice(0, 3), whole.slice(3)])


@given(st.lists(KEYS, max_size=60, unique_by=told), st.lists(KEYS, max_size=20))
def test_each_key_is_found_where_it_stands(known: list[tuple[Any, ...]], asked: list[tuple[Any, ...]]) -> None:
    places = {told(key): place for place, key in enumerate(known)}
    expected = [places.get(told(key), -1) for key in asked]
    assert positions(table(known), table(asked), SCHEMA.names).tolist() == expected
    # The same with many more rows than requested keys.
    more = [("x", 2.0, number) for number in range(100)]
    assert positions(table([*known, *more]), table(asked), SCHEMA.names).tolist() == expected
    assert np.all(positions(table([]), table(asked), SCHEMA.names) == -1)
