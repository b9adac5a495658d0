"""The folder of a checkpoint: small text files, read and written whole, on this machine or in any that Hadoop reads."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_URI = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):(.*)")


class CheckpointFolder(Protocol):
    """The files of one checkpoint, by their paths below it."""

    @property
    def where(self) -> str:
        """The folder, for messages."""

    def read(self, name: str) -> str | None:
        """The text of a file; None if it does not exist. Bytes that are not UTF-8 become U+FFFD."""

    def write(self, name: str, text: str) -> None:
        """Write or replace a file, all of it or nothing."""

    def numbers(self, folder: str) -> list[int]:
        """The sorted numbers of the files in a folder; Spark names the files of batches by number."""


@dataclass(frozen=True)
class Local:
    """A folder on this machine."""

    path: Path

    @property
    def where(self) -> str:
        return str(self.path)

    def read(self, name: str) -> str | None:
        try:
            return (self.path / name).read_text(errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._unusable(name, error) from error

    def write(self, name: str, text: str) -> None:
        file = self.path / name
        # The dot hides the file from Spark.
        unfinished = file.with_name(f".{file.name}.{os.getpid()}.tmp")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with unfinished.open("w") as written:
                written.write(text)
                written.flush()
                os.fsync(written.fileno())
            # Hadoop would compare the new file with the checksum of the old one.
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
            unfinished.replace(file)
            _sync(file.parent)
        except OSError as error:
            with suppress(OSError):
                unfinished.unlink()
            raise self._unusable(name, error) from error

    def numbers(self, folder: str) -> list[int]:
        try:
            return sorted(int(file.name) for file in (self.path / folder).iterdir() if file.name.isdecimal())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise self._unusable(folder, error) from error

    def _unusable(self, name: str, error: OSError) -> PenstockError:
        return PenstockError(
            f"the checkpoint cannot be used: {error.strerror or error}",
            where=str(self.path / name),
            next="give a folder that this user can read and write",
        )


@dataclass(frozen=True)
class Hadoop:
    """A folder in any file system that Spark knows, for example hdfs: or s3a:."""

    spark: SparkSession
    uri: str

    @property
    def where(self) -> str:
        return self.uri

    def read(self, name: str) -> str | None:
        path = self.path(name)
        if not self.files.exists(path):
            return None
        stream = self.files.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        path = self.path(name)
        unfinished = self._jvm.org.apache.hadoop.fs.Path(path.getParent(), f".{path.getName()}.{os.getpid()}.tmp")
        self.create(unfinished, text)
        self.rename(unfinished, path, "OVERWRITE")

    def numbers(self, folder: str) -> list[int]:
        path = self.path(folder)
        if not self.files.exists(path):
            return []
        names = [str(found.getPath().getName()) for found in self.files.listStatus(path)]
        return sorted(int(name) for name in names if name.isdecimal())

    def create(self, path: Any, text: str) -> None:
        """Write a file; a reader may see a part of it."""
        stream = self.files.create(path, True)
        try:
            stream.write(text.encode())
        finally:
            stream.close()

    def rename(self, old: Any, new: Any, option: str) -> None:
        """Rename atomically; `option` is Hadoop's: NONE fails if `new` exists, OVERWRITE replaces it."""
        contexts, options = self._jvm.org.apache.hadoop.fs.FileContext, self._jvm.org.apache.hadoop.fs.Options.Rename
        how = self.spark.sparkContext._gateway.new_array(options, 1)  # type: ignore[union-attr]
        how[0] = getattr(options, option)
        contexts.getFileContext(self.files.getUri(), self.files.getConf()).rename(old, new, how)

    @cached_property
    def files(self) -> Any:
        """Hadoop's file system of the folder."""
        return self.path("").getFileSystem(self.spark._jsparkSession.sessionState().newHadoopConf())

    def path(self, name: str) -> Any:
        """Hadoop's path of a file or folder below this one."""
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.uri}/{name}")

    @property
    def _jvm(self) -> Any:
        return self.spark.sparkContext._jvm


def store_of(checkpoint: str | Path, spark: SparkSession) -> CheckpointFolder:
    """The folder that Spark uses for this checkpoint: a path on this machine, or a URI."""
    found = None if isinstance(checkpoint, Path) else _URI.fullmatch(checkpoint)
    if found is None:
        return Local(Path(checkpoint))
    if found[1] == "file":
        return Local(Path("/" + found[2].lstrip("/")))
    return Hadoop(spark, str(checkpoint).rstrip("/"))


def _sync(folder: Path) -> None:
    """Sync the folder's entries to disk, which include a rename."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
