"""Global tables: their index, and a replica that follows a real topic."""

from __future__ import annotations

import datetime as dt
import logging
import math
import random
import re
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from cassandra.cluster import Session
from confluent_kafka import Producer
from kafka_topics import new_topic
from pyspark.sql import SparkSession, functions as F, types as st
from waiting import until

from penstock import cql as cql_tables, join, table
from penstock.codec.decode_columns import CORRUPT, struct_of, with_corrupt
from penstock.errors import PenstockError
from penstock.keyed_state.arrow_keys import arrow_schema
from penstock.keyed_state.byte_index import KeyIndex
from penstock.local.services import Services
from penstock.process import waits
from penstock.table import global_tables
from penstock.table.global_tables import GlobalTopic, Replica, replica
from penstock.table.json_rows import decoded
from penstock.table.latest_rows import InMemory, OnDisk
from penstock.wire.errors import Unreachable

SCHEMA = pa.schema({"name": pa.string(), "n": pa.int64()})


def test_the_index_finds_what_was_added_and_nothing_else() -> None:
    draw, index, model = random.Random(1), KeyIndex(), dict[bytes, int]()
    for _ in range(20):
        keys = [draw.randbytes(draw.randrange(12)) for _ in range(draw.randrange(3000))]
        for key in keys:
            model.setdefault(key, len(model))
        assert index.add(pa.array(keys, pa.binary())).tolist() == [model[key] for key in keys]
    asked = [*draw.sample(sorted(model), 100), b"not there, for it is too long", None]
    found = index.find(pa.array([b"x", *asked], pa.binary()).slice(1)).tolist()
    assert found == [*(model[key] for key in asked[:100] if key is not None), -1, -1] and len(index) == len(model)


def test_rows_that_are_no_json_are_left_out_one_by_one() -> None:
    values = [b'{"name": "a", "n": 1, "more": []}', None, b"no", b'{\n"n": 2}', b'{"n": "x"}']
    rows, good = decoded(pa.array(values, pa.binary()), SCHEMA)
    assert rows.to_pylist() == [{"name": "a", "n": 1}, {"name": None, "n": 2}]
    assert good.tolist() == [True, True, False, True, False]


def test_values_are_read_each_for_itself_and_as_text() -> None:
    # Arrow's reader would read the two halves as one object, and accept any bytes as strings.
    values = [b'{"name":', b'{"n": 2}}{"n": 3}', b'{"name": "\xff"}', b'{"n": 4}']
    rows, good = decoded(pa.array(values, pa.binary()), SCHEMA)
    assert (rows.to_pylist(), good.tolist()) == ([{"name": None, "n": 4}], [False, False, False, True])


def test_a_value_that_is_null_is_no_object() -> None:
    null, one = b" null", b'\n{"n": 1}'
    # The order matters: a null before all objects crashes Arrow's reader and this process.
    for values in ([one, null, one], [null, one, None], [null, None], [b"nul", null, b"[]", b"1", b"", one]):
        rows, good = decoded(pa.array(values, pa.binary()), SCHEMA)
        assert good.tolist() == [value in (one, None) for value in values]
        assert rows["n"].to_pylist() == [1] * values.count(one)


def test_values_are_read_as_spark_reads_them(spark: SparkSession) -> None:
    kind = struct_of("s string, n long, d date, t timestamp, more struct<s: string, days: array<date>>", "")
    objects = [
        '{"s": "x", "n": 1, "d": "2026-01-02", "t": "2026-01-02T03:04:05Z", "more": {"days": ["2026-01-03", null]}}',
        '{"s": 1.10, "n": 2, "more": {"s": {"k": [true, "\u00fc"]}}}',
        '{"s": true, "d": null, "n": null}',
        '{"n": 1.0}',
        '{"n": 3, "d": 20000}',
        '{"d": "soon"}',
        '{"s": null, "n": 4}',
    ]
    texts = spark.createDataFrame([(text,) for text in objects], "text string").coalesce(1)
    parsed = texts.select("text", F.from_json("text", with_corrupt(kind), {"columnNameOfCorruptRecord": CORRUPT}))
    expected = {}
    for text, row in zip(*parsed.toArrow().to_pydict().values(), strict=True):
        expected[text] = None if row.pop(CORRUPT) else row
    for few in (objects, *([one] for one in objects)):
        rows, good = decoded(pa.array([text.encode() for text in few]), arrow_schema(kind))
        assert good.tolist() == [expected[text] is not None for text in few]
        assert rows.to_pylist() == [expected[text] for text in few if expected[text] is not None]
    assert [row is None for row in expected.values()] == [False, False, False, True, True, True, False]


