"""The demo of ad-tech: services, tables, ingest, pipeline, load, deliveries, proof; then all is stopped."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from penstock.cql.matching import id_store
from penstock.local import services
from penstock.local.process import uninterrupted
from penstock.segment.member_tables.member_counts import counts
from penstock.segment.member_tables.member_schema import create_tables
from penstock_demo import journal
from penstock_demo.adtech import reads, reconcile, site, verdict
from penstock_demo.adtech.load import Status
from penstock_demo.adtech.model import entered, members_at, minutes_of
from penstock_demo.adtech.parts import Ingest, start_deliveries, stop_kept
from penstock_demo.adtech.reconcile import Expected, Report
from penstock_demo.adtech.verdict import Verdict
from penstock_demo.node import connect
from penstock_demo.parts import Cpu, Load, Pipeline
from penstock_demo.stage import START, Options, Running, Stage, prepare, staged
from penstock_demo.view import Board, View

TARGET = f"{Path(__file__).with_name('pipelines.py')}:adtech"
TASKS = 4
"""Parallel tasks of three queries, which mostly wait for Python and for databases."""
KILLED = ("kafka", "cassandra", "postgres")
"""Services that a break may kill."""
PARTS = ("ingest", "spark", "worker", *KILLED)
WARM = 0.8
"""Visitors who may act, as a share of the events per second, before the load runs at its full rate."""
SYNCED = ("buyers", "interested")
"""Segments that are delivered: one whose members stay, and one whose members are gone at the end."""
OVERDUE = 2_000
"""Milliseconds for which a row may outlast its membership: its TTL is in whole seconds."""


def demo(options: Options, view: View) -> Verdict:
    """Run the demo; on return, and on any exception, all parts are stopped, unless they are to be kept."""
    return staged(lambda stack: Demo(options, view, stack).run(), keep=options.keep)


class Demo(Stage[Status]):
    """The parts as they start, and the proof."""

    warm_longest, warm_delay, patience = 20.0, 4.0, START
    warming, working = "signing in", "acting"
    _reader: reads.Reader

    def __init__(self, options: Options, view: View, stack: ExitStack) -> None:
        super().__init__(options, view, Board(names=("posted", "matched", "posted, not yet matched")), stack)
        self._report = Report()
        self._receipts: dict[str, list[dict[str, Any]]] = {segment: [] for segment in SYNCED}

    def run(self) -> Verdict:
        used = self._to_the_load_s_end()
        self._phase("waiting for what is due", load="done")
        wanted = self._drain()
        return self._judge(wanted, used)

    def _before_load(self) -> None:
        self._deliver("full")

    def _start(self) -> None:
        root = self._options.root
        self._phase("starting", **dict.fromkeys(("cassandra", "kafka", "postgres"), "starting"))
        stop_kept(root)
        prepare(root, "ingest.log", "deliveries.log")
        self._running = running = self._serve()
        self._phase("creating tables and topics", cassandra=running.cql, kafka=running.kafka, postgres=running.postgres)
        self._create()
        self._reader = reads.Reader(running.kafka)
        self._reader.start()
        self._stack.callback(self._reader.close)
        self._phase("starting ingest and the pipeline", ingest="starting", pipeline="starting")
        with uninterrupted():
            self._ingest = self._take_in()
            self._stack.callback(self._ingest.close)
            self._pipeline = self._pipe()
            self._stack.callback(self._pipeline.close)
        # The first events wait in Kafka for the pipeline.
        self._until(lambda: self._ingest.serves, "ingest does not serve", self.start)
        with uninterrupted():
            self._loading = Load(root, "penstock_demo.adtech.load", self._load_arguments(), Status)
            self._stack.callback(self._loading.close)

    def _serve(self) -> Running:
        """Start the servers."""
        self._stack.callback(services.down, self._options.root)
        self._services = services.up(self._options.root, clean=True, also=["postgres"], say=self._view.say)
        return self._services

    def _create(self) -> None:
        """Create tables and topics."""
        create(self._running)

    def _take_in(self) -> Ingest:
        return Ingest(self._options.root, self._running.kafka, stay=self._options.keep)

    def _pipe(self) -> Pipeline:
        stay, environment = self._options.keep, _environment(self._running)
        return Pipeline(self._options.root, TARGET, environment, stay=stay, cores=TASKS)

    def _load_arguments(self) -> list[str]:
        pace = ["--rate", self._options.rate, "--seconds", str(self._options.seconds)]
        return ["--address", self._ingest.address, "--kafka", self._running.kafka, *pace]

    def _cpu(self) -> Cpu:
        return Cpu.now(self._running.pids | {"ingest": self._ingest.pid}, self._pipeline.pid, self._load.status.cpu)

    def _first(self) -> bool:
        """Whether enough visitors may act, and the first changes have arrived."""
        return self._load.status.able >= WARM * float(self._options.rate) and bool(self._reader.times)

    def _run_load(self) -> None:
        parts, seconds = self._options.broken, self._options.seconds
        for number, part in enumerate(parts, 1):
            self._at(seconds * number / (len(parts) + 1))
            self._break(part)
        self._until(lambda: self._load.done, "the load does not end", seconds)

    def _at(self, seconds: float) -> None:
        self._until(lambda: self._load.status.seconds >= seconds, "the load makes no progress", seconds)

    def _break(self, part: str) -> None:
        """Kill the part with kill -9, and start it again; Spark restarts a worker itself."""
        self._phase(f"killing {part}")
        if part == "ingest":
            self._ingest.kill()
            self._ingest.start_again()
        elif part == "spark":
            self._pipeline.kill()
            self._pipeline.start_again()
        elif part == "worker":
            self._pipeline.kill_worker()
        else:
            os.kill(self._services.pids[part], signal.SIGKILL)
            self._running = self._services = services.up(self._services.root, only=[part])
        self._view.say(f"killed {part} with kill -9")
        self._phase("running after the break")

    def _deliver(self, mode: str) -> None:
        """Deliver the segments, and keep the receipts."""
        under_way = start_deliveries(self._options.root, self._running, SYNCED, mode)
        for one in under_way.values():
            self._stack.callback(one.close)
        self._until(lambda: all(one.done for one in under_way.values()), "the deliveries do not end")
        for segment, one in under_way.items():
            self._receipts[segment].append(one.receipt)

    def _drain(self) -> Expected:
        """Wait for all that is due, while there is progress; then deliver the changes."""
        posted = reconcile.posted(journal.read(self._load.journal))
        wanted = reconcile.check_stored(self._report, posted, reads.stored(self._running.kafka, site.EVENTS))
        copies = sum(wanted.copies.values())
        due = Counter(change for change in wanted.changes if wanted.in_time(change.person))
        rows = minutes_of(wanted.acts)
        self._wait(lambda: (due - Counter(self._reader.changes)).total() + max(0, copies - self._reader.visits))
        self._wait(lambda: len(rows.items() - reads.minutes(self._running.postgres).items()))
        self._wait(lambda: sum(until < _now() - OVERDUE for until in reads.members(self._running.cql).values()))
        self._deliver("changes")
        return wanted

    def _wait(self, missing: Callable[[], int]) -> None:
        least, progress = missing(), time.monotonic()
        while least and time.monotonic() - progress < self.patience:
            self._turn()
            if (now := missing()) < least:
                least, progress = now, time.monotonic()

    def _judge(self, wanted: Expected, cpu: dict[str, float]) -> Verdict:
        self._phase("comparing everything with the model")
        if not self._options.keep:
            self._pipeline.close()
            self._ingest.close()
        report, running, now = self._report, self._running, _now()
        visits = [reads.visit_of(one.value) for one in reads.stored(running.kafka, site.VISITS)]
        reconcile.check_persons(report, wanted, visits)
        changes = [reads.change_of(one.value) for one in reads.stored(running.kafka, *site.CHANGES)]
        reconcile.check_changes(report, wanted, changes)
        members = members_at(wanted.changes, now)
        found = {key: until for key, until in reads.members(running.cql).items() if until > now}
        in_time = [{key: t for key, t in rows.items() if wanted.in_time(key[1])} for rows in (members, found)]
        reconcile.check_table(report, "members", *in_time)
        if not wanted.late:
            reconcile.check_table(report, "reach", entered(wanted.changes), _reach(running.cql, wanted))
        reconcile.check_table(report, "minutes", minutes_of(wanted.acts), reads.minutes(running.postgres))
        values = [one.value for one in reads.stored(running.kafka, site.DELIVERED)]
        for segment, receipts in self._receipts.items():
            reconcile.check_deliveries(report, segment, wanted, now, receipts, values)
        return self._verdict(wanted, members, cpu)

    def _verdict(self, wanted: Expected, members: dict[tuple[str, str], int], cpu: dict[str, float]) -> Verdict:
        report, status = self._report, self._load.status
        return Verdict(
            events=status.events,
            acts=status.acts,
            persons=len({act.person for act in wanted.acts}),
            changes=len(wanted.changes),
            members=len(members),
            copies=report.copies,
            retries=status.retries,
            refused=status.refused,
            late=report.late,
            **{problem: report.total(problem) for problem in reconcile.PROBLEMS},
            stages=verdict.stages(report),
            delay_s=verdict.delay_numbers(self._reader.times, status),
            rate_per_s=round((status.acts - status.warm_up_acts) / max(status.seconds, 1e-3), 1),
            seconds=round(status.seconds, 2),
            cpu_s=cpu,
            lag_max=self._lag,
            broken=list(self._options.broken),
            receipts=[receipt for some in self._receipts.values() for receipt in some],
            examples=report.examples,
        )

    def _look(self) -> None:
        self._ingest.look()
        super()._look()

    def _measure(self, status: Status) -> None:
        super()._measure(status)
        self._board.parts["ingest"] = self._ingest.address

    def _counts(self, status: Status) -> tuple[int, int, int, int]:
        return status.events, self._reader.visits, max(0, status.events - self._reader.visits), status.retries


def create(running: Running, *, copies: int = 1, config: Mapping[str, str] | None = None) -> None:
    """Create topics, with this configuration, and tables; `copies` is the replication factor."""
    options: dict[str, str | int] = {"class": "SimpleStrategy", "replication_factor": copies}
    id_store.create(id_store.ids(site.KEYSPACE, hosts=running.cql), replication=options)
    with connect(running.cql) as session:
        create_tables(session, site.KEYSPACE)
    reads.create_counts(running.postgres)
    reads.create_topics(running.kafka, copies=copies, config=config)


def _environment(running: Running) -> dict[str, str]:
    names = {"CQL": running.cql, "KAFKA": running.kafka, "POSTGRES": running.postgres}
    return {f"PENSTOCK_DEMO_{name}": address for name, address in names.items()}


def _reach(hosts: str, wanted: Expected) -> dict[str, int]:
    """The persons who entered or prolonged each segment, from the counts, which are exact at these numbers."""
    since = datetime.fromtimestamp(min((act.at for act in wanted.acts), default=0) / 1000, UTC)
    until = datetime.now(UTC) + timedelta(minutes=1)
    told = counts(site.KEYSPACE, hosts=hosts)
    return {segment: round(told.count(segment, since, until).members) for segment in entered(wanted.changes)}


def _now() -> int:
    return time.time_ns() // 1_000_000
