"""Connections to ScyllaDB or Cassandra: one per process and `Access`, until it is closed.

A page of rows is returned as the protocol's bytes (`Page`), not as Python objects: decoding rows makes the drivers
slow, and the caller decodes columns instead.
"""

from __future__ import annotations

import re
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from cassandra import AuthenticationFailed, ConsistencyLevel
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable
from cassandra.connection import DefaultEndPoint, DefaultEndPointFactory
from cassandra.marshal import int32_unpack
from cassandra.policies import (
    DCAwareRoundRobinPolicy,
    ExponentialReconnectionPolicy,
    FallthroughRetryPolicy,
    RoundRobinPolicy,
)
from cassandra.protocol import ResultMessage, _ProtocolHandler
from cassandra.query import tuple_factory
from cassandra.timestamps import MonotonicTimestampGenerator

from penstock.database import Page
from penstock.database.access import Access, NoTls
from penstock.errors import PenstockError


class _RawRows(ResultMessage):  # type: ignore[misc]
    """A result whose rows are not decoded."""

    def recv_results_rows(self, f: Any, version: int, user_types: Any, metadata: Any, encryption: Any) -> None:
        self.recv_results_metadata(f, user_types)
        columns = self.column_metadata or metadata
        self.column_names = [column[2] for column in columns]
        self.column_types = [column[3] for column in columns]
        rows = int32_unpack(f.read(4))
        self.parsed_rows = [Page(f.read(), rows, final=self.paging_state is None)]


class _RawProtocol(_ProtocolHandler):  # type: ignore[misc]
    message_types_by_opcode = _ProtocolHandler.message_types_by_opcode | {ResultMessage.opcode: _RawRows}


@dataclass(frozen=True)
class CqlConnection:
    """Two sessions on one cluster: `rows` returns tuples, `pages` returns `Page`s."""

    access: Access
    cluster: Any
    rows: Any
    pages: Any
    statements: dict[str, Any] = field(default_factory=dict)
    rings: dict[str, Any] = field(default_factory=dict)
    renewals: dict[Any, Any] = field(default_factory=dict)

    def prepare(self, text: str) -> Any:
        """The prepared statement, prepared once per connection."""
        if text not in self.statements:
            self.statements[text] = self.pages.prepare(text)
        return self.statements[text]

    def renew(self) -> None:
        """Connect sessions again that have lost their connection to a node.

        The driver leaves them without one for as long as the other session has a connection to this node.
        """
        for session in self.rows, self.pages:
            lost = any(pool.is_shutdown for pool in tuple(session.get_pools()))
            if lost and all(renewal.done() for renewal in self.renewals.get(session, ())):
                self.renewals[session] = session.update_created_pools()


class WriteTimes(MonotonicTimestampGenerator):  # type: ignore[misc]
    """The time that a connection gives to the writes that have none: now, or what `written_at` says."""

    def __call__(self) -> int:
        micros = _written_at.get()
        return super().__call__() if micros is None else micros


_written_at: ContextVar[int | None] = ContextVar("_written_at", default=None)


@contextmanager
def written_at(micros: int | None) -> Iterator[None]:
    """What is sent inside the block without a write time of its own has this one, in microseconds since 1970."""
    token = _written_at.set(micros)
    try:
        yield
    finally:
        _written_at.reset(token)


def table_of(prepared: Any) -> str | None:
    """The table of a prepared statement, from which scylla-driver finds its shard; None for one without values."""
    return prepared.column_metadata[0].table_name if prepared.column_metadata else None


class Translated(DefaultEndPointFactory):  # type: ignore[misc]
    """Reaches nodes elsewhere than at their own addresses.

    A driver's AddressTranslator knows no ports. A node whose port is not known is found by its host alone, if that has
    one address.
    """

    def __init__(self, access: Access) -> None:
        super().__init__(access.endpoints()[0][1])
        self._reached = access.translations()
        hosts = Counter(host for host, _ in self._reached)
        self._by_host = {host: reached for (host, _), reached in self._reached.items() if hosts[host] == 1}

    def create(self, row: Any) -> DefaultEndPoint:
        """The address of the node of a row of system.local or system.peers."""
        own = super().create(row)
        reached = self._reached.get((own.address, own.port)) or self._by_host.get(own.address)
        return DefaultEndPoint(*reached) if reached else own