TIMES = pa.schema({"t": pa.timestamp("us", "UTC"), "l": pa.list_(pa.struct({"t": pa.timestamp("us", "UTC")}))})


@pytest.mark.parametrize(("epoch", "unit"), [("seconds", 1_000_000), ("millis", 1_000), ("micros", 1)])
def test_a_number_is_a_time_by_its_unit_alone_and_among_others(epoch: Any, unit: int) -> None:
    then = dt.datetime(2026, 5, 31, 7, tzinfo=dt.UTC)
    count = 1_780_210_800_000_000 // unit
    number, nested = b'{"t": %d}' % count, b'{"l": [{"t": %d}, null]}' % count
    text, far = b'{"t": "2026-05-31T07:00:00Z"}', b'{"t": %d}' % (253_402_300_800_000_000 // unit)
    wrong = [far, b'{"t": true}', b'{"t": 1.5}', b'{"t": 99999999999999999999}', b'{"t": "10000-01-01T00:00:00Z"}']
    expected = {number: then, text: then, nested: None}
    for values in ([number, nested], [text], [number, text, nested], [*wrong, number, text], [number, far], wrong):
        rows, good = decoded(pa.array(values, pa.binary()), TIMES, epoch)
        assert good.tolist() == [value in expected for value in values]
        assert rows["t"].to_pylist() == [expected[value] for value in values if value in expected]
    assert decoded(pa.array([nested], pa.binary()), TIMES, epoch)[0]["l"].to_pylist() == [[{"t": then}, None]]


def test_numbers_that_json_does_not_have_are_only_taken_as_the_sinks_write_them() -> None:
    schema = pa.schema({"f": pa.float32(), "s": pa.string()})
    good: dict[bytes, float | None] = {
        b'{"f": "-Infinity"}': -math.inf,
        b'{"f": "Infinity"}': math.inf,
        b'{"f": 1.5, "s": "NaN"}': 1.5,
    }
    good[b'{"s": 1e999}'] = None  # beyond the doubles, but text has it
    bad = [b'{"f": NaN}', b'{"f": Infinity}', b'{"s": NaN}', b'{"f": 1e39}', b'{"s": "\\ud800"}']
    for values in ([*good, *bad], list(good), *([one] for one in [*good, *bad])):
        rows, which = decoded(pa.array(values, pa.binary()), schema)
        assert which.tolist() == [value in good for value in values]
        assert rows["f"].to_pylist() == [good[value] for value in values if value in good]
    assert math.isnan(decoded(pa.array([b'{"f": "NaN"}']), schema)[0]["f"][0].as_py())


def test_an_unknown_unit_is_refused() -> None:
    epoch: Any = "milliseconds"
    with pytest.raises(PenstockError, match=r"unknown epoch 'milliseconds'.*use 'seconds' or 'millis' or 'micros'"):
        schema = st.StructType().add("t", st.TimestampType())
        table.global_table("users", servers="nowhere:1", schema=schema, epoch=epoch)


def test_records_that_are_left_out_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert Replica(Unread("unread", folder=str(tmp_path))).get(pa.array([b"a"]))[0].tolist() == [False]
    until(lambda: "unread: 1 records cannot be read and are left out; see its schema" in caplog.messages, "the line")


def test_types_that_json_is_not_read_in_are_refused() -> None:
    kinds = (
        st.MapType(st.StringType(), st.IntegerType()),
        st.ArrayType(st.StructType().add("a", st.BinaryType())),
    )
    for kind in kinds:
        with pytest.raises(PenstockError, match=r"column x is (map|binary).*of users.*declare it as string"):
            schema = st.StructType().add("name", st.StringType()).add("x", kind)
            table.global_table("users", servers="nowhere:1", schema=schema)


def test_brokers_without_a_port_are_refused() -> None:
    with pytest.raises(PenstockError, match=r"not a list of host:port: 'nowhere'.*of users.*fix servers="):
        table.global_table("users", servers="nowhere", schema="name string")


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_the_newest_row_of_a_key_counts_until_it_is_deleted(kind: str, tmp_path: Path) -> None:
    kept: Any = InMemory(SCHEMA) if kind == "memory" else OnDisk(SCHEMA, str(tmp_path))

    def put(**values: bytes | None) -> None:
        kept.put(pa.array([key.encode() for key in values]), pa.array(list(values.values()), pa.binary()))

    put(a=b'{"n": 1}', b=b'{"n": 2}', c=b'{"n": 3}')
    put(a=b'{"n": 4}', b=None)
    put(a=b"unreadable", c=b"{")
    found, rows = kept.get(pa.array([b"b", b"a", None, b"c", b"a", b"z"]))
    assert found.tolist() == [False, True, False, True, True, False]
    assert rows["n"].to_pylist() == [None, 4, None, 3, 4, None]


def test_rows_that_were_replaced_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.table.latest_rows.LEAST_ROWS", 10)
    kept = InMemory(SCHEMA)
    for n in range(200):
        kept.put(pa.array([b"a", b"b"]), pa.array([b'{"n": %d}' % n, None if n % 2 else b'{"n": 0}']))
    assert len(kept._table) <= 10
    assert kept.get(pa.array([b"a", b"b"]))[1]["n"].to_pylist() == [199, None]


def test_keys_that_are_no_more_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.table.latest_rows.LEAST_ROWS", 100)
    kept, sizes = InMemory(SCHEMA), []
    kept.put(pa.array([b"stays"]), pa.array([b'{"n": 7}']))
    for cart in range(200):
        keys = pa.array([b"cart %d %d" % (cart, n) for n in range(100)])
        kept.put(keys, pa.array([b'{"n": 1}'] * 100))
        kept.put(keys, pa.nulls(100, pa.binary()))
        sizes.append(kept.nbytes)
        assert not kept.get(keys)[0].any()
    assert sizes[-1] == sizes[20]
    assert kept.get(pa.array([b"stays", b"cart 1 1"]))[1]["n"].to_pylist() == [7, None]


def test_a_table_that_is_read_anew_on_disk_gives_back_the_place_of_the_one_before(tmp_path: Path) -> None:
    replica = Replica(Anew("anew", folder=str(tmp_path)))
    until(lambda: READ[-1:] == [5], "several readings")
    assert replica.get(pa.array([b"a"]))[1]["n"].to_pylist() >= [4]
    assert len(list(tmp_path.iterdir())) <= 2


def test_a_folder_that_a_killed_process_left_is_removed_and_no_other(tmp_path: Path) -> None:
    claim = f"from penstock.table.latest_rows import claimed; print(claimed({str(tmp_path)!r}).path)"
    code = f"import os; {claim}; os._exit(9)"
    left = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True).stdout.strip()
    assert list(tmp_path.iterdir()) == [Path(left)]
    kept = OnDisk(SCHEMA, str(tmp_path))
    others = OnDisk(SCHEMA, str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 2 and not Path(left).exists()
    kept.put(pa.array([b"a"]), pa.array([b'{"n": 1}']))
    del kept, others
    assert not list(tmp_path.iterdir())


@pytest.fixture
def people(services: Services) -> Iterator[tuple[str, Producer]]:
    with new_topic(services.kafka, "people", 2, {"cleanup.policy": "compact"}) as topic:
        producer = Producer({"bootstrap.servers": services.kafka})
        for key in ("ann", "bob", "cid"):
            producer.produce(topic, b'{"name": "%s", "n": 1}' % key.encode(), key=key)
        assert producer.flush(20) == 0
        yield topic, producer


@pytest.mark.parametrize("memory", [1 << 30, 1], ids=["memory", "disk"])
def test_a_replica_follows_its_topic(
    services: Services, people: tuple[str, Producer], memory: int, tmp_path: Path
) -> None:
    topic, producer = people
    replica = Replica(GlobalTopic(topic, services.kafka, SCHEMA, memory, str(tmp_path)))
    keys = pa.array([b"ann", b"bob", b"dan"])
    assert replica.get(keys)[1]["name"].to_pylist() == ["ann", "bob", None]
    producer.produce(topic, b'{"name": "dan"}', key="dan")
    producer.produce(topic, None, key="ann")
    assert producer.flush(20) == 0
    until(lambda: replica.get(keys)[1]["name"].to_pylist() == [None, "bob", "dan"], "change in the replica")
    assert isinstance(replica._rows, InMemory if memory > 1 else OnDisk)


def test_a_frame_gets_the_columns_of_a_global_table(
    spark: SparkSession, services: Services, people: tuple[str, Producer]
) -> None:
    users = table.global_table(people[0], servers=services.kafka, schema="name string, n int")
    clicks = spark.sql("SELECT * FROM VALUES (1, 'ann'), (2, 'zoe'), (3, NULL) AS (id, user)")
    left = join.enrich(clicks, users, on="user", name="people").orderBy("id").collect()
    assert [tuple(row) for row in left] == [(1, "ann", "ann", 1), (2, "zoe", None, None), (3, None, None, None)]
    inner = join.enrich(clicks, users, on="user", name="people", how="inner").collect()
    assert [tuple(row) for row in inner] == [(1, "ann", "ann", 1)]


def test_a_query_tells_how_old_its_global_table_is(
    spark: SparkSession, services: Services, people: tuple[str, Producer], tmp_path: Path
) -> None:
    users = table.global_table(people[0], servers=services.kafka, schema="name string, n int")
    spark.sql("SELECT * FROM VALUES ('ann'), ('zoe') AS (user)").write.parquet(str(tmp_path / "clicks"))
    clicks = spark.readStream.schema("user string").parquet(str(tmp_path / "clicks"))
    # The name may be that of a reader, or of another join.
    clicks = clicks.observe("people", F.count(F.lit(1)).alias("problems"))
    known = join.enrich(clicks, users, on="user", name="people").withColumnsRenamed({"name": "one", "n": "two"})
    rows = join.enrich(known, users, on="one", name="people").writeStream.format("noop")
    query = rows.option("checkpointLocation", str(tmp_path / "kept")).trigger(availableNow=True).start()
    query.awaitTermination()
    (progress,) = [one for one in query.recentProgress if one["numInputRows"]]
    told = [one for one in progress["observedMetrics"].values() if "stale_ms" in one]
    assert [(one["table"], one["stale_ms"]) for one in told] == [("people", 0)] * 2


@pytest.fixture
def logged(cql: Session, keyspace: str) -> Iterator[str]:
    """A table with a change log and three rows."""
    name = f"{keyspace}.people"
    cql.execute(f"CREATE TABLE {name} (id uuid PRIMARY KEY, name text, n int) WITH cdc = {{'enabled': true}}")
    for person in "ann", "bob", "cid":
        cql.execute(f"INSERT INTO {name} (id, name, n) VALUES (%s, %s, 1)", (uid(person), person))
    yield name
    cql.execute(f"DROP TABLE {name}")


def uid(person: str) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_DNS, person)


