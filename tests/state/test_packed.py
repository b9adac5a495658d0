"""Windows, tables, joins and segments, whose state is packed: read from outside as rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import segment_events
from pyspark.sql import DataFrame, Row, SparkSession, functions as F
from pyspark.sql.streaming.tws_tester import TwsTester
from shuffles import one_partition

from penstock import join, segment, table, window
from penstock.errors import PenstockError
from penstock.keyed_state import arrow_keys
from penstock.keyed_state.buckets import BLOB, GONE, Bucket
from penstock.keyed_state.description import TABLES, About
from penstock.native import shared_memory
from penstock.segment import processor
from penstock.segment.rule_plan import plan
from penstock.state import read
from penstock.state.direct import Direct
from penstock.state.read import Checkpoints, opened
from penstock.state.stores import StateRows, find, stores
from penstock.state.unpacking import shown, unpack_segments, unpack_tables
from penstock.table import Table
from penstock.table.revisions import ROW_DELETED, ROW_VERSION, Revisions

USERS = 40
RULES = [
    segment.rule("twice", when="v > 0", at_least=2, within="1 hour", ttl="2 days", to="t"),
    segment.rule("big", when="v >= 1000", ttl="1 day", to="t"),
]
DELETED = pa.field(ROW_DELETED, pa.bool_())
NOON = 1_709_208_000
"""2024-02-29 12:00:00 UTC, in seconds."""


def stages(spark: SparkSession, source: Path) -> DataFrame:
    """A query with all kinds of state."""
    rows = spark.readStream.schema("id int, user string, s long, v int").json(str(source))
    stream = rows.withColumn("at", F.timestamp_seconds(F.lit(NOON) + F.col("s")))
    timed = stream.withWatermark("at", "1 day")
    minutes = window.tumbling(timed, "1 minute", at="at", key="user", name="minutes", n="count(*)", mean="avg(v)")
    people = Table(stream.select("id", "user", "v", "s"), key=("id",), version="s")
    ages = Table(stream.selectExpr("id", "v + 1 AS age", "s"), key=("id",), version="s")
    groups = table.aggregate(people, by="user", name="groups", total="sum(v)")
    both = join.tables(people, ages, name="both")
    found = segment.match(stream, RULES, key="user", at="at", name="members", clock="events", buckets=8)
    one = F.lit(1).alias("one")
    first, *rest = [frame.select(one) for frame in (minutes, groups.df, both.df, found)]
    for frame in rest:
        first = first.unionByName(frame)
    return first


def arrive(folder: Path, name: str, rows: list[tuple[int, str, int, int]]) -> None:
    folder.mkdir(exist_ok=True)
    lines = [json.dumps(dict(zip(("id", "user", "s", "v"), row, strict=True))) for row in rows]
    (folder / name).write_text("\n".join(lines))


@pytest.fixture(scope="module")
def states(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkpoints]:
    folder = tmp_path_factory.mktemp("packed")
    arrive(folder / "in", "1.json", [(i, f"u{i}", 1, i) for i in range(USERS)])
    arrive(folder / "in", "2.json", [(1, "u1", 30, 1000), (2, "u1", 61, 7), (3, "u1", 62, 8)])
    with one_partition(spark):
        query = stages(spark, folder / "in").writeStream.format("noop").trigger(once=True)
        query.option("checkpointLocation", str(folder / "checkpoints/shop")).start().awaitTermination()
        yield Checkpoints(folder / "checkpoints", lambda: spark)


@pytest.mark.slow
def test_without_spark_the_answers_are_the_same(states: Checkpoints) -> None:
    direct = Direct(states.folder, pytest.fail)
    for one in stores(states.folder):
        assert in_order(direct.scan(one.name)) == in_order(states.scan(one.name))
    for name, key in (
        ("minutes", "u1"),
        ("minutes", '{"window": {"start": "2024-02-29T12:01:00Z"}}'),
        ("groups", "u1"),
        ("groups_rows", "2"),
        ("groups_rows", '{"id": "3"}'),
        ("both", '{"id": 1}'),
        ("both", '{"id": 1, "side": "left"}'),
        ("members", "u1"),
        ("members", '{"person": "u5", "segment": "twice"}'),
        ("members", '{"segment": "twice"}'),
    ):
        assert in_order(direct.get(f"shop/{name}", key)) == in_order(states.get(f"shop/{name}", key))
    with pytest.raises(PenstockError, match="shop/groups has nothing under the key u2"):
        direct.get("shop/groups", "u2")


def in_order(answer: StateRows) -> tuple[str, list[str]]:
    """The state's name, and its rows as JSON; which bucket is first is not said."""
    return answer.name, sorted(map(json.dumps, answer.rows))


