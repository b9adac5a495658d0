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

from penstock.connect.source.properties import CLASS
from penstock.connect.worker.api import application
from penstock.connect.worker.connector_store import ConnectorStore
from penstock.connect.worker.context import WorkerContext
from penstock.connect.worker.providers import Provided, Provider
from penstock.connect.worker.standalone import StandaloneHerder
from penstock.local.services import Services
from penstock.serve.rest_server import RestServer, address_of, bind


@pytest.fixture(scope="module")
def worker(
    spark: SparkSession, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StandaloneHerder]:
    """A worker with its own topic, stopped at the end."""
    bound = bind("127.0.0.1", 0)
    provided = Provided({"env": Provider("env"), "file": Provider("file")}, DEFAULTS)
    context = WorkerContext(spark, services.kafka, tmp_path_factory.mktemp("positions"), provided)
    made = StandaloneHerder(
        context, ConnectorStore(services.kafka, f"configs-{uuid.uuid4().hex[:8]}", {}), address_of(bound)
    )
    made.start()
    server = RestServer(application(made), bound)
    yield made
    server.close()
    made.close()


@pytest.fixture(scope="module")
def url(worker: StandaloneHerder) -> str:
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
