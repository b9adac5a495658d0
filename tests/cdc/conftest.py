"""Fixtures for tests of the source on a real node: a keyspace per module, a table per test, a reader."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock import cdc

KEYSPACE = "source_live"


@pytest.fixture(scope="module")
def keyspace(cql: Any) -> str:
    cql.execute(f"DROP KEYSPACE IF EXISTS {KEYSPACE}")
    cql.execute(f"CREATE KEYSPACE {KEYSPACE} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}")
    return KEYSPACE


@pytest.fixture
def table(cql: Any, keyspace: str, request: pytest.FixtureRequest) -> Iterator[Callable[[str], str]]:
    """Creates the test's table, with images, from column definitions; returns its full name."""
    name = f"{keyspace}.t_{request.node.originalname[-30:]}"

    def create(columns: str) -> str:
        images = "{'enabled': true, 'preimage': 'full', 'postimage': true}"
        cql.execute(f"CREATE TABLE {name} ({columns}) WITH cdc = {images}")
        return name

    yield create
    cql.execute(f"DROP TABLE IF EXISTS {name}")


@pytest.fixture
def read(spark: SparkSession, services: Any) -> Callable[..., DataFrame]:
    def reader(table: str, **options: Any) -> DataFrame:
        given = {"hosts": services.cql, "name": table, "confidence": dt.timedelta(0)} | options
        return cdc.read(spark, table, **given)

    return reader
