"""The Delta sink on a local folder: what it refuses, what readers see, upserts, and batches that are run again."""

from __future__ import annotations

import json
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest
from delta_tables import commits, files, rows, small_files
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from pyspark.sql import DataFrame, SparkSession, functions as F, types as st

from penstock import delta, extras, write
from penstock.delta import delta_table
from penstock.delta.delta_columns import TableLayout
from penstock.delta.delta_errors import failure
from penstock.delta.delta_sink import address
from penstock.delta.delta_table import DeltaLog
from penstock.errors import PenstockError
from penstock.metrics import delays
from penstock.query.markers import Marker
from penstock.query.query import Batch
from penstock.spark_runtime.failures import Unavailable
from penstock.table import Table

VALUES = {
    "yes": "true",
    "tiny": "CAST(-7 AS TINYINT)",
    "short": "CAST(-32768 AS SMALLINT)",
    "whole": "2147483647",
    "long": "-9223372036854775808L",
    "single": "CAST(1.5 AS FLOAT)",
    "double": "CAST('NaN' AS DOUBLE)",
    "price": "CAST(-1234567890123456789012345678.1234567890 AS DECIMAL(38, 10))",
    "text": "'grüße, \U0001f600'",
    "bytes": "X'00FF'",
    "day": "DATE '0001-01-01'",
    "at": "TIMESTAMP '2024-02-29 12:00:00.123456Z'",
    "local": "TIMESTAMP_NTZ '1969-12-31 23:59:59.999999'",
    "many": "array(1, NULL, 3)",
    "by_name": "map('k', TIMESTAMP '2024-02-29 12:00:00Z', 'none', NULL)",
    "inner": "named_struct('x y', 1, 'z', array(named_struct('at', TIMESTAMP '2024-02-29 12:00:00Z')))",
    "a.b`c": "1",
}
NOON = datetime(2024, 2, 29, 12, tzinfo=UTC)
ARRIVED = {
    "yes": True,
    "tiny": -7,
    "short": -32768,
    "whole": 2147483647,
    "long": -(1 << 63),
    "single": 1.5,
    "price": "-1234567890123456789012345678.1234567890",
    "text": "grüße, \U0001f600",
    "bytes": b"\x00\xff",
    "day": "0001-01-01",
    "at": NOON.replace(microsecond=123456),
    "local": "1969-12-31 23:59:59.999999",
    "many": [1, None, 3],
    "by_name": [("k", NOON), ("none", None)],
    "inner": {"x y": 1, "z": [{"at": NOON}]},
    "a.b`c": 1,
}


@pytest.mark.parametrize("options", [{}, {"key": ["whole", "a.b`c"], "version": "at"}], ids=["append", "upsert"])
def test_every_type_arrives_as_it_was(spark: SparkSession, tmp_path: Path, options: dict[str, Any]) -> None:
    full = spark.range(1).select(*[F.expr(text).alias(name) for name, text in VALUES.items()])
    kept = {"whole", "a.b`c"}
    empty = full.select(
        *[(F.lit(7) if one.name in kept else F.lit(None).cast(one.dataType)).alias(one.name) for one in full.schema]
    )
    # Two batches, so that the second one merges into a table that is there.
    sink = delta.sink(tmp_path, **options)
    sink.save(full, Batch("types", 0))
    sink.save(empty, Batch("types", 1))
    last, first = rows(tmp_path, "whole")
    assert str(first.pop("double")) == "nan"
    first |= {name: str(first[name]) for name in ("price", "day", "local")}
    assert first == ARRIVED
    assert [name for name, value in last.items() if value is not None] == ["whole", "a.b`c"]


def test_readers_see_each_batch_once_with_its_partitions(spark: SparkSession, tmp_path: Path) -> None:
    sink = delta.sink(tmp_path, partition_by=["day", "kind"])
    values = ["a b", "a/b=c", "ü%20", None]
    kinds = f"element_at(array({', '.join('NULL' if one is None else repr(one) for one in values)}), int(id % 4) + 1)"
    for number in (0, 1, 1):
        frame = spark.range(number * 8, number * 8 + 8, numPartitions=2).selectExpr(
            "id", "DATE '2024-02-29' AS day", f"{kinds} AS kind"
        )
        sink.save(frame, Batch("parts", number))
    found = rows(tmp_path, "id")
    assert [row["id"] for row in found] == list(range(16))
    assert [row["kind"] for row in found] == values * 4
    assert {str(row["day"]) for row in found} == {"2024-02-29"}
    assert commits(tmp_path) == 2
    # Each task has its rows of a partition in one file.
    assert len(files(tmp_path)) == 2 * 2 * len(values) / 2 + 2 * 2 * len(values) / 2


