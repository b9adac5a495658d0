"""A folder, or a bucket of S3, as the destination of a sink connector: a file for some records of a topic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from penstock.connect.sinks.destination import Chunks, Tolerance
from penstock.connect.sinks.files.properties import FilesSettings
from penstock.connect.sinks.files.writer import FilesWriter
from penstock.connect.sinks.properties import Problems


@dataclass(frozen=True)
class FilesDestination:
    """The folders of a connector's topics."""

    settings: FilesSettings

    @property
    def chunks(self) -> Chunks:
        return self.settings.chunks

    @property
    def tolerance(self) -> Tolerance:
        return self.settings.tolerance

    @property
    def address(self) -> str:
        return ""

    def identity(self, topic: str, *, any_topic: bool) -> tuple[str, str]:
        return "files", self.settings.place if any_topic else f"{self.settings.place}/{topic}"

    def prepare(self, patience: timedelta) -> None:
        """Check that the store is there."""
        self.settings.store.require()

    def keep_offsets(self, offsets: Mapping[tuple[str, int], int], patience: timedelta) -> None:
        """Nothing: files have their offsets in their names."""

    @contextmanager
    def writer(self, patience: timedelta, *, again: bool) -> Iterator[FilesWriter]:
        writer = FilesWriter(self.settings)
        yield writer
        writer.close()


def problems(settings: FilesSettings) -> Problems:
    """None: raises PenstockError if the store is not there, as seen from this machine."""
    settings.store.require()
    return iter(())
