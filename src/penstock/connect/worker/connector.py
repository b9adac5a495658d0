"""A connector: finds its tables, distributes them among tasks, and runs these until it is paused or stopped."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from penstock.connect.sinks.offsets import SinkOffsets
from penstock.connect.source.heartbeat import Heartbeats
from penstock.connect.source.signal_watch import SignalWatch
from penstock.connect.source.task import Setup
from penstock.connect.worker.checks import check
from penstock.connect.worker.connector_store import PAUSED, STARTED, StoredConnector
from penstock.connect.worker.connector_tasks import AnyTask, TaskMaker, awaited, changed
from penstock.connect.worker.context import WorkerContext
from penstock.connect.worker.offsets import SIGNALS, KeptInFolder, Offsets, folder_of
from penstock.connect.worker.plugins import plugin_of
from penstock.connect.worker.running_task import FAILED, RUNNING, UNASSIGNED, RunningTask, key_of, trace_of
from penstock.errors import PenstockError

log = logging.getLogger(__name__)


class Connector:
    """Runs according to its stored state; its methods are called by one thread at a time."""

    def __init__(self, name: str, stored: StoredConnector, context: WorkerContext) -> None:
        self.name, self.stored, self._context = name, stored, context
        self.plugin = plugin_of(stored.config)
        self.folder = folder_of(context.checkpoints, name)
        self.offsets = (Offsets if self.plugin.type == "source" else SinkOffsets)(KeptInFolder(self.folder))
        self.tasks: list[RunningTask] = []
        self.trace = self.waits_for = ""
        """Why it failed; what it waits for before it has tasks."""
        self.setup: Setup | None = None
        self.active: set[str] = set()
        self._heartbeats: Heartbeats | None = None
        self._signals: SignalWatch | None = None
        self._stopping = threading.Event()
        self._starter: threading.Thread | None = None
        self._most_tasks = 0
        self._replacing = threading.Lock()

    @property
    def state(self) -> str:
        """The connector's own state in the REST API."""
        if self.stored.state != STARTED:
            return self.stored.state
        if self.trace:
            return FAILED
        return UNASSIGNED if self.waits_for else RUNNING

    def start(self) -> None:
        """Start in the background, if its stored state is STARTED."""
        if self.stored.state != STARTED:
            return
        self._stopping.clear()
        self.trace, self.waits_for = "", "its tasks"
        self._starter = threading.Thread(target=self._start, name=f"{self.name}-start", daemon=True)
        self._starter.start()

    def halt(self) -> None:
        """Stop; finishes batches in flight first."""
        self._stopping.set()
        if self._starter:
            self._starter.join()
        if self._heartbeats:
            self._heartbeats.stop()
            self._heartbeats = None
        if self._signals:
            self._signals.stop()
            self._signals = None
        for task in self.tasks:
            task.ask_to_stop()
        for task in self.tasks:
            task.wait()
        if self.stored.state != PAUSED:
            self.tasks = []

    def remove(self) -> None:
        """Stop for good."""
        self.halt()
        self._keep_meters([])

    def change(self, stored: StoredConnector) -> None:
        """Continue with another configuration or state."""
        self.stored = stored
        self.halt()
        self.start()

    def restart_task(self, number: int) -> None:
        """Stop a task and start it again."""
        with self._replacing:
            old = self.tasks[number]
            old.ask_to_stop()
            old.wait()
            self.tasks[number] = self._run(old.task)

    @property
    def shares(self) -> list[dict[str, str]]:
        """What the configuration of each task has instead of the connector's."""
        return [running.task.own for running in self.tasks]

    def forget_topics(self) -> None:
        """Let `active` begin again."""
        self.active.clear()

    def forget_offsets(self) -> None:
        """Begin as if nothing had been read."""
        self._maker().forget_group()
        self.offsets.positions.forget_all()

    def sources(self) -> list[str]:
        """What it reads: the tables that the database has now, or the topics."""
        return self._maker().sources()

    def _start(self) -> None:
        maker = None
        try:
            maker = self._maker()
            checked, self.setup = maker.checked, maker.setup
            self._context.secrets.keep(self.name, checked.secrets)
            if checked.messages:
                raise PenstockError("; ".join(checked.messages), next="correct the configuration")
            shares = maker.shares(awaited(maker, self._stopping, self._wait_for))
            tasks = [maker.task(number, share) for number, share in enumerate(shares)]
            self._keep_meters(tasks)
            self.tasks = [self._run(task) for task in tasks]
            if self.tasks and self.setup:
                self._heartbeats = Heartbeats(self._context.spark, self.setup, self.offsets.read_to)
                self._signals = SignalWatch(self.setup, self.offsets.positions, self._tables)
        except Exception as error:
            self.trace = self._context.secrets.hide(trace_of(error))
            log.error("connector %s failed: %s", self.name, self.trace)
        finally:
            self.waits_for = ""
        if maker and not self.trace and maker.every is not None:
            self._follow(maker, maker.every)

    def _follow(self, maker: TaskMaker, every: float) -> None:
        """Look for what matches until this connector is stopped, and give it to its tasks."""
        try:
            while True:
                self.waits_for = "" if self.tasks else maker.looks_for
                if self._stopping.wait(every):
                    return
                available = awaited(maker, self._stopping, self._wait_for)
                sources = changed(available, [running.task.parts for running in self.tasks])
                if sources is not None and not self._stopping.is_set():
                    log.info("connector %s reads %s", self.name, ", ".join(sources))
                    maker = self._maker()
                    self._replace([maker.task(number, share) for number, share in enumerate(maker.shares(sources))])
        except Exception as error:
            self.trace = self._context.secrets.hide(trace_of(error))
            log.error("connector %s looks for no more topics: %s", self.name, self.trace)
        finally:
            self.waits_for = ""

    def _replace(self, tasks: Sequence[AnyTask]) -> None:
        """Run these tasks; those that read the same as before are left alone."""
        with self._replacing:
            same = {
                running.task.number: running
                for running, task in zip(self.tasks, tasks, strict=False)
                if running.task.parts == task.parts
            }
            others = [running for running in self.tasks if running.task.number not in same]
            for running in others:
                running.ask_to_stop()
            for running in others:
                running.wait()
            if not self._stopping.is_set():
                self._keep_meters(tasks)
                self.tasks = [same.get(task.number) or self._run(task) for task in tasks]

    def _maker(self) -> TaskMaker:
        context, checked = self._context, check(self.stored.config, self._context.provided, ask=False)
        signals = str(self.folder / SIGNALS)
        return TaskMaker(
            self.name, context.servers, checked, context.producer, self.offsets.positions.starts(), signals
        )

    def _tables(self) -> list[str]:
        return [part for running in self.tasks for part in running.task.parts]

    def _wait_for(self, what: str) -> str:
        self.waits_for = self._context.secrets.hide(what)
        return self.waits_for

    def _run(self, task: AnyTask) -> RunningTask:
        context = self._context
        hide = context.secrets.hide
        return RunningTask(task, context.spark, self.folder, self._wrote, hide, context.meters, context.observer())

    def _keep_meters(self, tasks: Sequence[AnyTask]) -> None:
        """Forget the meters of all queries but those of these tasks: a table that moved would be shown twice."""
        meters = self._context.meters
        for number in range(len(tasks), self._most_tasks):
            meters.forget(key_of(self.name, number))
        self._most_tasks = max(self._most_tasks, len(tasks))
        with meters.lock:
            for task in tasks:
                if meter := meters.pipelines.get(key_of(self.name, task.number)):
                    wanted = {f"{self.name}.{part}" for part in task.parts}
                    meter.queries = {name: query for name, query in meter.queries.items() if name in wanted}

    def _wrote(self, query: str) -> None:
        """Record the topic of a query that has written a batch; its name contains its table or its topic."""
        part = query.removeprefix(f"{self.name}.")
        self.active.add((self.setup.routed.get(part) or self.setup.topic(part)) if self.setup else part)
