"""Failures of Spark, and of the systems that sinks write to: whether trying again can help."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from penstock.errors import PenstockError

# Kafka's own mark for a retriable error; the end of a Python process of Spark; a full disk, perhaps the checkpoint's.
RETRIABLE_CAUSES = (
    "org.apache.kafka.common.errors.RetriableException",
    "java.io.EOFException",
    "java.net.SocketException",
    "java.net.SocketTimeoutException",
)
# "Stream closed" is Java's word for a Python process that has ended.
RETRIABLE_TEXT = re.compile(
    "Python worker exited unexpectedly|Python worker failed to connect back|Stream closed|No space left on device|"
    "Disk quota exceeded"
)


class Unavailable(PenstockError):
    """A failure that ends when the other system is back: `penstock run` restarts the query from its checkpoint."""

    retriable = True


def causes(error: Any) -> Iterator[tuple[set[str], str]]:
    """Each Java exception of the chain: the names of its class and super-classes, and its message."""
    while error is not None:
        kinds, kind = set(), error.getClass()
        while kind is not None:
            kinds.add(str(kind.getName()))
            kind = kind.getSuperclass()
        yield kinds, str(error.getMessage() or "")
        error = error.getCause()


def passes(failure_causes: list[tuple[set[str], str]]) -> bool:
    """Whether trying again can help with an error that has these causes."""
    return any(set(RETRIABLE_CAUSES) & kinds or RETRIABLE_TEXT.search(text) for kinds, text in failure_causes)


def passing_failure(error: PySparkException | Py4JJavaError, where: str) -> Unavailable | None:
    """The retriable error for a failure of Spark in a batch that Python writes, or None if it is not retriable.

    Spark itself would keep only the failure's text.
    """
    # PySpark wraps some classes of Java exceptions and passes others unchanged.
    origin = error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
    failure_causes = list(causes(origin))
    if not passes(failure_causes):
        return None
    said = next((text.splitlines()[0] for _, text in reversed(failure_causes) if text.strip()), "Spark gave no reason")
    return Unavailable(said, where=where, next="check that the other system is up")
