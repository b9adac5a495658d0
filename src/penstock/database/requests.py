"""Sends many requests concurrently, with limits in number and time, and repeats each until it is answered.

A request with several statements is one unlogged batch: it saves most of the cost of separate requests on the node, and
has the same guarantees as separate statements. All statements must be safe to repeat, or their request says `once`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import chain, cycle, repeat
from operator import itemgetter
from typing import Any, TypeAlias

from cassandra import InvalidRequest, OperationTimedOut, Unauthorized, WriteFailure, WriteTimeout
from cassandra.connection import ConnectionException
from cassandra.protocol import ServerError
from cassandra.query import BatchStatement, BatchType, BoundStatement

from penstock.database import Page
from penstock.database.access import Access
from penstock.database.bursts import DONE, Bursts, Outcome, PreparedBatch, pools
from penstock.database.cql_connection import CqlConnection, connection, table_of, written_at
from penstock.database.cql_types import CqlTable
from penstock.database.retrying import TRANSIENT, retrying
from penstock.database.table_catalog import base_name, describe
from penstock.database.token_ring import by_owner, owners
from penstock.errors import PenstockError, SchemaChanged

_FAULTS = (*TRANSIENT, InvalidRequest, Unauthorized)
"""What a request may end with, for which the others are waited for."""


_UNKNOWN = (ConnectionException, OperationTimedOut, ServerError, WriteFailure, WriteTimeout)
"""What a request may end with that some nodes have executed, or will."""


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
class CqlRequest:
    """Statements with their values as bytes; the owner of the partition `key` is asked first.

    `once`: executed twice, the statement would change more than once, so it is not sent again if it may have been
    executed. `micros` is its write time in microseconds since 1970, if its text has none; None is the time of sending.
    """

    statements: tuple[Statement, ...]
    key: bytes
    once: bool = False
    micros: int | None = None


@dataclass(frozen=True)
class RequestLimits:
    """How many requests run at once, how long one may take, and for how long faults are retried."""

    in_flight: int = 64
    timeout: timedelta = timedelta(seconds=10)
    patience: timedelta = timedelta(minutes=5)


def send_all(
    access: Access,
    keyspace: str,
    requests: Sequence[CqlRequest],
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
    sending = Sending(access, keyspace, limits, what=what, where=where, table=table, repeated=repeated)
    sending.add(requests)
    return sending.finish()


class Sending:
    """Requests that are sent while the caller makes more of them; the arguments are those of `send_all`."""

    def __init__(
        self,
        access: Access,
        keyspace: str,
        limits: RequestLimits,
        *,
        what: str,
        where: str,
        table: CqlTable | None = None,
        repeated: Callable[[int], None] | None = None,
    ) -> None:
        self._access, self._keyspace, self._limits = access, keyspace, limits
        self._what, self._place = what, f"{where} at {access.hosts}"
        self._table, self._repeated = table, repeated
        self._requests: list[CqlRequest] = []
        self._answers: list[Page | None] = []
        self._waiting: deque[tuple[int, int, Any]] = deque()
        self._bursts = Bursts(limits.timeout.total_seconds(), self._completed)
        self._for_driver: deque[int] = deque()
        self._uncertain: dict[int, Exception] = {}
        self._fault: Exception | None = None
        self._sent = 0

    def add(self, requests: Sequence[CqlRequest]) -> None:
        """Send more requests; waits while `limits.in_flight` of them have no answer.

        After a fault they are only kept: `finish` sends them, and raises what is to be raised.
        """
        first = len(self._requests)
        self._requests += requests
        self._answers += [None] * len(requests)
        try:
            self._send(range(first, len(self._requests)), self._keyspace)
        except _FAULTS as error:
            self._fault = self._fault or error

    def finish(self) -> list[Page]:
        """Wait for all answers, and return them in the order of the requests."""
        # The first attempt is what `add` has sent. Later ones do not ask the owner, which may be down: any node can.
        attempts = chain([()], repeat(None))
        try:
            retrying(
                lambda: self._attempt(next(attempts)),
                what=self._what,
                where=self._place,
                patience=self._limits.patience,
            )
        except InvalidRequest as error:
            texts = {text for request in self._requests for text, _ in request.statements}
            raise refusal(
                error,
                self._access,
                self._table,
                texts,
                what=self._what,
                where=self._place,
                patience=self._limits.patience,
            ) from error
        if self._repeated and (more := self._sent - len(self._requests)):
            self._repeated(more)
        return [answer for answer in self._answers if answer is not None]

    def unanswered(self) -> list[int]:
        """The numbers of the requests without an answer, but for those that are uncertain."""
        answers = enumerate(self._answers)
        return [number for number, answer in answers if answer is None and number not in self._uncertain]

    def uncertain(self) -> dict[int, Exception]:
        """Why it is not known of some requests, by number, whether they were executed; they are not sent again."""
        return self._uncertain

    def _attempt(self, numbers: Sequence[int] | None) -> None:
        """Send these requests, or all without an answer; raise a fault after all are done."""
        if numbers is None:
            numbers = self.unanswered()
        try:
            self._send(numbers, None)
            self._bursts.wait(0)
            self._send_by_driver()
        except _FAULTS as error:
            self._fault = self._fault or error
        while self._waiting:
            self._receive()
        if fault := self._fault:
            self._fault = None
            raise fault

    def _send(self, numbers: Sequence[int], keyspace: str | None) -> None:
        """Send requests, to their owners if `keyspace` is given, until there is a fault."""
        if self._fault or not numbers:
            return
        link = connection(self._access)
        keys = [self._requests[number].key for number in numbers]
        hosts = owners(link, keyspace, keys) if keyspace else [None] * len(keys)
        left = dict(zip(numbers, hosts, strict=True))
        if keyspace:
            left = self._send_batches(link, left)
        for number, host in left.items():
            self._await_room(1)
            if self._fault:
                return
            request, seconds = self._requests[number], self._limits.timeout.total_seconds()
            statement = _statement(link, request)
            with written_at(request.micros):
                future = link.pages.execute_async(statement, timeout=seconds, host=host)
            self._waiting.append((number, int(time.time()), future))
            self._sent += 1

    def _send_batches(self, link: CqlConnection, some: Mapping[int, Any]) -> dict[int, Any]:
        """Send those of these requests that are batches, in bursts; returns the others, each with its host."""
        reached = pools(link)
        if not reached:
            return dict(some)
        left = {number: host for number, host in some.items() if len(self._requests[number].statements) == 1}
        numbers = [number for number in some if number not in left]
        # Half of what is allowed: so the other half is under way while the caller makes more of them.
        size, others = max(self._limits.in_flight // 2, 1), cycle(reached.values())
        for first in range(0, len(numbers), size):
            burst, ready = numbers[first : first + size], dict[Any, list[PreparedBatch]]()
            self._send_by_driver()
            self._await_room(len(burst))
            if self._fault:
                return {}
            for number in burst:
                pool = reached.get(some[number]) or next(others)
                ready.setdefault(pool, []).append(self._batch(link, number))
            for pool, batches in ready.items():
                unsent = self._bursts.send(link, pool, batches)
                self._sent += len(batches) - len(unsent)
                left |= dict.fromkeys(unsent)
        return left

    def _batch(self, link: CqlConnection, number: int) -> PreparedBatch:
        request = self._requests[number]
        return PreparedBatch(
            number, request.key, [(link.prepare(text), _now(values)) for text, values in request.statements]
        )

    def _await_room(self, count: int) -> None:
        """Wait until so many requests more are allowed."""
        most = self._limits.in_flight - count
        while self._waiting and len(self._waiting) + self._bursts.in_flight() > most:
            self._receive()
        self._bursts.wait(most)

    def _send_by_driver(self) -> None:
        """Send what only the driver understands the answers to, for example that a node has forgotten a statement."""
        while self._for_driver:
            self._send([self._for_driver.popleft()], None)

    def _completed(self, number: int, outcome: Outcome) -> None:
        """Take the outcome of a batch; runs in one of the driver's threads."""
        if outcome is DONE:
            self._answers[number] = Page(b"", 0, True)
        elif isinstance(outcome, _FAULTS):
            self._fault = self._fault or outcome
        else:
            self._for_driver.append(number)

    def _receive(self) -> None:
        """Take the answer to the oldest request that has none."""
        number, asked, future = self._waiting.popleft()
        try:
            rows = future.result().current_rows
        except _FAULTS as error:
            if self._requests[number].once and isinstance(error, _UNKNOWN):
                self._uncertain[number] = error
            else:
                self._fault = self._fault or error
        else:
            self._answers[number] = replace(rows[0], asked=asked) if rows else Page(b"", 0, True)


