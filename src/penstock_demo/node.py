"""A session with the demo's CQL nodes that survives their restarts: it connects again as soon as a node is back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable
from cassandra.policies import (
    ConstantReconnectionPolicy,
    FallthroughRetryPolicy,
    WhiteListRoundRobinPolicy,
)
from cassandra.query import tuple_factory

RECONNECT = 0.5
PATIENCE = 15.0
START_PATIENCE = 60.0


@contextmanager
def connect(hosts: str) -> Iterator[Any]:
    """A driver session with `host:port,...`. The driver does not retry, because that would reuse the write's timestamp.

    The consistency level is ONE with a single node, and QUORUM with several.
    """
    nodes = [(host, int(port)) for host, _, port in (node.rpartition(":") for node in hosts.split(","))]
    profile = ExecutionProfile(
        load_balancing_policy=WhiteListRoundRobinPolicy([host for host, _ in nodes]),
        retry_policy=FallthroughRetryPolicy(),
        consistency_level=ConsistencyLevel.ONE if len(nodes) == 1 else ConsistencyLevel.QUORUM,
        # A timer per request costs a tenth of the client's time; heartbeats find a node that stopped answering.
        request_timeout=None,
        row_factory=tuple_factory,
    )
    cluster = Cluster(
        nodes,
        port=nodes[0][1],
        # Version 5 puts every request into a frame with checksums, computed in Python.
        protocol_version=4,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        reconnection_policy=ConstantReconnectionPolicy(RECONNECT, max_attempts=None),
        connect_timeout=PATIENCE,
        control_connection_timeout=PATIENCE,
        idle_heartbeat_interval=PATIENCE / 3,
        idle_heartbeat_timeout=PATIENCE,
    )
    try:
        session = _session(cluster)
        session.use_client_timestamp = False  # every statement has its own
        yield session
    finally:
        cluster.shutdown()


def _session(cluster: Any) -> Any:
    """Connect with retries: a node that has just started on a busy machine may time out on the first requests."""
    deadline = time.monotonic() + START_PATIENCE
    while True:
        try:
            return cluster.connect()
        except NoHostAvailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(RECONNECT)
