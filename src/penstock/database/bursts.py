"""Batches as bytes of CQL's native protocol, many of them in one write to a connection of the driver.

For each request the driver makes a future, a timer and a list of nodes to try, puts it into a segment of its own, and
wakes its thread, which sends it: 150 microseconds for a batch of ten rows. A burst, which other drivers call coalesced
writes, takes two fifths of that, and less of the node (docs/decisions/0017-what-a-record-costs-in-a-sink.md). Streams,
connections and their ends stay the driver's; what it has for this is private, so its versions are limited in
pyproject.toml.

Source: Apache Cassandra's native_protocol_v5.spec, 2.2 (a segment has one or more envelopes) and 4.1.7 (BATCH).
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Sequence
from functools import partial
from threading import Condition
from typing import Any, NamedTuple

from cassandra import OperationTimedOut, ProtocolVersion
from cassandra.connection import ConnectionException
from cassandra.pool import NoConnectionsAvailable
from cassandra.protocol import RESULT_KIND_VOID, BatchMessage, ErrorMessage, ResultMessage, _ProtocolHandler
from cassandra.query import UNSET_VALUE, BatchType
from cassandra.segment import Segment

from penstock.database.cql_connection import CqlConnection, table_of

DONE = None
"""The outcome of a batch that was written."""
Outcome = Exception | None
_VOID = RESULT_KIND_VOID.to_bytes(4, "big")
_NULL, _UNSET = (-1).to_bytes(4, "big", signed=True), (-2).to_bytes(4, "big", signed=True)
_TIMESTAMP = 0x20  # the flag that says that there is one
_BORROW = 2.0  # seconds to wait for a free stream of a connection, as the driver does


class PreparedBatch(NamedTuple):
    """A batch of prepared statements with their values; `key` is the partition that it is sent for."""

    number: int
    key: bytes
    statements: Sequence[tuple[Any, Sequence[Any]]]


class _Pending(NamedTuple):
    """A batch without an answer; `deadline` in seconds of the monotonic clock."""

    number: int
    pool: Any
    deadline: float


class _Batch(BatchMessage):  # type: ignore[misc]
    """A BATCH whose body is ready."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def send_body(self, f: Any, *about: Any) -> None:
        f.write(self._body)


class Bursts:
    """The batches of one sender.

    `completed` gets the number of each batch and its outcome, in one of the driver's threads: DONE or what went wrong.
    `seconds` after a batch was sent this is OperationTimedOut.
    """

    def __init__(self, seconds: float, completed: Callable[[int, Outcome], None]) -> None:
        self._seconds, self._completed = seconds, completed
        self._pending: dict[tuple[Any, int], _Pending] = {}
        self._changed = Condition()
        self._enough = 0

    def in_flight(self) -> int:
        """How many batches have no answer yet."""
        return len(self._pending)

    def send(self, link: CqlConnection, pool: Any, batches: Sequence[PreparedBatch]) -> list[int]:
        """Send the batches to the node of this pool; returns the numbers of those that it cannot take now."""
        unsent, ready = [], dict[Any, list[bytes]]()
        for batch in batches:
            message = _Batch(_body(link, batch))
            try:
                connection, stream = _borrow(pool, batch)
            except (ConnectionException, NoConnectionsAvailable):
                unsent.append(batch.number)
                continue
            with self._changed:
                self._pending[connection, stream] = _Pending(batch.number, pool, time.monotonic() + self._seconds)
            # The driver calls the first with the message that the second made of the answer.
            answered = partial(self._answered, connection, stream, pool)
            connection._requests[stream] = answered, _decoded, None
            ready.setdefault(connection, []).append(_envelope(connection, stream, message))
        for connection, envelopes in ready.items():
            connection.push(_segments(connection, envelopes))
        return unsent

    def wait(self, most: int) -> None:
        """Wait until no more than `most` batches have no answer."""
        while late := self._timed_out(most):
            for (connection, stream), batch in late.items():
                self._orphan(connection, stream, batch)

    def _timed_out(self, most: int) -> dict[tuple[Any, int], _Pending]:
        """Wait as `wait` does; returns, and forgets, those beyond their time as soon as there are some."""
        with self._changed:
            self._enough = most
            while len(self._pending) > most:
                now = time.monotonic()
                late = [place for place, batch in self._pending.items() if batch.deadline <= now]
                if late:
                    return {place: self._pending.pop(place) for place in late}
                self._changed.wait(next(iter(self._pending.values())).deadline - now)
        return {}

    def _answered(self, connection: Any, stream: int, pool: Any, response: Any) -> None:
        try:
            pool.return_connection(connection)
        finally:  # whatever becomes of the pool
            with self._changed:
                pending = self._pending.pop((connection, stream), None)
                if pending is not None:  # it was not given up
                    self._completed(pending.number, _outcome(response))
                    if len(self._pending) <= self._enough:
                        self._changed.notify_all()

    def _orphan(self, connection: Any, stream: int, batch: _Pending) -> None:
        """Tell that a batch has no answer; the driver must not use its stream again until the answer comes."""
        if connection._requests.pop(stream, None) is not None:
            with connection.lock:
                connection.orphaned_request_ids.add(stream)
                if len(connection.orphaned_request_ids) >= connection.orphaned_threshold:
                    connection.orphaned_threshold_reached = True
            batch.pool.return_connection(connection, stream_was_orphaned=True)
        about = {str(connection.endpoint): f"no answer within {self._seconds:g} seconds"}
        with self._changed:
            self._completed(batch.number, OperationTimedOut(about, batch.pool.host))


