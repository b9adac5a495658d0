"""What tests share: one Kafka, one Cassandra and one Spark session for the whole run, started when first asked for.

PENSTOCK_TEST_SERVICES=<root> uses the services of that root and leaves them running: quick when a test is run often.
Property tests draw the same examples each time, so that what fails is what was changed; `--hypothesis-profile explore`
draws others, and more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.query import tuple_factory
from hypothesis import settings
from postgres_server import require_postgres
from pyspark.sql import SparkSession

from penstock.local.services import Services, down, up
from penstock.session import spark as spark_session

# In runs of minutes the JVMs' optimising compiler takes more CPU than it saves.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=1000, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """A running Kafka and Cassandra."""
    kept = os.environ.get("PENSTOCK_TEST_SERVICES")
    root = Path(kept) if kept else tmp_path_factory.mktemp("services")
    try:
        yield up(root)
    finally:
        if not kept:
            down(root)


@pytest.fixture(scope="session")
def cql(services: Services) -> Iterator[Session]:
    """A session of the CQL driver whose rows are tuples."""
    host, port = services.cql.split(":")
    profile = ExecutionProfile(row_factory=tuple_factory, request_timeout=60)
    cluster = Cluster([host], port=int(port), execution_profiles={EXEC_PROFILE_DEFAULT: profile})
    try:
        yield cluster.connect()
    finally:
        cluster.shutdown()


@pytest.fixture(scope="session")
def registry(services: Services) -> str:
    """The address of a running schema registry; it ends with the other services."""
    return up(services.root, only=["registry"]).registry


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a PostgreSQL server."""
    root = tmp_path_factory.mktemp("postgres")
    with require_postgres():
        running = up(root, only=["postgres"])
    yield running.postgres
    down(root)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local Spark session."""
    session = spark_session("tests")
    yield session
    session.stop()
