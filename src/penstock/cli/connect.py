"""`penstock connect`: a worker with Kafka Connect's REST API; it runs the CDC connector until it is stopped."""

from __future__ import annotations

import logging
import socket
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from penstock.cli import services
from penstock.cli.arguments import (
    add_allow_host,
    add_lineage,
    add_metrics,
    add_spark,
    folder_here,
    positive,
    servers,
    spark_conf,
)
from penstock.connect.group.group_herder import GroupHerder
from penstock.connect.worker import connector_files, settings as worker_settings
from penstock.connect.worker.api import application
from penstock.connect.worker.connector_files import ConnectorFiles
from penstock.connect.worker.connector_store import ConnectorStore
from penstock.connect.worker.context import WorkerContext
from penstock.connect.worker.herder import Herder
from penstock.connect.worker.only_worker import OnlyWorker
from penstock.connect.worker.secrets import HidingFormatter, Secrets
from penstock.connect.worker.settings import WorkerSettings
from penstock.connect.worker.spark_lines import SparkLines
from penstock.connect.worker.standalone import StandaloneHerder
from penstock.connect.worker.status import TaskMetrics, status_of, unready
from penstock.process.signals import listen
from penstock.run.checkpoint import lock
from penstock.run.executors import require_executors
from penstock.run.supervise import StopRequests
from penstock.serve.access.hosts import Asgi, Hosts, warn_if_open
from penstock.serve.access.passwords import protected
from penstock.serve.rest_server import RestServer, address_of, bind
from penstock.spark_runtime.session import (
    Jvm,
    end,
    jvm_process,
    memory,
    require_java,
    session_of_program,
    start_workers,
)
from penstock.spark_runtime.settings import CORES
from penstock.watch import lineage
from penstock.watch.metrics_server import ListenAddress, pages, served
from penstock.watch.probe import Prober
from penstock.watch.program import Program
from penstock.watch.query_metrics import QueryMetrics
from penstock.watch.run_files import written

LOOK = 0.5
"""Seconds between checks of Spark's Java process."""


