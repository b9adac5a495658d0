"""State without Spark: each kind of state gives the answers that Spark's reader gives, from the same checkpoints."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from penstock.codec import exact_json
from penstock.errors import PenstockError
from penstock.query.real_time import FORMAT
from penstock.spark_runtime.settings import STATE_STORE
from penstock.state import direct, store_rows
from penstock.state.change_files import DamagedState
from penstock.state.direct import Direct
from penstock.state.read import Checkpoints
from penstock.state.stores import Freshness, StateRows, StateStore, find, stores

PREFIX = "spark.sql.streaming.stateStore."
PROVIDER, SNAPSHOTS = f"{PREFIX}providerClass", f"{PREFIX}rocksdb.changelogCheckpointing.enabled"
CODEC, MERGES = f"{PREFIX}compression.codec", f"{PREFIX}rocksdb.mergeOperatorVersion"
HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
KINDS = """\
tiny tinyint, short smallint, i int, n long, single float, double double, yes boolean, text string, bytes binary,
day date, at timestamp, local timestamp_ntz, price decimal(10,2), wide decimal(30,4), list array<string>,
map map<string,int>, inner struct<x:int,y:string>, deep array<array<int>>"""
VALUES = [
    *(-1, 300, -70_000, 1 << 40, 0.1, 2.5, True, "é☃", b"\x01\xff", date(1969, 2, 28)),
    *(datetime.fromisoformat("2024-02-29T01:02:03.456789+00:00"), datetime.fromisoformat("0001-01-01T00:00:00")),
    *(Decimal("-12.34"), Decimal("-12345678901234567890.1234"), ["a", None, ""], {"k": 1, "none": None}, (5, None)),
    [[1, None], None, []],
]


def clicks(spark: SparkSession, folder: Path, batch: int) -> DataFrame:
    """A stream of the clicks so far, with another file of them."""
    users = ["ann", "é☃", None, "ann"]
    rows = [(user, f"2024-02-29 12:0{batch}:{second:02}", second) for second, user in enumerate(users)]
    text = "user string, at string, n int"
    frame = spark.createDataFrame([*rows, (f"u{batch}", "2024-02-29 12:00:30", batch)], text).selectExpr(
        *("user", "cast(at AS timestamp) at", "n", "cast(n AS double) / 3 third", "cast(n AS decimal(20,3)) price"),
        *("cast(at AS date) day", "n % 2 = 0 even", "cast(user AS binary) bytes", "cast(n AS float) / 7 single"),
        *("named_struct('a', n, 'b', array(user, null, 'x')) inner", "cast(at AS timestamp_ntz) local"),
        *("array(map(n, struct(cast(n AS decimal(25,1)) / 4 AS price)), null) tags",),
    )
    frame.coalesce(1).write.mode("append").parquet(str(folder))
    return spark.readStream.schema(frame.schema).parquet(str(folder))


def variables() -> StatefulProcessor:
    """Keeps a variable of each kind, and timers; defined here, so workers get it by value."""
    kinds, values = KINDS, VALUES

    class Seen(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.handle = handle
            self.count = handle.getValueState("count", "n long")
            self.brief = handle.getValueState("brief", "n long, s string", 3_600_000)
            self.places = handle.getMapState("places", "place string", "n long, x array<int>")
            self.short_places = handle.getMapState("short_places", "place string", "n long", 3_600_000)
            self.times = handle.getListState("times", "at timestamp, n int")
            self.numbers = handle.getListState("numbers", "n int", 3_600_000)
            self.all = handle.getValueState("all_types", kinds)

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            found = list(rows)
            before = self.count.get()
            self.count.update(((before[0] if before else 0) + len(found),))
            self.brief.update((len(found), "x" * len(found)))
            self.places.updateValue(("here",), (len(found), [1, None]))
            self.places.updateValue((key[0],), (len(found), None))
            if before and self.places.containsKey(("gone",)):
                self.places.removeKey(("gone",))
            elif not before:
                self.places.updateValue(("gone",), (0, []))
            self.short_places.updateValue(("there",), (len(found),))
            for row in found:
                self.times.appendValue((row.at, row.n))
            self.numbers.put([(number,) for number in range(3)])
            self.all.update(tuple(values))
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 10_000_000)
            yield from ()

        def close(self) -> None:
            pass

    return Seen()


def queries(stream: DataFrame) -> dict[str, tuple[DataFrame, str]]:
    """Queries with the state that Spark keeps, and their output modes."""
    timed = stream.withWatermark("at", "1 hour")
    left, right = timed.alias("a"), timed.alias("b")
    same = F.expr("a.user = b.user AND a.at >= b.at AND a.at < b.at + INTERVAL 1 minute")
    # Of different functions, after which Spark names the columns of the state.
    aggregates = [F.sum("n"), F.max("price"), F.min("inner"), F.collect_list("user"), F.first("tags")]
    seen = stream.groupBy("user").transformWithState(variables(), "n long", "update", "ProcessingTime")
    return {
        "windows": (stream.groupBy("user", F.window("at", "1 minute")).count(), "update"),
        "count": (stream.groupBy("user").count(), "update"),
        "total": (stream.groupBy().agg(F.avg("n")), "update"),
        "aggregates": (stream.groupBy("user", "day", "even").agg(*aggregates), "update"),
        "keys": (stream.groupBy("n", "price", "third", "inner", "bytes", "single", "local", "at").count(), "update"),
        "sessions": (timed.groupBy("user", F.session_window("at", "5 minutes")).count(), "append"),
        "once": (stream.dropDuplicates(["user", "n"]), "append"),
        "once_within": (timed.dropDuplicatesWithinWatermark(["user"]), "append"),
        "joined": (left.join(right, same, "left").select("a.user"), "append"),
        "seen": (seen, "update"),
    }


@contextmanager
def settings(spark: SparkSession, changed: dict[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in changed}
    for name, value in changed.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, was in before.items():
            if was is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, was)


def start(frame: DataFrame, mode: str, checkpoint: Path) -> StreamingQuery:
    writer = frame.writeStream.format("noop").outputMode(mode).option("checkpointLocation", str(checkpoint))
    return writer.trigger(once=True).start()


KEPT: dict[str, tuple[tuple[str, ...], list[dict[str, str]]]] = {
    "rocksdb": ((), [{SNAPSHOTS: "false"}, {SNAPSHOTS: "false"}, {SNAPSHOTS: "true"}]),
    "changelogs": (("count", "once", "seen"), [{CODEC: "zstd", MERGES: "1"}] * 3),
    "hdfs": (("windows", "sessions", "joined"), [{PROVIDER: HDFS}] * 3),
    "ids": (("windows", "joined", "seen"), [{FORMAT: "2"}] * 3),
}
"""Which queries are kept in which ways; no names are all."""
FEW = {"rocksdb": ("windows", "count", "once", "seen"), "changelogs": ("count",)}


@pytest.fixture(scope="module")
def few(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return batches(spark, tmp_path_factory.mktemp("few"), FEW)


@pytest.fixture(scope="module")
def checkpoints(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return batches(spark, tmp_path_factory.mktemp("direct"), {name: queries for name, (queries, _) in KEPT.items()})


def batches(spark: SparkSession, folder: Path, kept: dict[str, tuple[str, ...]]) -> Path:
    """Three batches: two with snapshots, so that tables are shared and merged, and a third as changes after them."""
    for batch in range(3):
        made, running = queries(clicks(spark, folder / "clicks", batch)), []
        for name, chosen in kept.items():
            with settings(spark, KEPT[name][1][batch]):
                running += [start(*made[query], folder / "checkpoints" / name / query) for query in chosen or made]
        for query in running:
            query.awaitTermination()
    return folder / "checkpoints"


SEEN = ("count", "brief", "places", "short_places", "times", "numbers", "all_types")
"""Variables of the query `seen`."""


def told(answer: StateRows) -> tuple[str, list[str]]:
    """The state's name, and its rows as JSON; which rows are first is not said."""
    return answer.name, sorted(map(exact_json.dumps, answer.rows))


