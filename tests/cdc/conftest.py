"""Fixtures for tests of the source on a real node: a keyspace per module, a table per test, a reader."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable
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
def table(cql: Any, keyspace: str, request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Creates the test's table, with images, from column definitions; returns its full name."""
    name = f"{keyspace}.t_{request.node.originalname[-24:]}_{uuid.uuid4().hex[:4]}"

    def create(columns: str) -> str:
        images = "{'enabled': true, 'preimage': 'full', 'postimage': true}"
        cql.execute(f"CREATE TABLE {name} ({columns}) WITH cdc = {images}")
        return name

    return create


@pytest.fixture
def read(spark: SparkSession, services: Any) -> Callable[..., DataFrame]:
    def reader(table: str, **options: Any) -> DataFrame:
        given = {"hosts": services.cql, "name": table, "confidence": dt.timedelta(0)} | options
        return cdc.read(spark, table, **given)

    return reader
