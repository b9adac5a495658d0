"""The extended format on a real node: what a statement did, beyond what the connector's formats contain."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from change_frames import INSERT, ROW_DELETE, Table
from event_records import assert_fits, events, values
from keyspaces import new_keyspace
from pyspark.sql import SparkSession

from penstock import cdc
from penstock.errors import PenstockError
from penstock.local.services import Services

COLUMNS = "id int, at int, s text, n int, l list<int>, m map<text, int>, e set<text>, u address, PRIMARY KEY (id, at)"
INSERTED = "INSERT INTO t (id, at, s, l, m, e, u) VALUES (1, 1, 'a', [1, 2], {'k': 1}, {'x'}, {street: 'x', city: 'y'})"
STATEMENTS = (
    INSERTED,
    "UPDATE t USING TTL 600 SET s = 'b' WHERE id = 1 AND at = 1",
    "UPDATE t SET l = l + [3], m['k'] = null, e = e - {'x'}, u.city = null, n = null WHERE id = 1 AND at = 1",
    "DELETE FROM t WHERE id = 1 AND at > 0",
    "DELETE FROM t WHERE id = 1",
)


@pytest.fixture(scope="module")
def keyspace(cql: Any) -> Iterator[str]:
    with new_keyspace(cql, "extended") as name:
        yield name


@pytest.fixture(scope="module")
def changes(
    spark: SparkSession, cql: Any, keyspace: str, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """The events of `STATEMENTS`, with their schemas."""
    cql.execute(f"CREATE TYPE {keyspace}.address (street text, city text)")
    cql.execute(f"CREATE TABLE {keyspace}.t ({COLUMNS}) WITH cdc = {{'enabled': true}}")
    for statement in STATEMENTS:
        for word in ("INTO t ", "UPDATE t ", "FROM t "):
            statement = statement.replace(word, word.replace("t ", f"{keyspace}.t "))
        cql.execute(statement)
    frame = cdc.read(spark, f"{keyspace}.t", hosts=services.cql, name="extended", confidence="0 seconds")
    records = cdc.events(frame, prefix="p", format="extended", images="none", schemas=True)
    rows: list[Any] = []
    writer = records.writeStream.foreachBatch(lambda batch, _: rows.extend(batch.collect()))
    checkpoint: Path = tmp_path_factory.mktemp("extended")
    writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()
    return [json.loads(row.value) for row in rows]


@pytest.mark.slow
def test_every_event_fits_its_schema(changes: list[dict[str, Any]]) -> None:
    assert [event["payload"]["op"] for event in changes] == ["c", "u", "u", "d", "d"]
    for event in changes:
        assert_fits(event["payload"], event["schema"])


def test_an_insert_tells_every_column_it_wrote(changes: list[dict[str, Any]]) -> None:
    change = changes[0]["payload"]["change"]
    assert (change["touched"], change["ttl"]) == (["e", "l", "m", "s", "u"], None)
    # A collection that is written completely replaces the old one.
    assert change["set_to_null"] == ["e", "l", "m", "u"]
    values = change["values"]
    assert [entry["value"] for entry in values["l"]] == [1, 2]
    assert (values["s"], values["n"], values["m"]) == ("a", None, [{"key": "k", "value": 1}])


def test_a_write_tells_its_ttl(changes: list[dict[str, Any]]) -> None:
    change = changes[1]["payload"]["change"]
    assert (change["ttl"], change["touched"], change["values"]["s"]) == (600, ["s"], "b")


def test_an_update_tells_added_and_removed_elements_and_null_apart(changes: list[dict[str, Any]]) -> None:
    change = changes[2]["payload"]["change"]
    assert (change["touched"], change["set_to_null"]) == (["e", "l", "m", "n", "u"], ["n"])
    assert [entry["value"] for entry in change["values"]["l"]] == [3]
    assert change["removed_elements"] == {"e": ["x"], "l": None, "m": ["k"], "u": ["city"]}
    assert change["ttl"] is None


def test_deletes_of_ranges_and_partitions_tell_their_place_in_the_log(changes: list[dict[str, Any]]) -> None:
    ranged, partition = (event["payload"] for event in changes[3:])
    assert ranged["range"]["start"] == {"at": 0}
    assert partition["range"] == {"start": None, "start_inclusive": True, "end": None, "end_inclusive": True}
    for event in (ranged, partition):
        change = event["change"]
        assert (change["values"], change["batch_seq_no"], change["end_of_batch"]) == (None, 0, True)
        assert len(bytes.fromhex(change["stream_id"])) == 16
        # The time is the timestamp of the write, in 100 ns steps since 1582.
        micros = (uuid.UUID(change["time"]).time - 0x01B21DD213814000) // 10
        assert micros == event["source"]["ts_us"]


KEY_ONLY = Table({"id": "int"}, ["id"])


def test_skipped_operations_give_neither_events_nor_tombstones(spark: SparkSession) -> None:
    rows = [{"kind": kind, "key": (1,)} for kind in (INSERT, ROW_DELETE)]
    assert [value["op"] for value in values(events(spark, KEY_ONLY, rows, skipped=["d"]))] == ["c"]
    with pytest.raises(PenstockError, match=r"unknown operation in skipped 'x'.*use 'c' or 'u' or 'd' or 'r'"):
        events(spark, KEY_ONLY, rows, skipped=["x"])


def test_a_frame_without_the_log_s_columns_is_refused(spark: SparkSession) -> None:
    with pytest.raises(PenstockError, match="lost the columns ttl, stream_id, time"):
        cdc.events(KEY_ONLY.frame(spark, []), prefix="p", format="extended")