def _statement(link: CqlConnection, request: CqlRequest) -> Any:
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
    return [value if type(value) is bytes else _at_last(value) for value in values]


def _at_last(value: Value) -> bytes | None:
    return value.left() if isinstance(value, Expiry) else value.next() if isinstance(value, ListTime) else value


class _Bound(BoundStatement):  # type: ignore[misc]
    """A statement whose partition is given: the driver finds none in a list of keys."""

    @property
    def routing_key(self) -> bytes:
        return bytes(self._routing_key)


def _routed(statement: Any, prepared: Any, request: CqlRequest) -> Any:
    """The statement with its partition and table, from which scylla-driver finds the shard to send it to."""
    statement._routing_key = request.key
    statement.keyspace = prepared.keyspace
    statement.table = table_of(prepared)
    return statement


def size_of(statements: Iterable[Statement]) -> int:
    """The bytes of the values."""
    return sum(len(value) for _, values in statements for value in values if isinstance(value, bytes))


def together(
    access: Access, keyspace: str, writes: Iterable[tuple[bytes, Sequence[Statement]]], limits: RequestLimits
) -> list[CqlRequest]:
    """Group writes into requests of a few statements with the same owner.

    A write is its partition and statements that stay together, so that the database applies them at once.
    """
    requests: list[CqlRequest] = []
    for part in by_owner(access, keyspace, list(writes), itemgetter(0), patience=limits.patience):
        some: list[Statement] = []
        size, first = 0, b""
        for partition, statements in part:
            bytes_more = size_of(statements)
            if some and (len(some) + len(statements) > WRITES_TOGETHER or size + bytes_more > BYTES_TOGETHER):
                requests.append(CqlRequest(tuple(some), first))
                some, size = [], 0
            if not some:
                first = partition
            some += statements
            size += bytes_more
        requests.append(CqlRequest(tuple(some), first))
    return requests


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
