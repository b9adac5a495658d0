"""A pipeline that copies the numbers of JSON files to Parquet files, its input and its output, below one folder."""

from __future__ import annotations

from pathlib import Path

import pyarrow.dataset as ds


def pipeline(result: str) -> str:
    """The file of the pipeline `numbers`; `result` is what it makes of `frame`. It needs FOLDER in its environment."""
    return f"""
import os

import penstock as ps

FOLDER = os.environ["FOLDER"]


@ps.pipeline(every="1 second")
def numbers(spark):
    frame = spark.readStream.schema("id long").json(FOLDER + "/in")
    return ps.write({result}, ps.files.sink(FOLDER + "/out"))
"""


def add(folder: Path, *ids: int) -> None:
    """Add a file of input, named after its first number."""
    (folder / "in").mkdir(exist_ok=True)
    # A source of files sees a name only with its whole content.
    (folder / "new").write_text("".join(f'{{"id": {one}}}\n' for one in ids))
    (folder / "new").rename(folder / "in" / f"{ids[0]}.json")


def written(folder: Path) -> list[int]:
    """The numbers in the output, sorted."""
    if not any(folder.glob("out/batch=*")):
        return []
    rows = ds.dataset(folder / "out", exclude_invalid_files=True).to_table()
    return sorted(rows["id"].to_pylist())
