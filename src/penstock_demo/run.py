"""The demo of the shop: its tables and topics, its breaks, and the proof."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from penstock_demo import consume, journal, shop
from penstock_demo.consume import Reader
from penstock_demo.journal import Expected
from penstock_demo.load import Status
from penstock_demo.node import connect, publish
from penstock_demo.parts import Bucket
from penstock_demo.reconcile import reconcile
from penstock_demo.stage import AUTO, TURN, Options, Stage
from penstock_demo.verdict import Verdict, examples, judge, told_p99
from penstock_demo.view import Board, View
from penstock_demo.watch import percentile

RATES = (250, 500, 1000, 2000, 4000, 8000)
TRIAL = 4.0
"""Seconds at each of these rates: the window of the view's numbers, and a second until the load reports the rate."""
HOLDS = 0.9
"""The share of a rate that must be written, for the rate to be held."""
SHARE = 0.8
"""The share of what is held at which delays stay short."""


class Demo(Stage[Status, Verdict]):
    """The parts of the shop, and the proof."""

    target = f"{Path(__file__).with_name('pipelines.py')}:changes"
    load_module, load_status = "penstock_demo.load", Status
    tables, topics = tuple(shop.TABLES), tuple(consume.TOPICS)
    _reader: Reader

    def __init__(self, options: Options, view: View, stack: ExitStack) -> None:
        super().__init__(options, view, Board(), stack)
        self._told: list[Bucket] = []
        """The delays of all events, as the pipeline's metrics count them."""

    def _create(self) -> None:
        with connect(self._running.cql) as session:
            for statement in shop.statements():
                session.execute(statement)
        consume.create_topics(self._running.kafka)

    def _read(self) -> Reader:
        return Reader(self._running.kafka)

    def _await_parts(self) -> None:
        """Wait before the first write: writes made while a pipeline starts would be a batch of many rows."""
        self._until(lambda: self._pipeline.reads, "the pipeline does not read", self.start)

    def _load_arguments(self) -> list[str]:
        return ["--hosts", self._running.cql, *super()._load_arguments()]

    def _chosen_rate(self) -> str:
        """The user's rate; else it doubles until writes or events fall behind, and most of what was held is chosen."""
        if self._options.rate != AUTO:
            return self._options.rate
        self._view.say("finding the rate that this machine holds: it doubles until writes or events fall behind")
        held = RATES[0] / 2
        for rate in RATES:
            self._phase(f"trying {rate} writes/s")
            self._load.pace(str(rate))
            self._pass_time(TRIAL)
            if self._board.delay_p50 > self.warm_delay:
                break
            held = max(held, min(rate, self._board.writes_per_s))
            if held < HOLDS * rate:
                break
        chosen = f"{SHARE * held:.0f}"
        self._view.say(f"{chosen} writes/s are {SHARE:.0%} of what this machine holds; --rate chooses another rate")
        self._load.pace(chosen)
        self._pass_time(TRIAL)
        return chosen

    def _first(self) -> bool:
        """Whether events of all tables have arrived."""
        return len(self._reader.tables) >= len(self.tables)

    def _break(self, part: str, number: int) -> None:
        """Add a column ("alter"), publish new streams ("generation"), or kill the part."""
        if part not in ("alter", "generation"):
            super()._break(part, number)
            return
        self._phase("altering a table" if part == "alter" else "publishing new streams")
        self._breaks.append(time.time_ns() // 1000)
        with connect(self._running.cql) as session:
            if part == "alter":
                session.execute(said := shop.add_column(number))
            else:
                said = f"published streams in use from {publish(session):%H:%M:%S} UTC"
        self._view.say(said)
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
        self._told = self._pipeline.delays()
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
        status, reader = self._load.status, self._reader
        report = reconcile(self._expected, list(reader.records), breaks=self._breaks)
        verdict = judge(report, status, reader, cpu)
        verdict.lag_max, verdict.broken = self._lag, list(self._options.broken)
        verdict.asked_per_s = None if self._rate == "max" else float(self._rate)
        verdict.told_p99_s, verdict.exact_p99_s = told_p99(self._told), percentile(reader.delays(0), 0.99)
        verdict.examples = examples(report, self._load.journal, self._running.kafka)
        return verdict

    def _counts(self, status: Status) -> tuple[int, int, int]:
        lag = max(0, status.events - len(self._reader.records))
        return status.writes, len(self._reader.times) // 2, lag
