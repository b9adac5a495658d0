"""The files of a spool: segments of frames, each with its length and checksum, and the position that replay reached.

A frame is one request. Frames are appended and synced before they are acknowledged. The position up to which they are
synced is written to `synced` without a sync of its own: it outlives the process, and mostly a power cut. So bytes that
are not whole frames were damaged later if they are before that position or before whole frames: then the start fails.
If they begin at that position, they were never acknowledged. Of other bytes this is unknown: they are kept aside.

The position of replay is written after Kafka has everything before it: after a crash in between, replay sends that part
again. All files are readable by their owner only, whatever the umask.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.errors import PenstockError
from penstock.ingest.events import KeyedEvents
from penstock.native import crc32c
from penstock.native.text_slices import Texts

log = logging.getLogger(__name__)

HEAD = struct.Struct("<II")
"""The payload's number of bytes, and their CRC32C."""
SUFFIX = ".spool"
SEGMENT = re.compile(r"([0-9]{12,})\.spool")
PLACE = "place.json"
SYNCED = "synced"
_SYNCED = struct.Struct("<QQI")
"""Segment, offset, and the CRC32C of both."""
TOPIC = "topic-"
DAMAGED = ".damaged"
WORKER = "worker-"
FIRST = b"\x94"
"""The first byte of each payload: msgpack's array of four."""


class Frame(msgspec.Struct, array_like=True):
    """The events of one request; `time` is milliseconds since 1970."""

    topic: str
    time: int
    keys: list[bytes | None] | bytes | None
    values: list[bytes]

    def events(self) -> KeyedEvents:
        return KeyedEvents.of(self.values, self.keys, 0)


class SpoolPosition(NamedTuple):
    """A segment's number, and an offset in bytes in it."""

    segment: int
    offset: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Frame).decode


def frame(topic: str, time: int, events: KeyedEvents) -> bytes:
    """A request's frame, as it is in a file."""
    keys = events.keys.listed() if isinstance(events.keys, Texts) else events.keys
    payload = _encode((topic, time, keys, events.values.listed()))  # a Frame
    return HEAD.pack(len(payload), crc32c(payload)) + payload


def frames(data: bytes) -> Iterator[tuple[Frame, int]]:
    """The whole frames at the start of `data`, each with the offset of its end; ends at the first damaged one."""
    at = 0
    while payload := _payload(data, at):
        at += HEAD.size + len(payload)
        yield _decode(payload), at


def _payload(data: bytes, at: int) -> bytes:
    """The payload of the frame at this offset; empty if the frame is not whole."""
    if at + HEAD.size > len(data):
        return b""
    size, checksum = HEAD.unpack_from(data, at)
    if at + HEAD.size + size > len(data):
        return b""
    payload = data[at + HEAD.size : at + HEAD.size + size]
    return payload if crc32c(payload) == checksum else b""


def _is_torn(data: bytes, at: int) -> bool:
    """Whether no whole frame follows the damaged one at this offset, whose length may be wrong, too."""
    candidate = data.find(FIRST, at + HEAD.size + 1)
    while candidate >= 0:
        if _payload(data, candidate - HEAD.size):
            return False
        candidate = data.find(FIRST, candidate + 1)
    return True


