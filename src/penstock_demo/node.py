"""A session with the demo's CQL nodes that survives their restarts, and new streams for their change logs."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
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
AHEAD = timedelta(seconds=15)
"""A node looks for new generations every five seconds; it knows this one before it begins, even if a look fails."""
TIMES = "system_distributed.cdc_generation_timestamps"
STREAMS = "system_distributed.cdc_streams_descriptions_v2"


@contextmanager
def connect(hosts: str) -> Iterator[Any]:
    """A driver session with `host:port,...`, which connects again as soon as a node is back.

    The driver does not retry, because that would reuse the write's timestamp. The consistency level is ONE with a
    single node, and QUORUM with several.
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


def publish(session: Any) -> datetime:
    """Publish a generation of CDC streams, as a node that joins does: new streams for the same ranges of the ring.

    Returns when its streams come into use.
    """
    newest: datetime = session.execute(f"SELECT max(time) FROM {TIMES} WHERE key = 'timestamps'").one()[0]
    insert = f"INSERT INTO {STREAMS} (time, range_end, streams) VALUES (%s, %s, %s)"
    start = max(datetime.now(UTC).replace(tzinfo=None) + AHEAD, newest + timedelta(seconds=1))
    for end, streams in session.execute(f"SELECT range_end, streams FROM {STREAMS} WHERE time = %s", (newest,)):
        session.execute(insert, (start, end, set(map(_new, streams))))
    # The time goes last: readers trust streams only of a generation whose time is listed.
    session.execute(f"INSERT INTO {TIMES} (key, time) VALUES ('timestamps', %s)", (start,))
    return start


def _new(stream: bytes) -> bytes:
    """A new stream id with the same token and index: its second half begins with 38 random bits."""
    low = int.from_bytes(stream[8:], "big")
    return stream[:8] + (secrets.randbits(38) << 26 | low & 2**26 - 1).to_bytes(8, "big")