def test_a_batch_is_one_commit_with_its_marker(spark: SparkSession, tmp_path: Path) -> None:
    batch = Batch("marked", 7, "[1]", "[2]")
    delta.sink(tmp_path).save(spark.range(3), batch)
    table = DeltaTable(tmp_path)
    assert table.transaction_version("penstock-marked") == 7
    assert table.history(1)[0]["penstock-marked"] == Marker.for_batch(batch).text()


def test_the_marker_outlives_a_checkpoint_of_the_log(spark: SparkSession, tmp_path: Path) -> None:
    delta.sink(tmp_path).save(spark.range(3), Batch("kept", 7, "", "[1]"))
    delta.sink(tmp_path).save(spark.range(1), Batch("other", 0))
    DeltaTable(tmp_path).create_checkpoint()
    for log in (tmp_path / "_delta_log").glob("*[01].json"):
        log.unlink()
    # Its offsets are gone with the commit, its number is not.
    delta.sink(tmp_path).save(spark.range(3), Batch("kept", 7, "", "[1]"))
    assert len(rows(tmp_path)) == 4
    with pytest.raises(PenstockError, match="is ahead of the checkpoint"):
        delta.sink(tmp_path).save(spark.range(3), Batch("kept", 6, "", "[0]"))


def test_a_batch_without_rows_makes_no_commit(spark: SparkSession, tmp_path: Path) -> None:
    sink = delta.sink(tmp_path)
    sink.save(spark.range(0), Batch("empty", 0))
    assert commits(tmp_path) == 0 and rows(tmp_path) == []
    sink.save(spark.range(1), Batch("empty", 1))
    sink.save(spark.range(0), Batch("empty", 2))
    assert commits(tmp_path) == 1


def test_a_batch_that_a_user_numbers_must_not_be_lower_than_the_last(spark: SparkSession, tmp_path: Path) -> None:
    sink = delta.sink(tmp_path)
    for number in (0, 5, 5):
        sink.save(spark.range(2), Batch("mine", number))
    assert len(rows(tmp_path)) == 4
    with pytest.raises(PenstockError, match=r"the Delta table .* is ahead of the checkpoint: .* up to 5 .*batch 4"):
        sink.save(spark.range(2), Batch("mine", 4))
    sink.save(spark.range(2), Batch("mine.1", 0))  # another sink of the same query
    assert len(rows(tmp_path)) == 6


def test_another_batch_under_the_same_number_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = delta.sink(tmp_path)
    sink.save(spark.range(2), Batch("q", 0, "", "[1]"))
    for number in range(3):
        delta.sink(tmp_path).save(spark.range(1), Batch("other", number))
    with pytest.raises(PenstockError, match="has another batch 0 of this query, with other offsets"):
        sink.save(spark.range(2), Batch("q", 0, "", "[2]"))
    # The offsets are in a commit that is no longer looked at: the number alone decides.
    monkeypatch.setattr(delta_table, "HISTORY", 2)
    sink.save(spark.range(2), Batch("q", 0, "", "[2]"))
    assert len(rows(tmp_path)) == 5


@pytest.mark.parametrize("key", [None, "id"], ids=["append", "upsert"])
def test_rows_are_counted_with_their_delays(spark: SparkSession, tmp_path: Path, key: str | None) -> None:
    query = str(uuid.uuid4())
    sink = delta.sink(tmp_path, key=key)
    frame = spark.range(5).selectExpr("id", "current_timestamp() AS window_end")
    for _ in range(2):
        sink.save(frame, Batch(query, 0))
    counts = delays.counts_of(query)[0]
    assert counts.rows == sum(counts.buckets) == 5
    if key is None:
        assert counts.bytes == sum(one.stat().st_size for one in files(tmp_path))
    with pytest.raises(PenstockError):
        sink.save(frame.selectExpr("id"), Batch(query, 1))
    assert delays.counts_of(query)[0].failures == {"PenstockError": 1}


