"""The application of the page "From changes to results", with the page's tables, and minutes that last a second."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path

import pytest
from cassandra.cluster import Session
from postgres_server import execute, query
from pyspark.sql import SparkSession
from waiting import until

from penstock.cli.pipeline_file import load
from penstock.local.services import Services
from penstock.query.query import Query

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/07_revenue.py"
IN_CQL, IN_POSTGRES = re.findall(
    r"^```sql\n(.*?)^```", (ROOT / "docs/from-changes-to-results.md").read_text(), re.MULTILINE | re.DOTALL
)


@pytest.fixture
def tables(cql: Session, postgres: str) -> Iterator[None]:
    for statement in statements(IN_CQL):
        cql.execute(statement)
    execute(postgres, "CREATE SCHEMA market", "SET search_path TO market", *statements(IN_POSTGRES))
    yield
    cql.execute("DROP KEYSPACE market")
    execute(postgres, "DROP SCHEMA market CASCADE")


def statements(script: str) -> list[str]:
    return [one for one in map(str.strip, script.split(";\n")) if one]


@pytest.fixture
def queries(
    spark: SparkSession, services: Services, postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Query]:
    """Those of the example."""
    text = EXAMPLE.read_text()
    assert len(text.splitlines()) <= 60
    file = tmp_path / "revenue.py"
    quick = re.sub('"(1 minute|10 seconds)"', '"1 second"', text)
    file.write_text(quick.replace('latency="low"', 'latency="low", confidence="6 seconds"'))
    monkeypatch.setenv("CQL", services.cql)
    monkeypatch.setenv("POSTGRES", f"{postgres}?options=-csearch_path%3Dmarket")
    return load(f"{file}:revenue").queries(spark)


def reached(url: str, text: str, wanted: Sequence[tuple[object, ...]]) -> None:
    """Wait until a query gives these rows."""
    with suppress(AssertionError):
        until(lambda: query(url, text) == wanted, "such rows")
    assert query(url, text) == wanted


@pytest.mark.slow
@pytest.mark.usefixtures("tables")
def test_revenue_and_debts_are_exact_with_late_rows(
    cql: Session, postgres: str, queries: dict[str, Query], tmp_path: Path
) -> None:
    cql.execute("INSERT INTO market.customers (id, region) VALUES ('ann', 'eu')")
    placed: dict[str, list[int]] = {"ann": [], "bob": []}
    total = Decimal("0.10")

    def place(customer: str, behind: float) -> None:
        id, at = len(placed[customer]) + 1, int((time.time() - behind) * 1_000_000)
        placed[customer].append(id)
        values = f"VALUES ('{customer}', {id}, {total}) USING TIMESTAMP {at}"
        cql.execute(f"INSERT INTO market.orders (customer, id, total) {values}")

    def place_some() -> None:
        for _ in range(10):
            place("ann", 0)
            # In the next rounds perhaps late: the watermark is a second behind the newest order of the batch before.
            place("bob", 4)

    running = [one.start(checkpoint=tmp_path / name, trigger="1 second") for name, one in queries.items()]
    try:
        for round in range(1, 4):
            place_some()
            counted = "SELECT sum(orders)::int FROM market.all_revenue"
            reached(postgres, counted, [(20 * round,)])
        # None of these is a new order.
        cql.execute("INSERT INTO market.orders (customer, id, total) VALUES ('ann', 1, 7.05)")
        cql.execute("DELETE FROM market.orders WHERE customer = 'ann' AND id = 2")
        cql.execute("UPDATE market.orders SET paid = true WHERE customer = 'bob' AND id = 1")
        ann, bob = (len(ids) for ids in placed.values())
        by_region = (
            "SELECT region, sum(orders)::int, sum(total)::text FROM market.all_revenue GROUP BY region ORDER BY region"
        )
        revenue = [("eu", ann, f"{ann * total}"), ("unknown", bob, f"{bob * total}")]
        reached(postgres, by_region, revenue)
        owed = [("ann", ann - 1, f"{(ann - 2) * total + Decimal('7.05')}"), ("bob", bob - 1, f"{(bob - 1) * total}")]
        reached(postgres, "SELECT customer, orders, total::text FROM market.owed ORDER BY customer", owed)
    finally:
        for one in running:
            one.stop()
