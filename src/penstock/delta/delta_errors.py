"""Errors of the library delta-rs and of the storage below it, as errors that say whether another try can help."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from deltalake.exceptions import CommitFailedError, DeltaError
from pyarrow.lib import ArrowException

from penstock.errors import PenstockError
from penstock.spark_runtime.failures import Unavailable

FULL = re.compile(
    "No space left on device|Disk quota exceeded|File too large|Input/output error|Stale file handle|Too many open "
    "files"
)
# No connection, no answer, and answers of a server that is overloaded or restarts.
AWAY = re.compile(
    r"error sending request|connection (?:closed|error|reset)|Connection re(?:fused|set)|timed out|dns error"
    r"|\b(?:429 Too Many|5\d\d (?:Internal|Bad Gateway|Service|Gateway))|SlowDown|ServiceUnavailable|InternalError"
)
UNSUPPORTED = re.compile(r"Unsupported table features required: \[([^\]]*)\]|Feature '([^']*)' is not supported")
CONFLICT = re.compile(r"Failed to commit transaction|[Cc]oncurrent|existing table version")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
DATA = re.compile(r"Preview of invalid data:.*", re.DOTALL)
"""Rows of the batch, which are not for logs."""
QUERY_STRING = re.compile(r"\?[^\s\"']*")
"""The part of an address that may contain a signature."""
LONGEST = 600
"""Characters of a library's message."""


@contextmanager
def penstock_errors(where: str) -> Iterator[None]:
    """Raise errors of delta-rs and of the storage as PenstockError, those that may pass as Unavailable."""
    try:
        yield
    except (DeltaError, OSError, ArrowException) as error:
        raise failure(error, where) from None


def failure(error: Exception, where: str) -> PenstockError:
    """The library's error as a PenstockError."""
    said = readable(error)
    if full := FULL.search(said):
        return Unavailable(
            f"the Delta table cannot be written: {full[0]}",
            where=where,
            next="free disk space or raise the limit; the batch is repeated",
        )
    if AWAY.search(said):
        return Unavailable(
            f"the storage of the Delta table is away: {said}",
            where=where,
            next="check that the storage runs at its address, and storage_options=; the batch is repeated",
        )
    if match := UNSUPPORTED.search(said):
        return PenstockError(
            f"the Delta table has features that the library deltalake cannot write: {match[1] or match[2]}",
            where=where,
            next="switch them off with ALTER TABLE ... DROP FEATURE in Spark, or write to another table",
        )
    if isinstance(error, CommitFailedError) and CONFLICT.search(said):
        return Unavailable(
            f"another writer changed the Delta table meanwhile: {said}",
            where=where,
            next="the batch is repeated; let one query at a time update the same rows",
        )
    return PenstockError(
        f"the Delta table cannot be written: {said}", where=where, next="fix the path, the rights or storage_options="
    )


def readable(error: Exception) -> str:
    """The message in one line, without colours, rows and signatures."""
    plain = DATA.sub("", COLOURS.sub("", str(error)).replace("\u21b3", ""))
    return " ".join(QUERY_STRING.sub("", plain).split())[:LONGEST] or type(error).__name__