def numbered(spark: SparkSession, *values: tuple[Any, ...]) -> DataFrame:
    """Rows with key, version, value and deletion flag, in two tasks; all rows of a key are in one task."""
    frame = spark.createDataFrame(list(values), "id int, v long, s string, gone boolean")
    return frame.repartition(2, "id").sortWithinPartitions("id", F.length("s"))


def test_upserts_and_deletes_by_key(spark: SparkSession, tmp_path: Path) -> None:
    sink = delta.sink(tmp_path, key="id", version="v", deleted="gone")
    batches = [
        numbered(spark, (1, 1, "a", False), (1, 3, "b", False), (1, 2, "late", False), (2, 1, "x", None)),
        numbered(spark, (1, 2, "older", False), (2, 2, "", True), (3, 1, "new", False), (4, 1, "", True)),
        numbered(spark, (3, 0, "", True), (1, 2, "older", False)),  # changes nothing, and is noted
        numbered(spark, (3, 0, "", True), (1, 3, "same version", False)),
    ]
    for number, batch in enumerate(batches):
        sink.save(batch, Batch("upserts", number))
        sink.save(batch, Batch("upserts", number))
        assert DeltaTable(tmp_path).transaction_version("penstock-upserts") == number
    assert rows(tmp_path, "id") == [{"id": 1, "v": 3, "s": "same version"}, {"id": 3, "v": 1, "s": "new"}]
    assert commits(tmp_path) == len(batches)
    # Staged rows are deleted: what is there was part of some version.
    kept = {Path(one).name for n in range(commits(tmp_path) + 1) for one in DeltaTable(tmp_path, n).file_uris()}
    assert {one.name for one in files(tmp_path)} == kept


def test_a_version_that_the_table_has_not_orders_the_rows_of_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), pa.table({"id": pa.array([1], pa.int32()), "s": ["old"]}))
    sink = delta.sink(tmp_path, key="id", version="v", deleted="gone")
    sink.save(numbered(spark, (1, 2, "b", False), (1, 1, "aaa", False)), Batch("order", 0))
    sink.save(numbered(spark, (1, 0, "c", False)), Batch("order", 1))
    assert rows(tmp_path) == [{"id": 1, "s": "c"}]


def test_without_a_version_the_last_row_of_a_key_counts(spark: SparkSession, tmp_path: Path) -> None:
    frame = numbered(spark, *[(n % 3, 0, "x" * n, False) for n in range(30)]).select("id", "s")
    delta.sink(tmp_path, key=["id"]).save(frame, Batch("last", 0))
    assert [(row["id"], len(row["s"])) for row in rows(tmp_path, "id")] == [(0, 27), (1, 28), (2, 29)]


def test_upserts_find_their_rows_in_all_partitions(spark: SparkSession, tmp_path: Path) -> None:
    sink = delta.sink(tmp_path, key=["id", "Day`s"], partition_by="Day`s")
    days = spark.range(20).selectExpr(
        "id", "date_add(DATE '2024-01-01', int(id % 4)) AS `Day``s`", "'it''s\\\\' AS `s.t`"
    )
    sink.save(days, Batch("days", 0))
    sink.save(days.where("id >= 10").withColumn("s.t", F.lit("new")), Batch("days", 1))
    found = rows(tmp_path, "id")
    assert [row["s.t"] for row in found] == ["it's\\"] * 10 + ["new"] * 10
    assert [row["Day`s"].day for row in found] == [n % 4 + 1 for n in range(20)]


