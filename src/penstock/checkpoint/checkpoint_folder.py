"""The folder of a checkpoint: small text files, read and written whole, on this machine or in any that Hadoop reads."""

from __future__ import annotations

import os
import re
import uuid
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from penstock.errors import PenstockError
from penstock.process.paths import usable

_URI = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):(.*)")
LARGEST = 64 << 20
"""Bytes of a file: the offsets of thousands of partitions take some hundred kilobytes."""
_OBJECT_STORE = re.compile(r"(s3a?|s3n|gs|oss|cosn?|wasbs?)://", re.IGNORECASE)


class CheckpointFolder(Protocol):
    """The files of one checkpoint, by their paths below it."""

    @property
    def where(self) -> str:
        """The folder, for messages."""

    def read(self, name: str) -> str | None:
        """The text of a file; None if it does not exist. Bytes that are not UTF-8 become U+FFFD.

        Raises `PenstockError` for a file of more than LARGEST bytes, which no checkpoint has.
        """

    def write(self, name: str, text: str) -> None:
        """Write or replace a file, all of it or nothing."""

    def add(self, name: str, text: str) -> bool:
        """Write a file unless it exists; False if it does. Of several callers at the same time one gets True."""

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""

    def numbers(self, folder: str) -> list[int]:
        """The sorted numbers of the files in a folder; Spark names the files of batches by number."""

    def below(self, name: str) -> CheckpointFolder:
        """A folder in this one."""

    def folders(self, name: str = "") -> list[str] | None:
        """The sorted names of the folders in a folder, without hidden ones; None if it does not exist."""

    def changed(self, name: str) -> float | None:
        """When a file or a folder was changed last, in seconds since 1970; None if it does not exist."""

    def move(self, old: str, new: str) -> None:
        """Rename a file or a folder; folders above the new name are created."""


@dataclass(frozen=True)
class Remote:
    """A folder elsewhere: a URI that Hadoop reads."""

    uri: str

    def __truediv__(self, name: str) -> Remote:
        return Remote(f"{self.uri}/{name}") if name else self

    def __str__(self) -> str:
        return self.uri


Location: TypeAlias = Path | Remote
"""Where a checkpoint is."""


def location(text: str) -> Location:
    """A path on this machine, or a URI."""
    uri = _URI.fullmatch(text)
    if uri is None:
        return Path(text)
    if uri[1] == "file":
        return Path("/" + uri[2].lstrip("/"))
    return Remote(text.rstrip("/"))


@dataclass(frozen=True)
class Local:
    """A folder on this machine."""

    path: Path

    @property
    def where(self) -> str:
        return str(self.path)

    def read(self, name: str) -> str | None:
        with self._usable(name), suppress(FileNotFoundError, NotADirectoryError):
            require_small((self.path / name).stat().st_size, f"{self.path / name}")
            return (self.path / name).read_text(errors="replace")
        return None

    def write(self, name: str, text: str) -> None:
        file = self.path / name
        # The dot hides the file from Spark.
        unfinished = file.with_name(f".{file.name}.{os.getpid()}.tmp")
        with self._usable(name):
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                with unfinished.open("w") as written:
                    written.write(text)
                    written.flush()
                    os.fsync(written.fileno())
                # Hadoop would compare the new file with the checksum of the old one.
                file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
                unfinished.replace(file)
                sync_folder(file.parent)
            except OSError:
                with suppress(OSError):
                    unfinished.unlink()
                raise

    def add(self, name: str, text: str) -> bool:
        file = self.path / name
        unfinished = file.with_name(f".{file.name}.{uuid.uuid4().hex}.tmp")
        with self._usable(name):
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                unfinished.write_text(text)
                # Unlike a rename it fails if the name exists.
                file.hardlink_to(unfinished)
            except FileExistsError:
                return False
            finally:
                with suppress(OSError):
                    unfinished.unlink()
        return True

    def remove(self, name: str) -> None:
        with self._usable(name):
            (self.path / name).unlink(missing_ok=True)

    def numbers(self, folder: str) -> list[int]:
        with self._usable(folder), suppress(FileNotFoundError, NotADirectoryError):
            return sorted(int(file.name) for file in (self.path / folder).iterdir() if file.name.isdecimal())
        return []

    def below(self, name: str) -> Local:
        return Local(self.path / name)

    def folders(self, name: str = "") -> list[str] | None:
        with (
            self._usable(name),
            suppress(FileNotFoundError, NotADirectoryError),
            os.scandir(self.path / name) as entries,
        ):
            return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
        return None

    def changed(self, name: str) -> float | None:
        with self._usable(name), suppress(FileNotFoundError, NotADirectoryError):
            return (self.path / name).stat().st_mtime
        return None

    def move(self, old: str, new: str) -> None:
        with self._usable(old):
            (self.path / new).parent.mkdir(parents=True, exist_ok=True)
            (self.path / old).rename(self.path / new)

    def _usable(self, name: str) -> AbstractContextManager[None]:
        what, next = "the checkpoint cannot be used", "give a folder that this user can read and write"
        return usable(self.path / name, what, next)


def require_small(size: int, where: str) -> None:
    """Raise `PenstockError` for a file that is too large to be read as one of a checkpoint."""
    if size > LARGEST:
        what = f"a file of the checkpoint has {size} bytes, and at most {LARGEST} are read"
        raise PenstockError(
            what, where=where, next="it is damaged: restore the checkpoint from a backup, or start anew"
        )


def is_object_store(uri: str) -> bool:
    """Whether a URI is one of an object store, which has no rename: it copies and then deletes."""
    return _OBJECT_STORE.match(uri) is not None


def sync_folder(folder: Path) -> None:
    """Sync the folder's entries to disk, which include a rename."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
