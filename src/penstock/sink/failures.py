"""Failures of the systems that sinks write to, told apart by whether trying again can help."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from penstock.errors import PenstockError

# Kafka's own mark for an error that passes; the end of a Python process that Spark talked to; a full disk, which may be
# that of the checkpoint.
RETRIABLE_CAUSES = (
    "org.apache.kafka.common.errors.RetriableException",
    "java.io.EOFException",
    "java.net.SocketException",
    "java.net.SocketTimeoutException",
)
RETRIABLE_TEXT = re.compile(
    "Python worker exited unexpectedly|Python worker failed to connect back|No space left on device|Disk quota exceeded"
)


class Unavailable(PenstockError):
    """What passes when the other system is back: `penstock run` starts the query again from its checkpoint."""

    retriable = True


def causes(error: Any) -> Iterator[tuple[set[str], str]]:
    """Each Java exception of the chain: its class with all super-classes, and its message."""
    while error is not None:
        kinds, kind = set(), error.getClass()
        while kind is not None:
            kinds.add(str(kind.getName()))
            kind = kind.getSuperclass()
        yield kinds, str(error.getMessage() or "")
        error = error.getCause()


def passes(found: list[tuple[set[str], str]]) -> bool:
    """Whether trying again can help with an error of these causes."""
    return any(set(RETRIABLE_CAUSES) & kinds or RETRIABLE_TEXT.search(text) for kinds, text in found)


def of_batch(error: PySparkException | Py4JJavaError, where: str) -> Unavailable | None:
    """A failure that passes, of Spark inside a batch that Python writes: from it Spark would keep only the text."""
    # PySpark wraps Java's exceptions of some classes and lets others through.
    origin = error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
    found = list(causes(origin))
    if not passes(found):
        return None
    said = next((text.splitlines()[0] for _, text in reversed(found) if text.strip()), "Spark gave no reason")
    return Unavailable(said, where=where, next="see whether the other system is up")