def test_files_with_other_keys_are_not_read(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(4):
        first = number * 10
        write_deltalake(str(tmp_path), pa.table({"id": range(first, first + 10), "s": ["a"] * 10}), mode="append")
    delta.sink(tmp_path, key="id").save(spark.range(15, 17).selectExpr("id", "'b' AS s"), Batch("some", 0))
    told = DeltaTable(tmp_path).history(1)[0]["operationMetrics"]
    assert int(told["num_target_files_scanned"]) == 1
    assert sum(row["s"] == "b" for row in rows(tmp_path)) == 2


@pytest.mark.parametrize("key", ["CAST(NULL AS STRING)", "''"])
def test_a_null_in_the_key_is_refused(spark: SparkSession, tmp_path: Path, key: str) -> None:
    frame = spark.sql(f"SELECT {key} AS k, 1 AS n")
    with pytest.raises(Exception, match="the column k is null in some rows, and a key has no nulls, and no empty str"):
        delta.sink(tmp_path, key="k", partition_by="k").save(frame, Batch("null", 0))
    assert rows(tmp_path) == [] and not files(tmp_path)


def test_a_table_is_upserted_by_its_key(spark: SparkSession, tmp_path: Path) -> None:
    stream = spark.readStream.format("rate").load().selectExpr("value AS id", "value AS v", "'a' AS s", "false AS gone")
    made = Table(stream, ("id",), "v", "gone")
    sink = delta.sink(tmp_path, key="id").keyed(made)
    assert (sink.key, sink.version, sink.deleted) == (("id",), "v", "gone")
    write(made, delta.sink(tmp_path, key="id"))
    with pytest.raises(PenstockError, match=r"key is id, and delta.sink has no key.*set key=\[\"id\"\]"):
        write(made, delta.sink(tmp_path))
    with pytest.raises(PenstockError, match="version= is s, but the table's is v"):
        write(made, delta.sink(tmp_path, key="id", version="s"))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"version": "v"}, "version and deleted need a key.*set key="),
        ({"compression": "zip"}, "unknown compression 'zip'.*use one of zstd, snappy"),
        ({"path": "viewfs://host/t"}, "viewfs: is not a storage that delta.sink writes to.*use files.sink"),
        ({"path": "hdfs://host/a b"}, "the hdfs: address has the character ' '"),
        ({"path": "s3a://me:secret@bucket/t"}, "the s3: address has keys in it.*storage_options="),
        ({"path": "abfss://c@a.dfs.core.windows.net/t?sig=secret"}, "the abfss: address has keys in it"),
    ],
)
def test_a_wrong_setting_is_refused_when_the_sink_is_made(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(PenstockError, match=said) as refused:
        delta.sink(**{"path": "t", **wrong})
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("path", "taken"),
    [
        ("/data/t/", "/data/t"),
        ("file:/data/a%20b", "/data/a b"),
        ("file:///data/t", "/data/t"),
        ("s3a://bucket/t/", "s3://bucket/t"),
        ("gs://bucket/t", "gs://bucket/t"),
        ("abfss://c@account.dfs.core.windows.net/t", "abfss://c@account.dfs.core.windows.net/t"),
    ],
)
def test_a_path_is_one_of_this_machine_or_of_an_object_store(path: str, taken: str) -> None:
    assert address(path) == taken
    assert delta.sink(path).target == ("delta", taken)


def test_a_relative_path_does_not_change_with_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert delta.sink(Path("t")).path == str(tmp_path / "t")


