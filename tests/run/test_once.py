"""`--once` ends, also if a query has timers and Spark would run batches forever."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from shuffles import one_partition

import penstock as ps
from penstock import files, segment
from penstock.query.query import Query
from penstock.run.life_signs import Observer
from penstock.run.supervise import PipelineRun, StopRequests

RULE = segment.rule("seen", when="event = 'visit'", ttl="1 hour", to="t")


def arrive(folder: Path, name: str, person: str) -> None:
    event = {"person": person, "event": "visit", "at": datetime.now(UTC).isoformat()}
    (folder / name).write_text(json.dumps(event))


@pytest.mark.slow
def test_a_query_with_timers_ends_when_what_was_there_is_done(spark: SparkSession, tmp_path: Path) -> None:
    arriving, out = tmp_path / "in", tmp_path / "out"
    arriving.mkdir()

    @ps.pipeline(every="1 second")
    def members(spark: SparkSession) -> Query:
        rows = spark.readStream.schema("person string, event string, at timestamp").json(str(arriving))
        found = segment.match(rows, [RULE], key="person", name="seen", at="at")
        return ps.write(found.select("person"), files.sink(str(out)))

    arrive(arriving, "0.json", "ann")
    ended = StopRequests(threading.Event(), threading.Event())
    with one_partition(spark):
        PipelineRun(members, spark, tmp_path / "checkpoint", ended, Observer(), True).supervise()
    assert [row.person for row in spark.read.parquet(str(out)).collect()] == ["ann"]