FEW_NAMES = [
    *("rocksdb/windows/stateStoreSave", "rocksdb/count/stateStoreSave", "rocksdb/once/dedupe", "changelogs/count"),
    *(f"rocksdb/seen/{name}" for name in SEEN),
]
NAMES = [
    *FEW_NAMES,
    *(f"rocksdb/{name}/stateStoreSave" for name in ("aggregates", "keys", "total")),
    *("rocksdb/sessions", "rocksdb/once_within"),
    *(f"{one}/joined/symmetricHashJoin/{side}" for one in ("rocksdb", "hdfs", "ids") for side in ("left", "right")),
    *(f"{one}/seen/{name}" for one in ("changelogs", "ids") for name in SEEN),
    *("changelogs/once", "hdfs/windows", "hdfs/sessions", "ids/windows"),
]


@pytest.mark.parametrize("name", FEW_NAMES)
def test_a_scan_without_spark_is_that_of_spark(spark: SparkSession, few: Path, name: str) -> None:
    require_same_scan(spark, few, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_scan_of_each_kind_of_state_is_that_of_spark(spark: SparkSession, checkpoints: Path, name: str) -> None:
    require_same_scan(spark, checkpoints, name)


def require_same_scan(spark: SparkSession, checkpoints: Path, name: str) -> None:
    found = Direct(checkpoints, pytest.fail).scan(name)
    expected = Checkpoints(checkpoints, lambda: spark).scan(name)
    assert found.rows and told(found) == told(expected) and found.fresh == expected.fresh
    if "hdfs" not in name:
        assert exact_json.dumps(found.rows) == exact_json.dumps(expected.rows), "RocksDB has the keys in an order"


@pytest.mark.slow
def test_all_states_are_compared(checkpoints: Path) -> None:
    assert {one.name for one in stores(checkpoints)} == {find(checkpoints, name).name for name in NAMES}


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("windows", "ann"),
        ("windows", '{"user": "é☃", "window": {"start": "2024-02-29T12:01:00Z"}}'),
        ("windows", '{"user": null}'),
        ("windows", '{"window": {"start": "2024-02-29 13:00:00+01:00", "end": "2024-02-29 12:01:00"}}'),
        ("count", "é☃"),
        ("count", '{"user": null}'),
        ("once/dedupe", '{"user": "ann", "n": 0}'),
        ("seen/places", "u1"),
        ("seen/times", "ann"),
        ("seen/all_types", '{"user": "u2"}'),
    ],
)
def test_a_key_without_spark_has_the_rows_of_spark(spark: SparkSession, few: Path, name: str, key: str) -> None:
    require_same_rows(spark, few, name, key)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("aggregates", '{"user": "ann", "day": "2024-02-29", "even": true}'),
        ("aggregates", '{"even": "false"}'),
        ("keys", '{"n": 2}'),
        ("keys", '{"n": "2", "at": "2024-02-29T12:00:02.000Z"}'),
        ("keys", '{"inner": {"a": 1}}'),
        ("keys", '{"local": "2024-02-29T12:00:02"}'),
        ("sessions", '{"user": "ann"}'),
        ("joined/symmetricHashJoin/left", '{"field0": "ann"}'),
    ],
)
def test_a_key_of_each_kind_has_the_rows_of_spark(spark: SparkSession, checkpoints: Path, name: str, key: str) -> None:
    require_same_rows(spark, checkpoints, name, key)