def test_keys_of_the_storage_are_not_shown() -> None:
    sink = delta.sink("s3://bucket/t", storage_options={"AWS_SECRET_ACCESS_KEY": "hidden"})
    assert "hidden" not in repr(sink) and "hidden" not in str(sink.target)


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("penstock.delta.", "deltalake"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(vars(delta), "sink", raising=False)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(extras.MissingExtra, match=r"penstock.delta.sink needs the package deltalake.*\[delta\]"):
        _ = delta.sink


@pytest.mark.parametrize(
    ("select", "options", "said"),
    [
        ("1L AS id, 's' AS s, 1 AS more", {}, "the table has no column more .*with id, s, small.*drop or rename"),
        ("1L AS id", {}, r"the frame has no column s, small, inner.*withColumn\(\"s\", F.lit\(None\).cast\(\"string"),
        ("'1' AS id, 's' AS s", {}, r"the column id is string and does not fit into bigint .*cast\(\"bigint\"\)"),
        ("1L AS id, 's' AS s, 1.234 AS small", {}, r"small is decimal\(4,3\) and does not fit into decimal\(5,2\)"),
        ("1L AS id, 's' AS s, struct(1 AS y) AS inner", {}, r"inner is struct<y:int> and .* struct<x:int>"),
        ("1L AS id, 's' AS s", {"partition_by": "s"}, "partition_by= is s, and the table is partitioned by no col"),
        ("1L AS id, 's' AS s", {"partition_by": "day"}, "the frame has no column day.*correct partition_by="),
        ("1L AS id, 's' AS s", {"key": "k"}, "the frame has no column k .*fix key=, version= or deleted="),
        ("1L AS id, 's' AS s", {"key": "id", "version": "v"}, "the frame has no column v"),
        ("1L AS id, 's' AS s", {"key": "id", "deleted": "s"}, "the column s is not boolean"),
        ("1L AS id, 's' AS s, struct(1 AS x) AS inner", {"key": "inner"}, "the key inner is struct<x:int>"),
    ],
)
def test_a_frame_that_does_not_fit_is_refused_when_the_query_is_built(
    spark: SparkSession, tmp_path: Path, select: str, options: dict[str, Any], said: str
) -> None:
    inner = pa.array([None], pa.struct({"x": pa.int32()}))
    small = pa.array([None], pa.decimal128(5, 2))
    write_deltalake(str(tmp_path), pa.table({"id": [1], "s": ["a"], "small": small, "inner": inner}))
    fill = {"small": "CAST(NULL AS DECIMAL(5, 2)) AS small", "inner": "CAST(NULL AS struct<x:int>) AS inner"}
    more = [text for name, text in fill.items() if f"AS {name}" not in select and "has no column s, small" not in said]
    stream = spark.readStream.format("rate").load().selectExpr(*select.split(", "), *more)
    with pytest.raises(PenstockError, match=said):
        write(stream, delta.sink(tmp_path, **options))


@pytest.mark.parametrize(
    ("select", "options", "said"),
    [
        ("1 AS `a b`", {}, "the names 'a b' have characters.*rename"),
        ("1 AS a, 2 AS A", {}, "several columns a, and Delta does not tell upper and lower case apart"),
        ("INTERVAL 1 DAY AS i", {}, r"the column i has the type interval day, which is not written to Delta Lake"),
        ("array(parse_json('1')) AS v", {}, "the column v has the type variant.*make it a string"),
        ("NULL AS n", {}, "the column n has the type void"),
        ("1 AS id", {"partition_by": "id"}, "partition_by= leaves no column for the files"),
        ("1 AS id, array(1) AS p", {"partition_by": "p"}, "the partition column p is array<int>"),
        ("1 AS id, now() AS t", {"partition_by": "t", "key": "id"}, r"column t is a timestamp.*such as F.to_date\('t'"),
    ],
)
def test_a_frame_of_which_delta_has_no_table_is_refused(
    spark: SparkSession, tmp_path: Path, select: str, options: dict[str, Any], said: str
) -> None:
    stream = spark.readStream.format("rate").load().selectExpr(*select.split(", "))
    with pytest.raises(PenstockError, match=said):
        write(stream, delta.sink(tmp_path, **options))
    assert not files(tmp_path) and not (tmp_path / "_delta_log").exists()


def test_narrower_types_fit(spark: SparkSession, tmp_path: Path) -> None:
    kinds = {"a": pa.int64(), "b": pa.decimal128(12, 2), "c": pa.float64(), "d": pa.list_(pa.int64())}
    DeltaTable.create(tmp_path, pa.schema(kinds))
    frame = spark.sql("SELECT array(3S) AS d, 1Y AS a, 2 AS b, CAST(1.5 AS FLOAT) AS c")
    delta.sink(tmp_path).save(frame, Batch("narrow", 0))
    (row,) = rows(tmp_path)
    assert (row["a"], str(row["b"]), row["c"], row["d"]) == (1, "2.00", 1.5, [3])


def change_log(path: Path, configuration: dict[str, str], protocol: dict[str, Any], **column: Any) -> None:
    """A new table of the column `id`, as another library creates it."""
    DeltaTable.create(path, pa.schema({"id": pa.int64()}))
    (log,) = (path / "_delta_log").glob("*.json")
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    for entry in entries:
        if about := entry.get("metaData"):
            about["configuration"] = configuration
            schema = json.loads(about["schemaString"])
            schema["fields"][0] |= column
            about["schemaString"] = json.dumps(schema)
        if "protocol" in entry:
            entry["protocol"] = protocol
    log.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))


