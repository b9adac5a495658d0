"""The demo of a replication: its nodes and tables, its breaks, and the proof."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from penstock.local import services
from penstock.local.process import uninterrupted
from penstock_demo import shop
from penstock_demo.load import Status
from penstock_demo.node import connect
from penstock_demo.parts import Pipeline, Printing
from penstock_demo.replicate.both_sides import MOST_EXAMPLES, Sides, compared
from penstock_demo.replicate.pulses import CQL, TABLE, Pulses
from penstock_demo.replicate.verdict import Verdict
from penstock_demo.shop_stage import ShopStage
from penstock_demo.stage import TARGET, Options, Running
from penstock_demo.view import Board, View
from penstock_demo.watch import percentile

NAME, COPY = "shop", "copy"
"""The replication, and the keyspace of the target."""
CONFIDENCE = 5
"""Seconds after which a write that becomes visible would be missed."""
COMPARED = 0, 1, 2
"""The exit codes of `penstock verify`: equal, different, undecided."""
KEYSPACE = f"CREATE KEYSPACE {COPY} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
ADDED = f"INSERT INTO {COPY}.products (sku, title) VALUES ('nobody sells this', 'only in the target')"


class Verification(Printing):
    """A running `penstock verify` of these tables; `reports` are available once `done`."""

    def __init__(self, root: Path, words: Sequence[str]) -> None:
        super().__init__(root / "verify.log", ["verify", *words, "--json"], COMPARED)

    @property
    def reports(self) -> list[dict[str, Any]]:
        """What it says of each table. Raises PenstockError if it could not compare them."""
        return [json.loads(line) for line in self.printed("the tables could not be compared; the log").splitlines()]


class Demo(ShopStage[Verdict]):
    """The parts of a replication, and the proof."""

    target = NAME
    usual: tuple[str, ...] = ("cassandra",)
    topics = ()
    logs = ("pipeline.log", "verify.log")
    creating = "creating tables"
    starting, draining = "starting the replication", "comparing both sides with penstock verify"
    judging = "comparing every row of both sides with the driver"
    _reader: Pulses

    def __init__(self, options: Options, view: View, stack: ExitStack) -> None:
        super().__init__(options, view, Board(names=("writes", "changes applied", "ms behind")), stack)
        if options.through_kafka:
            self.usual = "cassandra", "kafka"
        self._reports: list[dict[str, Any]] = []
        self._repaired = 0

    def _prepare(self) -> None:
        super()._prepare()
        if (self._root / TARGET).exists():
            services.down(self._root / TARGET)
            shutil.rmtree(self._root / TARGET)

    def _serve(self) -> Running:
        running = super()._serve()
        self._copied_to = running.cql
        if self._options.nodes > 1:
            self._stack.callback(services.down, self._root / TARGET)
            self._other = services.up(self._root / TARGET, clean=True, only=["cassandra"], say=self._view.say)
            self._copied_to = self._other.cql
        return running

    def _create(self) -> None:
        with connect(self._running.cql) as session:
            for statement in (*shop.statements(), CQL):
                session.execute(statement)
        with connect(self._copied_to) as session:
            session.execute(KEYSPACE)
        self._phase("created", target=f"{COPY} at {self._copied_to}")

    def _read(self) -> Pulses:
        return Pulses(self._running.cql, self._copied_to, COPY)

    def _sides(self, *tables: str) -> list[str]:
        """The arguments that say which tables and where."""
        first, *others = tables
        also = [word for table in others for word in ("--also", f"{shop.KEYSPACE}.{table}={COPY}.{table}")]
        both = f"{shop.KEYSPACE}.{first}", f"{COPY}.{first}"
        return [*both, *also, "--from", self._running.cql, "--to", self._copied_to]

    def _pipe(self) -> Pipeline:
        how = ["--name", NAME, "--create", "--alter", "--confidence", f"{CONFIDENCE} seconds"]
        words = ["replicate", *self._sides(*self.tables, TABLE), *how, "--every", "500 milliseconds", *self._through()]
        return Pipeline(
            self._root, NAME, {}, stay=self._options.keep, cores=self.cores, master=self._master, words=words
        )

    def _through(self) -> list[str]:
        return ["--through", self._running.kafka] if self._options.through_kafka else []

    def _await_parts(self) -> None:
        """Wait until the copy of all tables is planned: the first writes may be in it, in the log, or in both."""
        folder = self._root / "checkpoints" / NAME
        part = ".out" if self._options.through_kafka else ""
        queries = [folder / f"{shop.KEYSPACE}.{table}{part}" for table in self.tables]
        self._until(
            lambda: all((query / "offsets" / "0").exists() for query in queries),
            "the replication does not read",
            self.start,
        )

    def _load_arguments(self) -> list[str]:
        return [*super()._load_arguments(), "--late", str(CONFIDENCE)]

    def _first(self) -> bool:
        return self._reader.seen > 0

    @property
    def _pids(self) -> dict[str, int]:
        return super()._pids | ({TARGET: self._other.pids["cassandra"]} if self._options.nodes > 1 else {})

    def _serve_again(self, part: str) -> None:
        if part != TARGET:
            super()._serve_again(part)
            return
        self._other = services.up(self._root / TARGET, only=["cassandra"])

    def _drain(self) -> None:
        """Compare all tables: the last changes are still on their way. Then see that a difference is found."""
        waits = ("--replication", NAME, "--checkpoints", str(self._root / "checkpoints"), *self._through())
        self._reports = self._verified(*self._sides(*self.tables), *waits)
        with connect(self._copied_to) as session:
            session.execute(ADDED)
        (repaired,) = self._verified(*self._sides("products"), "--settle", "0 seconds", "--repair")
        self._repaired = repaired["repaired"]
        self._reader.close()

    def _verified(self, *words: str) -> list[dict[str, Any]]:
        with uninterrupted():
            verification = Verification(self._root, words)
            self._stack.callback(verification.close)
        self._until(lambda: verification.done, "the comparison does not end", self.start)
        return verification.reports

    def _judge(self, cpu: dict[str, float]) -> Verdict:
        if not self._options.keep:
            self._pipeline.close()
        keys = {table.name: table.key for table in shop.TABLES.values()}
        found = compared(self._running.cql, self._copied_to, COPY, keys)
        return self._verdict(found, self._load.status, cpu)

    def _verdict(self, found: Sides, status: Status, cpu: dict[str, float]) -> Verdict:
        delays = self._reader.delays(status.started_us)
        told = [row for report in self._reports for row in report["differences"]]
        return Verdict(
            writes=status.writes,
            rows=found.rows.total(),
            lost=found.total("lost"),
            extra=found.total("extra"),
            wrong=found.total("wrong"),
            misdated=found.total("misdated"),
            tables={report["source"]: report["result"] for report in self._reports},
            repaired=self._repaired,
            delay_p50_s=percentile(delays, 0.5),
            delay_p99_s=percentile(delays, 0.99),
            delay_max_s=percentile(delays, 1.0),
            rate_per_s=round((status.writes - status.warm_up_writes) / max(status.seconds, 1e-3), 1),
            seconds=round(status.seconds, 2),
            retries=status.retries,
            cpu_s=cpu,
            asked_per_s=None if self._rate == "max" else float(self._rate),
            broken=list(self._options.broken),
            examples=[*found.examples, *told[:MOST_EXAMPLES]],
        )

    def _counts(self, status: Status) -> tuple[int, int, int]:
        return status.writes, self._pipeline.rows, self._reader.behind