def names(replica: Replica, *persons: str) -> list[str | None]:
    found: list[str | None] = replica.get(pa.array([str(uid(one)).encode() for one in persons]))[1]["name"].to_pylist()
    return found


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("memory", [1 << 30, 1], ids=["memory", "disk"])
def test_a_replica_follows_a_table_with_a_change_log(
    services: Services, cql: Session, logged: str, memory: int, tmp_path: Path
) -> None:
    often: dict[str, Any] = {"every": "50 milliseconds", "memory": memory, "folder": str(tmp_path)}
    users = cql_tables.global_table(logged, hosts=services.cql, columns=["name", "n"], **often)
    replica = Replica(users.source)
    assert names(replica, "ann", "bob", "dan") == ["ann", "bob", None]
    cql.execute(f"INSERT INTO {logged} (id, name) VALUES (%s, 'dan')", (uid("dan"),))
    cql.execute(f"UPDATE {logged} SET name = 'Bob' WHERE id = %s", (uid("bob"),))
    cql.execute(f"DELETE FROM {logged} WHERE id = %s", (uid("ann"),))
    until(lambda: names(replica, "ann", "bob", "dan") == [None, "Bob", "dan"], "changes in the replica")
    assert replica.get(pa.array([str(uid("bob")).encode()]))[1]["n"].to_pylist() == [1], "what did not change stays"
    assert isinstance(replica._rows, InMemory if memory > 1 else OnDisk)


