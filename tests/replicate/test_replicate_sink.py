"""`replicate.sink` in a query on a real node: snapshot, changes, restarts; and tables that do not fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from keyspaces import new_keyspace
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock import cdc, replicate
from penstock.errors import PenstockError
from penstock.local.services import Services

ADDRESS = "CREATE TYPE {ks}.address (street text, zip int)"
TABLE = (
    "CREATE TABLE {ks}.orders (shop int, id int, name text static, total int, note text, tags set<text>, "
    "prices map<text, decimal>, steps list<text>, home address, PRIMARY KEY (shop, id)){with}"
)
LOGGED = " WITH cdc = {'enabled': true}"


@dataclass(frozen=True)
class Pair:
    cql: Any
    hosts: str
    source: str
    target: str

    def run(self, statement: str) -> None:
        """Run a statement on the source."""
        self.cql.execute(statement.replace("{ks}", self.source))

    def create(self, statement: str) -> None:
        """Run a statement on both sides; {with} is the change log of the source."""
        for keyspace, options in ((self.source, LOGGED), (self.target, "")):
            self.cql.execute(statement.replace("{ks}", keyspace).replace("{with}", options))

    def changes(self, spark: SparkSession, table: str = "orders", **options: Any) -> DataFrame:
        given: dict[str, Any] = {"write_times": True, "latency": "low", "start": "snapshot"} | options
        return cdc.read(spark, f"{self.source}.{table}", hosts=self.hosts, name="copy", **given)

    def sink(self, table: str = "orders") -> replicate.ReplicateSink:
        return replicate.sink(f"{self.target}.{table}", hosts=self.hosts)

    def copy(self, spark: SparkSession, checkpoint: Path, *, packed: bool = False) -> None:
        """Copy what is there now."""
        query = penstock.write(self.changes(spark, packed=packed), self.sink())
        query.start(checkpoint=checkpoint, trigger="once").awaitTermination()

    def verified(self, spark: SparkSession) -> replicate.Report:
        sides = (replicate.side(f"{name}.orders", hosts=self.hosts) for name in (self.source, self.target))
        return replicate.verify(spark, *sides, settle=0)


@pytest.fixture(scope="module")
def pair(cql: Any, services: Services) -> Iterator[Pair]:
    with new_keyspace(cql, "orig") as source, new_keyspace(cql, "copy") as target:
        made = Pair(cql, services.cql, source, target)
        made.create(ADDRESS)
        made.create(TABLE)
        yield made


@pytest.mark.parametrize("packed", [False, True])
def test_rows_and_changes_arrive_with_their_times(
    pair: Pair, spark: SparkSession, tmp_path: Path, packed: bool
) -> None:
    for shop in range(20):
        pair.run(f"INSERT INTO {{ks}}.orders (shop, name) VALUES ({shop}, 'shop {shop}')")
        for number in range(5):
            pair.run(
                f"INSERT INTO {{ks}}.orders (shop, id, total, tags, prices, steps, home) VALUES ({shop}, {number}, "
                f"{number}, {{'a', 'b'}}, {{'x': 1.50}}, ['made'], {{street: 's', zip: 1}}) USING TTL {86400 + shop}"
            )
            pair.run(
                f"UPDATE {{ks}}.orders SET note = 'n', steps = steps + ['paid'] WHERE shop = {shop} AND id = {number}"
            )
    pair.copy(spark, tmp_path / "checkpoint", packed=packed)
    report = pair.verified(spark)
    assert (report.result, report.rows) == ("equal", (100, 100)), report.described
    for shop in range(20):
        pair.run(f"DELETE FROM {{ks}}.orders WHERE shop = {shop} AND id > 3")
        pair.run(f"DELETE FROM {{ks}}.orders WHERE shop = {shop} AND id = 0")
        pair.run(f"UPDATE {{ks}}.orders SET tags = tags - {{'a'}}, prices['y'] = 2 WHERE shop = {shop} AND id = 1")
        pair.run(f"UPDATE {{ks}}.orders SET steps[0] = 'new', home.zip = null WHERE shop = {shop} AND id = 2")
        pair.run(f"UPDATE {{ks}}.orders USING TTL 9000 SET total = 7 WHERE shop = {shop} AND id = 3")
        pair.run(f"UPDATE {{ks}}.orders SET steps = steps - ['paid'] WHERE shop = {shop} AND id = 3")
    pair.run("DELETE FROM {ks}.orders WHERE shop = 7")
    pair.run("DELETE name FROM {ks}.orders WHERE shop = 8")
    pair.copy(spark, tmp_path / "checkpoint", packed=packed)
    report = pair.verified(spark)
    assert (report.result, report.rows) == ("equal", (57, 57)), report.described


def test_a_new_checkpoint_copies_everything_again_and_changes_nothing(
    pair: Pair, spark: SparkSession, tmp_path: Path
) -> None:
    pair.run("UPDATE {ks}.orders SET steps = ['one', 'two'], total = 1 WHERE shop = 100 AND id = 1")
    for number in range(2):
        pair.copy(spark, tmp_path / f"checkpoint-{number}")
        report = pair.verified(spark)
        assert report.result == "equal", report.described


def test_a_copied_row_that_was_only_updated_goes_with_its_last_value(
    pair: Pair, spark: SparkSession, tmp_path: Path
) -> None:
    """An UPDATE makes no row marker, so the row is gone with its last value; an INSERT makes one, and the row stays."""
    pair.run("UPDATE {ks}.orders SET total = 1 WHERE shop = 300 AND id = 1")
    pair.run("UPDATE {ks}.orders SET steps = ['a'] WHERE shop = 300 AND id = 2")
    pair.run("UPDATE {ks}.orders SET tags = {'a'}, note = 'n' WHERE shop = 300 AND id = 3")
    pair.run("INSERT INTO {ks}.orders (shop, id, total) VALUES (300, 4, 1)")
    pair.run("INSERT INTO {ks}.orders (shop, id, total) VALUES (300, 5, 1) USING TTL 86400")
    pair.run("UPDATE {ks}.orders SET total = 2, note = 'n' WHERE shop = 300 AND id = 5")
    pair.run("INSERT INTO {ks}.orders (shop, id) VALUES (300, 6)")
    pair.copy(spark, tmp_path / "checkpoint")
    sides = [replicate.side(f"{name}.orders", hosts=pair.hosts) for name in (pair.source, pair.target)]
    hidden = replicate.verify(spark, *sides, settle=0, level=3).hidden
    assert hidden is not None
    assert [one for one in hidden.described if '"shop": 300' in one.key and one.what == "row marker"] == []
    for number in range(1, 6):
        pair.run(f"UPDATE {{ks}}.orders SET total = null, note = null WHERE shop = 300 AND id = {number}")
    pair.run("UPDATE {ks}.orders SET steps = [] WHERE shop = 300 AND id = 2")
    pair.run("UPDATE {ks}.orders SET tags = tags - {'a'} WHERE shop = 300 AND id = 3")
    pair.copy(spark, tmp_path / "checkpoint")
    report = pair.verified(spark)
    assert report.result == "equal", report.described
    left = pair.cql.execute(f"SELECT id FROM {pair.target}.orders WHERE shop = 300")
    assert [key for (key,) in left] == [4, 5, 6]


def test_packed_changes_are_counted_as_rows(pair: Pair, spark: SparkSession, tmp_path: Path) -> None:
    pair.run("CREATE TABLE {ks}.counted (k int PRIMARY KEY, v int)" + LOGGED)
    pair.cql.execute(f"CREATE TABLE {pair.target}.counted (k int PRIMARY KEY, v int)")
    for number in range(30):
        pair.run(f"INSERT INTO {{ks}}.counted (k, v) VALUES ({number}, 1)")
    packed = pair.changes(spark, "counted", packed=True, start="earliest")
    query = penstock.write(packed, pair.sink("counted")).start(checkpoint=tmp_path / "counted", trigger="once")
    query.awaitTermination()
    assert sum(one["numInputRows"] for one in query.recentProgress) == 30
    assert pair.cql.execute(f"SELECT count(*) FROM {pair.target}.counted").one()[0] == 30


@pytest.mark.parametrize("wrong", [{"bad_values": "problem"}, {"rows": "log", "write_times": False, "start": "latest"}])
def test_packed_changes_have_no_columns(pair: Pair, spark: SparkSession, wrong: dict[str, Any]) -> None:
    with pytest.raises(PenstockError, match=r"packed does not work with .*leave packed out"):
        pair.changes(spark, packed=True, **wrong)


def test_changes_without_times_are_refused(pair: Pair, spark: SparkSession) -> None:
    with pytest.raises(PenstockError, match=r"the changes have no times of expiry.*write_times=True"):
        penstock.write(pair.changes(spark, write_times=False), pair.sink())


def test_changes_with_unreadable_values_are_refused(pair: Pair, spark: SparkSession) -> None:
    changes = pair.changes(spark, bad_values="problem")
    with pytest.raises(PenstockError, match="values that cannot be read would lose them"):
        penstock.write(changes, pair.sink())
    penstock.write(changes.where("problem IS NULL").drop("problem"), pair.sink())


def test_a_frame_of_something_else_is_refused(pair: Pair, spark: SparkSession) -> None:
    with pytest.raises(PenstockError, match=r"replicate\.sink takes changes of a table"):
        pair.sink().records(spark.range(1))


OTHERS = {
    "the target has no column v": "CREATE TABLE {ks}.{name} (k int, c int, PRIMARY KEY (k, c))",
    "column v is int .* and text in the target": "CREATE TABLE {ks}.{name} (k int, c int, v text, PRIMARY KEY (k, c))",
    "the tables have different keys": "CREATE TABLE {ks}.{name} (k int, c int, v int, PRIMARY KEY ((k, c)))",
}


@pytest.mark.parametrize("said", OTHERS)
def test_a_table_that_does_not_fit_is_refused(pair: Pair, spark: SparkSession, said: str) -> None:
    name = f"other_{list(OTHERS).index(said)}"
    pair.run(f"CREATE TABLE {{ks}}.{name} (k int, c int, v int, PRIMARY KEY (k, c)){LOGGED}")
    pair.cql.execute(OTHERS[said].replace("{ks}", pair.target).replace("{name}", name))
    with pytest.raises(PenstockError, match=said):
        penstock.write(pair.changes(spark, name), pair.sink(name))


def test_a_target_that_is_not_there_is_named(pair: Pair) -> None:
    with pytest.raises(PenstockError, match="there is no table"):
        pair.sink("nothing")


def test_a_batch_that_is_written_again_changes_nothing(pair: Pair, spark: SparkSession) -> None:
    pair.run("INSERT INTO {ks}.orders (shop, id, steps) VALUES (200, 1, ['a', 'b'])")
    pair.run("UPDATE {ks}.orders SET steps = steps + ['c'] WHERE shop = 200 AND id = 1")
    rows: list[Any] = []
    changes = pair.changes(spark, start="earliest")
    query = changes.writeStream.foreachBatch(lambda frame, _: rows.extend(frame.collect())).trigger(availableNow=True)
    query.start().awaitTermination()
    frame = spark.createDataFrame([row for row in rows if row["key"]["shop"] == 200], changes.schema)
    for number in range(3):
        pair.sink().save(frame, penstock.Batch("00000000-0000-0000-0000-000000000000", number))
    found = pair.cql.execute(f"SELECT steps FROM {pair.target}.orders WHERE shop = 200 AND id = 1").one()
    assert list(found[0]) == ["a", "b", "c"]
