"""Parquet files for pipelines: `files.sink(...)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import lazy

if TYPE_CHECKING:
    from penstock.files.files_sink import FilesSink as FilesSink, sink as sink
else:
    __all__, __getattr__, __dir__ = lazy.names(
        __name__,
        {
            "penstock.files.files_sink": ("FilesSink", "sink"),
        },
    )
