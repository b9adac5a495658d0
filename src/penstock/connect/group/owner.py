"""A connector on the worker that has it: it divides what is read among tasks, and sends heartbeats."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from penstock.connect.group.group_configs import DividedConnector, GroupConfigs
from penstock.connect.group.kafka_positions import KeptInKafka
from penstock.connect.source import database
from penstock.connect.source.heartbeat import Heartbeats
from penstock.connect.source.signal_watch import SignalWatch
from penstock.connect.source.task import Setup
from penstock.connect.worker.connector_store import STARTED
from penstock.connect.worker.connector_tasks import PAUSE, TaskMaker, awaited, changed
from penstock.connect.worker.context import WorkerContext
from penstock.connect.worker.offsets import Offsets
from penstock.connect.worker.running_task import FAILED, RUNNING, UNASSIGNED, trace_of
from penstock.database.retrying import DatabaseUnavailable
from penstock.kafka.compacted_topic import NotInTime
from penstock.kafka.record_view import iso_time

log = logging.getLogger(__name__)


class Owner:
    """Begins at once, in a thread; with `redivide` it divides the sources also if they are the same as before."""

    def __init__(
        self,
        name: str,
        maker: Callable[[], TaskMaker],
        known: DividedConnector,
        context: WorkerContext,
        configs: GroupConfigs,
        positions: KeptInKafka,
        *,
        redivide: bool = False,
    ) -> None:
        self._name = name
        self.known, self._maker, self._context, self._configs = known, maker, context, configs
        self._positions, self._must_divide = positions, redivide or not known.is_divided
        self._shares = known.shares
        self.trace, self.waits_for = "", "its tasks"
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{name}-connector", daemon=True)
        self._thread.start()

    @property
    def state(self) -> str:
        """Its state in the REST API."""
        if self.known.stored.state != STARTED:
            return self.known.stored.state
        return FAILED if self.trace else UNASSIGNED if self.waits_for else RUNNING

    @property
    def has_divided(self) -> bool:
        """Whether its sources are divided among tasks, for all that it knows."""
        return not self._must_divide

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def ask_to_stop(self) -> None:
        self._stopping.set()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    self._own(self._maker())
                except (NotInTime, DatabaseUnavailable) as error:
                    where = "Kafka" if isinstance(error, NotInTime) else "its database"
                    log.warning("connector %s waits for %s", self._name, self._wait_for(f"{where}: {error}"))
                    self._stopping.wait(PAUSE)
        except Exception as error:
            self.trace = self._context.secrets.hide(trace_of(error))
            log.error("connector %s failed: %s", self._name, self.trace)
            self._stopping.wait()
        finally:
            self.waits_for = ""

    def _own(self, maker: TaskMaker) -> None:
        if self._must_divide:
            self._divide(maker, awaited(maker, self._stopping, self._wait_for))
        with ExitStack() as beside:
            if setup := maker.setup:
                beside.callback(Heartbeats(self._context.spark, setup, Offsets(self._positions).read_to).stop)
                beside.callback(SignalWatch(setup, self._positions, self._tables).stop)
            self._follow(maker)

    def _follow(self, maker: TaskMaker) -> None:
        """Divide again what matches, whenever it changes, until this connector is stopped."""
        while True:
            self.waits_for = "" if self._shares else maker.looks_for
            if self._stopping.wait(maker.every):
                return
            if (sources := changed(awaited(maker, self._stopping, self._wait_for), self._shares)) is not None:
                self._divide(maker, sources)

    def _divide(self, maker: TaskMaker, sources: list[str]) -> None:
        if not self._stopping.is_set():
            if maker.setup:
                self._go_on(maker.setup, sources)
            shares = maker.shares(sources)
            self._configs.divide(maker.connector, shares)
            self._shares, self._must_divide = shares, False

    def _go_on(self, setup: Setup, tables: list[str]) -> None:
        """Let tables without a position go on where Kafka Connect's worker has stopped."""
        self._positions.refresh()
        for table in tables:
            if stop := self._positions.go_on(table, partial(database.vnodes, setup.values, table)):
                lacks = f"{stop.missing} of its {stop.vnodes} vnodes have no position"
                log.warning(
                    "connector %s goes on in %s where Kafka Connect's worker has stopped, at %s%s",
                    self._name,
                    table,
                    iso_time(stop.begin // 1000),
                    f": the beginning of its generation, because {lacks}" if stop.missing else "",
                )

    def _tables(self) -> list[str]:
        return [part for share in self._shares for part in share]

    def _wait_for(self, what: str) -> str:
        self.waits_for = self._context.secrets.hide(what)
        return self.waits_for