TWO = {"minReaderVersion": 1, "minWriterVersion": 2}
FEATURES = {"minReaderVersion": 3, "minWriterVersion": 7}
MAPPED = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "col-1"}


@pytest.mark.parametrize(
    ("configuration", "protocol", "column", "said"),
    [
        ({"delta.constraints.positive": "id > 0"}, TWO, {}, "constraints or computed columns.*positive"),
        ({}, TWO, {"metadata": {"delta.generationExpression": "1"}}, "computed columns, .*: id"),
        (
            {"delta.enableRowTracking": "true"},
            {**TWO, "minWriterVersion": 7, "writerFeatures": ["rowTracking", "domainMetadata"]},
            {},
            "features that the library deltalake cannot write: .*RowTracking",
        ),
        (
            {},
            {**FEATURES, "readerFeatures": ["new"], "writerFeatures": ["new"]},
            {},
            "features that the library deltalake cannot write: new",
        ),
        (
            {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "1"},
            {"minReaderVersion": 2, "minWriterVersion": 5},
            {"metadata": MAPPED},
            "the table maps the names of its columns.*DROP FEATURE columnMapping",
        ),
    ],
)
def test_a_table_with_features_that_cannot_be_written_is_refused(
    spark: SparkSession, tmp_path: Path, configuration: Any, protocol: Any, column: Any, said: str
) -> None:
    change_log(tmp_path, configuration, protocol, **column)
    with pytest.raises(PenstockError, match=said):
        delta.sink(tmp_path).save(spark.range(1), Batch("features", 0))


def test_a_table_with_deletion_vectors_takes_only_appends(spark: SparkSession, tmp_path: Path) -> None:
    vectors = ["deletionVectors"]
    change_log(tmp_path, {}, {**FEATURES, "readerFeatures": vectors, "writerFeatures": vectors})
    with pytest.raises(PenstockError, match=r"deletion vectors, and key= .*omit key=, or run in Spark: ALTER TABLE"):
        delta.sink(tmp_path, key="id").save(spark.range(1), Batch("vectors", 0))
    delta.sink(tmp_path).save(spark.range(1), Batch("vectors", 0))
    assert rows(tmp_path) == [{"id": 0}]


def test_a_column_that_must_not_be_null_is_checked(spark: SparkSession, tmp_path: Path) -> None:
    change_log(tmp_path, {}, TWO, nullable=False)
    sink = delta.sink(tmp_path)
    with pytest.raises(Exception, match="the column id is null in some rows, and the table does not admit nulls in it"):
        sink.save(spark.sql("SELECT CAST(NULL AS BIGINT) AS id"), Batch("null", 0))
    sink.save(spark.range(1), Batch("null", 0))
    assert rows(tmp_path) == [{"id": 0}]


def test_an_append_only_table_takes_no_upserts(spark: SparkSession, tmp_path: Path) -> None:
    DeltaTable.create(tmp_path, pa.schema({"id": pa.int64()}), configuration={"delta.appendOnly": "true"})
    with pytest.raises(PenstockError, match="the table is append-only, and key= replaces rows"):
        delta.sink(tmp_path, key="id").save(spark.range(1), Batch("only", 0))
    delta.sink(tmp_path).save(spark.range(1), Batch("only", 0))


def test_a_folder_that_cannot_be_made_is_told_when_the_query_is_built(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    stream = spark.readStream.format("rate").load()
    with pytest.raises(PenstockError, match=r"the Delta table cannot be written: .*file.*fix the path"):
        write(stream, delta.sink(f"{tmp_path}/file/t"))


def test_two_writers_at_once_lose_nothing_and_write_nothing_twice(spark: SparkSession, tmp_path: Path) -> None:
    """They create the table at once, and each has its batches."""

    def run(writer: int) -> None:
        sink = delta.sink(tmp_path)
        for number in range(4):
            begin = (writer * 4 + number) * 10
            while True:
                try:
                    sink.save(spark.range(begin, begin + 10), Batch(f"writer-{writer}", number))
                    break
                except Unavailable:
                    continue

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, range(2)))
    assert [row["id"] for row in rows(tmp_path, "id")] == list(range(80))
    assert commits(tmp_path) == 8