def only(states: Checkpoints, name: str, key: str) -> dict[str, Any]:
    (row,) = states.get(name, key).rows
    return dict(row)


def test_each_stage_stands_under_its_name_and_is_fresh(states: Checkpoints) -> None:
    told = {one["name"]: one for one in states.overview()}
    assert told.keys() == {f"shop/{name}" for name in ("minutes", "groups", "groups_rows", "both", "members")}
    answer = states.get("shop/minutes", "u7").to_json()
    assert answer["batch"] == told["shop/minutes"]["batch"] == 0 and 0 <= answer["age_seconds"] < 600


@pytest.mark.slow
def test_windows_are_shown_as_those_of_spark(states: Checkpoints) -> None:
    rows = states.get("shop/minutes", "u1").rows
    windows = {row["key"]["window"]["start"]: row["value"] for row in rows}
    assert windows == {
        "2024-02-29T12:00:00.000Z": {"n": 2, "mean": 500.5},
        "2024-02-29T12:01:00.000Z": {"n": 2, "mean": 7.5},
    }
    second = '{"user": "u1", "window": {"start": "2024-02-29T12:01:00Z"}}'
    assert only(states, "shop/minutes", second)["key"]["window"]["end"] == "2024-02-29T12:02:00.000Z"
    busy = states.scan("shop/minutes", "value.n > 1 AND key.user = 'u1'")
    assert len(busy.rows) == 2 and not busy.more
    assert len(states.scan("shop/minutes").rows) == USERS + 1
    assert states.scan("shop/minutes", limit=3).more


@pytest.mark.slow
def test_tables_and_joins_are_shown_by_their_keys(states: Checkpoints) -> None:
    assert only(states, "shop/groups", "u1")["value"] == {"total": 1015, "rows": 3}
    assert only(states, "shop/groups_rows", "2") == {
        "key": {"id": 2},
        "value": {"user": "u1", "of_total": 7, "version": 61},
    }
    sides = {row["key"]["side"]: row["value"] for row in states.get("shop/both", '{"id": 1}').rows}
    assert sides["left"]["v"] == 1000 and sides["right"]["age"] == 1001
    with pytest.raises(PenstockError, match="shop/groups has nothing under the key u2"):
        states.get("shop/groups", "u2")
    with pytest.raises(PenstockError, match=r"is not a key of shop/both .its key is struct<id:int,side:string>"):
        states.get("shop/both", '{"user": "u1"}')


@pytest.mark.slow
def test_segments_are_shown_by_person(states: Checkpoints) -> None:
    members = {row["key"]["segment"]: row["value"] for row in states.get("shop/members", "u1").rows}
    assert members["big"]["until"].startswith("2024-03-01") and members["big"]["last"] == "2024-02-29T12:00:30.000Z"
    assert members["twice"]["until"].startswith("2024-03-02")
    once = only(states, "shop/members", '{"person": "u5", "segment": "twice"}')
    assert "until" not in once["value"], "seen once, and no member"
    assert len(states.scan("shop/members", "value.until IS NOT NULL").rows) == 2


