"""A session of Spark Connect and Spark's declarative pipelines, on a real server: the tables of docs/notebook.md."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cassandra.cluster import Session
from confluent_kafka import Producer
from kafka_topics import new_topic
from waiting import PATIENCE, patience

from penstock.local.ports import HOST, free
from penstock.local.services import Services

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SUPPORT = ROOT / "tests/support/spark"
PAGE = ROOT / "docs/notebook.md"
CLICKS = 6
LONGEST = patience(300)
REFUSED = r"refused: .* needs a classic Spark session, and this is a (?:Spark Connect session|process of Spark Connect)"
SPEC = "name: clicks\nstorage: {folder}/storage\nlibraries:\n  - glob:\n      include: flows.py\n"
FLOWS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

from penstock import kafka, table, window
from penstock.errors import PenstockError
from penstock.table import Table

spark = SparkSession.active()


def read(**options):
    given = {{"servers": "{kafka}", "schema": "user string, page string, ts timestamp", "name": "clicks"}}
    return kafka.read(spark, "{topic}", **given, at="ts", late="1 second", **options)

"""
BY_SPARK = """
clicks = read(client="spark")


@dp.temporary_view
def viewed():
    return clicks


@dp.table
def stored():
    return spark.readStream.table("viewed").select("user", "page", "offset")


try:
    window.tumbling(clicks, "1 minute", at="ts", key="page", name="minutes", n="count(*)")
except PenstockError as error:
    print(error)
"""
BY_US = """
clicks = read()
counts = table.count(Table(clicks, key="user", version="offset"), by="page", name="counts")


@dp.table
def read_by_us():
    return clicks.select("user", "offset")


@dp.table
def counted():
    return counts.df.select("page", "count")
"""
INSIDE = """
@dp.table
def inside():
    return read()
"""
COUNT = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
print([spark.table(name).count() for name in sys.argv[1:]])
"""

ROW = re.compile(r"^\| (.*\S) \| (yes|no)\b.* \|$", re.MULTILINE)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Spark Connect server in a process of its own."""
    port = free(set())
    program = [sys.executable, str(SUPPORT / "connect_server.py"), str(port)]
    folder = tmp_path_factory.mktemp("connect")
    running = subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder, env=environment(), text=True
    )
    try:
        assert running.stdout and running.stdout.readline() == "ready\n"
        yield f"sc://{HOST}:{port}"
    finally:
        running.communicate(timeout=PATIENCE)


@pytest.fixture(scope="module")
def topic(services: Services) -> Iterator[str]:
    """A topic with clicks of two users on two pages."""
    with new_topic(services.kafka, "connect", 1) as name:
        producer = Producer({"bootstrap.servers": services.kafka})
        for n in range(CLICKS):
            click = {"user": f"u{n % 2}", "page": "ab"[n % 2], "ts": f"2026-01-01T00:0{n}:00Z"}
            producer.produce(name, json.dumps(click), key=click["user"])
        assert producer.flush(60) == 0
        yield name


@pytest.fixture(scope="module")
def tables(cql: Session, keyspace: str) -> str:
    options = "{'enabled': true, 'preimage': 'full', 'postimage': true}"
    cql.execute(f"CREATE TABLE {keyspace}.changed (id int PRIMARY KEY, name text) WITH cdc = {options}")
    cql.execute(f"INSERT INTO {keyspace}.changed (id, name) VALUES (1, 'a')")
    cql.execute(f"CREATE TABLE {keyspace}.names (id text PRIMARY KEY, name text)")
    return keyspace


def environment(**more: str) -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    # The settings of the tests' own session in this process are not for others.
    others = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "PENSTOCK_FORK"))}
    return others | {"PYTHONPATH": paths} | more


def answers(heading: str) -> dict[str, bool]:
    """The rows of the first table below a heading of the page: what works."""
    text = PAGE.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = {name.replace("`", ""): answer == "yes" for name, answer in ROW.findall(text)}
    assert rows
    return rows


def test_what_works_in_a_session_of_spark_connect(
    server: str, services: Services, topic: str, tables: str, tmp_path: Path
) -> None:
    client = [SUPPORT / "connect_client.py", services.kafka, services.cql, topic, tables, tmp_path]
    ran = program(server, tmp_path, *map(str, client))
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    said = {name: answer for name, answer in found.items() if isinstance(answer, str)}
    assert {name: answer for name, answer in said.items() if not re.match(REFUSED, answer)} == {}
    assert {name: name not in said for name in found} == answers("Spark Connect")
    assert found["kafka.read"] == found["kafka.read_table"] == CLICKS
    assert found["cdc.read"] == 1


def run_flows(
    server: str, services: Services, topic: str, folder: Path, flows: str
) -> subprocess.CompletedProcess[str]:
    """Run a pipeline of this file with Spark's own command."""
    (folder / "spark-pipeline.yml").write_text(SPEC.format(folder=folder.as_uri()))
    (folder / "flows.py").write_text(FLOWS.format(kafka=services.kafka, topic=topic) + flows)
    return program(server, folder, "-m", "pyspark.pipelines.cli", "run", "--spec", "spark-pipeline.yml")


def program(server: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment(SPARK_REMOTE=server),
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )


def rows(server: str, folder: Path, *names: str) -> list[int]:
    ran = program(server, folder, "-c", COUNT, *names)
    assert ran.returncode == 0, ran.stderr
    return [int(count) for count in re.findall(r"\d+", ran.stdout)]


def test_a_declarative_pipeline_reads_a_topic(server: str, services: Services, topic: str, tmp_path: Path) -> None:
    ran = run_flows(server, services, topic, tmp_path, BY_SPARK)
    assert ran.returncode == 0, ran.stderr
    assert "window minutes needs a classic Spark session" in ran.stdout
    assert rows(server, tmp_path, "stored") == [CLICKS]


def test_a_declarative_pipeline_with_python_in_its_flows(
    server: str, services: Services, topic: str, tmp_path: Path
) -> None:
    ran = run_flows(server, services, topic, tmp_path, BY_US)
    assert "Run is COMPLETED" in ran.stdout + ran.stderr
    # When this ends with 0, the page need not warn of it any more.
    assert (ran.returncode, "UNKNOWN_RESPONSE" in ran.stderr) == (1, True)
    assert rows(server, tmp_path, "read_by_us", "counted") == [CLICKS, 2]


def test_frames_are_not_made_inside_of_a_function(server: str, services: Services, topic: str, tmp_path: Path) -> None:
    ran = run_flows(server, services, topic, tmp_path, INSIDE)
    assert ran.returncode != 0
    assert "ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION" in ran.stderr
