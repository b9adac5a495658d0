"""Connections to ScyllaDB or Cassandra for reading: one session a process and address, transient faults retried.

A page of rows comes back as the protocol's bytes (`Page`), not as Python objects: decoding into rows is what makes
the drivers slow, and the caller decodes into columns.
"""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from cassandra import (
    AuthenticationFailed,
    ConsistencyLevel,
    OperationTimedOut,
    ReadFailure,
    ReadTimeout,
    Unauthorized,
    Unavailable,
)
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable
from cassandra.connection import ConnectionException
from cassandra.marshal import int32_unpack
from cassandra.policies import (
    DCAwareRoundRobinPolicy,
    ExponentialReconnectionPolicy,
    FallthroughRetryPolicy,
    RoundRobinPolicy,
)
from cassandra.protocol import OverloadedErrorMessage, ResultMessage, ServerError, _ProtocolHandler
from cassandra.query import tuple_factory

from penstock.errors import PenstockError
from penstock.source import tls
from penstock.source.pages import Page

log = logging.getLogger(__name__)

T = TypeVar("T")

TRANSIENT = (
    ConnectionException,
    NoHostAvailable,
    OperationTimedOut,
    OverloadedErrorMessage,
    ReadFailure,
    ReadTimeout,
    ServerError,
    Unavailable,
)


class DatabaseUnavailable(PenstockError):
    """No node answered for as long as the reader waits; trying again later can help."""

    retriable = True


@dataclass(frozen=True)
class Access:
    """How to reach a cluster: `hosts` as "host:port,..." (port 9042 if left out, IPv6 in brackets).

    `tls` encrypts; `ca`, `certificate` and `key` are PEM files, to be read where a connection is made. Without `ca` the
    system's authorities are trusted; `verify_hostname` asks that a node's certificate names the node.
    """

    hosts: str
    user: str = ""
    password: str = field(default="", repr=False)
    local_dc: str = ""
    consistency: str = "QUORUM"
    tls: bool = False
    ca: str = ""
    certificate: str = ""
    key: str = ""
    verify_hostname: bool = True

    def endpoints(self) -> list[tuple[str, int]]:
        return [_endpoint(host.strip()) for host in self.hosts.split(",") if host.strip()]


def _endpoint(text: str) -> tuple[str, int]:
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]]+))(?::(\d{1,5}))?", text)
    if not match:
        raise PenstockError(f"{text!r} is no address", next='give hosts as "10.0.0.1:9042,10.0.0.2:9042"')
    return match[1] or match[2], int(match[3] or 9042)


class _RawRows(ResultMessage):  # type: ignore[misc]
    """A result whose rows stay bytes."""

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
class Connection:
    """Two sessions on one cluster: `rows` gives tuples, `pages` gives `Page`s."""

    access: Access
    cluster: Any
    rows: Any
    pages: Any
    statements: dict[str, Any] = field(default_factory=dict)

    def prepare(self, text: str) -> Any:
        """A prepared statement, made once a process."""
        if text not in self.statements:
            self.statements[text] = self.pages.prepare(text)
        return self.statements[text]


_connections: dict[Access, Connection] = {}


def connection(access: Access) -> Connection:
    """This process's connection to the cluster; one attempt, so wrap it in `retrying` where waiting is right."""
    if access not in _connections:
        _connections[access] = _connect(access)
    return _connections[access]


def _connect(access: Access) -> Connection:
    balancing = DCAwareRoundRobinPolicy(access.local_dc) if access.local_dc else RoundRobinPolicy()
    profile = ExecutionProfile(
        load_balancing_policy=balancing,
        # Retries are ours (`retrying`): the driver's own would hide how long a fault lasts.
        retry_policy=FallthroughRetryPolicy(),
        consistency_level=_consistency(access.consistency),
        row_factory=tuple_factory,
    )
    cluster = Cluster(
        access.endpoints(),
        auth_provider=PlainTextAuthProvider(access.user, access.password) if access.user else None,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        ssl_context=tls.context(access.ca, access.certificate, access.key, access.verify_hostname)
        if access.tls or access.ca or access.certificate
        else None,
        reconnection_policy=ExponentialReconnectionPolicy(0.2, 2.0),
        # Tables are described by our own queries; the driver's full refresh costs more than all else at connect.
        schema_metadata_enabled=False,
        token_metadata_enabled=False,
    )
    try:
        rows, pages = cluster.connect(), cluster.connect()
    except NoHostAvailable as error:
        cluster.shutdown()
        raise _refused(access, error) from error
    except BaseException:
        cluster.shutdown()
        raise
    pages.client_protocol_handler = _RawProtocol
    return Connection(access, cluster, rows, pages)


def _refused(access: Access, error: Any) -> Exception:
    """A refused user or certificate will not heal by waiting; all else may."""
    if broken := tls.refused(error.errors.values(), access.hosts):
        return broken
    if any(isinstance(cause, AuthenticationFailed) for cause in error.errors.values()):
        return PenstockError(
            f"the database refused user {access.user!r}" if access.user else "the database wants a user and a password",
            where=access.hosts,
            next="check the options user and password",
        )
    return error if isinstance(error, Exception) else RuntimeError(str(error))


def _consistency(name: str) -> int:
    level = ConsistencyLevel.name_to_value.get(name.upper())
    if level is None:
        raise PenstockError(
            f"{name!r} is no consistency level",
            next=f"use one of {', '.join(sorted(ConsistencyLevel.name_to_value))}",
        )
    return int(level)


def retrying(call: Callable[[], T], *, what: str, where: str, patience: timedelta) -> T:
    """The result of `call`, repeated with back-off and jitter through transient faults for as long as `patience`."""
    give_up = time.monotonic() + patience.total_seconds()
    delay = 0.05
    while True:
        try:
            return call()
        except Unauthorized as error:
            raise _forbidden(error, where) from error
        except TRANSIENT as error:
            if time.monotonic() + delay > give_up:
                raise DatabaseUnavailable(
                    f"{what} failed for {patience}: {_reason(error)}",
                    where=where,
                    next="check that the nodes are up and reachable; reading goes on where it stopped",
                ) from error
            log.warning("%s failed (%s), trying again: %s", what, where, _reason(error))
            time.sleep(random.uniform(delay / 2, delay))
            delay = min(delay * 2, 2.0)


def _reason(error: Any) -> str:
    causes = getattr(error, "errors", None)
    if isinstance(causes, dict) and causes:
        return "; ".join(f"{host}: {cause}" for host, cause in causes.items())
    return f"{type(error).__name__}: {error}"


def _forbidden(error: Any, where: str) -> PenstockError:
    return PenstockError(
        f"no permission: {error}",
        where=where,
        next="GRANT SELECT on the table, on its change log and on KEYSPACE system_distributed to this user",
    )
