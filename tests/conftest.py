"""Shared fixtures: one Kafka, one Cassandra and one Spark session for the whole run, started at first use.

`make test` runs two processes, each with servers and a session of its own; a file's tests are in one of them. Tests are
marked `unit`, `services` or `kill`, and run in this order.

PENSTOCK_TEST_SERVICES=<root> uses the services of that root and leaves them running, which is fast for repeated runs.
Property tests draw the same examples each time, so that a failure comes from a change; `--hypothesis-profile explore`
draws other and more examples.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.query import tuple_factory
from hypothesis import settings
from kafka_topics import prepare
from keyspaces import new_keyspace
from leftovers import require_none, running
from postgres_server import require_postgres
from pyspark.sql import SparkSession
from waiting import PATIENCE
from xdist.scheduler import LoadFileScheduling

from penstock.local.services import Services, down, up
from penstock.native import memory_bound, shared_memory, spill_files
from penstock.spark_runtime import fork_server
from penstock.spark_runtime.session import spark as spark_session

# In runs of minutes the JVMs' optimising compiler takes more CPU than it saves.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")

# Each process would rewrite the assertions of 400 modules in each run, which takes more than half of the collection.
sys.dont_write_bytecode = False

# Commands that tests start are not among the user's, which `penstock status` and the console show.
os.environ.setdefault("PENSTOCK_RUNS", f"{tempfile.gettempdir()}/penstock-test-runs-{os.getuid()}")

# A shell without job control starts `make test &` with Ctrl-C ignored, which some tests send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=1000, deadline=None)
settings.load_profile("repeatable")


SERVERS = {"services", "spark", "postgres", "running_cluster"}
"""Fixtures of servers and sessions."""
NO_FLUSH = "-Dcassandra.test.flush_local_schema_changes=false"
"""Of Cassandra: changes of a schema stay in memory and the commit log."""
MARKS = ("unit", "services", "kill")
LONG = {
    *("test_demo", "test_restart", "test_verify", "test_replication", "test_replicate_command", "test_console_kafka"),
    *("test_operators", "test_connector_events", "test_cluster", "test_spark_connect"),
}
"""Files that take more than half a minute: of their mark they are first, so that no process ends alone."""
OF_BROKERS = {f"tests/wire/test_{name}.py" for name in ("cluster", "cluster_admin", "cluster_faults", "racks")}
"""Files that share three brokers of their own, and one process with them."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Gives each process whole files, as `--dist=loadfile` does, and files with the same servers to one process."""
    if config.getoption("dist") != "loadfile":
        return None
    scheduler = LoadFileScheduling(config, log)
    of_file = scheduler._split_scope

    def scope(nodeid: str) -> str:
        file = str(of_file(nodeid))
        return "brokers" if file in OF_BROKERS else file

    scheduler._split_scope = scope
    return scheduler


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests, and put those that fail fast first."""
    for item in items:
        if not any(item.get_closest_marker(mark) for mark in MARKS):
            used = SERVERS.intersection(getattr(item, "fixturenames", ()))
            item.add_marker("services" if used else "unit")
    items.sort(key=lambda item: (_mark(item), item.path.stem not in LONG))


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Generator[None, Any, Any]:
    """Mark `slow` what `slow_after(n)` leaves to `make test-all`: the cases of a test after its first `n`.

    Here a test still has all its cases. Later only those that failed may be left, when they run once more.
    """
    made = yield
    if isinstance(made, list):
        for number, item in enumerate(made):
            marker = item.get_closest_marker("slow_after")
            if marker and number >= marker.args[0]:
                item.add_marker("slow")
    return made


def _mark(item: pytest.Item) -> int:
    return next(at for at, mark in enumerate(MARKS) if item.get_closest_marker(mark))


@pytest.fixture(autouse=True, scope="module")
def _nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Producers, servers and threads end with their module."""
    before = running()
    yield
    for item in request.session.items:
        # The last test still has the values of its fixtures.
        if item.path == request.path and (values := getattr(item, "funcargs", None)):
            values.clear()
    require_none(before)


@pytest.fixture(autouse=True)
def _lines_as_before() -> Iterator[None]:
    """Commands that run in this process write log lines to the standard error of their own test only."""
    logger = logging.getLogger("penstock")
    handlers, level, propagate = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.propagate = handlers, propagate
    logger.setLevel(level)


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    """Commands that run in this process hear signals during their own test only: Ctrl-C ends the tests after it."""
    numbers = signal.SIGTERM, signal.SIGINT, signal.SIGHUP
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """A running Kafka and Cassandra."""
    kept = os.environ.get("PENSTOCK_TEST_SERVICES")
    root = Path(kept) if kept else tmp_path_factory.mktemp("services")
    try:
        with pytest.MonkeyPatch.context() as patch:
            # No test kills this node, so that each change of a schema need not be on disk at once.
            patch.setenv("JDK_JAVA_OPTIONS", f"{os.environ['JDK_JAVA_OPTIONS']} {NO_FLUSH}")
            running = up(root)
        prepare(running.kafka)
        yield running
    finally:
        if not kept:
            down(root)


@pytest.fixture(scope="session")
def cql(services: Services) -> Iterator[Session]:
    """A session of the CQL driver whose rows are tuples."""
    host, port = services.cql.split(":")
    profile = ExecutionProfile(row_factory=tuple_factory, request_timeout=PATIENCE)
    cluster = Cluster([host], port=int(port), execution_profiles={EXEC_PROFILE_DEFAULT: profile})
    try:
        yield cluster.connect()
    finally:
        cluster.shutdown()


@pytest.fixture(scope="session")
def registry(services: Services) -> str:
    """The address of a running schema registry; it ends with the other services."""
    return up(services.root, only=["registry"]).registry


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a PostgreSQL server."""
    root = tmp_path_factory.mktemp("postgres")
    with require_postgres():
        running = up(root, only=["postgres"])
    yield running.postgres
    down(root)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local Spark session."""
    session = spark_session("tests")
    yield session
    session.stop()
    fork_server.end()


@pytest.fixture(scope="module")
def keyspace(cql: Any) -> Iterator[str]:
    with new_keyspace(cql, "stream") as name:
        yield name


@pytest.fixture
def sharing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> shared_memory.SharedMemory:
    """This process has memory to share."""
    monkeypatch.setenv(spill_files.VARIABLE, str(tmp_path))
    made = shared_memory.SharedMemory.make()
    if made is None:
        pytest.skip("this system gives no such memory")
    monkeypatch.setattr(shared_memory, "_MEMORY", made)
    monkeypatch.setattr(shared_memory, "_NUMBERS", {})
    return made


@pytest.fixture(params=["own", "shared", "disk"])
def memory(request: pytest.FixtureRequest) -> None:
    """Without such memory, with it, and with so little that all values go to disk."""
    if request.param == "disk":
        request.getfixturevalue("monkeypatch").setenv(memory_bound.VARIABLE, "1k")
    if request.param != "own":
        request.getfixturevalue("sharing")
