"""A worker in this process, with the test run's Spark session, and another project's client."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka_connect import KafkaConnect
from keyspaces import new_keyspace
from pyspark.sql import SparkSession
from worker_group import DEFAULTS

from penstock.connect.api import application
from penstock.connect.connector_store import ConnectorStore
from penstock.connect.properties import CLASS
from penstock.connect.providers import Provided, Provider
from penstock.connect.worker import ConnectWorker
from penstock.connect.world import World
from penstock.local.services import Services
from penstock.serve.rest_server import RestServer, address_of, bind


@pytest.fixture(scope="module")
def worker(
    spark: SparkSession, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ConnectWorker]:
    """A worker with its own topic, stopped at the end."""
    bound = bind("127.0.0.1", 0)
    provided = Provided({"env": Provider("env"), "file": Provider("file")}, DEFAULTS)
    world = World(spark, services.kafka, tmp_path_factory.mktemp("positions"), provided)
    made = ConnectWorker(
        world, ConnectorStore(services.kafka, f"configs-{uuid.uuid4().hex[:8]}", {}), address_of(bound)
    )
    made.start()
    server = RestServer(application(made), bound)
    yield made
    server.close()
    made.close()


@pytest.fixture(scope="module")
def url(worker: ConnectWorker) -> str:
    return f"http://{worker.address}"


@pytest.fixture
def connect(url: str) -> KafkaConnect:
    """Another project's client."""
    return KafkaConnect(url)


@pytest.fixture(scope="module")
def tables(cql: Any) -> Iterator[Callable[..., str]]:
    """Creates tables in the module's own keyspace; returns their full names."""
    with new_keyspace(cql, "connect") as keyspace:

        def create(name: str, options: str | None = "{'enabled': true, 'preimage': true, 'postimage': true}") -> str:
            logged = f" WITH cdc = {options}" if options else ""
            cql.execute(f"CREATE TABLE {keyspace}.{name} (id int, at int, v text, PRIMARY KEY (id, at)){logged}")
            return f"{keyspace}.{name}"

        yield create


@pytest.fixture
def config(services: Services, tmp_path: Path) -> dict[str, str]:
    """A valid configuration without its tables, with the test's own names."""
    return {
        "connector.class": CLASS,
        "topic.prefix": f"t{uuid.uuid4().hex[:8]}",
        "scylla.cluster.ip.addresses": services.cql,
        "cdc.output.format": "advanced",
        "cdc.include.before": "full",
        "cdc.include.after": "full",
        "scylla.confidence.window.size": "0",
        "poll.interval.ms": "200",
    }