def require_same_rows(spark: SparkSession, checkpoints: Path, name: str, key: str) -> None:
    found = Direct(checkpoints, pytest.fail).get(f"rocksdb/{name}", key)
    assert found.rows
    assert told(found) == told(Checkpoints(checkpoints, lambda: spark).get(f"rocksdb/{name}", key))


@pytest.mark.slow
def test_of_a_whole_key_only_its_partition_is_read(few: Path, tmp_path: Path) -> None:
    for user in ("ann", "é☃", "u0", "u1", "u2"):
        folder = tmp_path / user
        shutil.copytree(few / "changelogs/count", folder / "count")
        found = Direct(folder, pytest.fail).get("count", user)
        # Without the files of other partitions: one of the two is enough.
        enough = 0
        for partition in (0, 1):
            shutil.copytree(folder / "count", folder / f"only/{partition}")
            for file in (folder / f"only/{partition}/state/0/{partition}").glob("*.changelog"):
                file.unlink()
            try:
                enough += told(Direct(folder / "only", pytest.fail).get(str(partition), user))[1] == told(found)[1]
            except PenstockError:
                continue
        assert enough == 1


def test_columns_of_one_name_are_numbered(spark: SparkSession, tmp_path: Path) -> None:
    stream = clicks(spark, tmp_path / "clicks", 0)
    start(stream.groupBy().agg(F.avg("n"), F.sum("n"), F.avg("third")), "update", tmp_path / "q").awaitTermination()
    (row,) = Direct(tmp_path, pytest.fail).scan("q").rows
    assert row == {"key": {}, "value": {"sum": 6.0, "count": 5, "sum_2": 6, "sum_3": 2.0, "count_2": 5}}


# What Spark has to read.


class Fake:
    """Spark's reader, which notes that it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def overview(self) -> list[dict[str, Any]]:
        raise AssertionError

    def get(self, name: str, key: str, limit: int = 0) -> StateRows:
        self.asked.append(name)
        return StateRows(name, Freshness(1, None), [key])

    def scan(self, name: str, where: str | None = None, limit: int = 0) -> StateRows:
        self.asked.append(name)
        return StateRows(name, Freshness(1, None), [where])


def left(folder: Path, capsys: pytest.CaptureFixture[str], name: str = "count", key: str | None = None) -> str:
    """What stderr says when Spark is left a state; it says it once."""
    fake = Fake()
    states = Direct(folder, lambda: fake)
    for _ in range(2):
        assert (states.get(name, key) if key else states.scan(name)).rows
    assert fake.asked == [name, name]
    said = capsys.readouterr().err
    assert said.startswith("penstock: reads with Spark, which takes some seconds: ") and said.count("\n") == 1
    return said


def copied(checkpoints: Path, folder: Path, query: str = "changelogs/count") -> Path:
    """A copy of a query's checkpoint as `count`."""
    shutil.copytree(checkpoints / query, folder / "count")
    return folder / "count"