class SpoolFolder:
    """The files of one spool."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def file(self, segment: int) -> Path:
        return self.path / f"{segment:012d}{SUFFIX}"

    def segments(self) -> list[int]:
        """The numbers of the segments, ascending; a file with another name, such as a copy, is left alone."""
        names = (SEGMENT.fullmatch(file.name) for file in self.path.glob(f"*{SUFFIX}"))
        return sorted(int(name[1]) for name in names if name)

    def make(self) -> None:
        """Create the folder and its parents if they are missing."""
        missing = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir(mode=0o700, exist_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder; the lock ends with the process. Raises PenstockError if another process holds it."""
        try:
            self.make()
            file = os.fdopen(private(str(self.path / "lock"), os.O_WRONLY | os.O_CREAT), "w")
        except OSError as error:
            raise PenstockError(
                f"the spool cannot be used: {error.strerror}",
                where=str(self.path),
                next="give a folder that this user can write to",
            ) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PenstockError(
                    "another process uses this spool",
                    where=str(self.path),
                    next="stop it, or give each its own --spool",
                ) from None
            yield

    def topics(self) -> list[str]:
        """The topics whose events are kept apart, each in a folder of its own."""
        parts = sorted(self.path.glob(f"{TOPIC}*"))
        return [folder.name.removeprefix(TOPIC) for folder in parts if SpoolFolder(folder).segments()]

    def of_topic(self, topic: str) -> SpoolFolder:
        return SpoolFolder(self.path / f"{TOPIC}{topic}")

    def has_events(self) -> bool:
        return bool(self.segments() or self.topics())

    def place(self) -> SpoolPosition:
        """The position where replay continues; raises PenstockError if it cannot be read."""
        try:
            data = (self.path / PLACE).read_bytes()
        except FileNotFoundError:
            return SpoolPosition(0, 0)
        try:
            segment, offset, *checksum = msgspec.json.decode(data, type=list[int])
        except (msgspec.DecodeError, ValueError):
            raise self._lost_place() from None
        place = SpoolPosition(segment, offset)
        # The first version wrote no checksum.
        if min(place) < 0 or checksum not in ([], [_checksum(place)]):
            raise self._lost_place()
        return place

    def _lost_place(self) -> PenstockError:
        return PenstockError(
            "the position up to which Kafka has the spool cannot be read",
            where=str(self.path / PLACE),
            next="remove this file and start again: some events will come to Kafka a second time",
        )

    def note(self, place: SpoolPosition) -> None:
        """Write the position, whole or not at all, and delete the segments before it."""
        new = self.path / f"{PLACE}.new"
        with open(new, "wb", opener=private) as file:
            file.write(msgspec.json.encode([*place, _checksum(place)]))
            file.flush()
            os.fsync(file.fileno())
        new.rename(self.path / PLACE)
        for segment in self.segments():
            if segment < place.segment:
                self.file(segment).unlink()

    def synced(self) -> SpoolPosition | None:
        """The position before which all is known to be synced; None if nothing is known."""
        try:
            data = (self.path / SYNCED).read_bytes()
        except FileNotFoundError:
            return None
        if len(data) != _SYNCED.size:
            return None
        segment, offset, checksum = _SYNCED.unpack(data)
        place = SpoolPosition(segment, offset)
        return place if checksum == _checksum(place) else None

    def recover(self) -> int:
        """Cut off what was never acknowledged, delete what Kafka has, and return the number of the next segment.

        Raises PenstockError if acknowledged events are damaged, or the position cannot be read.
        """
        place, segments = self.place(), self.segments()
        if segments and place.segment > segments[-1] + 1:
            raise self._lost_place()
        for segment in segments:
            if segment < place.segment:  # the process died before it deleted this
                self.file(segment).unlink()
            else:
                start = place.offset if segment == place.segment else 0
                self._check(segment, start, last=segment == segments[-1])
        # Behind the position, too, if the position's segment was moved away.
        return max([place.segment - (place.offset == 0), *segments]) + 1

    def read(self, place: SpoolPosition, end: int | None, most: int) -> tuple[list[Frame], SpoolPosition]:
        """Some frames from a position on, and the position after them; `end` is how far this segment may be read."""
        with self.file(place.segment).open("rb") as file:
            size = os.fstat(file.fileno()).st_size if end is None else end
            file.seek(place.offset)
            data = file.read(min(most, size - place.offset))
            with_ends = list(frames(data))
            if not with_ends and data:  # one frame that is larger than `most`
                file.seek(place.offset)
                with_ends = list(frames(file.read(size - place.offset)))[:1]
        ends = with_ends[-1][1] if with_ends else 0
        return [spooled for spooled, _ in with_ends], SpoolPosition(place.segment, place.offset + ends)

    def sync(self) -> None:
        """Sync the folder, so that the names of new files are on disk."""
        directory = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _check(self, segment: int, start: int, *, last: bool) -> None:
        """Raises PenstockError if acknowledged events of a file cannot be read; `start` is where replay continues."""
        data, file, synced = self.file(segment).read_bytes(), self.file(segment), self.synced()
        acknowledged = synced.offset if synced and synced.segment == segment else None
        whole = start + max((end for _, end in frames(data[start:])), default=0)
        if min(whole, len(data)) < (acknowledged or 0) > start:
            raise damaged(file, min(whole, len(data)))
        if whole >= len(data):
            return
        if not (last and _is_torn(data, whole)):
            raise damaged(file, whole)
        if whole != acknowledged:
            self._keep_aside(file, data, whole)
        os.truncate(file, whole)

    def _keep_aside(self, file: Path, data: bytes, at: int) -> None:
        aside = file.with_name(f"{file.stem}-{at}{DAMAGED}")
        with open(aside, "wb", opener=private) as out:
            out.write(data[at:])
            out.flush()
            os.fsync(out.fileno())
        self.sync()
        log.warning(
            "%s: its last %d bytes, from byte %d on, are not a whole request. They were cut short before they were"
            " acknowledged, or damaged since; they are kept in %s",
            *(file, len(data) - at, at, aside),
        )


