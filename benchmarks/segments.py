"""Events through 100 and 1 000 rules of segmentation on two cores: events/s of `segment.match` in a running query.

    python benchmarks/segments.py [--events N] [--persons N] [--json FILE]

The events lie in Parquet files, one a batch; the rate is that of the batches after the first two, in which code is
compiled. The peer is the same query without rules: it reads the files and writes their columns nowhere.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import Column, SparkSession, functions as F
from pyspark.sql.streaming.query import StreamingQuery

from _measure import SampledCpu, tell, turns
from penstock import segment
from penstock.spark_runtime.session import spark as spark_session

PAGES, KINDS, COUNTRIES = 400, ["visit", "cart", "buy", "search", "share"], ["DE", "FR", "US", "IN", "BR"]
DAY = timedelta(days=1)
LOOK = 0.1  # seconds
WARM_UP = 2
"""Batches in which code is compiled."""


def rules(count: int) -> list[segment.Rule]:
    """Rules of all sorts; a page is of interest to a few of them."""
    pick = random.Random(7)
    made = []
    for i in range(count):
        page, country = f"page = 'p{pick.randrange(PAGES)}'", pick.choice(COUNTRIES)
        visit, cart, buy = (f"event = '{kind}' AND {page}" for kind in ("visit", "cart", "buy"))
        kind = i % 10
        when: segment.Condition = segment.count(visit, at_least=2 + i % 3, within=DAY)
        if kind == 1:
            when = segment.total("amount", when=f"event = 'buy' AND amount > {i % 100}", at_least=500, within=DAY)
        elif kind in (2, 3):
            when = segment.sequence(visit, buy, within=DAY)
        elif kind in (4, 5):
            when = segment.absence(buy, after=cart, within=DAY)
        elif kind == 6:
            when = segment.all_of(
                segment.count(visit, at_least=2, within=DAY), segment.latest(f"country = '{country}'")
            )
        elif kind == 7:
            when = segment.count(f"{visit} AND country = '{country}'", at_least=1, within=DAY)
        made.append(segment.rule(f"s{i}", when=when, ttl=14 * DAY, to="members"))
    return made


def events(spark: SparkSession, folder: Path, batches: int, rows: int, persons: int) -> None:
    """`batches` files of `rows` events of today, one after another."""
    for number in range(batches):
        frame = spark.range(number * rows, (number + 1) * rows, 1, 1).select(
            F.concat(F.lit("person-"), (F.rand(number) * persons).cast("int")).alias("person"),
            choice(KINDS, number + 1000).alias("event"),
            F.concat(F.lit("p"), (F.rand(number + 2000) * PAGES).cast("int")).alias("page"),
            choice(COUNTRIES, number + 3000).alias("country"),
            (F.rand(number + 4000) * 100).cast("double").alias("amount"),
            F.timestamp_millis(
                F.unix_millis(F.current_timestamp()) - 3_600_000 + (F.col("id") / 100).cast("long")
            ).alias("at"),
        )
        frame.repartition(2).write.mode("append").parquet(str(folder))


def choice(words: list[str], seed: int) -> Column:
    return F.element_at(F.array(*map(F.lit, words)), (F.rand(seed) * len(words)).cast("int") + 1)


def measure(spark: SparkSession, folder: Path, count: int, total: int) -> dict[str, Any]:
    """Events/s of the batches of one run, after the first two, until `total` events were taken."""
    reader = spark.readStream.schema(spark.read.parquet(str(folder)).schema)
    source = reader.option("maxFilesPerTrigger", 2).parquet(str(folder))
    frame = segment.match(source, rules(count), key="person", name="bench", at="at") if count else source
    began, cpu, meter = 0, 0.0, SampledCpu(os.getpid())
    # Spark still writes a state that it saves in the background.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as checkpoint:
        query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        running = query.trigger(availableNow=True).start()
        # With rules there is always a next batch: time passes.
        while running.isActive and (rows := taken(running)) < total:
            used = meter.look()
            if not began and len(filled(running)) >= WARM_UP:
                began, cpu = rows, used
            time.sleep(LOOK)
        running.stop()
    cpu, rows = meter.look() - cpu, taken(running) - began
    later = filled(running)[WARM_UP:]
    rate = statistics.median(one["numInputRows"] / one["durationMs"]["triggerExecution"] * 1000 for one in later)
    parts = {name: statistics.median(one["durationMs"][name] for one in later) for name in later[0]["durationMs"]}
    measured = {"events_per_s": round(rate), "cpu_s_per_million": round(cpu / rows * 1e6, 2), "batches": len(later)}
    return {"case": "segments", "rules": count} | measured | {"ms": parts}


def filled(query: StreamingQuery) -> list[dict[str, Any]]:
    """The batches with rows."""
    return [one for one in query.recentProgress if one["numInputRows"]]


def taken(query: StreamingQuery) -> int:
    return sum(one["numInputRows"] for one in filled(query))


def middle(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The run of median rate."""
    return sorted(runs, key=lambda one: one["events_per_s"])[len(runs) // 2]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=200_000, help="a batch")
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--persons", type=int, default=20_000)
    parser.add_argument("--rules", type=int, nargs="*", default=[0, 100, 1000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    spark = spark_session("segments", memory="2g")
    with tempfile.TemporaryDirectory() as folder:
        events(spark, Path(folder), args.batches, args.events, args.persons)
        runs: dict[int, list[dict[str, Any]]] = {count: [] for count in args.rules}
        for _, count in turns(args.rules, args.rounds):
            runs[count].append(measure(spark, Path(folder), count, args.batches * args.events))
        tell([middle(each) for each in runs.values()], args.json)
    spark.stop()


if __name__ == "__main__":
    main()
