"""Kafka's FileStreamSinkConnector: a line per record at the end of one file.

All lines of a Spark task are appended together, once it has all of them: other tasks wait meanwhile, and what a full
disk leaves half written is cut off.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from penstock.connect.definition import Property, of_property, settings_of
from penstock.connect.java.text import line_of
from penstock.connect.records.record import ConnectRecord
from penstock.connect.sinks.destination import Bad, Destination, Tolerance, tolerance_of
from penstock.connect.sinks.files.errors import reported
from penstock.connect.sinks.properties import FREE as OF_SINKS, Problems, of_any_sink, of_connect
from penstock.connect.source.properties import FILE_STREAM_CLASS

CLASS = FILE_STREAM_CLASS
CLASS_NAMES = (CLASS, "FileStreamSinkConnector", "FileStreamSink")
FREE = OF_SINKS
CONNECTION = "file"
"""The property at which errors of the file are reported."""
FILE = Property(
    "file", "STRING", "", "The file that lines are appended to, on the worker's machine.", importance="HIGH"
)


@cache
def properties() -> tuple[Property, ...]:
    """Kafka Connect's properties, and the file."""
    return (*of_connect(CLASS_NAMES), FILE)


def definitions(config: Mapping[str, str]) -> list[Property]:
    """None: a configuration makes no names of properties."""
    return []


def together(values: Mapping[str, Any], config: Mapping[str, str]) -> Problems:
    """Errors between properties that are each valid."""
    yield from of_any_sink(values, config)
    if not values["file"]:
        yield "file", "it is missing, and a worker's standard output is no place for records: give a file"


@dataclass(frozen=True)
class FileStreamSettings:
    """What a valid configuration says."""

    file: Path = field(metadata=of_property("file", convert=lambda name: Path(name).absolute()))
    tolerance: Tolerance = field(metadata=of_property("errors.tolerance", convert=tolerance_of))


def settings(values: Mapping[str, Any], config: Mapping[str, str]) -> FileStreamSettings:
    """What these valid values say."""
    return settings_of(FileStreamSettings, values)


@dataclass(frozen=True)
class FileDestination(Destination):
    """The file of a connector."""

    settings: FileStreamSettings

    def identity(self, topic: str, *, any_topic: bool) -> tuple[str, str]:
        return "files", str(self.settings.file)

    def problems(self) -> Problems:
        """What this machine has against the file."""
        file = self.settings.file
        if file.is_dir():
            yield "file", "it is a folder: give a file"
        elif not file.parent.is_dir():
            yield "file", f"there is no folder {file.parent} on the worker's machine: create it"
        elif not os.access(file if file.exists() else file.parent, os.W_OK):
            yield "file", "the worker's user may not write it"

    @contextmanager
    def writer(self, patience: timedelta, *, again: bool) -> Iterator[LineWriter]:
        writer = LineWriter(self.settings.file)
        yield writer
        writer.append()


@dataclass
class LineWriter:
    """Collects the lines of a task, and appends them."""

    file: Path
    _lines: list[bytes] = field(default_factory=list)

    def write(self, records: Sequence[ConnectRecord], *, until_bad: bool = False) -> list[Bad]:
        """Keep the lines of the records until `append`; every record has one."""
        self._lines += [line_of(record.value) for record in records]
        return []

    def append(self) -> None:
        """Append all lines, or none; raises Unavailable or PenstockError."""
        if not self._lines:
            return
        data = memoryview(b"".join(line + b"\n" for line in self._lines))
        with reported(str(self.file)), self.file.open("ab", buffering=0) as opened:
            fcntl.flock(opened, fcntl.LOCK_EX)
            before = os.fstat(opened.fileno()).st_size
            try:
                while data:
                    data = data[opened.write(data) :]
                os.fsync(opened.fileno())
            except OSError:
                # The disk may be gone; then the first error says so.
                with suppress(OSError):
                    opened.truncate(before)
                raise
