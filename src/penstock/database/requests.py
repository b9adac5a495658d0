"""Many requests at once: bounded in number and time, each sent again until it is answered.

A request with several statements is one unlogged batch: it saves the node most of what a request costs, and promises
nothing more than its statements one by one. All statements must be safe to repeat.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from operator import itemgetter
from typing import Any, TypeAlias

from cassandra import InvalidRequest
from cassandra.query import BatchStatement, BatchType, BoundStatement

from penstock.database.access import Access
from penstock.database.cql_connection import CqlConnection, connection
from penstock.database.pages import Page
from penstock.database.refusals import refusal
from penstock.database.retrying import TRANSIENT, retrying
from penstock.database.token_ring import by_owner, owners
from penstock.schema import CqlTable

Values: TypeAlias = Sequence[bytes | None]

# Cassandra warns of unlogged batches beyond these (unlogged_batch_across_partitions_warn_threshold and
# batch_size_warn_threshold, whose 5 KiB are of memory).
WRITES_TOGETHER, BYTES_TOGETHER = 10, 4096


@dataclass(frozen=True)
class Request:
    """Statements with their values as bytes; `key` is a partition's, whose owner is asked first."""

    statements: tuple[tuple[str, Values], ...]
    key: bytes


@dataclass(frozen=True)
class RequestLimits:
    """How many requests at once, how long one may take, and how long faults are waited out."""

    in_flight: int = 64
    timeout: timedelta = timedelta(seconds=10)
    patience: timedelta = timedelta(minutes=5)


def send_all(
    access: Access,
    keyspace: str,
    requests: Sequence[Request],
    limits: RequestLimits,
    *,
    what: str,
    where: str,
    table: CqlTable | None = None,
) -> list[Page]:
    """The answer to each request; a write's has no rows. Raises after `limits.patience` of faults.

    `keyspace` is that of the partitions; they are told apart by `by_owner` where several share a request. `table` is
    what the requests were made for: one that has changed raises SchemaChanged, a value that is refused does not.
    """
    answers: list[Page | None] = [None] * len(requests)
    place = f"{where} at {access.hosts}"
    # After a fault the owner may be away: any other node will do.
    attempts = iter([True])
    try:
        retrying(
            lambda: _send_missing(
                connection(access), requests, answers, limits, keyspace if next(attempts, False) else None
            ),
            what=what,
            where=place,
            patience=limits.patience,
        )
    except InvalidRequest as error:
        texts = {text for request in requests for text, _ in request.statements}
        raise refusal(error, access, table, texts, what=what, where=place, patience=limits.patience) from error
    return [answer for answer in answers if answer is not None]


def _send_missing(
    link: CqlConnection,
    requests: Sequence[Request],
    answers: list[Page | None],
    limits: RequestLimits,
    keyspace: str | None,
) -> None:
    """Send what has no answer yet, to its owner if `keyspace` is given; raises the first fault when all is done."""
    hosts = owners(link, keyspace, [request.key for request in requests]) if keyspace else [None] * len(requests)
    waiting: deque[tuple[int, Any]] = deque()
    fault: Exception | None = None
    for number, request in enumerate(requests):
        if answers[number] is not None or fault:
            continue
        if len(waiting) >= limits.in_flight:
            fault = _receive(*waiting.popleft(), answers)
        waiting.append((number, _send(link, request, limits, hosts[number])))
    while waiting:
        fault = _receive(*waiting.popleft(), answers) or fault
    if fault:
        raise fault


def _send(link: CqlConnection, request: Request, limits: RequestLimits, host: Any) -> Any:
    return link.pages.execute_async(_statement(link, request), timeout=limits.timeout.total_seconds(), host=host)


def _statement(link: CqlConnection, request: Request) -> Any:
    if len(request.statements) == 1:
        text, values = request.statements[0]
        bound = BoundStatement(link.prepare(text), fetch_size=None)
        bound.values = values
        return bound
    batch = BatchStatement(BatchType.UNLOGGED)
    # As `batch.add` would do, which serializes each value once more.
    batch._statements_and_parameters = [
        (True, link.prepare(text).query_id, values) for text, values in request.statements
    ]
    return batch


def _receive(number: int, future: Any, answers: list[Page | None]) -> Exception | None:
    try:
        rows = future.result().current_rows
    except TRANSIENT as error:
        found: Exception = error
        return found
    answers[number] = rows[0] if rows else Page(b"", 0, True)
    return None


def together(
    access: Access, keyspace: str, rows: Iterable[tuple[bytes, str, Values]], limits: RequestLimits
) -> list[Request]:
    """Writes, each with its partition, as requests of a few, which one node owns."""
    found: list[Request] = []
    for part in by_owner(access, keyspace, list(rows), itemgetter(0), patience=limits.patience):
        some: list[tuple[str, Values]] = []
        size, first = 0, b""
        for partition, text, values in part:
            bytes_more = sum(len(value) for value in values if isinstance(value, bytes))
            if some and (len(some) == WRITES_TOGETHER or size + bytes_more > BYTES_TOGETHER):
                found.append(Request(tuple(some), first))
                some, size = [], 0
            if not some:
                first = partition
            some.append((text, values))
            size += bytes_more
        found.append(Request(tuple(some), first))
    return found
