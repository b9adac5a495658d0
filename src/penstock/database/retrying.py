"""Transient faults: which errors they are, and retrying with back-off and jitter."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from cassandra import (
    OperationTimedOut,
    ReadFailure,
    ReadTimeout,
    RequestValidationException,
    Unauthorized,
    Unavailable,
    UnresolvableContactPoints,
    WriteFailure,
    WriteTimeout,
)
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionException
from cassandra.protocol import OverloadedErrorMessage, RequestValidationException as RefusedMessage, ServerError

from penstock.errors import PenstockError
from penstock.process.signals import pause
from penstock.process.waits import Wait, span

T = TypeVar("T")

CHECK = "check the address and its port, and that the nodes are up and reachable"

TRANSIENT = (
    ConnectionException,
    NoHostAvailable,
    OperationTimedOut,
    OverloadedErrorMessage,
    ReadFailure,
    ReadTimeout,
    ServerError,
    Unavailable,
    UnresolvableContactPoints,
    WriteFailure,
    WriteTimeout,
)
# The driver has two families of refusals: it raises some as the node's messages, others as its own exceptions.
REFUSED = (RequestValidationException, RefusedMessage)


class DatabaseUnavailable(PenstockError):
    """No node answered within the patience of the caller; trying again later can help."""

    retriable = True


def retrying(call: Callable[[], T], *, what: str, where: str, patience: timedelta) -> T:
    """Return the result of `call`, repeated after transient faults, with back-off and jitter, for up to `patience`.

    Raises DatabaseUnavailable when `patience` is over, and PenstockError if the user lacks a permission.
    """
    most, delay = patience.total_seconds(), 0.05
    wait = Wait(f"the database ({what}, {where})", most)
    while True:
        try:
            answer = call()
            wait.over()
            return answer
        except Unauthorized as error:
            raise _forbidden(error, where) from error
        except TRANSIENT as error:
            if time.monotonic() + delay > wait.since + most:
                raise DatabaseUnavailable(
                    f"{what} failed for {span(most)}: {_reason(error)}",
                    where=where,
                    next=f"{CHECK}; a restarted query continues where it stopped",
                ) from error
            wait.failed(_reason(error), CHECK)
            pause(random.uniform(delay / 2, delay))
            delay = min(delay * 2, 2.0)


@contextmanager
def telling(*, where: str, next: str) -> Iterator[None]:
    """Convert the driver's errors inside the block to PenstockErrors; `next` is the step for a refused request."""
    try:
        yield
    except Unauthorized as error:
        raise _forbidden(error, where) from error
    except REFUSED as error:
        raise PenstockError(f"the database refuses the request: {_message(error)}", where=where, next=next) from error
    except TRANSIENT as error:
        raise DatabaseUnavailable(
            f"the database does not answer: {_reason(error)}",
            where=where,
            next=CHECK,
        ) from error


def _message(error: Exception) -> str:
    """The node's message, without what the driver adds."""
    match = re.search(r'message="(.*)"', str(error), re.DOTALL)
    return match[1] if match else str(error)


def _reason(error: Any) -> str:
    if isinstance(error, UnresolvableContactPoints):
        return "no address is known for the host; check its name"
    causes = getattr(error, "errors", None)
    if isinstance(causes, dict) and causes:
        return "; ".join(f"{host}: {_cause(cause)}" for host, cause in causes.items())
    return f"{type(error).__name__}: {error}"


def _cause(error: Any) -> str:
    """Why a node did not answer: the system's words, or the driver's without its Python values."""
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    if isinstance(error, OperationTimedOut) and isinstance(error.errors, str):
        return error.errors
    return str(error)


def _forbidden(error: Any, where: str) -> PenstockError:
    return PenstockError(
        f"no permission: {error}",
        where=where,
        next="GRANT SELECT on the table to this user (MODIFY to write it; for its changes, SELECT on its log and "
        "on KEYSPACE system_distributed)",
    )
