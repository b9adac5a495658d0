"""`penstock check FILE.py:PIPELINE`: makes a pipeline's queries as a run would, and starts none of them."""

from __future__ import annotations

import json
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from penstock.border.trial import on_trial, require_none
from penstock.checkpoint.checkpoint_folder import Location
from penstock.checkpoint.hadoop_folder import store_of
from penstock.checkpoint.identity import of_query, require_own
from penstock.cli.arguments import add_checkpoints, add_target, add_wait, checkpoints, positive
from penstock.cli.pipeline_file import lacks_session, load
from penstock.cli.run import SLOTS
from penstock.errors import PenstockError
from penstock.kafka.broker_check import unmet
from penstock.process.signals import Stopped, ended_by
from penstock.query import real_time
from penstock.query.query import Query
from penstock.query.real_time import REAL_TIME
from penstock.run import faults
from penstock.run.life_signs import reads_of, writes_of
from penstock.run.pipeline import Pipeline
from penstock.spark_runtime.failures import Unavailable
from penstock.spark_runtime.logical_plan import require_streamable
from penstock.spark_runtime.session import local_session, until_end
from penstock.spark_runtime.settings import CORES

T = TypeVar("T")


def add(parser: ArgumentParser) -> None:
    add_target(parser)
    add_checkpoints(parser, anywhere=True)
    parser.add_argument(
        "--cores",
        type=positive,
        metavar="N",
        help=f"cores that the run will have (default: {CORES}; in real-time mode {SLOTS})",
    )
    add_wait(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, one object per query")
    parser.set_defaults(run=run)


def run(args: Namespace) -> int:
    def look(pipeline: Pipeline, queries: dict[str, Query], spark: SparkSession) -> list[dict[str, Any]]:
        return _checked(pipeline, queries, spark, checkpoints(args), args.wait)

    for report in on_trial_with_spark(args.target, "penstock-check", args.cores or SLOTS, args.wait, look):
        print(json.dumps(report) if args.json else _as_text(report))
    return 0


def on_trial_with_spark(
    target: str, name: str, cores: int, wait: int, look: Callable[[Pipeline, dict[str, Query], SparkSession], T]
) -> T:
    """What `look` finds in a pipeline's queries, which are made on trial; raises PenstockError with all faults."""
    with on_trial(lacks_session) as trial:
        pipeline = _load_without_spark(target)
        # Real-time mode asks for a core for each partition; these do no work here.
        spark = local_session(name, cores)
        with until_end(spark):
            pipeline = pipeline or load(target)
            queries = _queries_within(wait, pipeline, spark)
            # Queries with a part that is missing cannot be looked at.
            if not trial.faults:
                return look(pipeline, queries, spark)
    raise AssertionError("a trial with faults raises them")


def _load_without_spark(target: str) -> Pipeline | None:
    """The pipeline, with errors of the file before Spark has started; None if the file needs Spark."""
    try:
        return load(target)
    except PenstockError as error:
        if not lacks_session(error):
            raise
        return None


def _checked(
    pipeline: Pipeline, queries: dict[str, Query], spark: SparkSession, checkpoint: Location, wait: int
) -> list[dict[str, Any]]:
    """What the queries do; raises PenstockError with all of their faults if they could not start."""
    if pipeline.every == REAL_TIME:
        real_time.require_slots(spark, [query.frame for query in queries.values()], f"pipeline {pipeline.name}")
    looks: list[dict[str, Any]] = []
    faults: list[PenstockError] = []
    for name, query in queries.items():
        try:
            looks.append(_look(pipeline, name, query, checkpoint / pipeline.name / name))
        except PenstockError as error:
            faults.append(error)
        faults += unmet(query, timedelta(seconds=wait))
    require_none(faults)
    return looks


def _queries_within(wait: int, pipeline: Pipeline, spark: SparkSession) -> dict[str, Query]:
    """The pipeline's queries; raises PenstockError if it still waits for a server after `wait` seconds."""
    over = threading.Event()
    timer = threading.Timer(wait, over.set)
    timer.start()
    try:
        with ended_by(over):
            return pipeline.queries(spark)
    except Stopped:
        raise Unavailable(
            f"a server that the pipeline asks did not answer for {wait} s",
            where=f"pipeline {pipeline.name}",
            next="start what the lines above wait for, or check its address; --wait SECONDS waits longer",
        ) from None
    finally:
        timer.cancel()


def _look(pipeline: Pipeline, name: str, query: Query, checkpoint: Location) -> dict[str, Any]:
    """What a query does; raises PenstockError if it could not start."""
    full_name = f"{pipeline.name}/{name}" if name else pipeline.name
    try:
        require_streamable(query.frame, query.mode)
    except AnalysisException as error:
        raise faults.of_spark(error, f"query {full_name}, mode {query.mode!r}") from error
    require_own(store_of(checkpoint, query.frame.sparkSession), of_query(query.frame, query.sinks))
    return {
        "query": full_name,
        "every": str(pipeline.every),
        "reads": reads_of(query, checkpoint),
        "writes": writes_of(query),
        "delivery": [sink.delivery for sink in query.sinks],
        "columns": {field.name: field.dataType.simpleString() for field in query.frame.schema.fields},
        "checkpoint": str(checkpoint),
    }


def _as_text(report: dict[str, Any]) -> str:
    columns = ", ".join(f"{name} {kind}" for name, kind in report["columns"].items())
    writes = [f"{target} ({how})" for target, how in zip(report["writes"], report["delivery"], strict=True)]
    lines = {
        "reads": ", ".join(report["reads"]),
        "writes": ", ".join(writes),
        "every": report["every"],
        "columns": columns,
        "checkpoint": report["checkpoint"],
    }
    return "\n".join((f"{report['query']}: can run", *(f"  {name:<10}  {text}" for name, text in lines.items())))