_connections: dict[Access, CqlConnection] = {}
_changing = Lock()


def connection(access: Access) -> CqlConnection:
    """This process's connection to the cluster; tries once, so wrap it in `retrying` to wait for the cluster."""
    with _changing:
        if access not in _connections:
            _connections[access] = _connect(access)
        link = _connections[access]
        link.renew()
        return link


def close(access: Access) -> None:
    """Close this process's connection to the cluster, if there is one; the next `connection` opens a new one."""
    with _changing:
        ended = _connections.pop(access, None)
    if ended:
        ended.cluster.shutdown()


def _connect(access: Access) -> CqlConnection:
    balancing = DCAwareRoundRobinPolicy(access.local_dc) if access.local_dc else RoundRobinPolicy()
    profile = ExecutionProfile(
        load_balancing_policy=balancing,
        # `retrying` does the retries: the driver's own retries would hide how long a fault lasts.
        retry_policy=FallthroughRetryPolicy(),
        consistency_level=_consistency(access.consistency),
        row_factory=tuple_factory,
    )
    endpoints = access.endpoints()
    cluster = Cluster(
        endpoints,
        # scylla-driver takes it for nodes that it finds, also for those given here.
        port=endpoints[0][1],
        auth_provider=PlainTextAuthProvider(access.user, access.password) if access.user else None,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        ssl_context=access.tls_context(),
        reconnection_policy=ExponentialReconnectionPolicy(0.2, 2.0),
        endpoint_factory=Translated(access) if access.translated else None,
        timestamp_generator=WriteTimes(),
        # `table_catalog` describes tables; the driver's full refresh would cost more than the rest of connecting.
        schema_metadata_enabled=False,
        sockopts=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
    )
    try:
        rows, pages = cluster.connect(), cluster.connect()
    except NoHostAvailable as error:
        cluster.shutdown()
        raise _refused(access, error, {host.datacenter for host in cluster.metadata.all_hosts()}) from error
    except BaseException:
        cluster.shutdown()
        raise
    pages.client_protocol_handler = _RawProtocol
    return CqlConnection(access, cluster, rows, pages)


def _refused(access: Access, error: Any, centres: set[str | None]) -> Exception:
    """The error to raise: PenstockError for a refused user or certificate or a wrong `local_dc`, which waiting does not
    help; else the driver's error, which can be retried.

    `centres` are the data centres of the known nodes, None for a node that was not reached.
    """
    known = sorted(filter(None, centres))
    if access.local_dc and known and access.local_dc not in known:
        return PenstockError(
            f"no node is in the data centre {access.local_dc!r}",
            where=access.hosts,
            next=f"check local_dc: the data centres are {', '.join(known)}",
        )
    # If a connection after the first one failed, `errors` is a list of addresses without their errors.
    causes = list(error.errors.values()) if isinstance(error.errors, dict) else []
    for cause in causes:
        # The driver's error message contains OpenSSL's.
        if handshake := re.search(r"\[SSL: \w+\] ([^(]+)", str(cause)):
            return NoTls(
                f"TLS with the database failed: {handshake[1].strip()}",
                where=access.hosts,
                next="check ca, the certificate's names (verify_hostname), and that this port speaks TLS",
            )
    if any(isinstance(cause, AuthenticationFailed) for cause in causes):
        return PenstockError(
            f"the database refused user {access.user!r}" if access.user else "the database needs a user and a password",
            where=access.hosts,
            next="check the options user and password",
        )
    return error if isinstance(error, Exception) else RuntimeError(str(error))


def _consistency(name: str) -> int:
    level = ConsistencyLevel.name_to_value.get(name.upper())
    if level is None:
        raise PenstockError(
            f"{name!r} is not a consistency level",
            next=f"use one of {', '.join(sorted(ConsistencyLevel.name_to_value))}",
        )
    return int(level)