def test_of_writers_that_create_the_table_at_once_one_does(tmp_path: Path) -> None:
    layout = TableLayout({"id": st.LongType()}, (), ())
    for number in range(10):
        path, begin = tmp_path / str(number), Barrier(3)
        path.mkdir()

        def create(path: Path = path, begin: Barrier = begin) -> int:
            begin.wait()
            return delta_table.created(str(path), {}, layout, "a test").table.version()

        with ThreadPoolExecutor(3) as pool:
            assert [one.result() for one in [pool.submit(create) for _ in range(3)]] == [0, 0, 0]


def test_two_runs_of_one_batch_write_it_once(spark: SparkSession, tmp_path: Path) -> None:
    """As if a driver goes on that was taken for dead."""
    batch = Batch("twice", 0)
    delta.sink(tmp_path).save(spark.range(0), batch)
    slow = delta_table.opened(str(tmp_path), {}, "a test")
    assert slow
    delta.sink(tmp_path).save(spark.range(3), batch)
    with pytest.raises(CommitFailedError) as refused:
        slow.append((), batch)
    assert isinstance(failure(refused.value, "a test"), Unavailable)
    delta.sink(tmp_path).save(spark.range(3), batch)
    assert len(rows(tmp_path)) == 3


@pytest.mark.parametrize(("other", "value", "made"), [("others", "c", 3), ("upserts", "b", 2)])
def test_an_upsert_sees_what_was_committed_while_its_tasks_wrote(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str, value: str, made: int
) -> None:
    """Rows of another query are replaced; the same batch of another run is not written again."""
    sink = delta.sink(tmp_path, key="id")
    sink.save(spark.range(3).selectExpr("id", "'a' AS s"), Batch("upserts", 0))
    merge = DeltaLog.merge

    def overtaken(*arguments: Any) -> None:
        monkeypatch.setattr(DeltaLog, "merge", merge)
        sink.save(spark.range(3).selectExpr("id", "'b' AS s"), Batch(other, 1))
        merge(*arguments)

    monkeypatch.setattr(DeltaLog, "merge", overtaken)
    sink.save(spark.range(3).selectExpr("id", "'c' AS s"), Batch("upserts", 1))
    assert [row["s"] for row in rows(tmp_path)] == [value] * 3
    assert commits(tmp_path) == made


def test_an_upsert_that_another_writer_overtook_is_repeated(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = delta.sink(tmp_path, key="id")
    sink.save(spark.range(3).selectExpr("id", "'a' AS s"), Batch("upserts", 0))
    stale = DeltaTable(tmp_path)
    delta.sink(tmp_path, key="id").save(spark.range(3).selectExpr("id", "'b' AS s"), Batch("others", 0))
    monkeypatch.setattr(DeltaTable, "update_incremental", lambda _: None)
    with monkeypatch.context() as patch:
        patch.setattr(delta_table, "DeltaTable", lambda *_, **__: stale)
        with pytest.raises(Unavailable, match=r"another writer changed the Delta table meanwhile.*batch is repeated"):
            sink.save(spark.range(3).selectExpr("id", "'c' AS s"), Batch("upserts", 1))
    sink.save(spark.range(3).selectExpr("id", "'c' AS s"), Batch("upserts", 1))
    assert [row["s"] for row in rows(tmp_path)] == ["c"] * 3


def test_a_full_disk_is_told_and_the_batch_is_repeated(spark: SparkSession, tmp_path: Path) -> None:
    sink = delta.sink(tmp_path)
    sink.save(spark.range(1), Batch("full", 0))
    with small_files(16), pytest.raises(Unavailable, match=r"cannot be written: File too large.*free disk space"):
        sink.save(spark.range(1, 3), Batch("full", 1))
    sink.save(spark.range(1, 3), Batch("full", 1))
    assert [row["id"] for row in rows(tmp_path, "id")] == [0, 1, 2]
