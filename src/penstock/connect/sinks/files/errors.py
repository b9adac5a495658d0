"""Errors of file systems as a task reports them: some pass, such as a full disk, and others end the task."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import PenstockError
from penstock.spark_runtime.failures import Unavailable

PASSING = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ESTALE, errno.ENOENT, errno.ENOTDIR, errno.ENXIO),
    *(errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ECONNREFUSED, errno.EMFILE, errno.ENFILE, errno.ENOLCK),
}
"""What someone can repair while the connector waits: space, a folder or a disk that is not there, a server."""


@contextmanager
def reported(place: str) -> Iterator[None]:
    """Raise an OSError as Unavailable, for which the batch is repeated, or as PenstockError, which ends the task."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.errno in PASSING:
            raise Unavailable(
                f"files cannot be written: {error.strerror or error}",
                where=place,
                next="free disk space, or mount or create the folder; the batch is repeated",
            ) from None
        raise PenstockError(
            f"files cannot be written: {error.strerror or error}",
            where=place,
            next="let the worker's user write there, or correct the configuration",
        ) from None
