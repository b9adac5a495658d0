"""`penstock run FILE.py:PIPELINE`: loads a pipeline from a file and runs it until it is stopped."""

from __future__ import annotations

import logging
import os
import sys
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from penstock.checkpoint.checkpoint_folder import Location
from penstock.checkpoint.hadoop_folder import Hadoop
from penstock.checkpoint.lease import Lease, LeaseLost
from penstock.cli.arguments import (
    add_checkpoints,
    add_lineage,
    add_metrics,
    add_spark,
    add_target,
    checkpoints,
    positive,
    spark_conf,
)
from penstock.cli.pipeline_file import lacks_session, load
from penstock.cli.warm import is_first_use
from penstock.errors import PenstockError
from penstock.process.log_lines import FORM, JSON, TEXT, Terminal, begin
from penstock.process.signals import listen
from penstock.query.real_time import REAL_TIME
from penstock.run.checkpoint import lock
from penstock.run.executors import require_executors
from penstock.run.life_signs import LifeSigns, Observers
from penstock.run.supervise import Buildable, PipelineRun, StopRequests
from penstock.spark_runtime.session import (
    end,
    explain,
    is_of_lost_jvm,
    jvm_process,
    memory,
    session_of_program,
    start_workers,
    until_end,
)
from penstock.spark_runtime.settings import CORES, is_local, is_on_cluster
from penstock.watch import lineage
from penstock.watch.meters import Meters
from penstock.watch.metrics_server import ListenAddress, pages, served
from penstock.watch.probe import Prober, heard
from penstock.watch.program import Program
from penstock.watch.query_metrics import QueryMetrics
from penstock.watch.run_files import written
from penstock.watch.status import ready, status

log = logging.getLogger(__name__)

AGAIN = "run again: it continues from its checkpoint; if this repeats, find what kills it (memory?)"
SLOTS = 16
"""Tasks of real-time mode mostly wait, so there may be more of them than cores."""


class Runnable(Buildable, Protocol):
    """A pipeline, or another object that makes queries and has a target for their delay."""

    @property
    def target(self) -> timedelta: ...


def add(parser: ArgumentParser) -> None:
    add_target(parser)
    add_running(parser)
    parser.set_defaults(run=run)


def add_running(parser: ArgumentParser) -> None:
    """Add how queries run; `running` and `supervise` read it."""
    add_checkpoints(parser, anywhere=True)
    parser.add_argument("--once", action="store_true", help="handle the data that is present now, then exit")
    parser.add_argument(
        "--cores",
        type=positive,
        metavar="N",
        help=f"cores for Spark (default: {CORES}; in real-time mode {SLOTS}, one for each partition of its topics; "
        "on a standalone cluster the most of all executors, by default all that it has)",
    )
    add_spark(parser)
    parser.add_argument("--verbose", action="store_true", help="write a line for each batch, and Spark's warnings")
    parser.add_argument(
        "--log", choices=(TEXT, JSON), default=TEXT, help="the form of the lines on standard error (default: text)"
    )
    add_metrics(parser)
    add_lineage(parser)


def run(args: Namespace) -> int:
    return running(args, lambda lines: _run(args, lines))


def running(args: Namespace, work: Callable[[Terminal], None]) -> int:
    """Do the work of a command that runs queries, with the log that its arguments want; the command's exit code."""
    os.environ[FORM] = args.log
    lines = begin()
    try:
        work(lines)
    except PenstockError as error:
        lines.status("")
        if args.log == TEXT:
            raise
        log.error("%s", error, extra={"event": "failed", "what": error.what, "where": error.where, "next": error.next})
        return 1
    return 0


def _run(args: Namespace, lines: Terminal) -> None:
    try:
        pipeline = load(args.target)
    except PenstockError as error:
        if not lacks_session(error):
            raise
        _run_in_early_session(args, lines)
    else:
        supervise(pipeline, args, lines)


def _run_in_early_session(args: Namespace, lines: Terminal) -> None:
    """Start Spark before the file is loaded: columns and functions at its top ask Spark for their types."""
    log.info("%s uses Spark while it is loaded: starting Spark first", args.target, extra={"event": "starts"})
    spark = session_of_program(args.target, args.cores, args.verbose, **spark_conf(args))
    with until_end(spark):
        pipeline = load(args.target)
        if pipeline.every == REAL_TIME and not args.cores and is_local(str(spark.sparkContext.master)):
            raise PenstockError(
                f"real-time mode needs a core for each partition of its topics, and Spark has started with {CORES}",
                where=f"{args.target} uses Spark while it is loaded, before its mode is known",
                next=f"add --cores {SLOTS}, or move its columns and udf decorators into the pipeline's function",
            )
        supervise(pipeline, args, lines)


