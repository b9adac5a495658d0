"""Files and their statistics without Spark: every bound is true, and every partition value is read as it was."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delta_tables import files, rows, small_files
from deltalake import DeltaTable
from deltalake.transaction import AddAction
from hypothesis import example, given, settings, strategies as some

from penstock.delta import delta_files
from penstock.delta.delta_files import DataFile, FilesPlan, read_files, writer
from penstock.errors import PenstockError
from penstock.spark_runtime.failures import Unavailable

MICROS = some.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)
TEXT = some.text(max_size=3) | some.text("ab\U0010ffff", min_size=30, max_size=40)
COLUMNS: dict[str, tuple[pa.DataType, some.SearchStrategy[Any]]] = {
    "whole": (pa.int64(), some.integers(-(1 << 63), (1 << 63) - 1)),
    "small": (pa.int8(), some.integers(-128, 127)),
    "single": (pa.float32(), some.floats(width=32)),
    "double": (pa.float64(), some.floats()),
    "price": (pa.decimal128(38, 10), some.decimals(-(10**20), 10**20, places=10)),
    "text": (pa.string(), TEXT),
    "long": (pa.string(), some.sampled_from(["x" * 5000, "y"])),
    "day": (pa.date32(), some.dates()),
    "at": (pa.timestamp("us", "UTC"), MICROS),
    "local": (pa.timestamp("us"), MICROS),
    "yes": (pa.bool_(), some.booleans()),
    "bytes": (pa.binary(), some.binary(max_size=3)),
    "inner": (
        pa.struct({"a.b": pa.int32(), "deep": pa.struct({"s": pa.string()})}),
        some.fixed_dictionaries(
            {"a.b": some.none() | some.integers(0, 9), "deep": some.none() | some.fixed_dictionaries({"s": TEXT})}
        ),
    ),
    "many": (pa.list_(pa.int32()), some.lists(some.integers(0, 9), max_size=2)),
}
LAST = datetime.fromisoformat("9999-12-31 23:59:59.999999")
NO_BOUNDS = {"yes", "bytes", "many"}


def plan(folder: Path | str, schema: pa.Schema, *partition_by: str, **more: Any) -> FilesPlan:
    return FilesPlan(str(folder), {}, schema, partition_by, more.get("required", {}), "zstd", "a test")


def write(made: FilesPlan, *batches: pa.RecordBatch) -> list[DataFile]:
    return [one for row in writer(made)(iter(batches)) for one in read_files(row["files"][0].as_py())]


@some.composite
def batches(draw: some.DrawFn) -> list[pa.RecordBatch]:
    """One or two batches with all columns, which become one file."""
    sizes = draw(some.lists(some.integers(1, 4), min_size=1, max_size=2))
    return [
        pa.record_batch(
            {
                name: pa.array(draw(some.lists(some.none() | values, min_size=size, max_size=size)), kind)
                for name, (kind, values) in COLUMNS.items()
            }
        )
        for size in sizes
    ]


def read(value: Any, kind: pa.DataType) -> Any:
    """A bound of the statistics as a reader takes it."""
    if pa.types.is_timestamp(kind):
        return datetime.fromisoformat(value)
    if pa.types.is_date(kind):
        return date.fromisoformat(value)
    return float(value) if pa.types.is_floating(kind) else value


def leaves(values: list[Any], kind: pa.DataType, path: tuple[str, ...]) -> Iterator[tuple[Any, pa.DataType, list[Any]]]:
    if not pa.types.is_struct(kind):
        yield path, kind, values
        return
    for one in kind:
        yield from leaves([value and value[one.name] for value in values], one.type, (*path, one.name))


def at(tree: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        tree = (tree or {}).get(name)
    return tree


@settings(max_examples=40)
@given(batches())
def test_the_statistics_of_a_file_are_true(parts: list[pa.RecordBatch]) -> None:
    with TemporaryDirectory() as folder:
        (file,) = write(plan(folder, parts[0].schema), *parts)
        assert Path(folder, file.path).stat().st_size == file.size
        table = pq.read_table(Path(folder, file.path))
    assert table.num_rows == file.rows == sum(map(len, parts))
    found = json.loads(file.stats, parse_float=Decimal)
    assert found["numRecords"] == file.rows
    for name in table.column_names:
        for path, kind, values in leaves(table[name].to_pylist(), table[name].type, (name,)):
            check(found, path, kind, values)


def check(found: dict[str, Any], path: tuple[str, ...], kind: pa.DataType, values: list[Any]) -> None:
    known = [value for value in values if value is not None]
    low, high = (at(found[bound], path) for bound in ("minValues", "maxValues"))
    if path[0] in NO_BOUNDS:
        assert low is None and high is None
        return
    assert at(found["nullCount"], path) == len(values) - len(known)
    # Readers sort NaN after all numbers.
    nan = [value for value in known if isinstance(value, float) and math.isnan(value)]
    known = [value for value in known if value not in nan]
    assert low is None or all(read(low, kind) <= value for value in known)
    assert high is None or (not nan and all(read(high, kind) >= value for value in known))
    if known and path[0] in ("whole", "small", "price", "day", "at", "local"):
        assert (read(low, kind), read(high, kind)) == (min(known), max(known))


def test_long_strings_are_cut_in_the_statistics(tmp_path: Path) -> None:
    batch = pa.record_batch({"s": ["a" * 100, "b" * 32, "c" * 32 + "\U0010ffff" * 2], "t": ["x" * 33] * 3})
    (file,) = write(plan(tmp_path, batch.schema), batch)
    found = json.loads(file.stats)
    assert found["minValues"] == {"s": "a" * 32, "t": "x" * 32}
    assert found["maxValues"] == {"t": "x" * 32 + "\U0010ffff"}


PARTS: dict[str, tuple[pa.DataType, some.SearchStrategy[Any]]] = {
    "text": (pa.string(), some.text(some.characters(exclude_categories=["Cs"]), min_size=1, max_size=100)),
    "whole": (pa.int32(), some.integers(-(1 << 31), (1 << 31) - 1)),
    "yes": (pa.bool_(), some.booleans()),
    "day": (pa.date32(), some.dates()),
    "at": (pa.timestamp("us", "UTC"), some.datetimes(timezones=some.just(UTC))),
    "local": (pa.timestamp("us"), some.datetimes()),
    "price": (pa.decimal128(20, 8), some.decimals(-(10**11), 10**11, places=8)),
    "double": (pa.float64(), some.floats(allow_nan=False)),
}


@settings(max_examples=40)
@given(some.lists(some.tuples(*(some.none() | values for _, values in PARTS.values())), min_size=1, max_size=4))
@example(
    [
        (
            "a b/c=d%20\\\"'ü\n~.\x7f",
            1,
            True,
            date.min,
            None,
            LAST,
            Decimal("0.00000001"),
            -0.0,
        )
    ]
)
@example([("..", None, None, None, None, None, None, math.inf), ("ä" * 100,) + (None,) * 7])
def test_a_partition_value_is_read_as_it_was(values: list[tuple[Any, ...]]) -> None:
    columns = {
        name: pa.array([row[place] for row in values], kind) for place, (name, (kind, _)) in enumerate(PARTS.items())
    }
    batch = pa.record_batch({"id": pa.array(range(len(values)), pa.int64()), **columns})
    with TemporaryDirectory() as folder:
        found = write(plan(folder, batch.schema, *PARTS), batch)
        table = DeltaTable.create(folder, batch.schema, partition_by=list(PARTS))
        actions: list[Any] = [AddAction(one.path, one.size, one.values, 0, True, one.stats) for one in found]
        table.create_write_transaction(actions, "append", table.schema(), list(PARTS))
        assert rows(folder, "id") == batch.to_pylist()


def test_an_empty_string_in_a_partition_column_is_null(tmp_path: Path) -> None:
    batch = pa.record_batch({"id": [1, 2], "p": ["", None]})
    (file,) = write(plan(tmp_path, batch.schema, "p"), batch)
    assert file.values == {"p": None} and file.rows == 2


def test_a_large_file_ends_and_another_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_files, "ROW_GROUP", 1 << 10)
    monkeypatch.setattr(delta_files, "LARGEST", 1 << 12)
    parts = [pa.record_batch({"id": range(n * 1000, n * 1000 + 1000)}) for n in range(20)]
    found = write(plan(tmp_path, parts[0].schema), *parts)
    assert len(found) > 5 and sum(one.rows for one in found) == 20_000
    bounds = [json.loads(one.stats) for one in found]
    assert [one["minValues"]["id"] for one in bounds][1:] == [one["maxValues"]["id"] + 1 for one in bounds][:-1]


def test_a_task_that_fails_removes_its_files(tmp_path: Path) -> None:
    def sick() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": [1], "p": ["a"]})
        yield pa.record_batch({"id": [2], "p": ["b"]})
        raise RuntimeError("sick")

    with pytest.raises(RuntimeError, match="sick"):
        list(writer(plan(tmp_path, pa.schema({"id": pa.int64(), "p": pa.string()}), "p"))(sick()))
    assert not files(tmp_path)


def test_a_task_on_a_full_disk_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    batch = pa.record_batch({"id": range(10_000)})
    with small_files(1000), pytest.raises(Unavailable, match=r"cannot be written: File too large.*free disk space"):
        write(plan(tmp_path, batch.schema), batch)
    assert not files(tmp_path)


def test_a_null_where_none_is_allowed_is_refused(tmp_path: Path) -> None:
    batch = pa.record_batch({"id": pa.array([1, None], pa.int64())})
    with pytest.raises(PenstockError, match=r"column id is null in some rows, and a key has none.*`id` IS NOT NULL"):
        write(plan(tmp_path, batch.schema, required={"id": "a key has none"}), batch)


def test_keys_of_the_storage_are_not_shown(tmp_path: Path) -> None:
    made = FilesPlan(str(tmp_path), {"AWS_SECRET_ACCESS_KEY": "hidden"}, pa.schema({}), (), {}, "zstd", "a test")
    assert "hidden" not in repr(made)
