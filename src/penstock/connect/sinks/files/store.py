"""Where files are put: a folder of a file system, or a bucket of S3. A file is there whole, or not at all.

A folder gets the file under another name, in `+tmp`, which is written to the disk before the file gets its own; what an
attempt leaves there that is killed is removed by the next one for the same file. Object stores show whole objects only.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

from pyarrow import ArrowException
from pyarrow.fs import S3FileSystem

from penstock.checkpoint.checkpoint_folder import sync_folder
from penstock.connect.sinks.files.errors import reported
from penstock.errors import PenstockError
from penstock.spark_runtime.failures import Unavailable

STAGING = "+tmp"
_REFUSED = re.compile(r"ACCESS_DENIED|INVALID_ACCESS_KEY|INVALID_CLIENT_TOKEN|SIGNATURE|NO_SUCH_BUCKET|AccessDenied")
"""What S3 says of a wrong configuration; other errors can pass."""


class FileStore(Protocol):
    """A place for files."""

    def put(self, name: str, data: bytes) -> None:
        """Write the file of this path in the store, in place of one that is there; raises PenstockError."""

    def require(self) -> None:
        """Raise PenstockError unless the store is there."""


@dataclass(frozen=True)
class FolderStore:
    """A folder, in which other folders are created."""

    root: Path

    def put(self, name: str, data: bytes) -> None:
        file = self.root / name
        with reported(str(file)):
            self._require()
            file.parent.mkdir(parents=True, exist_ok=True)
            staging = self.root / name.partition("/")[0] / STAGING
            staging.mkdir(exist_ok=True)
            staged = f"{file.parent.relative_to(self.root).as_posix().replace('/', '+')}+{file.name}"[-180:]
            for left in staging.glob(f"{_literal(staged)}.*"):
                left.unlink(missing_ok=True)
            fresh = staging / f"{staged}.{uuid.uuid4().hex}"
            try:
                _write(fresh, data)
                fresh.replace(file)
            except OSError:
                with suppress(OSError):
                    fresh.unlink(missing_ok=True)
                raise
            sync_folder(file.parent)

    def require(self) -> None:
        with reported(str(self.root)):
            self._require()
        if not os.access(self.root, os.W_OK | os.X_OK):
            raise PenstockError(
                "the folder for files may not be written",
                where=str(self.root),
                next="give the worker's user this right",
            )

    def _require(self) -> None:
        # It is never created: a disk that is not mounted would have its files below the mount point.
        os.stat(f"{self.root}/.")  # noqa: PTH116  a path without the dot may be a file


def _literal(name: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", name)


def _write(file: Path, data: bytes) -> None:
    with file.open("xb", buffering=0) as opened:
        left = memoryview(data)
        while left:
            left = left[opened.write(left) :]
        os.fsync(opened.fileno())


@dataclass(frozen=True)
class S3Store:
    """A bucket of S3, or a part of it."""

    place: str
    """The bucket and a prefix."""
    region: str = ""
    endpoint: str = ""
    key: str = ""
    secret: str = field(default="", repr=False)

    @cached_property
    def _files(self) -> S3FileSystem:
        scheme, _, host = self.endpoint.rpartition("://")
        settings = {"region": self.region, "endpoint_override": host, "access_key": self.key, "secret_key": self.secret}
        options = {name: text for name, text in settings.items() if text}
        return S3FileSystem(scheme=scheme or "https", connect_timeout=10, request_timeout=60, **options)

    def put(self, name: str, data: bytes) -> None:
        with self._reported(name), self._files.open_output_stream(f"{self.place}/{name}") as opened:
            opened.write(data)

    def require(self) -> None:
        with self._reported(""):
            self._files.get_file_info(self.place.partition("/")[0])

    @contextmanager
    def _reported(self, name: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ArrowException) as error:
            place = f"s3://{self.place}{name and '/'}{name}"
            if _REFUSED.search(str(error)):
                raise PenstockError(
                    f"the object store refuses files: {error}",
                    where=place,
                    next="correct store.url, the key, or its rights",
                ) from None
            raise Unavailable(
                f"the object store does not take files: {error}",
                where=place,
                next="check s3.endpoint and the network; the batch is repeated",
            ) from None