def pools(link: CqlConnection) -> dict[Any, Any]:
    """The open pools of connections by host; empty if the cluster's version of the protocol is not known here."""
    if not ProtocolVersion.V3 <= link.cluster.protocol_version <= ProtocolVersion.V5:
        return {}
    return {pool.host: pool for pool in tuple(link.pages.get_pools()) if not pool.is_shutdown}


def _borrow(pool: Any, batch: PreparedBatch) -> tuple[Any, int]:
    """An open connection of the pool, and a stream of it that is free."""
    if hasattr(pool.host, "sharding_info"):  # scylla-driver has a connection for each shard
        prepared = batch.statements[0][0]
        connection, stream = pool.borrow_connection(_BORROW, batch.key, prepared.keyspace, table_of(prepared))
    else:
        connection, stream = pool.borrow_connection(_BORROW)
    if connection.is_closed or connection.is_defunct:
        pool.return_connection(connection)
        raise NoConnectionsAvailable
    return connection, stream


def _envelope(connection: Any, stream: int, message: _Batch) -> bytes:
    version, beta = connection.protocol_version, connection.allow_beta_protocol_version
    features = {"protocol_features": connection.features} if hasattr(connection, "features") else {}
    encoded = _ProtocolHandler.encode_message(message, stream, version, connection.compressor, beta, **features)
    return bytes(encoded)


def _body(link: CqlConnection, batch: PreparedBatch) -> bytes:
    parts = [BatchType.UNLOGGED.value.to_bytes(1, "big"), len(batch.statements).to_bytes(2, "big")]
    for prepared, values in batch.statements:
        id = prepared.query_id
        parts += b"\1", len(id).to_bytes(2, "big"), id, len(values).to_bytes(2, "big")
        for value in values:
            if value is None:
                parts.append(_NULL)
            elif value is UNSET_VALUE:
                parts.append(_UNSET)
            else:
                parts += len(value).to_bytes(4, "big"), value
    level = link.cluster.profile_manager.default.consistency_level
    size = 4 if ProtocolVersion.uses_int_query_flags(link.cluster.protocol_version) else 1
    flags = _TIMESTAMP.to_bytes(size, "big")
    at = link.cluster.timestamp_generator().to_bytes(8, "big", signed=True)
    return b"".join([*parts, level.to_bytes(2, "big"), flags, at])


def _segments(connection: Any, envelopes: Sequence[bytes]) -> bytes:
    """The envelopes as they are sent: from version 5 on, together in segments with checksums."""
    if not connection._is_checksumming_enabled:
        return b"".join(envelopes)
    segments, some, size = io.BytesIO(), list[bytes](), 0
    for envelope in envelopes:
        if some and size + len(envelope) > Segment.MAX_PAYLOAD_LENGTH:
            connection._segment_codec.encode(segments, b"".join(some))
            some, size = [], 0
        some.append(envelope)
        size += len(envelope)
    connection._segment_codec.encode(segments, b"".join(some))
    return segments.getvalue()


def _decoded(*arguments: Any) -> Any:
    """The usual answer without the driver's decoder, for which each answer is a new message."""
    flags, opcode, body = arguments[-5:-2]
    if not flags and opcode == ResultMessage.opcode and body == _VOID:
        return DONE
    return _ProtocolHandler.decode_message(*arguments)


def _outcome(response: Any) -> Outcome:
    if response is DONE or isinstance(response, ResultMessage):
        return DONE
    if isinstance(response, ErrorMessage):
        return response.to_exception()  # type: ignore[no-any-return]
    return response if isinstance(response, Exception) else RuntimeError(f"unexpected answer: {response!r}")