@pytest.mark.slow
def test_a_table_that_is_read_anew_loses_rows_whose_time_is_over(
    services: Services, cql: Session, keyspace: str
) -> None:
    table = f"{keyspace}.brief"
    cql.execute(f"CREATE TABLE {table} (id uuid PRIMARY KEY, name text)")
    cql.execute(f"INSERT INTO {table} (id, name) VALUES (%s, 'ann') USING TTL 20", (uid("ann"),))
    often: dict[str, Any] = {"refresh": "200 milliseconds", "every": "50 milliseconds"}
    replica = Replica(cql_tables.global_table(table, hosts=services.cql, columns=["name"], **often).source)
    assert names(replica, "ann", "bob") == ["ann", None]
    cql.execute(f"INSERT INTO {table} (id, name) VALUES (%s, 'bob')", (uid("bob"),))
    until(lambda: names(replica, "ann", "bob") == [None, "bob"], "rows as they are now")


def test_a_frame_gets_the_columns_of_a_cql_table(spark: SparkSession, services: Services, logged: str) -> None:
    users = cql_tables.global_table(logged, hosts=services.cql, columns=["name", "n"])
    clicks = spark.createDataFrame([(1, str(uid("ann"))), (2, str(uid("zoe"))), (3, None)], "id int, user string")
    left = join.enrich(clicks, users, on="user", name="people").drop("user").orderBy("id").collect()
    assert [tuple(row) for row in left] == [(1, "ann", 1), (2, None, None), (3, None, None)]


