"""A folder, or a bucket of S3, as the destination of a sink connector: a file for some records of a topic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from penstock.connect.sinks.destination import Chunks, Destination
from penstock.connect.sinks.files.properties import FilesSettings
from penstock.connect.sinks.files.writer import FilesWriter
from penstock.connect.sinks.properties import Problems


@dataclass(frozen=True)
class FilesDestination(Destination):
    """The folders of a connector's topics."""

    settings: FilesSettings

    @property
    def chunks(self) -> Chunks:
        return self.settings.chunks

    def identity(self, topic: str, *, any_topic: bool) -> tuple[str, str]:
        return "files", self.settings.place if any_topic else f"{self.settings.place}/{topic}"

    def problems(self) -> Problems:
        """None: raises PenstockError if the store is not there, as seen from this machine."""
        self.settings.store.require()
        return iter(())

    def prepare(self, patience: timedelta) -> None:
        """Check that the store is there."""
        self.settings.store.require()

    @contextmanager
    def writer(self, patience: timedelta, *, again: bool) -> Iterator[FilesWriter]:
        writer = FilesWriter(self.settings)
        yield writer
        writer.close()
