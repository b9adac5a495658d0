"""Pipeline files that use Spark while they are loaded, in a process without a session."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from public_names import public
from waiting import patience

from penstock.codec.decode_columns import struct_of
from penstock.errors import PenstockError

SCHEMAS = {"schema", "returns"}
"""The arguments of public functions that take a schema as text."""
GIVEN = {"SparkSession", "DataFrame", "Table"}
"""Types of a first argument that a file has only once there is a session."""
AT_THE_TOP = {
    "penstock.table.global_table": "from penstock import table\n"
    'NAMES = table.global_table("names", servers="127.0.0.1:1", schema="{schema}")',
}
SPARKS = {
    "udf": 'from pyspark.sql import functions as F\n@F.udf("{schema}")\ndef f(value): ...',
    "fromDDL": 'from pyspark.sql import types as st\nkind = st.StructType.fromDDL("{schema}")',
    "wrapped": "from penstock import table\ntry:\n"
    '    table.global_table("names", servers="127.0.0.1:1", schema="{schema}")\n'
    'except Exception:\n    raise ValueError("no names") from None',
}
LOAD = """
import sys
from penstock.cli.pipeline_file import lacks_session, load
from penstock.errors import PenstockError

for file in sys.argv[1:]:
    try:
        load(f"{file}:orders")
    except PenstockError as error:
        print(lacks_session(error), error)
"""
NAMES = ("numbers", "json", "kafka", "pyspark", "penstock", "pyarrow", "py4j")
"""Modules that Penstock or PySpark imports, of Python and of packages, and one that may not be there."""
NAMED = """
import penstock as ps
from penstock import files
from pyspark.sql import functions as F
from beside import FACTOR

@F.udf("long")
def times(number):
    import beside, json, numbers, pyspark.sql
    return number * beside.FACTOR + len(json.loads("[]"))

@ps.pipeline(every="0 seconds")
def orders(spark):
    rows = spark.readStream.schema("n long").json("{folder}/in")
    return ps.write(rows.select(times("n").alias("n")), files.sink("{folder}/out-{name}"))
"""


@pytest.fixture
def named(tmp_path: Path) -> Path:
    """A folder of pipelines that are named like modules, which is the current one, too."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"n": 6}')
    (tmp_path / "beside.py").write_text("FACTOR = 7")
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(NAMED.replace("{folder}", str(tmp_path)).replace("{name}", name))
    return tmp_path


def penstock(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("penstock")), *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=patience(300), check=False)


FOUND = """
from importlib.machinery import PathFinder
print(*(PathFinder.find_spec(name).origin for name in ("numbers", "json", "pyspark", "penstock", "beside")))
"""


def test_a_file_named_like_a_module_is_loaded_and_stands_for_no_module(named: Path) -> None:
    files = [str(named / f"{name}.py") for name in NAMES]
    command = [sys.executable, "-P", "-c", LOAD + FOUND, *files]
    ran = subprocess.run(command, cwd=named, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    *loaded, found = ran.stdout.splitlines()
    assert [line.split()[0] for line in loaded] == ["True"] * len(NAMES), ran.stdout
    assert [Path(origin).parent == named for origin in found.split()] == [False, False, False, False, True]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", NAMES)
def test_a_file_named_like_a_module_runs_in_workers_too(named: Path, name: str) -> None:
    ran = penstock(named, "run", f"{name}.py:orders", "--once", "--cores", "1")
    assert ran.returncode == 0, ran.stderr
    (written,) = (named / f"out-{name}").rglob("*.parquet")
    assert pq.read_table(written)["n"].to_pylist() == [42]


def takes_schema(function: object) -> bool:
    return inspect.isfunction(function) and bool(SCHEMAS & {*inspect.signature(function).parameters})


def first_type(function: object) -> str:
    assert inspect.isfunction(function)
    return str(next(iter(inspect.signature(function).parameters.values())).annotation)


def test_a_file_with_a_schema_at_its_top_is_loaded_after_spark(tmp_path: Path) -> None:
    """Each public function with a schema as text that a file can call before there is a session."""
    before = {name for name, value in public() if takes_schema(value) and first_type(value) not in GIVEN}
    assert before == set(AT_THE_TOP)
    files = [tmp_path / f"file_{n}.py" for n in range(len(AT_THE_TOP) + len(SPARKS))]
    for file, text in zip(files, [*AT_THE_TOP.values(), *SPARKS.values()], strict=True):
        file.write_text(text.format(schema="name string"))
    (other := tmp_path / "other.py").write_text('assert False, "nothing of Spark"')
    ran = subprocess.run([sys.executable, "-c", LOAD, *files, other], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert [line.split()[0] for line in ran.stdout.splitlines()] == [*["True"] * len(files), "False"], ran.stdout


def test_a_schema_without_a_session_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
    with pytest.raises(PenstockError, match=r"there is no Spark session yet \(here\)\. Next: make one first"):
        struct_of("name string", "here")
