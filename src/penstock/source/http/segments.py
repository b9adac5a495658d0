"""The files of a spool: segments of frames, each with its length and checksum, and the place that replay reached.

A frame is one request. Frames are appended and synced before they are acknowledged, so a frame that is cut short at the
end of the last file was never acknowledged; one with whole frames behind it was damaged later. The place is written
after Kafka has what lies before it: whoever dies in between replays that part again.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.errors import PenstockError
from penstock.source.http.events import Events
from penstock.wire.crc import crc32c
from penstock.wire.texts import Texts

HEAD = struct.Struct("<II")
"""Bytes of the payload, and their CRC32C."""
SUFFIX = ".spool"
PLACE = "place.json"
WORKER = "worker-"
FIRST = b"\x94"
"""With which each payload begins: msgpack's array of four."""


class Frame(msgspec.Struct, array_like=True):
    """The events of one request; `time` is milliseconds since 1970."""

    topic: str
    time: int
    keys: list[bytes | None] | bytes | None
    values: list[bytes]

    def events(self) -> Events:
        return Events.of(self.values, self.keys, 0)


class Place(NamedTuple):
    """Before which byte of which segment all is in Kafka."""

    segment: int
    offset: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Frame).decode


def frame(topic: str, time: int, events: Events) -> bytes:
    """One request as it stands in a file."""
    keys = events.keys.listed() if isinstance(events.keys, Texts) else events.keys
    payload = _encode((topic, time, keys, events.values.listed()))  # a Frame
    return HEAD.pack(len(payload), crc32c(payload)) + payload


def frames(data: bytes) -> Iterator[tuple[Frame, int]]:
    """The whole frames at the start of `data`, each with the offset of its end; ends at the first that is not whole."""
    at = 0
    while payload := _payload(data, at):
        at += HEAD.size + len(payload)
        yield _decode(payload), at


def _payload(data: bytes, at: int) -> bytes:
    """That of the frame at this place; empty if it is not whole."""
    if at + HEAD.size > len(data):
        return b""
    size, checksum = HEAD.unpack_from(data, at)
    if at + HEAD.size + size > len(data):
        return b""
    payload = data[at + HEAD.size : at + HEAD.size + size]
    return payload if crc32c(payload) == checksum else b""


def _is_torn(data: bytes, at: int) -> bool:
    """Whether there is no whole frame behind the one at this place, which is not whole; its length may be wrong too."""
    found = data.find(FIRST, at + HEAD.size + 1)
    while found >= 0:
        if _payload(data, found - HEAD.size):
            return False
        found = data.find(FIRST, found + 1)
    return True


class Folder:
    """The files of one spool."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def file(self, segment: int) -> Path:
        return self.path / f"{segment:012d}{SUFFIX}"

    def segments(self) -> list[int]:
        return sorted(int(file.stem) for file in self.path.glob(f"*{SUFFIX}"))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder alone; the lock falls with the process."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = (self.path / "lock").open("a")
        except OSError as error:
            raise PenstockError(
                f"the spool cannot be used: {error.strerror}",
                where=str(self.path),
                next="give a folder that can be written",
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

    def place(self) -> Place:
        """Where replay goes on."""
        try:
            return Place(*msgspec.json.decode((self.path / PLACE).read_bytes(), type=tuple[int, int]))
        except FileNotFoundError:
            return Place(0, 0)

    def note(self, place: Place) -> None:
        """Remember the place, whole or not at all, and drop the segments before it."""
        new = self.path / f"{PLACE}.new"
        with new.open("wb") as file:
            file.write(msgspec.json.encode(place))
            file.flush()
            os.fsync(file.fileno())
        new.rename(self.path / PLACE)
        for segment in self.segments():
            if segment < place.segment:
                self.file(segment).unlink()

    def recover(self) -> int:
        """Cut off what was never acknowledged, drop what Kafka has; the number of the next segment."""
        place, segments = self.place(), self.segments()
        for segment in segments:
            if segment < place.segment:  # it died before it could
                self.file(segment).unlink()
            else:
                self._check(segment, last=segment == segments[-1])
        return max([place.segment - 1, *segments]) + 1

    def read(self, place: Place, end: int | None, most: int) -> tuple[list[Frame], Place]:
        """Some frames from a place on, and the place behind them; `end` is how far this segment may be read."""
        with self.file(place.segment).open("rb") as file:
            size = os.fstat(file.fileno()).st_size if end is None else end
            file.seek(place.offset)
            data = file.read(min(most, size - place.offset))
            found = list(frames(data))
            if not found and data:  # one frame that is larger than `most`
                file.seek(place.offset)
                found = list(frames(file.read(size - place.offset)))[:1]
        ends = found[-1][1] if found else 0
        return [one for one, _ in found], Place(place.segment, place.offset + ends)

    def sync(self) -> None:
        """Make the names of new files safe."""
        directory = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _check(self, segment: int, *, last: bool) -> None:
        data = self.file(segment).read_bytes()
        whole = max((end for _, end in frames(data)), default=0)
        if whole == len(data):
            return
        if not (last and _is_torn(data, whole)):
            raise damaged(self.file(segment), whole)
        os.truncate(self.file(segment), whole)


def folders(path: Path, worker: int, workers: int) -> tuple[Folder, list[Folder]]:
    """The folder of one of `workers` that share a spool, and those with events that it takes over.

    These are of workers that are no more, as there were others: one alone has `path` itself, several have one each in
    it. What each takes over follows from the numbers, so that no two want the same.
    """
    parts = {number: Folder(path / f"{WORKER}{number}") for number in _numbers(path)}
    left = {number: one for number, one in parts.items() if workers == 1 or number >= workers}
    if workers == 1:
        own = Folder(path)
    else:
        own = Folder(path / f"{WORKER}{worker}")
        left[0] = Folder(path)
    return own, [one for number, one in sorted(left.items()) if number % workers == worker and one.segments()]


def _numbers(path: Path) -> list[int]:
    names = (one.name.removeprefix(WORKER) for one in path.glob(f"{WORKER}*"))
    return [int(name) for name in names if name.isdecimal()]


def damaged(file: Path, at: int) -> PenstockError:
    return PenstockError(
        f"the spool is damaged at byte {at}",
        where=str(file),
        next="move this file away and start again; its events behind that byte are in no topic",
    )
