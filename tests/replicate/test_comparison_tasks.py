"""The tasks of a comparison run side by side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession
from waiting import until

from penstock.replicate.comparison_tasks import in_tasks, number_of_ranges


def test_tasks_run_at_the_same_time(spark: SparkSession, tmp_path: Path) -> None:
    """Each waits until two have begun."""
    folder = str(tmp_path)

    def work(items: list[int]) -> Iterator[int]:
        for item in items:
            Path(folder, str(item)).touch()
            until(lambda: len(list(Path(folder).iterdir())) > 1, "a second task")
            yield item * 10

    assert sorted(in_tasks(spark, work, range(number_of_ranges(spark)))) == [
        item * 10 for item in range(number_of_ranges(spark))
    ]
