"""Every Python block of the README and of docs runs as it is written, on real servers; streams are built, not started.

The blocks of a page share their names, as in one session. Names that a page does not define are those of `session`.
"""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from adbc_driver_postgresql import dbapi
from cassandra.cluster import Session
from pyspark.sql import SparkSession, functions as F
from waiting import PATIENCE

import penstock
from penstock import cdc, segment, table as tables, window
from penstock.local.services import Services
from penstock.run.pipeline import Pipeline
from penstock.table import Table
from penstock.wire import BlockingProducer

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = {
    str(file.relative_to(ROOT)): BLOCK.findall(file.read_text())
    for file in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")))
    if BLOCK.search(file.read_text())
}
KEYSPACES = ("shop", "ids", "seg")
CLICKS = (
    "id int, user string, user_id string, page string, at timestamp, ts timestamp, day string, event string, "
    "person string, cookie string, email_hash string, partner string, key binary, value binary"
)
COLUMNS = CLICKS.replace("string", "text").replace("binary", "blob")
CREATED = (
    "CREATE TABLE shop.orders (customer text, id int, total decimal, paid boolean, PRIMARY KEY (customer, id))"
    " WITH cdc = {'enabled': true, 'preimage': 'full', 'postimage': true}",
    "CREATE TABLE shop.orders_copy (customer text, id int, total decimal, paid boolean, PRIMARY KEY (customer, id))",
    "CREATE TABLE shop.users (id text PRIMARY KEY, name text, city text)",
    f"CREATE TABLE shop.clicks ({COLUMNS}, name text, city text, PRIMARY KEY (id))",
)
IN_POSTGRES = (
    "CREATE SCHEMA shop",
    "CREATE TABLE shop.people (city text PRIMARY KEY, count bigint)",
    'CREATE TABLE shop.counts ("user" text, day date, count bigint, PRIMARY KEY ("user", day))',
    "CREATE TABLE shop.minutes (page text, window_start timestamptz, n bigint, PRIMARY KEY (page, window_start))",
    "CREATE TABLE shop.late_minutes (page text, window_start timestamptz, n bigint)",
    "CREATE TABLE shop.paid (customer text, id int, total numeric(10, 2), ts timestamptz, PRIMARY KEY (customer, id))",
)


@pytest.fixture(scope="module")
def shop(cql: Session, services: Services) -> Iterator[None]:
    """The tables that pages read and write."""
    for keyspace in KEYSPACES:
        cql.execute(
            f"CREATE KEYSPACE {keyspace} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
        )
    for statement in CREATED:
        cql.execute(statement)
    segment.create_tables(cql, "seg")
    with BlockingProducer(services.kafka) as producer:
        producer.send("orders", b"{}").result()
        producer.send("clicks", b"{}").result()
    yield
    for keyspace in KEYSPACES:
        cql.execute(f"DROP KEYSPACE {keyspace}", timeout=PATIENCE)


@pytest.fixture(scope="module")
def accounts(postgres: str) -> str:
    """The address of a PostgreSQL database with the tables that pages write."""
    with dbapi.connect(postgres) as connection, connection.cursor() as cursor:
        for statement in IN_POSTGRES:
            cursor.execute(statement)
        connection.commit()
    return postgres


def session(spark: SparkSession, services: Services, folder: Path) -> dict[str, Any]:
    """The names that pages use without defining them: the packages, addresses, and frames."""
    (folder / "clicks").mkdir()
    clicks = spark.readStream.schema(CLICKS).json(str(folder / "clicks")).withWatermark("ts", "10 minutes")
    people = clicks.selectExpr("user", "user AS city", "id AS v")
    return {
        **{"penstock": penstock, "ps": penstock, "F": F, "spark": spark},
        **{name: getattr(penstock, name) for name in ("cdc", "cql", "files", "join", "kafka", "postgres")},
        **{name: getattr(penstock, name) for name in ("replicate", "segment")},
        **{"table": tables, "KAFKA": services.kafka, "CQL": services.cql, "WORD": "secret"},
        **{"clicks": clicks, "frame": clicks.select("value"), "events": clicks.drop("person"), "visits": clicks},
        "minutes": window.tumbling(clicks, "1 minute", at="ts", key="page", name="minutes", n="count(*)"),
        **{"users": Table(people, key=("user",), version="v"), "properties": {}},
        "changes": cdc.read(spark, "shop.orders", hosts=services.cql, name="o", images="full", bad_values="problem"),
    }


@pytest.mark.slow_after(6)
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.usefixtures("shop")
def test_snippets_run(
    page: str,
    spark: SparkSession,
    services: Services,
    registry: str,
    accounts: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    names = session(spark, services, tmp_path) | {"REGISTRY": registry}
    names["URL"] = accounts if page == "docs/sinks.md" else registry
    addresses = {
        "localhost:9092": services.kafka,
        "127.0.0.1:9092": services.kafka,
        "127.0.0.1:9042": services.cql,
        "http://127.0.0.1:8081": registry,
        "postgresql://shop@db:5432/shop": accounts,
        "s3://data/visits": f"{tmp_path}/visits",
        "/data/counts": f"{tmp_path}/counts",
    }
    for block in PAGES[page]:
        text = block
        for written, real in addresses.items():
            text = text.replace(f'"{written}"', f'"{real}"')
        # Spark's process keeps its own folder.
        text = text.replace('"checkpoints/', f'"{tmp_path}/checkpoints/')
        code = compile(text, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        running = eval(code, names)
        if asyncio.iscoroutine(running):
            asyncio.run(running)
    for pipeline in [value for value in names.values() if isinstance(value, Pipeline)]:
        assert pipeline.queries(spark)