def test_tables_that_cannot_be_held_whole_are_refused(services: Services, cql: Session, keyspace: str) -> None:
    cql.execute(f"CREATE TABLE {keyspace}.plain (id int PRIMARY KEY, name text)")
    cql.execute(f"CREATE TABLE {keyspace}.wide (id int, day date, name text, PRIMARY KEY (id, day))")
    for name, columns, said in (
        ("plain", ["name"], r"has no change log.*ALTER TABLE .*plain WITH cdc = {'enabled': true}, or set refresh="),
        ("plain", ["nam"], r"has no column nam .*use one of id, name"),
        ("wide", ["name"], r"the primary key is id int, day date .*one key column of text.*cql.lookup"),
        ("nowhere", ["name"], r"there is no table"),
    ):
        with pytest.raises(PenstockError, match=said):
            cql_tables.global_table(f"{keyspace}.{name}", hosts=services.cql, columns=columns)


@dataclass(frozen=True)
class Made:
    """Base of feeds without a server; their tables exceed the memory limit."""

    name: str
    schema: pa.Schema = SCHEMA
    memory: int = 1
    folder: str = ""

    def decode(self, values: pa.Array, schema: pa.Schema) -> tuple[pa.Table, Any]:
        return decoded(values, schema)


class Unread(Made):
    """Its only record cannot be read."""

    def follow(self, put: Any, loaded: Any) -> None:
        put(pa.array([b"a"]), pa.array([b"no"]))
        loaded()
        threading.Event().wait()


READ: list[int] = []


class Anew(Made):
    """Read again and again."""

    def follow(self, put: Any, loaded: Any) -> None:
        put(pa.array([b"a"]), pa.array([b'{"n": %d}' % len(READ)]))
        loaded()
        if READ[-1:] == [5]:
            time.sleep(1000)
        READ.append(len(READ))


class Returning(Made):
    """Goes away after its first read, three times, and then has another row."""

    reads: ClassVar[list[str]] = []

    def follow(self, put: Any, loaded: Any) -> None:
        self.reads.append(self.name)
        if 1 < len(self.reads) < 5:
            raise Unreachable("no broker")
        put(pa.array([b"a"]), pa.array([b'{"n": %d}' % len(self.reads)]))
        loaded()
        if len(self.reads) == 1:
            raise Unreachable("no broker")
        threading.Event().wait()


def test_a_table_whose_source_is_away_keeps_its_rows(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(global_tables, "PAUSE", 0.2)
    caplog.set_level(logging.INFO, waits.__name__)
    table, seen = Replica(Returning("returning", memory=1 << 20)), list[int]()

    def returned() -> bool:
        seen.append(table.get(pa.array([b"a"]))[1]["n"][0].as_py())
        return seen[-1] == 5

    until(returned, "the row of the last read")
    assert set(seen) == {1, 5} and table.failed is None
    away = r"waiting for returning for \d+ s: no broker; lookups use its rows as they were"
    *waits_said, last = caplog.messages
    assert waits_said and all(re.fullmatch(away, line) for line in waits_said)
    assert last.startswith("returning: there after ")


class Patient(Made):
    """Its source is away after the first read, and the feed still tries; in the end the source is back."""

    back: ClassVar[threading.Event] = threading.Event()

    def follow(self, put: Any, loaded: Any) -> None:
        loaded()
        wait = waits.Wait("the source", patience=120.0)
        wait.failed("no answer")
        self.back.wait()
        wait.over()
        threading.Event().wait()


def test_a_table_is_stale_from_the_first_request_that_failed() -> None:
    table = Replica(Patient("patient", memory=1 << 20))
    until(lambda: table.stale_ms > 0, "age of the table, whose feed has not given up")
    Patient.back.set()
    until(lambda: table.stale_ms == 0, "table that is followed again")


BEGUN: list[str] = []


class Broken(Made):
    """Ends at once."""

    def follow(self, put: Any, loaded: Any) -> None:
        BEGUN.append(self.name)
        raise PenstockError("the source is away")


def test_what_ends_a_replica_is_told_and_then_it_is_begun_anew() -> None:
    for _ in range(3):
        with pytest.raises(PenstockError, match="the source is away"):
            replica(Broken("broken")).get(pa.array([b"a"]))
    assert len(BEGUN) >= 2