def supervise(pipeline: Runnable, args: Namespace, lines: Terminal) -> None:
    """Run the queries of a pipeline until they are stopped."""
    stop = StopRequests(threading.Event(), threading.Event())
    listen(stop.gently, stop.now)
    checkpoint = checkpoints(args) / pipeline.name
    updated = lines if args.log == TEXT and sys.stderr.isatty() else None
    signs = LifeSigns(pipeline.name, verbose=args.verbose, terminal=updated)
    meters = Meters()
    meter = meters.pipeline(pipeline.name, pipeline.every, pipeline.target.total_seconds())
    prober = Prober(meters)
    with (
        _held(checkpoint) as (note_jvm, run_all),
        _metrics_served(args, pipeline, checkpoint, meters),
        lineage.sent(args.lineage) as tracker,
        prober.started(),
        heard(meter),
    ):
        signs.starts(checkpoint)
        if is_first_use():
            text = "%s: compiles loops at their first use, once on a machine; `penstock compile` does it in advance"
            log.info(text, pipeline.name, extra={"event": "compiles"})
        conf, in_real_time = spark_conf(args), pipeline.every == REAL_TIME
        cores = args.cores or (SLOTS if in_real_time and not is_on_cluster(conf) else None)
        try:
            spark = session_of_program(pipeline.name, cores, args.verbose, **conf)
        except KeyboardInterrupt:
            # Spark sets a handler of Ctrl-C of its own while it starts.
            signs.ended()
            return
        if not in_real_time:
            start_workers(spark)
        # Spark's own handler of Ctrl-C would cancel jobs and raise anywhere in the code.
        listen(stop.gently, stop.now)
        jvm = jvm_process(spark)
        if jvm:
            note_jvm(jvm.pid)
        prober.measures(lambda: memory(spark))
        try:
            require_executors(spark, checkpoint)
            observer = Observers(signs, meter, tracker)
            run_all(PipelineRun(pipeline, spark, checkpoint, stop, observer, args.once))
        except LeaseLost:
            # Another process may run the pipeline: no batch in flight may go on.
            if jvm:
                jvm.kill()
            raise
        except Exception as error:
            # A signal to all processes of the command also ends the JVM.
            if not (stop.gently.is_set() and is_of_lost_jvm(error)):
                explain(error, jvm, AGAIN)
                raise
        finally:
            prober.measures(None)
            end(spark)
        signs.ended()


@contextmanager
def _held(checkpoint: Location) -> Iterator[tuple[Callable[[int], None], Callable[[PipelineRun], None]]]:
    """Hold the checkpoint; yields what notes the pid of the run's JVM, and what runs the pipeline.

    A folder is locked at once. Elsewhere there is a lease, which needs Spark: it is held while the pipeline runs.
    """
    if isinstance(checkpoint, Path):
        with lock(checkpoint) as note_jvm:
            yield note_jvm, PipelineRun.supervise
    else:
        yield lambda jvm: None, _supervise_with_lease


def _supervise_with_lease(run: PipelineRun) -> None:
    """Run while the process holds the lease; raises LeaseLost, with the queries as they are, if it does no longer."""
    lease = Lease(Hadoop(run.spark, f"{run.checkpoint}.lease"), str(run.checkpoint))
    if lease.take(run.stop.gently.wait):
        with lease.renewed():
            replace(run, require_lease=lease.require).supervise()


@contextmanager
def _metrics_served(args: Namespace, pipeline: Runnable, checkpoint: Location, meters: Meters) -> Iterator[None]:
    """Serve the metrics of the pipeline, and let other commands find them, while the code inside runs."""
    if args.metrics is None:
        yield
        return
    program = Program("run", pipeline.name)
    routes = pages([QueryMetrics(meters)], lambda: status(program, meters), lambda: ready(meters))
    with served(ListenAddress(*args.metrics), routes) as url:
        log.info("%s: metrics at %s/metrics", pipeline.name, url, extra={"event": "metrics", "url": url})
        with written(program.run_file(url, checkpoint=str(checkpoint))):
            yield
