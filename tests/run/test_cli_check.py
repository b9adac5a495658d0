"""`penstock check` as a process: what a run would refuse, without a run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import patience

from penstock.local.services import Services

FILE = """
import os
import signal

import penstock as ps
from penstock import cdc, cql, kafka
from pyspark.sql import functions as F

VALUE = F.col("value").cast("string").alias("value")
VALUE_OF_ID = F.col("id").cast("string").alias("value")
SINK = kafka.sink("numbers", servers="{servers}")


def ticks(spark):
    return spark.readStream.format("rate").load()


@ps.pipeline(every="5 seconds")
def numbers(spark):
    return ps.write(ticks(spark).select("timestamp", VALUE), SINK)


@ps.pipeline
def two(spark):
    return [ps.write(ticks(spark).select(VALUE), SINK, name=name) for name in ("first", "second")]


@ps.pipeline
def counts(spark):
    return ps.write(ticks(spark).groupBy(VALUE).count().select("value"), SINK)


@ps.pipeline
def changes(spark):
    return ps.write(cdc.read(spark, "shop.orders", hosts="127.0.0.1:1", name="orders"), SINK)


@ps.pipeline
def read(spark):
    clicks = kafka.read(spark, "clicks", servers="127.0.0.1:1", schema="id int", name="clicks", format="json")
    return ps.write(clicks.select(VALUE_OF_ID), SINK)


@ps.pipeline
def without_java(spark):
    os.kill(spark.sparkContext._gateway.proc.pid, signal.SIGKILL)
    return ps.write(ticks(spark).select(VALUE), SINK)


@ps.pipeline
def missing(spark):
    orders = cdc.read(spark, "nowhere.orders", hosts="{cql}", name="orders")
    known = cql.lookup(
        orders.select("id", "user"),
        *("nowhere.users",),
        **dict(hosts="{cql}", on="user", columns=["name"], ttl="1 minute", name="users"),
    )
    totals = cql.sink("nowhere.totals", hosts="{cql}")
    return [ps.write(known, totals, name="totals"), ps.write(ticks(spark).select("valeu"), SINK, name="ticks")]


@ps.pipeline
def topics(spark):
    settings = dict(servers="{servers}", schema="value string")
    frames = [kafka.read(spark, name, name=name, **settings).select("value") for name in ("no-clicks", "no-views")]
    return [ps.write(frame, SINK, name=name) for frame, name in zip(frames, ("clicks", "views"))]


@ps.pipeline
def wrong(spark):
    return ps.write(ticks(spark).select("valeu"), SINK)
