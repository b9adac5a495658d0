"""A streaming source for tests of runs: counts up, and fails or waits at given rows."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import StructType

from penstock.errors import SchemaChanged

BATCH = 10


class Rows(InputPartition):
    def __init__(self, start: int, end: int) -> None:
        super().__init__(start)
        self.start, self.end = start, end


class Counter(DataSourceStreamReader):
    """`fail_at` raises SchemaChanged once before the batch with that row; `hold_at` waits at a row for a file `go`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.folder = Path(options["folder"])
        self.fail_at = int(options.get("fail_at", -1))
        self.hold_at = int(options.get("hold_at", -1))
        self.limit = int(options["limit"])

    def initialOffset(self) -> dict[str, int]:
        return {"row": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        end = min(start["row"] + BATCH, self.limit)
        if end > self.fail_at >= 0 and self._first_time("failed"):
            raise SchemaChanged("the columns changed", where="a test")
        return {"row": end}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [Rows(start["row"], end["row"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[str, str]]:
        assert isinstance(partition, Rows)
        for row in range(partition.start, partition.end):
            if row == self.hold_at and self._first_time("held"):
                self._hold()
            yield str(row), str(row)

    def _first_time(self, mark: str) -> bool:
        file = self.folder / mark
        if file.exists():
            return False
        file.write_text(str(os.getpid()))
        return True

    def _hold(self) -> None:
        while not (self.folder / "go").exists():
            time.sleep(0.05)


class Counting(DataSource):
    @classmethod
    def name(cls) -> str:
        return "counting"

    def schema(self) -> str:
        return "key string, value string"

    def streamReader(self, schema: StructType) -> Counter:
        return Counter(self.options)
