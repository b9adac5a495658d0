"""The examples of changes run on a real node and a real broker."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from cassandra.cluster import Session
from confluent_kafka import Consumer
from pyspark.sql import SparkSession

from penstock.cli.pipeline_file import load
from penstock.local.services import Services

ROOT = Path(__file__).parent.parent
# The examples of the orders; the others have tests next to the features they show.
EXAMPLES = {"01_changes_to_kafka": "order_events", "02_two_queries": "paid_orders"}
PIPELINE = re.compile(r"^@(?:ps|penstock)\.pipeline\((.*)\)\ndef (\w+)\(", re.MULTILINE)
TABLE = """
    CREATE TABLE market.orders (customer text, id int, total decimal, paid boolean, PRIMARY KEY (customer, id))
    WITH cdc = {'enabled': true, 'preimage': true, 'postimage': true}
"""


@pytest.fixture(scope="module")
def market(cql: Session, services: Services) -> Iterator[None]:
    """The table of the examples, with an order that gets paid."""
    cql.execute("CREATE KEYSPACE market WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    cql.execute(TABLE)
    # The examples read one second behind now.
    at = time.time_ns() // 1000 - 2_000_000
    cql.execute(f"INSERT INTO market.orders (customer, id, total) VALUES ('ann', 1, 12.50) USING TIMESTAMP {at}")
    cql.execute(f"UPDATE market.orders USING TIMESTAMP {at + 1} SET paid = true WHERE customer = 'ann' AND id = 1")
    yield
    cql.execute("DROP KEYSPACE market")


def consume(services: Services, topic: str, count: int) -> list[tuple[str, str]]:
    group = uuid.uuid4().hex
    settings = {"bootstrap.servers": services.kafka, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    found: list[tuple[str, str]] = []
    try:
        while len(found) < count and (message := consumer.poll(60)):
            if not message.error():
                found.append((message.key().decode(), message.value().decode()))
    finally:
        consumer.close()
    return found


@pytest.mark.usefixtures("market")
@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_delivers(
    example: str, spark: SparkSession, services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = ROOT / "examples" / f"{example}.py"
    assert len(file.read_text().splitlines()) <= 40
    monkeypatch.setenv("CQL", services.cql)
    monkeypatch.setenv("KAFKA", services.kafka)
    for name, query in load(f"{file}:{EXAMPLES[example]}").queries(spark).items():
        query.start(checkpoint=tmp_path / (name or "single"), trigger="once").awaitTermination()
        if name == "paid":
            assert consume(services, "paid-orders", 1) == [("ann", '{"id":1,"total":"12.50"}')]
        else:
            found = consume(services, "market.market.orders", 2)
            assert [(json.loads(key), json.loads(value)["op"]) for key, value in found] == [
                ({"customer": "ann", "id": 1}, "c"),
                ({"customer": "ann", "id": 1}, "u"),
            ]


def test_no_two_examples_share_a_checkpoint() -> None:
    """README and docs count too: there, pipelines with the same name are the same pipeline."""
    named: dict[str, set[str]] = {}
    for file in (*ROOT.glob("examples/*.py"), *ROOT.glob("docs/**/*.md"), ROOT / "README.md"):
        for options, function in PIPELINE.findall(file.read_text()):
            given = re.search(r'name="([^"]+)"', options)
            named.setdefault(given[1] if given else function, set()).add(file.stem if file.suffix == ".py" else "docs")
    assert {"orders", "order_events", "paid_orders", "pages", "visitors", "segments"} <= named.keys()
    assert {name: files for name, files in named.items() if len(files) > 1} == {}
