"""The example of persons, on a real node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from waiting import PATIENCE, until

from penstock import cql as pcql
from penstock.cli.pipeline_file import load
from penstock.cql.matching.linking import node_of
from penstock.local.services import Services

EXAMPLE = Path(__file__).parents[2] / "examples/04_persons.py"


@pytest.mark.slow
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

        def persons_of(*visits: int) -> dict[int, str] | None:
            (query,) = load(f"{EXAMPLE}:visitors").queries(spark).values()
            query.start(checkpoint=tmp_path, trigger="once").awaitTermination()
            found = dict(cql.execute("SELECT id, person FROM ads.visitors"))
            return found if found.keys() >= set(visits) else None

        cql.execute("INSERT INTO ads.visits (id, cookie, email_hash) VALUES (1, 'c1', 'e1')")
        # The example reads up to one second ago.
        until(lambda: persons_of(1), "person of the first visit")
        cql.execute("INSERT INTO ads.visits (id, cookie, email_hash) VALUES (2, 'c2', 'e1')")
        cql.execute("INSERT INTO ads.visits (id, cookie) VALUES (3, 'c3')")
        persons = until(lambda: persons_of(1, 2, 3), "persons of the other visits")
        nodes = [node_of("cookie", "c1"), node_of("email_hash", "e1"), node_of("cookie", "c2")]
        assert persons[2].replace("-", "") == min(nodes).hex()
        assert persons[3].replace("-", "") == node_of("cookie", "c3").hex()
        assert persons[1].replace("-", "") == min(nodes[:2]).hex()
        assert persons[2] in pcql.erase(store, "cookie", "c1").persons
        assert cql.execute("SELECT COUNT(*) FROM ads.identities").one() == (1,)
    finally:
        cql.execute("DROP KEYSPACE ads", timeout=PATIENCE)
