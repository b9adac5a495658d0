"""Windows over the changes of a real table: their watermark is a setting of `cdc.read`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cassandra.cluster import Session
from pyspark.sql import DataFrame

from penstock import window
from penstock.errors import PenstockError


@pytest.mark.slow
def test_a_window_over_changes_is_final_when_later_changes_come(
    cql: Session, table: Any, read: Callable[..., DataFrame], tmp_path: Path
) -> None:
    name = table("id int PRIMARY KEY, v int")
    # The log takes no writes of long ago.
    begin = int(time.time()) - 3
    for id, seconds in ((1, 0), (2, 0.5), (3, 1), (4, 2.9)):
        at = int((begin + seconds) * 1_000_000)
        cql.execute(f"INSERT INTO {name} (id, v) VALUES ({id}, {id}) USING TIMESTAMP {at}")
    changes = read(name, late="500 milliseconds").selectExpr("ts", "after.v AS v", "op")
    counts = window.tumbling(changes, "1 second", at="ts", key="op", name="writes", n="count(*)")
    found: list[tuple[Any, ...]] = []

    def save(batch: DataFrame, number: int) -> None:
        rows = batch.selectExpr("unix_seconds(window_start) AS start", "n", "final", "late").collect()
        found.extend((row.start - begin, row.n, row.final, row.late) for row in rows)

    query = counts.writeStream.foreachBatch(save).option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    query.start().awaitTermination()
    assert sorted(found) == [(0, 2, True, False), (1, 1, True, False)]


def test_without_a_watermark_the_setting_is_named(cql: Session, table: Any, read: Callable[..., DataFrame]) -> None:
    name = table("id int PRIMARY KEY, v int")
    changes = read(name)
    with pytest.raises(PenstockError, match=r'the column ts has no watermark.*Next: give cdc.read late="10 minutes"'):
        window.tumbling(changes, "1 minute", at="ts", key="op", name="writes", n="count(*)")
    with pytest.raises(PenstockError, match="late is not a duration: 'soon'"):
        read(name, late="soon")
