"""A connector: finds its tables, distributes them among tasks, and runs these until it is paused or stopped."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.connect import database, topics
from penstock.connect.checks import Checked, check
from penstock.connect.connector_store import PAUSED, STARTED, Kept
from penstock.connect.heartbeat import Heartbeats
from penstock.connect.offsets import Offsets
from penstock.connect.plugins import plugin_of
from penstock.connect.providers import Provided
from penstock.connect.running_task import FAILED, RUNNING, UNASSIGNED, RunningTask, key_of, trace_of
from penstock.connect.secrets import Secrets
from penstock.connect.sink.record_sink import AGE, SinkTask, overrides
from penstock.connect.sink.sink_offsets import SinkOffsets
from penstock.connect.task import Setup, Task
from penstock.errors import PenstockError
from penstock.kafka.security import SETTINGS as SECURITY
from penstock.run.life_signs import Observer
from penstock.watch.meters import Meters

log = logging.getLogger(__name__)
AnyTask = Task | SinkTask

REGEX, LETTERS = "topics.regex", "errors.deadletterqueue.topic.name"
# Seconds until the next attempt to read the database's tables.
PAUSE = 5.0


@dataclass(frozen=True)
class World:
    """What all connectors of a worker share; `checkpoints` is the folder of their checkpoints.

    `observer` makes one for each task.
    """

    spark: SparkSession
    servers: str
    checkpoints: Path
    provided: Provided = field(default_factory=Provided)
    producer: Mapping[str, str] = field(default_factory=dict)
    secrets: Secrets = field(default_factory=Secrets)
    meters: Meters = field(default_factory=Meters)
    observer: Callable[[], Observer] = Observer


class Connector:
    """Runs according to its stored state; its methods are called by one thread at a time."""

    def __init__(self, name: str, kept: Kept, world: World) -> None:
        self.name, self.kept, self._world = name, kept, world
        self.plugin = plugin_of(kept.config)
        self.offsets = (Offsets if self.plugin.type == "source" else SinkOffsets)(world.checkpoints, name)
        self.tasks: list[RunningTask] = []
        self.trace = self.waits_for = ""
        """Why it failed; what it waits for before it has tasks."""
        self.setup: Setup | None = None
        self.active: set[str] = set()
        self._heartbeats: Heartbeats | None = None
        self._stopping = threading.Event()
        self._starter: threading.Thread | None = None
        self._most_tasks = 0
        self._replacing = threading.Lock()

    @property
    def state(self) -> str:
        """The connector's own state in the REST API."""
        if self.kept.state != STARTED:
            return self.kept.state
        if self.trace:
            return FAILED
        return UNASSIGNED if self.waits_for else RUNNING

    def start(self) -> None:
        """Start in the background, if its stored state is STARTED."""
        if self.kept.state != STARTED:
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
        for task in self.tasks:
            task.ask_to_stop()
        for task in self.tasks:
            task.wait()
        if self.kept.state != PAUSED:
            self.tasks = []

    def remove(self) -> None:
        """Stop for good."""
        self.halt()
        self._keep_meters([])

    def change(self, kept: Kept) -> None:
        """Continue with another configuration or state."""
        self.kept = kept
        self.halt()
        self.start()

    def restart_task(self, number: int) -> None:
        """Stop a task and start it again."""
        with self._replacing:
            old = self.tasks[number]
            old.ask_to_stop()
            old.wait()
            self.tasks[number] = self._run(old.task)

    def sources(self) -> list[str]:
        """What it reads: the tables that the database has now, or the topics."""
        checked = check(self.kept.config, self._world.provided, ask=False)
        return database.tables(checked.values) if self.plugin.type == "source" else self._topics(checked)

    def _start(self) -> None:
        checked = None
        try:
            checked = check(self.kept.config, self._world.provided, ask=False)
            self._world.secrets.keep(self.name, checked.secrets)
            if checked.messages:
                raise PenstockError("; ".join(checked.messages), next="correct the configuration")
            tasks = self._of_source(checked) if self.plugin.type == "source" else self._of_sink(checked)
            self._keep_meters(tasks)
            self.tasks = [self._run(task) for task in tasks]
            if self.tasks and self.setup:
                self._heartbeats = Heartbeats(self._world.spark, self.setup, self.offsets.read_to)
        except Exception as error:
            self.trace = self._world.secrets.hide(trace_of(error))
            log.error("connector %s failed: %s", self.name, self.trace)
        finally:
            self.waits_for = ""
        if checked and not self.trace and checked.values.get(REGEX):
            self._follow(checked)

    def _follow(self, checked: Checked) -> None:
        """Look for the topics that match until this connector is stopped, and give new ones to its tasks."""
        pattern, every = checked.values[REGEX], checked.values[AGE] / 1000
        try:
            while True:
                self.waits_for = "" if self.tasks else f"a topic that matches {pattern}"
                if self._stopping.wait(every):
                    return
                found = self._find(lambda: self._topics(checked), "Kafka")
                # In the order in which tasks share them, so that most keep theirs.
                read = [topic for row in zip_longest(*(one.task.parts for one in self.tasks)) for topic in row if topic]
                if not self._stopping.is_set() and set(found) != set(read):
                    log.info("connector %s reads the topics %s", self.name, ", ".join(found))
                    known = [topic for topic in read if topic in found]
                    self._replace(self._sharing(checked, list(dict.fromkeys([*known, *found]))))
        except Exception as error:
            self.trace = self._world.secrets.hide(trace_of(error))
            log.error("connector %s looks for no more topics: %s", self.name, self.trace)
        finally:
            self.waits_for = ""

    def _replace(self, tasks: Sequence[AnyTask]) -> None:
        """Run these tasks; those that read the same as before are left alone."""
        with self._replacing:
            same = {
                one.task.number: one
                for one, task in zip(self.tasks, tasks, strict=False)
                if one.task.parts == task.parts
            }
            others = [one for one in self.tasks if one.task.number not in same]
            for one in others:
                one.ask_to_stop()
            for one in others:
                one.wait()
            if not self._stopping.is_set():
                self._keep_meters(tasks)
                self.tasks = [same.get(task.number) or self._run(task) for task in tasks]

    def _of_source(self, checked: Checked) -> Sequence[AnyTask]:
        """Tasks with shares of the tables."""
        world = self._world
        self.setup = setup = Setup(self.name, world.servers, checked.values, checked.config, world.producer)
        self.waits_for = "the tables of its database"
        tables = self._find(lambda: database.tables(checked.values), "its database")
        count = min(checked.values["tasks.max"], len(tables))
        starts = self.offsets.starts()
        return [Task(setup, number, tuple(tables[number::count]), starts) for number in range(count)]

    def _of_sink(self, checked: Checked) -> Sequence[AnyTask]:
        """Tasks with shares of the topics."""
        self.waits_for = "the topics that it reads"
        return self._sharing(checked, self._find(lambda: self._topics(checked), "Kafka"))

    def _sharing(self, checked: Checked, names: Sequence[str]) -> Sequence[AnyTask]:
        count = min(checked.values["tasks.max"], len(names))
        shared = self._world.servers, checked.values, checked.config, self._security, self.offsets.starts()
        return [SinkTask(self.name, number, tuple(names[number::count]), *shared) for number in range(count)]

    @property
    def _security(self) -> dict[str, str]:
        """The worker's settings of Kafka's consumers."""
        return {name: text for name, text in self._world.producer.items() if name in SECURITY}

    def _topics(self, checked: Checked) -> list[str]:
        """The topics that a sink reads: those of its configuration, or that match it now."""
        values = checked.values
        if not values[REGEX]:
            return list(dict.fromkeys(values["topics"]))
        options = self._security | overrides(checked.config)
        found = topics.matching(self._world.servers, options, values[REGEX])
        return [topic for topic in found if topic != values[LETTERS]]

    def _find(self, look: Callable[[], list[str]], what: str) -> list[str]:
        """What `look` finds; waits for a service that does not answer until this connector is stopped."""
        while not self._stopping.is_set():
            try:
                return look()
            except PenstockError as error:
                if not error.retriable:
                    raise
                why = self._world.secrets.hide(str(error))
                self.waits_for = f"{what}: {why}"
                log.warning("connector %s waits for %s: %s", self.name, what, why)
            self._stopping.wait(PAUSE)
        return []

    def _run(self, task: AnyTask) -> RunningTask:
        world = self._world
        hide, folder = world.secrets.hide, self.offsets.folder
        return RunningTask(task, world.spark, folder, self._wrote, hide, world.meters, world.observer())

    def _keep_meters(self, tasks: Sequence[AnyTask]) -> None:
        """Forget the meters of all queries but those of these tasks: a table that moved would be shown twice."""
        meters = self._world.meters
        for number in range(len(tasks), self._most_tasks):
            meters.forget(key_of(self.name, number))
        self._most_tasks = max(self._most_tasks, len(tasks))
        with meters.lock:
            for task in tasks:
                if meter := meters.pipelines.get(key_of(self.name, task.number)):
                    wanted = {f"{self.name}.{part}" for part in task.parts}
                    meter.queries = {name: one for name, one in meter.queries.items() if name in wanted}

    def _wrote(self, query: str) -> None:
        """Record the topic of a query that has written a batch; its name contains its table or its topic."""
        part = query.removeprefix(f"{self.name}.")
        self.active.add((self.setup.routed.get(part) or self.setup.topic(part)) if self.setup else part)