@pytest.mark.slow
def test_of_one_key_only_its_bucket_is_unpacked(spark: SparkSession, states: Checkpoints) -> None:
    for name, wanted in (("shop/groups_rows", {"id": 9}), ("shop/members", {"person": "u9"})):
        store = find(states.folder, name)
        _, packed = read._frame(spark, store, store.fresh())
        assert packed and 1 <= packed.rows(packed.place(wanted)).count() < USERS / 2 <= packed.rows().count()


def test_a_mean_of_nothing_is_none() -> None:
    state = pa.table({"k": ["a", "b"], "m_sum": [3.0, 0.0], "m_count": [2, 0], "_rows": [2, 1]})
    rows = shown(state, About(["k"], ["k"], {"m": ["m_sum", "m_count"]})).to_pylist()
    assert [row["value"] for row in rows] == [{"m": 1.5, "rows": 2}, {"m": None, "rows": 1}]


def pieces(log: dict[Any, tuple[Any, ...]], names: list[str]) -> pa.Table:
    """The contents of a stage's state variable, from Spark's reader."""
    rows = [{"bucket": 0, "number": number, **dict(zip(names, row, strict=True))} for (number,), row in log.items()]
    return pa.Table.from_pylist(rows[::-1])


def test_a_log_of_several_batches_is_unpacked_to_what_holds_now() -> None:
    logic = Revisions(pa.schema({"id": pa.int64(), "v": pa.int64()}), ("id",), ("id", "v"))
    tester = TwsTester(Bucket(logic, "log", ("id",)))
    for version, (key, value) in enumerate([(1, 10), (2, 20), (1, 11), (2, None), (3, 30)], 1):
        row = {"id": [key], "v": [value], ROW_VERSION: [version], ROW_DELETED: [value is None]}
        tester.test(0, [Row(**{BLOB: arrow_keys.packed(pa.table(row).cast(logic.state.append(DELETED)))})])
    log = tester.peekMapState("log__log", 0)
    assert len(log) == 5
    rows = unpack_tables(pieces(log, ["token", "data"]), About(["id"], ["id"])).to_pylist()
    found = {row["key"]["id"]: row["value"] for row in rows}
    assert found == {1: {"v": 11, "version": 3}, 3: {"v": 30, "version": 5}}


def test_a_log_of_segments_is_unpacked_to_what_the_worker_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "_OWN", {})
    made = plan(segment_events.RULES)
    tester = TwsTester(processor.Segments(made, "s", 1, 0, False), timeMode="ProcessingTime")
    tester.setProcessingTime(160)
    for part in (segment_events.rows(0)[:80], segment_events.rows(0)[80:]):
        events = [segment_events.modelled(row) for row in part]
        tester.test(0, [Row(events=segment_events.touches(made, events).pack())])
    names = ["previous", "token", "clock", "latest", "rules", "data"]
    found = unpack_segments(pieces(tester.peekMapState("s__entries", 0), names))
    ids, rows = shared_memory._OWN["/s/0"][1].store.records()
    members = sum(1 for row in rows.tolist() if row[2])
    assert members and len(found) == len(ids)
    assert {row["key"]["person"] for row in found.to_pylist()} == {one.decode() for one in ids}
    assert sum(1 for row in found.to_pylist() if row["value"]["until"]) == members


def test_state_that_does_not_describe_itself_is_told(spark: SparkSession) -> None:
    piece = arrow_keys.packed(pa.table({"id": [1], GONE: [False]}))
    kinds = "key struct<_bucket: int>, user_map_key struct<version: long>, "
    kinds += "user_map_value struct<token: string, change: binary>"
    frame = spark.createDataFrame([((0,), (1,), ("t", piece))], kinds)
    with pytest.raises(PenstockError, match="of an earlier build, which did not describe it"):
        opened(frame, TABLES)
    assert opened(frame.limit(0), TABLES) is None
