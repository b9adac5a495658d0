"""What lies in a Delta table, read by the library and not by the sink."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable


def rows(path: Path | str, order: str | None = None, **options: str) -> list[dict[str, Any]]:
    """The rows of the table's newest version."""
    table = DeltaTable(str(path), storage_options=options or None)
    # A dataset of pyarrow's would leave threads that read through Python.
    found: list[dict[str, Any]] = pa.RecordBatchReader.from_stream(table.scan()).read_all().to_pylist()
    return sorted(found, key=lambda row: row[order]) if order else found


def commits(path: Path | str) -> int:
    """How many commits the table has after its creation."""
    return DeltaTable(str(path)).version()


def files(path: Path) -> list[Path]:
    """The Parquet files below the folder, also those of which the table knows nothing."""
    return sorted(path.rglob("*.parquet"))


@contextmanager
def small_files(most: int) -> Iterator[None]:
    """This process can write no larger files, as on a full disk; in bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
