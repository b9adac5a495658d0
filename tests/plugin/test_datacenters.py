"""Two datacenters: readers and writers stay in theirs, and go on when the other one is gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, ResponseFuture
from cassandra.policies import DCAwareRoundRobinPolicy
from cdc_queries import Sink, run
from cql_cluster import CqlCluster, cql_cluster
from pyspark.sql import SparkSession
from waiting import PATIENCE, until

import penstock as ps
from penstock import cdc, cql
from penstock.database.access import Access
from penstock.database.cql_connection import close, connection

pytestmark = [pytest.mark.kill, pytest.mark.slow]

SCHEMA = (
    "CREATE KEYSPACE both WITH replication = {'class': 'NetworkTopologyStrategy', 'east': 2, 'west': 1}",
    "CREATE TABLE both.t (k int PRIMARY KEY, v int) WITH cdc = {'enabled': true}",
    "CREATE TABLE both.copy (k int PRIMARY KEY, v int)",
)
NEAR: Any = {"local_dc": "east", "consistency": "LOCAL_QUORUM"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[CqlCluster]:
    with cql_cluster(tmp_path) as made:
        for datacenter in ("east", "east", "west"):
            made.join(datacenter)
        yield made


def connected(cluster: CqlCluster) -> Cluster:
    """A client of the nodes in the east."""
    host, port = cluster.addresses[0].split(":")
    policy = DCAwareRoundRobinPolicy("east")
    near = ExecutionProfile(policy, consistency_level=ConsistencyLevel.LOCAL_QUORUM, request_timeout=PATIENCE)
    profiles = {EXEC_PROFILE_DEFAULT: near}
    return Cluster([host], port=int(port), connect_timeout=PATIENCE, execution_profiles=profiles)


def test_a_datacenter_is_enough(cluster: CqlCluster, spark: SparkSession, tmp_path: Path) -> None:
    hosts = ",".join(cluster.addresses)
    sink = Sink()

    def read() -> list[int]:
        frame = cdc.read(spark, "both.t", hosts=hosts, name="t", confidence="0 seconds", **NEAR)
        run(frame, sink, tmp_path / "read")
        return sorted(row.key.k for row in sink.rows)

    def copy() -> None:
        frame = cdc.read(spark, "both.t", hosts=hosts, name="t", confidence="0 seconds", **NEAR)
        query = ps.write(frame.selectExpr("key.k AS k", "1 AS v"), cql.sink("both.copy", hosts=hosts, **NEAR))
        query.start(checkpoint=tmp_path / "copy", trigger="once").awaitTermination()

    with connected(cluster) as client:
        session = client.connect()
        for statement in SCHEMA:
            session.execute(statement)
        for k in range(100):
            session.execute(f"INSERT INTO both.t (k, v) VALUES ({k}, {k})")
        assert read() == [*range(100)]
        assert datacenters(hosts) == {"east"}
        cluster.kill(2)
        for k in range(100, 200):
            session.execute(f"INSERT INTO both.t (k, v) VALUES ({k}, {k})")
        assert read() == [*range(200)]
        copy()
        assert sorted(row.k for row in session.execute("SELECT k FROM both.copy")) == [*range(200)]


def datacenters(hosts: str) -> set[str]:
    """Where requests were answered."""
    access = Access(hosts, **NEAR)
    link = connection(access)
    until(lambda: link.pages.get_pools(), "connections")
    asked: list[ResponseFuture] = []
    link.pages.add_request_init_listener(asked.append)
    for _ in range(20):
        link.pages.execute("SELECT k FROM both.t LIMIT 1")
    found = {future.coordinator_host.datacenter for future in asked}
    close(access)
    return found
