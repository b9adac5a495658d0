"""The example of persons, on a real node."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock import cql as pcql
from penstock.cli.run import load
from penstock.cql.matching.linking import node_of
from penstock.local.services import Services

EXAMPLE = Path(__file__).parents[2] / "examples/04_persons.py"


def test_visits_get_their_persons(
    spark: SparkSession, services: Services, cql: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 40
    monkeypatch.setenv("CQL", services.cql)
    store = pcql.ids("ads", hosts=services.cql)
    pcql.create(store, replication={"class": "SimpleStrategy", "replication_factor": 1})
    try:
        logged = "WITH cdc = {'enabled': true, 'postimage': true}"
        cql.execute(f"CREATE TABLE ads.visits (id int PRIMARY KEY, cookie text, email_hash text) {logged}")
        cql.execute("CREATE TABLE ads.visitors (id int PRIMARY KEY, person text)")
        for rows in ([(1, "c1", "e1")], [(2, "c2", "e1"), (3, "c3", None)]):
            for number, cookie, mail in rows:
                # The example reads up to one second ago.
                at = time.time_ns() // 1000 - 2_000_000
                cql.execute(
                    "INSERT INTO ads.visits (id, cookie, email_hash) VALUES (%s, %s, %s) USING TIMESTAMP %s",
                    (number, cookie, mail, at),
                )
            (query,) = load(f"{EXAMPLE}:visitors").queries(spark).values()
            query.start(checkpoint=tmp_path, trigger="once").awaitTermination()
        persons = dict(cql.execute("SELECT id, person FROM ads.visitors"))
        nodes = [node_of("cookie", "c1"), node_of("email_hash", "e1"), node_of("cookie", "c2")]
        assert persons[2].replace("-", "") == min(nodes).hex()
        assert persons[3].replace("-", "") == node_of("cookie", "c3").hex()
        assert persons[1].replace("-", "") == min(nodes[:2]).hex()
        assert persons[2] in pcql.erase(store, "cookie", "c1").persons
        assert cql.execute("SELECT COUNT(*) FROM ads.identities").one() == (1,)
    finally:
        cql.execute("DROP KEYSPACE ads", timeout=60)
