"""The demo of the shop: services, tables, pipeline, load, consumer, proof; then everything is stopped."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from penstock.local import services
from penstock.local.process import uninterrupted
from penstock_demo import breaks, consume, journal, shop
from penstock_demo.consume import Reader
from penstock_demo.journal import Expected
from penstock_demo.load import Status
from penstock_demo.node import connect
from penstock_demo.parts import Cpu, Load, Pipeline
from penstock_demo.reconcile import reconcile
from penstock_demo.stage import TURN, Options, Running, Stage, prepare, staged
from penstock_demo.verdict import Verdict, examples, judge
from penstock_demo.view import Board, View

TARGET = f"{Path(__file__).with_name('pipelines.py')}:changes"
PHASES = {"alter": "altering a table", "generation": "publishing new streams"}
"""The breaks that kill nothing."""


def demo(options: Options, view: View) -> Verdict:
    """Run the demo; on return, and on any exception, all parts are stopped, unless they are to be kept."""
    return staged(lambda stack: Demo(options, view, stack).run(), keep=options.keep)


def _environment(services: Running) -> dict[str, str]:
    return {"PENSTOCK_DEMO_CQL": services.cql, "PENSTOCK_DEMO_KAFKA": services.kafka}


class Demo(Stage[Status]):
    """The parts as they start, and the proof."""

    tables = tuple(shop.TABLES)
    _reader: Reader

    def __init__(self, options: Options, view: View, stack: ExitStack) -> None:
        super().__init__(options, view, Board(), stack)
        self._breaks: list[int] = []

    def run(self) -> Verdict:
        used = self._to_the_load_s_end()
        self._phase("waiting for the last events", load="done")
        self._drain()
        return self._judge(used)

    def _start(self) -> None:
        root = self._options.root
        self._phase("starting", cassandra="starting", kafka="starting", pipeline="", load="")
        prepare(root)
        self._running = self._serve()
        self._phase("creating tables and topics", cassandra=self._running.cql, kafka=self._running.kafka)
        self._create()
        self._reader = self._read()
        self._reader.start()
        self._stack.callback(self._reader.close)
        self._phase("starting the pipeline", pipeline="starting")
        with uninterrupted():
            self._pipeline = self._pipe()
            self._stack.callback(self._pipeline.close)
        self._await_pipeline()
        with uninterrupted():
            self._loading = Load(root, "penstock_demo.load", self._load_arguments(), Status)
            self._stack.callback(self._loading.close)

    def _serve(self) -> Running:
        """Start the servers."""
        self._stack.callback(services.down, self._options.root)
        self._services = services.up(self._options.root, clean=True, say=self._view.say)
        return self._services

    def _create(self) -> None:
        """Create tables and topics."""
        with connect(self._running.cql) as session:
            for statement in shop.statements():
                session.execute(statement)
        consume.create_topics(self._running.kafka)

    def _read(self) -> Reader:
        return Reader(self._running.kafka)

    def _pipe(self) -> Pipeline:
        return Pipeline(self._options.root, TARGET, _environment(self._running), stay=self._options.keep)

    def _await_pipeline(self) -> None:
        """Wait before the first write: writes made while a pipeline starts would be a batch of many rows."""
        self._until(lambda: self._pipeline.reads, "the pipeline does not read", self.start)

    def _load_arguments(self) -> list[str]:
        pace = ["--rate", self._options.rate, "--seconds", str(self._options.seconds)]
        return ["--hosts", self._running.cql, *pace]

    def _cpu(self) -> Cpu:
        return Cpu.now(self._running.pids, self._pipeline.pid, self._load.status.cpu)

    def _first(self) -> bool:
        """Whether events of all tables have arrived."""
        return len(self._reader.tables) >= len(self.tables)

    def _run_load(self) -> None:
        parts = self._options.broken
        for number, part in enumerate(parts, 1):
            self._break(part, number, self._options.seconds * number / (len(parts) + 1))
        self._until(lambda: self._load.done, "the load does not end", self._options.seconds)

    def _break(self, part: str, number: int, at: float) -> None:
        """Break `part` after the load has run for `at` seconds, and start it again."""
        self._until(lambda: self._load.status.seconds >= at, "the load makes no progress", at)
        self._phase(PHASES.get(part) or f"killing {part}")
        self._breaks.append(time.time_ns() // 1000)
        self._view.say(breaks.strike(part, number, self._services, self._pipeline))
        self._running = self._services = breaks.start_again(part, self._services, self._pipeline)
        self._phase("running after the break")

    def _drain(self) -> None:
        """Wait until every certain event has been seen, while there is progress; then for the end of all topics."""
        self._expected = self._due()
        missing = {event.identity for event in self._expected if event.certain}
        progress = time.monotonic()
        while missing and time.monotonic() - progress < self.patience:
            before = len(missing)
            missing -= self._reader.seen
            if len(missing) < before:
                progress = time.monotonic()
            self._turn()
        if not self._options.keep:
            self._pipeline.close()
        ends = self._ends()
        deadline = time.monotonic() + self.patience
        while not self._reader.has_read(ends) and time.monotonic() < deadline:
            time.sleep(TURN)

    def _ends(self) -> dict[tuple[str, int], int]:
        """The current end offsets of the topics."""
        return consume.ends(self._running.kafka)

    def _due(self) -> list[Expected]:
        """The events that the load's writes must become."""
        return list(journal.expected(journal.read(self._load.journal)))

    def _judge(self, cpu: dict[str, float]) -> Verdict:
        self._phase("comparing every write with every event")
        report = reconcile(self._expected, list(self._reader.records), breaks=self._breaks)
        verdict = judge(report, self._load.status, self._reader.times, cpu)
        verdict.lag_max, verdict.broken = self._lag, list(self._options.broken)
        verdict.examples = examples(report, self._load.journal, self._running.kafka)
        return verdict

    def _counts(self, status: Status) -> tuple[int, int, int, int]:
        lag = max(0, status.events - len(self._reader.records))
        return status.writes, len(self._reader.times) // 2, lag, status.retries
