"""How many tasks the stages of Spark had while some code ran."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession


@contextmanager
def tasks(spark: SparkSession) -> Iterator[list[int]]:
    """A list that has the number of tasks of each stage afterwards."""
    context, group, found = spark.sparkContext, uuid.uuid4().hex, list[int]()
    context.setJobGroup(group, "tasks")
    try:
        yield found
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
        tracker = context.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
        found += [stage.numTasks for stage in stages if stage]