def add(parser: ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", type=Path, metavar="WORKER.properties", help="a Kafka Connect worker file")
    parser.add_argument(
        "connectors",
        nargs="*",
        type=Path,
        metavar="CONNECTOR.properties",
        help="files of connectors, which this worker runs on its own, as Kafka Connect's standalone worker",
    )
    parser.add_argument(
        "--servers", type=servers, metavar="HOST:PORT,...", help="Kafka; replaces bootstrap.servers of the file"
    )
    parser.add_argument("--listen", metavar="URL", help="address of the REST API (default: http://127.0.0.1:8083)")
    add_allow_host(parser)
    parser.add_argument(
        "--data",
        type=folder_here,
        default=Path(".penstock/connect"),
        metavar="DIR",
        help="folder of the connectors' positions (default: %(default)s)",
    )
    parser.add_argument(
        "--cores", type=positive, metavar="N", help=f"cores for Spark (default: {CORES}; see penstock run)"
    )
    add_spark(parser)
    parser.add_argument("--verbose", action="store_true", help="log Spark's warnings and each request")
    add_metrics(parser)
    add_lineage(parser)
    services.add_root(parser)
    parser.set_defaults(run=run)


def run(args: Namespace) -> int:
    brokers = args.servers or (None if args.file else services.kafka(args.root))
    chosen = worker_settings.read(args.file, brokers, args.listen)
    from_files = connector_files.read(args.connectors, chosen.provided)
    if from_files and chosen.group is not None:
        # As in Kafka Connect, whose standalone workers read the same files.
        chosen = replace(chosen, group=None)
    secrets, lines, said = Secrets(chosen.secrets), logging.StreamHandler(), SparkLines()
    lines.setFormatter(HidingFormatter("%(asctime)s %(message)s", secrets))
    logging.basicConfig(level=logging.INFO if args.verbose else logging.WARNING, handlers=[lines])
    # The driver logs a warning for each protocol version that it tries.
    logging.getLogger("cassandra").setLevel(logging.ERROR)
    stop = StopRequests(threading.Event(), threading.Event())
    listen(stop.gently, stop.now)
    data = args.data.resolve()
    with (
        _folder(data, chosen) as (folder, note_jvm),
        bind(chosen.host, chosen.port) as bound,
        _only(chosen, bound, from_files) as only,
        lineage.sending(args.lineage) as observer,
    ):
        with said.caught():
            spark = session_of_program("penstock-connect", args.cores, args.verbose, **spark_conf(args))
        start_workers(spark)
        # Spark's own handler of Ctrl-C would cancel jobs and raise anywhere in the code.
        listen(stop.gently, stop.now)
        jvm = jvm_process(spark)
        if jvm:
            note_jvm(jvm.pid)
        context = WorkerContext(
            spark, chosen.servers, folder, chosen.provided, chosen.producer, secrets, observer=observer
        )
        hosts = Hosts((*chosen.allowed, *args.allow_host))
        try:
            # The folder of a group's worker is only for the driver's files.
            require_executors(spark, None if chosen.group else folder)
            worker = _worker(chosen, context, _advertised(chosen, bound), data / "connectors", from_files, only)
            if chosen.passwords is None:
                warn_if_open(chosen.host, "run connectors with the rights of this worker")
            with _metrics_served(args.metrics, worker, said) as metrics:
                _serve(worker, _face(worker, chosen), bound, hosts, metrics, stop, jvm)
        finally:
            end(spark)
    return 0


@contextmanager
def _folder(data: Path, chosen: WorkerSettings) -> Iterator[tuple[Path, Callable[[int], None]]]:
    """The folder of the checkpoints, and a function that notes the process of the JVM.

    A group's positions are in Kafka: its workers have folders for the time that they run.
    """
    if chosen.group is None:
        with lock(data / "worker") as note_jvm:
            yield data / "connectors", note_jvm
        return
    with TemporaryDirectory(prefix="penstock-connect-") as folder:
        yield Path(folder), lambda pid: None


def _only(
    chosen: WorkerSettings, bound: socket.socket, from_files: Mapping[str, Mapping[str, str]]
) -> AbstractContextManager[OnlyWorker | None]:
    """What keeps a second worker on its own from running the connectors of the same topic."""
    if chosen.group is not None or from_files:
        return nullcontext()
    return OnlyWorker(chosen.servers, chosen.topic, _advertised(chosen, bound), chosen.client())


def _worker(
    chosen: WorkerSettings,
    context: WorkerContext,
    address: str,
    before: Path,
    from_files: Mapping[str, Mapping[str, str]],
    only: OnlyWorker | None,
) -> Herder:
    """A worker of the group that the file names, or on its own, with the connectors of files if some are given.

    `before` has the positions of a worker on its own.
    """
    group, client = chosen.group, chosen.client()
    if from_files:
        return StandaloneHerder(context, ConnectorFiles(chosen.servers, client, from_files), address)
    if group is None:
        store = ConnectorStore(chosen.servers, chosen.topic, client, chosen.max_decompressed)
        return StandaloneHerder(context, store, address, only)
    topics, member = group.topics(chosen.servers, client), group.member(chosen.servers, client)
    return GroupHerder(context, topics, address, member, before)


def _advertised(chosen: WorkerSettings, bound: socket.socket) -> str:
    """The address by which other machines know this worker."""
    address = address_of(bound)
    return f"{chosen.advertised}:{address.rpartition(':')[2]}" if chosen.advertised else address


@contextmanager
def _metrics_served(place: tuple[str, int] | None, worker: Herder, said: SparkLines) -> Iterator[str]:
    """Serve the metrics of the worker, and let other commands find it; yields the URL, or "" without metrics."""
    meters, spark = worker.context.meters, worker.context.spark
    prober = Prober(meters)
    prober.measures(lambda: memory(spark))
    with prober.started():
        if place is None:
            yield ""
            return
        program = Program("connect", worker.address)
        collectors = [QueryMetrics(meters), TaskMetrics(worker), said]
        routes = pages(collectors, lambda: status_of(program, meters, worker), lambda: unready(worker))
        with (
            served(ListenAddress(*place), routes) as url,
            written(program.run_file(url, servers=worker.context.servers)),
        ):
            yield url


def _face(worker: Herder, chosen: WorkerSettings) -> Asgi:
    """The REST API, for those who may call it."""
    app = application(worker)
    return app if chosen.passwords is None else protected(app, chosen.passwords)


def _serve(
    worker: Herder,
    app: Asgi,
    bound: socket.socket,
    hosts: Hosts,
    metrics: str,
    stop: StopRequests,
    jvm: Jvm,
) -> None:
    """Answer requests until a signal; raises PenstockError if Spark's process ends."""
    worker.start()
    server = RestServer(app, bound, hosts)
    print(f"serving Kafka Connect's REST API at {server.url}", flush=True)
    if metrics:
        print(f"serving metrics at {metrics}/metrics", flush=True)
    try:
        while not stop.gently.wait(LOOK):
            worker.require()
            require_java(jvm, "run the command again: the connectors continue from their checkpoints", within=0)
    finally:
        server.close()
        worker.close()
