"""The demo of the shop: its tables and topics, its breaks, and the proof."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from penstock_demo import consume, journal, shop
from penstock_demo.consume import Reader
from penstock_demo.journal import Expected
from penstock_demo.load import Status
from penstock_demo.node import connect
from penstock_demo.parts import Bucket
from penstock_demo.reconcile import reconcile
from penstock_demo.shop_stage import ShopStage
from penstock_demo.stage import TURN, Options
from penstock_demo.verdict import Verdict, examples, judge, told_p99
from penstock_demo.view import Board, View
from penstock_demo.watch import percentile


class Demo(ShopStage[Verdict]):
    """The parts of the shop, and the proof."""

    target = f"{Path(__file__).with_name('pipelines.py')}:changes"
    topics = tuple(consume.TOPICS)
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

    def _first(self) -> bool:
        """Whether events of all tables have arrived."""
        return len(self._reader.tables) >= len(self.tables)

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
