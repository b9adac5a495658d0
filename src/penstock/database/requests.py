"""Sends many requests concurrently, with limits in number and time, and repeats each until it is answered.

A request with several statements is one unlogged batch: it saves most of the cost of separate requests on the node, and
has the same guarantees as separate statements. All statements must be safe to repeat.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count
from operator import itemgetter
from typing import Any, TypeAlias

from cassandra import InvalidRequest
from cassandra.query import BatchStatement, BatchType, BoundStatement

from penstock.database import Page
from penstock.database.access import Access
from penstock.database.cql_connection import CqlConnection, connection
from penstock.database.retrying import TRANSIENT, retrying
from penstock.database.table_catalog import base_name, describe
from penstock.database.token_ring import by_owner, owners
from penstock.errors import PenstockError, SchemaChanged
from penstock.schema import CqlTable


class RefusedValue(PenstockError):
    """The database refuses one of the values of a request; sent again it would be refused again."""


class Expiry(int):
    """When a write's values expire, in seconds since 1970, in place of its time to live.

    What is left is bound when the statement is sent: it may be sent again, a long time after it was made.
    """

    def left(self) -> bytes:
        # What ran out in the meantime must expire, too: 0 would be for ever.
        return max(self - int(time.time()), 1).to_bytes(4, "big")


class ListTime:
    """The write time, in microseconds, of a statement that sets a list, in place of its bytes.

    Elements that are written again at the same time would be there twice (CASSANDRA-11368): each time that the
    statement is sent it is a microsecond later, and so replaces what was there.
    """

    def __init__(self, micros: int) -> None:
        self._micros = micros

    def next(self) -> bytes:
        self._micros += 1
        return (self._micros - 1).to_bytes(8, "big", signed=True)


Value: TypeAlias = bytes | Expiry | ListTime | None
Values: TypeAlias = Sequence[Value]
Statement: TypeAlias = tuple[str, Values]
"""The text of a statement, and the values to bind."""

# Cassandra logs a warning for larger unlogged batches (unlogged_batch_across_partitions_warn_threshold and
# batch_size_warn_threshold, whose 5 KiB count memory).
WRITES_TOGETHER, BYTES_TOGETHER = 10, 4096


@dataclass(frozen=True)
class Request:
    """Statements with their values as bytes; the owner of the partition `key` is asked first."""

    statements: tuple[Statement, ...]
    key: bytes


@dataclass(frozen=True)
class RequestLimits:
    """How many requests run at once, how long one may take, and for how long faults are retried."""

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
    repeated: Callable[[int], None] | None = None,
) -> list[Page]:
    """Send the requests and return the answer to each; the answer to a write has no rows.

    `keyspace` is the keyspace of the partitions. If a request has several partitions, `by_owner` must have grouped
    them. `table` is the table of the requests, if there is only one. `repeated` is called with the number of requests
    that were sent again, if there are any.

    Raises DatabaseUnavailable after `limits.patience` of faults, SchemaChanged if the table has changed, and
    PenstockError if the database refuses a value or the user lacks a permission.
    """
    answers: list[Page | None] = [None] * len(requests)
    place = f"{where} at {access.hosts}"
    # Only the first attempt asks the owner: after a fault it may be down, and any node can answer.
    attempts, sent = iter([True]), count()
    try:
        retrying(
            lambda: _send_missing(
                connection(access), requests, answers, limits, keyspace if next(attempts, False) else None, sent
            ),
            what=what,
            where=place,
            patience=limits.patience,
        )
    except InvalidRequest as error:
        texts = {text for request in requests for text, _ in request.statements}
        raise refusal(error, access, table, texts, what=what, where=place, patience=limits.patience) from error
    if repeated and (more := next(sent) - len(requests)):
        repeated(more)
    return [answer for answer in answers if answer is not None]


def _send_missing(
    link: CqlConnection,
    requests: Sequence[Request],
    answers: list[Page | None],
    limits: RequestLimits,
    keyspace: str | None,
    sent: Iterator[int],
) -> None:
    """Send the requests without an answer, to their owners if `keyspace` is given; raise a fault after all are done.

    `sent` counts the requests.
    """
    hosts = owners(link, keyspace, [request.key for request in requests]) if keyspace else [None] * len(requests)
    waiting: deque[tuple[int, int, Any]] = deque()
    fault: Exception | None = None
    for number, request in enumerate(requests):
        if answers[number] is not None or fault:
            continue
        if len(waiting) >= limits.in_flight:
            fault = _receive(*waiting.popleft(), answers)
        waiting.append((number, int(time.time()), _send(link, request, limits, hosts[number])))
        next(sent)
    while waiting:
        fault = _receive(*waiting.popleft(), answers) or fault
    if fault:
        raise fault


def _send(link: CqlConnection, request: Request, limits: RequestLimits, host: Any) -> Any:
    return link.pages.execute_async(_statement(link, request), timeout=limits.timeout.total_seconds(), host=host)


def _statement(link: CqlConnection, request: Request) -> Any:
    if len(request.statements) == 1:
        text, values = request.statements[0]
        bound = _Bound(link.prepare(text), fetch_size=None)
        bound.values = _now(values)
        return _routed(bound, bound.prepared_statement, request)
    batch = BatchStatement(BatchType.UNLOGGED)
    # Like `batch.add`, which would serialize each value again.
    batch._statements_and_parameters = [
        (True, link.prepare(text).query_id, _now(values)) for text, values in request.statements
    ]
    return _routed(batch, link.prepare(request.statements[0][0]), request)


def _now(values: Values) -> list[bytes | None]:
    """The values as they are to be sent now."""
    return [
        value.left() if isinstance(value, Expiry) else value.next() if isinstance(value, ListTime) else value
        for value in values
    ]


class _Bound(BoundStatement):  # type: ignore[misc]
    """A statement whose partition is given: the driver finds none in a list of keys."""

    @property
    def routing_key(self) -> bytes:
        return bytes(self._routing_key)


def _routed(statement: Any, prepared: Any, request: Request) -> Any:
    """The statement with its partition and table, from which scylla-driver finds the shard to send it to."""
    statement._routing_key = request.key
    statement.keyspace = prepared.keyspace
    statement.table = prepared.column_metadata[0].table_name if prepared.column_metadata else None
    return statement


def _receive(number: int, asked: int, future: Any, answers: list[Page | None]) -> Exception | None:
    try:
        rows = future.result().current_rows
    except TRANSIENT as error:
        found: Exception = error
        return found
    answers[number] = replace(rows[0], asked=asked) if rows else Page(b"", 0, True)
    return None


def size_of(statements: Iterable[Statement]) -> int:
    """The bytes of the values."""
    return sum(len(value) for _, values in statements for value in values if isinstance(value, bytes))


def together(
    access: Access, keyspace: str, writes: Iterable[tuple[bytes, Sequence[Statement]]], limits: RequestLimits
) -> list[Request]:
    """Group writes into requests of a few statements with the same owner.

    A write is its partition and statements that stay together, so that the database applies them at once.
    """
    found: list[Request] = []
    for part in by_owner(access, keyspace, list(writes), itemgetter(0), patience=limits.patience):
        some: list[Statement] = []
        size, first = 0, b""
        for partition, statements in part:
            bytes_more = size_of(statements)
            if some and (len(some) + len(statements) > WRITES_TOGETHER or size + bytes_more > BYTES_TOGETHER):
                found.append(Request(tuple(some), first))
                some, size = [], 0
            if not some:
                first = partition
            some += statements
            size += bytes_more
        found.append(Request(tuple(some), first))
    return found


# Why a database refused a request: its table has changed, or a value is not valid.
#
# The database's answer is the same for both, so the table is described again. If it has changed, a restart helps; a
# value that is not valid would fail again.


def refusal(
    error: InvalidRequest,
    access: Access,
    table: CqlTable | None,
    statements: Iterable[str],
    *,
    what: str,
    where: str,
    patience: timedelta,
) -> PenstockError:
    """The error to raise: SchemaChanged if the table has changed, else RefusedValue.

    Without a single `table`, preparing the `statements` shows whether something has changed.
    """
    changed = retrying(
        lambda: _changed(connection(access), table, statements),
        what="describing the table",
        where=where,
        patience=patience,
    )
    if changed:
        return SchemaChanged(
            f"{what} failed, the table has changed since the query was built: {error}",
            where=where,
            next="restart the query: it checks the table again",
        )
    return RefusedValue(
        f"{what} failed, the database refuses a value: {error}",
        where=where,
        next="filter these rows out, or change the value to one that the database accepts",
    )


def _changed(link: CqlConnection, table: CqlTable | None, statements: Iterable[str]) -> bool:
    # A node that does not know of a schema change yet would report the old table. Sessions of scylla-driver wait.
    waiting = link.rows if hasattr(link.rows, "wait_for_schema_agreement") else link.cluster.control_connection
    waiting.wait_for_schema_agreement()
    if table is None:
        return not all(_prepares(link, text) for text in statements)
    try:
        return describe(link.rows, base_name(table)).columns != table.columns
    except PenstockError:
        return True


def _prepares(link: CqlConnection, text: str) -> bool:
    try:
        link.pages.prepare(text)
    except InvalidRequest:
        return False
    return True