"""


NOBODY = "127.0.0.1:1"
"""An address at which nothing listens."""


def check(
    folder: Path, *words: str, servers: str = NOBODY, cql: str = NOBODY, command: str = "check"
) -> subprocess.CompletedProcess[str]:
    (folder / "shop.py").write_text(FILE.replace("{servers}", servers).replace("{cql}", cql))
    line = [sys.executable, "-m", "penstock", command, *words]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=patience(300), check=False)


@pytest.mark.slow
def test_a_pipeline_is_shown_and_not_started(tmp_path: Path, services: Services) -> None:
    ran = check(tmp_path, "shop.py:numbers", servers=services.kafka)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "numbers: can run",
        "  reads       rate",
        "  writes      kafka topic numbers (at-least-once)",
        "  every       0:00:05",
        "  columns     timestamp timestamp, value string",
        f"  checkpoint  {tmp_path}/.penstock/checkpoints/numbers",
    ]
    assert not (tmp_path / ".penstock").exists()


@pytest.mark.slow
def test_each_query_is_an_object(tmp_path: Path, services: Services) -> None:
    ran = check(tmp_path, "shop.py:two", "--json", "--checkpoints", "kept", servers=services.kafka)
    told = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [one["query"] for one in told] == ["two/first", "two/second"]
    assert [one["checkpoint"] for one in told] == [f"{tmp_path}/kept/two/{name}" for name in ("first", "second")]
    assert told[0]["columns"] == {"value": "string"}


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("command", ["check", "graph"])
def test_all_that_is_missing_is_told_at_once(tmp_path: Path, services: Services, command: str) -> None:
    ran = check(tmp_path, "shop.py:missing", cql=services.cql, command=command)
    assert (ran.returncode, ran.stdout) == (1, "")
    first, *faults = ran.stderr[ran.stderr.index("penstock: ") :].splitlines()
    assert first == "penstock: there are 4 faults:"
    assert [fault.split(" (")[0] for fault in faults] == [
        "  1. there is no table nowhere.orders",
        "  2. there is no table nowhere.users",
        "  3. there is no table nowhere.totals",
        "  4. there is no column valeu",
    ]
    assert all(f"({tmp_path}/shop.py, line " in fault and ". Next: " in fault for fault in faults)


@pytest.mark.slow
def test_missing_topics_are_told_with_a_command(tmp_path: Path, services: Services) -> None:
    ran = check(tmp_path, "shop.py:topics", servers=services.kafka)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.splitlines()[-3:] == [
        "penstock: there are 2 faults:",
        *(
            f"  {number}. there is no topic {topic} (Kafka at {services.kafka})."
            f" Next: create it: penstock topics create {topic} --servers {services.kafka}"
            for number, topic in enumerate(("no-clicks", "no-views"), 1)
        ),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "wrong",
            'there is no column valeu ({folder}/shop.py, line 71: return ps.write(ticks(spark).select("valeu"), SINK)).'
            " Next: did you mean value? the columns are timestamp, value",
        ),
        ("counts", "output mode is not supported for streaming aggregations without watermark"),
        ("changes", "did not answer for 1 s (pipeline changes). Next: start what the lines above wait for"),
        ("orders", "there is no orders in shop.py"),
    ],
)
def test_what_a_run_would_refuse_is_told(tmp_path: Path, name: str, said: str) -> None:
    ran = check(tmp_path, f"shop.py:{name}", "--wait", "1")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert said.format(folder=tmp_path) in ran.stderr[ran.stderr.index("penstock: ") :]
    assert "Traceback" not in ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["numbers", "read"], ids=["sink", "source"])
def test_brokers_that_do_not_answer_are_told(tmp_path: Path, services: Services, name: str) -> None:
    ran = check(tmp_path, f"shop.py:{name}", servers=NOBODY if name == "numbers" else services.kafka)
    assert (ran.returncode, ran.stdout) == (1, "")
    said = f"penstock: Kafka at {NOBODY} cannot be reached: Connection refused. Next: "
    assert ran.stderr.splitlines()[-1].startswith(said)


@pytest.mark.slow
def test_the_checkpoint_of_another_query_is_told_and_not_touched(tmp_path: Path, services: Services) -> None:
    text = FILE.replace("{servers}", services.kafka)
    (tmp_path / "before.py").write_text(text.replace('"numbers"', '"earlier"').replace("5 seconds", "0 seconds"))
    command = [sys.executable, "-m", "penstock", "run", "before.py:numbers", "--once"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=patience(300), capture_output=True)
    kept = tmp_path / ".penstock" / "checkpoints" / "numbers" / "penstock.json"
    before = kept.read_bytes(), kept.stat().st_mtime_ns
    ran = check(tmp_path, "shop.py:numbers")
    assert ran.returncode == 1
    assert "that one writes to kafka topic earlier, and this one writes to kafka topic numbers" in ran.stderr
    assert (kept.read_bytes(), kept.stat().st_mtime_ns) == before


@pytest.mark.slow
@pytest.mark.parametrize("command", ["check", "graph"])
def test_the_end_of_java_is_told_without_a_traceback(command: str, tmp_path: Path) -> None:
    ran = check(tmp_path, "shop.py:without_java", command=command)
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1] == (
        "penstock: Spark's Java process ended (exit code -9)."
        " Next: run the command again; if this repeats, find what kills Spark's process (memory?)"
    )
    assert "Traceback" not in ran.stderr