def test_settings_that_are_not_known_are_left_to_spark(
    few: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, (old, new, said) in enumerate(
        [
            (STATE_STORE, "com.example.Provider", "its state is kept by com.example.Provider"),
            ('"unsaferow"', '"avro"', "its state is encoded as avro"),
            ('rowChecksum.enabled":"false"', 'rowChecksum.enabled":"true"', "its rows have checksums"),
        ]
    ):
        copy = copied(few, tmp_path / str(number))
        for file in (copy / "offsets").glob("[0-9]*"):
            text = file.read_text()
            assert old in text
            file.write_text(text.replace(old, new))
        assert said in left(copy.parent, capsys)


@pytest.mark.slow
def test_joins_of_another_format_are_left_to_spark(
    checkpoints: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = copied(checkpoints, tmp_path, "rocksdb/joined")
    for file in (copy / "offsets").glob("[0-9]*"):
        file.write_text(file.read_text().replace('join.stateFormatVersion":"2"', 'join.stateFormatVersion":"3"'))
    assert "format 3 of joins" in left(copy.parent, capsys, "count/symmetricHashJoin/left")


@pytest.mark.slow
def test_a_key_that_only_spark_can_cast_is_left_to_spark(checkpoints: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = left(checkpoints / "rocksdb", capsys, "keys/stateStoreSave", '{"price": 1}')
    assert "1 as a key of the type decimal(20,3)" in said


def test_a_condition_is_left_to_spark(few: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake = Fake()
    assert Direct(few, lambda: fake).scan("changelogs/count", "value.count > 1").rows == ["value.count > 1"]
    assert "changelogs/count/stateStoreSave: a condition in SQL needs it" in capsys.readouterr().err


def test_without_rocksdb_the_command_that_installs_it_is_told(
    few: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    copy = copied(few, tmp_path, "rocksdb/count")
    assert "RocksDB is not installed: pip install " in left(copy.parent, capsys)
    assert Direct(few, pytest.fail).scan("changelogs/count").rows, "changes alone need no RocksDB"


# Files that change, go away or are damaged.


def test_a_file_that_is_gone_is_looked_for_in_the_next_batch(
    few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = copied(few, tmp_path)
    newest = copy / "commits/2"
    newest.rename(tmp_path / "kept")
    (copy / "state/0/0/2.changelog").rename(tmp_path / "changes")
    monkeypatch.setattr(direct, "PAUSE", 0.01)
    with pytest.raises(PenstockError, match=r"lacks a file of batch 1 \(.*2.changelog\).*ask again"):
        Direct(tmp_path, pytest.fail).scan("count")
    read = store_rows.rows

    def slow(store: StateStore, batch: int) -> Any:
        """The query commits a batch while the one before is read."""
        found = read(store, batch)
        if batch == 1:
            (tmp_path / "kept").rename(newest)
            (tmp_path / "changes").rename(copy / "state/0/0/2.changelog")
            (copy / "state/0/0/1.changelog").rename(tmp_path / "away")
        else:
            (tmp_path / "away").rename(copy / "state/0/0/1.changelog")
        return found

    monkeypatch.setattr(store_rows, "rows", slow)
    found = Direct(tmp_path, pytest.fail).scan("count")
    assert found.fresh.batch == 2 and len(found.rows) == 6


def test_damage_is_told_with_the_file(few: Path, tmp_path: Path) -> None:
    copy = copied(few, tmp_path, "rocksdb/seen")
    partition = copy / "state/0/0"
    tables = sorted(partition.glob("SSTs/*.sst"))
    schema = next((copy / "state/0/_stateSchema/default").glob("[0-9]*"))
    for file in (partition / "3.changelog", partition / "2.zip", tables[-1], schema):
        whole = file.read_bytes()
        for broken in (whole[: len(whole) // 2], b"", whole[:100] + bytes(len(whole) - 100)):
            file.write_bytes(broken)
            with pytest.raises(DamagedState, match=f"a file of the state is damaged: .*(?:{file.name}|2.zip)"):
                Direct(tmp_path, pytest.fail).scan("count/times")
        file.write_bytes(whole)
    assert Direct(tmp_path, pytest.fail).scan("count/times").rows


def test_the_command_answers_without_spark(few: Path, tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['penstock.spark_runtime.session'] = None\n"
        "from penstock.cli.main import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", script, "state"]
    ran = subprocess.run(
        [*command, "get", "rocksdb/count", "ann", "--checkpoints", str(few)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stderr == "" and json.loads(ran.stdout)["rows"] == [{"key": {"user": "ann"}, "value": {"count": 6}}]
    ran = subprocess.run(
        [*command, "list", "--checkpoints", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "")
    assert ran.stderr.startswith(f"penstock: no state in {tmp_path}. Next: start a pipeline")
