"""Files of the records of topics, each named by its first record: `<topic>+<partition>+<offset>.json`.

Where a file begins and ends depends only on offsets, and on the records themselves: at the multiples of `flush.size`,
where a record gets into another folder, at a change of schema, and at `rotate.interval.ms`. A batch reads whole chunks
of that size, or the rest of one that has waited long enough. So what is read again, by this worker or by another one,
goes into files of the same names, which replace the first ones: each record is there once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.connect.records.record import ConnectRecord
from penstock.connect.sinks.destination import Bad, BadRecord
from penstock.connect.sinks.files.formats import FileFormat
from penstock.connect.sinks.files.properties import FilesSettings
from penstock.wire.topic_names import is_topic_name


@dataclass
class OpenFile:
    """A file that may get more records."""

    name: str
    since: int
    """The time of its first record in milliseconds; 0 where times do not count."""
    format: FileFormat


@dataclass
class FilesWriter:
    """Collects the records of a task by file; a file is put into the store when it is complete."""

    settings: FilesSettings
    _open: dict[tuple[str, int, str], OpenFile] = field(default_factory=dict)
    """By the topic and the partition that the records were read from, and the folder."""
    _chunks: dict[tuple[str, int], int] = field(default_factory=dict)

    def write(self, records: Sequence[ConnectRecord], *, until_bad: bool = False) -> list[Bad]:
        """Take the records, and return those that do not fit; with `until_bad` only the first of these."""
        bad = []
        for record in records:
            try:
                self._add(record)
            except BadRecord as error:
                bad.append(Bad(record, str(error)))
                if until_bad:
                    break
        return bad

    def close(self) -> None:
        """Put all files into the store."""
        for file in self._open.values():
            self._put(file)
        self._open.clear()

    def _add(self, record: ConnectRecord) -> None:
        topic, partition, offset = record.place
        chunk = offset // self.settings.chunks.records
        if self._chunks.setdefault((topic, partition), chunk) != chunk:
            self._complete(topic, partition)
            self._chunks[topic, partition] = chunk
        if record.value.value is None:
            if self.settings.skips_nulls:
                return
            raise BadRecord("it has no value: set behavior.on.null.values=ignore, or leave such records out")
        if not is_topic_name(record.topic):
            raise BadRecord(f"its topic after the transforms is {record.topic[:80]!r}, which is no name of a folder")
        folder = f"{record.topic}/{self.settings.folder(record)}"
        since = self.settings.moment(record) if self.settings.rotation > 0 else 0
        place = topic, partition, folder
        file = self._open.get(place)
        if file is not None and not self._takes(file, record, since):
            self._put(self._open.pop(place))
            file = None
        if file is None:
            file = OpenFile(self._name(folder, topic, partition, offset), since, self.settings.format())
        file.format.add(record.value)
        # A file that has no record yet is not one: its name is that of a record in it.
        self._open[place] = file

    def _takes(self, file: OpenFile, record: ConnectRecord, at: int) -> bool:
        in_time = self.settings.rotation < 1 or at - file.since < self.settings.rotation
        return in_time and file.format.fits(record.value)

    def _complete(self, topic: str, partition: int) -> None:
        """Put the files of a chunk into the store."""
        for place in [place for place in self._open if place[:2] == (topic, partition)]:
            self._put(self._open.pop(place))

    def _put(self, file: OpenFile) -> None:
        self.settings.store.put(file.name, file.format.data())

    def _name(self, folder: str, topic: str, partition: int, offset: int) -> str:
        parts = topic, str(partition), f"{offset:0{self.settings.width}}"
        name = self.settings.delimiter.join(parts) + self.settings.extension
        return f"{self.settings.topics_dir}/{folder}/{name}"
