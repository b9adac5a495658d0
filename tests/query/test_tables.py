"""Tables written to sinks with a key: replaced and deleted rows, repeated batches, keys that do not fit."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cassandra.cluster import Session
from checkpoints import forget_last_commit
from kafka_topics import messages, new_topic
from keyspaces import new_keyspace
from postgres_server import new_table, query
from pyspark.sql import DataFrame, SparkSession
from shuffles import one_partition

import penstock as ps
from penstock import cql as cql_tables, files, kafka, postgres
from penstock.errors import PenstockError
from penstock.local.services import Services
from penstock.query.upsert import newest
from penstock.table import Table, count

SCHEMA = "id int, city string, v int, gone boolean"


def people(spark: SparkSession, folder: Path) -> Table:
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder))
    return Table(rows, key=("id",), version="v", deleted="gone")


def arrive(folder: Path, name: str, *rows: tuple[int, str, int, bool]) -> None:
    """A file, which is one batch, ordered by name."""
    folder.mkdir(exist_ok=True)
    text = [json.dumps(dict(zip(("id", "city", "v", "gone"), row, strict=True))) for row in rows]
    (folder / name).write_text("\n".join(text))
    os.utime(folder / name, (int(name), int(name)))


@pytest.fixture(scope="module")
def keyspace(cql: Session) -> Iterator[str]:
    with new_keyspace(cql, "tables") as name:
        cql.execute(f"CREATE TABLE {name}.people (id int PRIMARY KEY, city text)")
        cql.execute(f"CREATE TABLE {name}.cities (city text PRIMARY KEY, count bigint, version bigint)")
        yield name


def test_rows_replace_each_other_and_a_repeated_batch_changes_nothing(
    spark: SparkSession, services: Services, postgres: str, cql: Session, keyspace: str, tmp_path: Path
) -> None:
    with new_table(postgres, "id int PRIMARY KEY, city text") as table, new_topic(services.kafka, "people", 2) as topic:

        def run() -> None:
            written = ps.write(
                people(spark, tmp_path / "in"),
                ps.postgres.sink(table, url=postgres, key="id"),
                cql_tables.sink(f"{keyspace}.people", hosts=services.cql),
                kafka.sink(topic, servers=services.kafka),
            )
            with one_partition(spark):
                written.start(checkpoint=tmp_path / "checkpoint", trigger="once").awaitTermination()

        def found() -> list[dict[int, str]]:
            """The contents of the three sinks; of the topic the newest record of each key."""
            held = dict[int, str]()
            for record in messages(services.kafka, topic, 2):
                held.pop(int(record.key()), None)
                if record.value() is not None:
                    told = json.loads(record.value())
                    held[told["id"]] = told["city"]
            return [
                dict(query(postgres, f"SELECT id, city FROM {table}")),
                {row[0]: row[1] for row in cql.execute(f"SELECT id, city FROM {keyspace}.people")},
                held,
            ]

        # The newest row of the first person comes first: its version counts, not its position.
        arrive(tmp_path / "in", "1", (1, "Bonn", 9, False), (1, "old", 2, False), (2, "Ulm", 1, False))
        arrive(tmp_path / "in", "2", (2, "Ulm", 3, True), (3, "Kiel", 3, False), (3, "Jena", 4, False))
        run()
        assert found() == [{1: "Bonn", 3: "Jena"}] * 3
        forget_last_commit(tmp_path / "checkpoint")
        run()
        assert found() == [{1: "Bonn", 3: "Jena"}] * 3
        assert len(list(messages(services.kafka, topic, 2))) == 6, "two rows of a batch, one of them written again"


@pytest.mark.slow
def test_totals_of_a_table_keep_their_version(
    spark: SparkSession, services: Services, cql: Session, keyspace: str, tmp_path: Path
) -> None:
    arrive(tmp_path / "in", "1", (1, "Bonn", 1, False), (2, "Bonn", 1, False), (3, "Ulm", 1, False))
    arrive(tmp_path / "in", "2", (2, "Ulm", 2, False), (3, "Ulm", 2, True), (1, "Kiel", 2, False))
    cities = count(people(spark, tmp_path / "in"), by="city", name="cities")
    written = ps.write(cities, cql_tables.sink(f"{keyspace}.cities", hosts=services.cql))
    with one_partition(spark):
        written.start(checkpoint=tmp_path / "checkpoint", trigger="once").awaitTermination()
    held = {row[0]: row[1:] for row in cql.execute(f"SELECT city, count, version FROM {keyspace}.cities")}
    assert {city: row[0] for city, row in held.items()} == {"Kiel": 1, "Ulm": 1}
    assert all(row[1] >= 1 for row in held.values())


def test_of_equal_versions_the_last_row_counts(spark: SparkSession) -> None:
    rows = spark.sql("SELECT * FROM VALUES (1, 'a', 5), (1, 'b', 5), (2, 'c', NULL), (2, 'd', 1) AS (id, city, v)")
    found = newest(rows.coalesce(1), ["id"], "v").collect()
    assert sorted(map(tuple, found)) == [(1, "b", 5), (2, "d", 1)]


@pytest.fixture(scope="module")
def stream(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    return spark.readStream.schema(SCHEMA).json(str(tmp_path_factory.mktemp("nothing")))


def test_sinks_of_other_keys_are_refused_when_the_query_is_built(
    stream: DataFrame, services: Services, keyspace: str
) -> None:
    table = Table(stream, key=("id",), version="v", deleted="gone")
    by_both = Table(stream, key=("id", "city"), version="v")
    url, people = "postgresql://u@h/d", f"{keyspace}.people"
    cases: list[tuple[Any, Any, str]] = [
        (table, lambda: postgres.sink("t", url=url), r"key is id, and postgres.sink has no key .*key=\[\"id\"\]"),
        (by_both, lambda: postgres.sink("t", url=url, key="id"), "key is id, city, and postgres.sink has the key id "),
        (table, lambda: postgres.sink("t", url=url, key="id", version="x"), "version= is x, but the table's is v"),
        (by_both, lambda: cql_tables.sink(people, hosts=services.cql), rf"has the key id \({people}\).*by id"),
        (table, lambda: cql_tables.sink(people, hosts=services.cql, mode="upsert"), "omit mode= and delete="),
        (table, lambda: kafka.sink(servers="h:1"), "has no topic .*a table goes to one topic"),
        (table, lambda: files.sink("/tmp/x"), "FilesSink has no key.*table.to_stream"),
    ]
    for given, sink, said in cases:
        with pytest.raises(PenstockError, match=said):
            ps.write(given, sink())


def test_a_key_of_several_columns_is_a_struct_in_kafka(spark: SparkSession) -> None:
    rows = spark.sql("SELECT 1 AS id, 'x' AS city, 2 AS v, false AS gone UNION ALL SELECT 2, 'y', 3, true")
    table = Table(rows, key=("id", "city"), version="v", deleted="gone")
    made = kafka.sink("t", servers="h:1").keyed(table).records(rows).orderBy("key").collect()
    assert [(row["key"], row["value"]) for row in made] == [
        ('{"id":1,"city":"x"}', '{"id":1,"city":"x"}'),
        ('{"id":2,"city":"y"}', None),
    ]
