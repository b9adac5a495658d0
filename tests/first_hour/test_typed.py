"""Type checkers see Penstock's types: mypy on users' files, with the wheel in an environment of its own."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

pytestmark = pytest.mark.slow

SHOP = Path(__file__).parent / "files/shop.py"
BEGIN = """import penstock as ps
from penstock import cdc, cql, files, join, kafka, segment, table, window
from penstock.wire import BlockingProducer, Producer
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.builder.getOrCreate()
frame: DataFrame = spark.range(1)
""".splitlines()
MISTAKES = {
    'cdc.read(spark, "a.b", hosts="h:1", name="n", image="full")': 'keyword argument "image" .*did you mean "images"',
    'cdc.read(spark, "a.b", hosts="h:1", name="n", images="post")': 'Argument "images" .*"Literal',
    'cdc.read(spark, "a.b", hosts="h:1", name="n", latency="fast")': 'Argument "latency"',
    'cdc.read(spark, "a.b", hosts="h:1", name="n", max_rows="many")': 'Argument "max_rows" .*expected "int"',
    'cdc.read(spark, "a.b", hosts="h:1")': 'Missing named argument "name"',
    'cql.sink("a.b", hosts="h:1", pasword="x")': 'keyword argument "pasword" .*did you mean "password"',
    'cql.sink("a.b", hosts="h:1", mode="merge")': 'Argument "mode"',
    'cql.sink("a.b", hosts="h:1", timeout=[5])': 'Argument "timeout" .*"str | float | timedelta"',
    'segment.sink("seg", hosts="h:1", tls="yes")': 'Argument "tls" .*expected "bool"',
    'kafka.read(spark, "t", servers="h:1", name="n", format="xml")': 'Argument "format"',
    'kafka.read_table(spark, "t", key="id", name="n")': 'Missing named argument "servers"',
    'kafka.read_table(spark, "t", key="id", name="n", servers="h:1", late=5)': 'Unexpected keyword argument "late"',
    'kafka.sink("t", servers="h:1", delivery="once")': 'Argument "delivery"',
    'kafka.sink("t", servers="h:1", keys=["id"])': 'keyword argument "keys" .*did you mean "key"',
    'window.tumbling(frame, b"1 minute", at="ts", key="k", name="n", n="count(*)")': 'Argument 2 to "tumbling"',
    'join.enrich(frame, frame, on="id", name="j")': 'Argument 2 to "enrich"',
    'files.sink("/data", compression="rar")': 'Argument "compression"',
    'Producer("h:1", linger=b"5")': 'Argument "linger"',
    'BlockingProducer("h:1", compresion="lz4")': 'keyword argument "compresion" .*did you mean "compression"',
    'ps.write(frame, kafka.sink("t", servers="h:1"), mode="upsert")': 'Argument "mode"',
    "ps.kafka.sinks": 'has no attribute "sinks"',
    "ps.Querry": 'has no attribute "Querry"',
}


def test_the_wheel_says_that_it_has_types(wheel: Path) -> None:
    with ZipFile(wheel) as opened:
        assert {"penstock/py.typed", "penstock/__init__.py"} <= set(opened.namelist())


@pytest.fixture(scope="module")
def told(base: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What mypy says about both files: one that is right, and one with a mistake in each line after its beginning."""
    folder = tmp_path_factory.mktemp("typed")
    shutil.copy(SHOP, folder / "right.py")
    (folder / "wrong.py").write_text("\n".join([*BEGIN, *MISTAKES, ""]))
    words = ["--strict", "--config-file=", "--python-executable", str(base / "python"), "right.py", "wrong.py"]
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", *words], cwd=folder, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1, ran.stderr
    return [line for line in ran.stdout.splitlines() if ": error: " in line]


def test_a_file_that_uses_the_package_as_it_is_has_no_errors(told: list[str]) -> None:
    assert [line for line in told if not line.startswith("wrong.py:")] == []


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_reported_at_its_line(told: list[str], mistake: str) -> None:
    number = len(BEGIN) + list(MISTAKES).index(mistake) + 1
    found = [line for line in told if line.startswith(f"wrong.py:{number}:")]
    assert found and all(re.search(MISTAKES[mistake], line) for line in found)


def test_nothing_else_is_reported(told: list[str]) -> None:
    assert len(told) == len(MISTAKES)