class SpoolWriter:
    """Appends to the segments of a folder, and begins a new one when it is full; everything before `end` is on disk."""

    def __init__(self, folder: SpoolFolder, segment: int, largest: int) -> None:
        """Begins that segment; the folder must exist."""
        self._folder, self._largest = folder, largest
        self._mark = private(str(folder.path / SYNCED), os.O_WRONLY | os.O_CREAT)
        self.end = SpoolPosition(segment, 0)
        self._file = self._begin(segment)
        self.broken = ""
        """Why nothing more can be appended."""

    def append(self, data: bytes) -> None:
        """Returns when the data is synced; raises OSError."""
        if self.broken:
            raise OSError(errno.EIO, self.broken)
        if self.end.offset >= self._largest:
            full = self._file
            self._file = self._begin(self.end.segment + 1)
            os.close(full)
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(self._file, left) :]
        except OSError:
            os.ftruncate(self._file, self.end.offset)  # a full disk may have room again later
            raise
        try:
            os.fdatasync(self._file)
        except OSError as error:
            # How much is on disk is unknown, and a second fsync would not report it (Linux forgets the error).
            self.broken = f"{error.strerror}; look at the disk, then start again"
            raise
        self.end = SpoolPosition(self.end.segment, self.end.offset + len(data))
        os.pwrite(self._mark, _SYNCED.pack(*self.end, _checksum(self.end)), 0)

    def close(self) -> None:
        os.close(self._file)
        os.close(self._mark)

    def _begin(self, segment: int) -> int:
        file = private(str(self._folder.file(segment)), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._folder.sync()
        self.end = SpoolPosition(segment, 0)
        return file


def private(path: str, flags: int) -> int:
    """Opens a file, and makes it readable by its owner only, even if it already exists."""
    file = os.open(path, flags, 0o600)
    os.fchmod(file, 0o600)
    return file


def _checksum(place: SpoolPosition) -> int:
    return crc32c(b"%d %d" % place)


def folders(path: Path, worker: int, workers: int) -> tuple[SpoolFolder, list[SpoolFolder]]:
    """The folder of one of `workers` that share a spool, and the folders with events that it takes over.

    Those are of workers that no longer exist, because the number of workers changed: a single worker uses `path`
    itself, several use a folder each in it. The numbers decide who takes over what, so no two take the same folder.
    """
    parts = {number: SpoolFolder(path / f"{WORKER}{number}") for number in _numbers(path)}
    left = {number: folder for number, folder in parts.items() if workers == 1 or number >= workers}
    if workers == 1:
        own = SpoolFolder(path)
    else:
        own = SpoolFolder(path / f"{WORKER}{worker}")
        left[0] = SpoolFolder(path)
    return own, [
        folder for number, folder in sorted(left.items()) if number % workers == worker and folder.has_events()
    ]


def _numbers(path: Path) -> list[int]:
    names = (folder.name.removeprefix(WORKER) for folder in path.glob(f"{WORKER}*"))
    return [int(name) for name in names if name.isdecimal()]


def damaged(file: Path, at: int) -> PenstockError:
    marks = file.with_name(SYNCED)
    return PenstockError(
        f"the spool is damaged at byte {at}",
        where=str(file),
        next=f"keep a copy of this file; then `truncate -s {at} {file} && rm -f {marks}`, and start again: "
        "events after that byte are in the copy only",
    )
