"""Folders in any file system that Spark knows, through Hadoop's classes in the JVM: of checkpoints, and of files."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from penstock.checkpoint.checkpoint_folder import (
    CheckpointFolder,
    Local,
    Location,
    is_object_store,
    location,
    require_small,
)
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Away(PenstockError):
    """A file system that does not answer, or does not do what it is asked to."""

    retriable = True


@dataclass(frozen=True)
class HadoopFiles:
    """A folder in any file system that Spark knows, for example hdfs: or s3a:; errors are Hadoop's."""

    spark: SparkSession
    uri: str

    def read(self, name: str) -> str | None:
        """The text of a file; None if it does not exist."""
        path = self.path(name)
        try:
            require_small(self.files.getFileStatus(path).getLen(), f"{self.uri}/{name}")
            stream = self.files.open(path)
        except Py4JJavaError as error:
            if _name(error) == "FileNotFoundException":
                return None
            raise
        try:
            return str(self.jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def create(self, path: Any, text: str) -> None:
        """Write a file; a reader may see a part of it."""
        _write(self.files.create(path, True), text)

    def rename(self, old: Any, new: Any, option: str) -> None:
        """Rename atomically; `option` is Hadoop's: NONE fails if `new` exists, OVERWRITE replaces it."""
        contexts, options = self.jvm.org.apache.hadoop.fs.FileContext, self.jvm.org.apache.hadoop.fs.Options.Rename
        how = self.spark.sparkContext._gateway.new_array(options, 1)  # type: ignore[union-attr]
        how[0] = getattr(options, option)
        contexts.getFileContext(self.files.getUri(), self.files.getConf()).rename(old, new, how)

    @cached_property
    def files(self) -> Any:
        """Hadoop's file system of the folder."""
        return self.path("").getFileSystem(self.spark._jsparkSession.sessionState().newHadoopConf())

    def path(self, name: str) -> Any:
        """Hadoop's path of a file or folder below this one."""
        return self.jvm.org.apache.hadoop.fs.Path(f"{self.uri}/{name}")

    @property
    def jvm(self) -> Any:
        return self.spark.sparkContext._jvm


class Hadoop(HadoopFiles):
    """A checkpoint in such a folder; raises PenstockError for Hadoop's errors, `Away` if trying again may help."""

    @property
    def where(self) -> str:
        return self.uri

    def read(self, name: str) -> str | None:
        with self._answers(name):
            return super().read(name)

    def write(self, name: str, text: str) -> None:
        with self._answers(name):
            path = self.path(name)
            if is_object_store(self.uri):
                # A reader sees what was there until all is written.
                self.create(path, text)
                return
            unfinished = self.jvm.org.apache.hadoop.fs.Path(path.getParent(), f".{path.getName()}.{uuid.uuid4().hex}")
            self.create(unfinished, text)
            self.rename(unfinished, path, "OVERWRITE")

    def add(self, name: str, text: str) -> bool:
        with self._answers(name):
            new = self.files.createFile(self.path(name)).overwrite(False).recursive()
            # Object stores need the option. Others create a file only if it does not exist, as `overwrite` says.
            new = new.opt("fs.option.create.conditional.overwrite", True)
            try:
                _write(new.build(), text)
            except Py4JJavaError:
                # Also while another process writes it, which has another error.
                if self.files.exists(self.path(name)):
                    return False
                raise
            return True

    def remove(self, name: str) -> None:
        with self._answers(name):
            self.files.delete(self.path(name), False)

    def numbers(self, folder: str) -> list[int]:
        with self._answers(folder):
            path = self.path(folder)
            if not self.files.exists(path):
                return []
            names = [str(status.getPath().getName()) for status in self.files.listStatus(path)]
            return sorted(int(name) for name in names if name.isdecimal())

    def below(self, name: str) -> Hadoop:
        return Hadoop(self.spark, f"{self.uri}/{name}")

    def folders(self, name: str = "") -> list[str] | None:
        with self._answers(name):
            path = self.path(name)
            if not self.files.exists(path):
                return None
            names = [str(status.getPath().getName()) for status in self.files.listStatus(path) if status.isDirectory()]
            return sorted(folder for folder in names if not folder.startswith("."))

    def changed(self, name: str) -> float | None:
        with self._answers(name):
            path = self.path(name)
            return self.files.getFileStatus(path).getModificationTime() / 1000 if self.files.exists(path) else None

    def move(self, old: str, new: str) -> None:
        with self._answers(old):
            self.files.mkdirs(self.path(new).getParent())
            self.rename(self.path(old), self.path(new), "NONE")

    @contextmanager
    def _answers(self, name: str) -> Iterator[None]:
        try:
            yield
        except Py4JJavaError as error:
            said = str(error.java_exception.getMessage() or _name(error)).strip().splitlines()[0]
            what, where = f"the checkpoint cannot be used: {said}", f"{self.uri}/{name}"
            # The class of a known scheme may be in a jar that Spark lacks.
            if _name(error) == "UnsupportedFileSystemException" or "ClassNotFoundException" in said:
                next = "give Spark the jars and settings of this file system (docs/cluster.md)"
                raise PenstockError(what, where=where, next=next) from error
            if _name(error) == "AccessControlException":
                next = "give a folder that this user can read and write"
                raise PenstockError(what, where=where, next=next) from error
            raise Away(what, where=where, next="check its address, and that the file system is up") from error


def store_of(checkpoint: str | Location, spark: SparkSession) -> CheckpointFolder:
    """The folder that Spark uses for this checkpoint: a path on this machine, or a URI."""
    folder = location(checkpoint) if isinstance(checkpoint, str) else checkpoint
    return Local(folder) if isinstance(folder, Path) else Hadoop(spark, folder.uri)


def _name(error: Py4JJavaError) -> str:
    """The class of a Java exception, without its package."""
    return str(error.java_exception.getClass().getSimpleName())


def _write(stream: Any, text: str) -> None:
    try:
        stream.write(text.encode())
    finally:
        stream.close()
