"""The row cache against a plain dict: time limit, size limit, and the last row of a key."""

from __future__ import annotations

from random import Random

import pyarrow as pa

from penstock.cql.row_cache import SPARE, RowCache
from penstock.keyed_state.arrow_keys import taken

SCHEMA = pa.schema([("v", pa.int64())])
LIMIT, SECONDS = 300, 20.0


def table(values: list[int]) -> pa.Table:
    return pa.table({"v": pa.array(values, pa.int64())})


def keys(names: list[int]) -> pa.Array:
    return pa.array([b"key %d" % name for name in names], pa.binary())


def test_what_is_kept_is_what_a_plain_model_keeps() -> None:
    draw, cache, now, value = Random(1), RowCache(SCHEMA, LIMIT, SECONDS), 0.0, 0
    model: list[tuple[int, int, float]] = []  # key, value and end, the oldest first
    forgotten = 0
    for _ in range(400):
        now += draw.random() * 4
        asked = draw.sample(range(1000), 60)
        known = {key: value for key, value, end in model if end > now}
        places = cache.find(keys(asked), now)
        rows = taken(cache.table, places)["v"].to_pylist()
        assert rows == [known.get(key) for key in asked]
        missing = [key for key in asked if key not in known or draw.random() < 0.1]
        cache.add(keys(missing), table(list(range(value, value + len(missing)))), now)
        model += [(key, value + at, now + SECONDS) for at, key in enumerate(missing)]
        value += len(missing)
        kept = [row for row in model[-LIMIT:] if row[2] >= now]
        forgotten, model = forgotten + len(model) - len(kept), kept
        assert len(cache) == len(model)
    assert forgotten > 10 * LIMIT


def test_the_index_does_not_grow_with_keys_that_never_come_again() -> None:
    cache = RowCache(SCHEMA, 100, SECONDS)
    for first in range(0, 20 * SPARE, 500):
        cache.add(keys(list(range(first, first + 500))), table([0] * 500), 0.0)
    assert len(cache) == 100 and len(cache.index) < 2 * SPARE
    assert (cache.find(keys(list(range(first + 400, first + 500))), 1.0) == range(100)).all()
    assert (cache.find(keys([0, first]), 1.0) == -1).all()
