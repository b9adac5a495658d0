"""The demo of ad-tech: its tables and topics, ingest, deliveries, and the proof."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from penstock.cql.matching import id_store
from penstock.segment.member_tables.member_counts import counts
from penstock.segment.member_tables.member_schema import create_tables
from penstock_demo import journal
from penstock_demo.adtech import reads, reconcile, site, verdict
from penstock_demo.adtech.load import Status, now
from penstock_demo.adtech.model import entered, members_at, minutes_of
from penstock_demo.adtech.parts import Ingest, start_deliveries
from penstock_demo.adtech.reconcile import Expected, Report
from penstock_demo.adtech.verdict import Verdict
from penstock_demo.node import connect
from penstock_demo.parts import Pipeline
from penstock_demo.stage import AUTO, START, Options, Running, Stage
from penstock_demo.view import Board, View, cores
from penstock_demo.watch import percentile

PIPELINES = Path(__file__).with_name("pipelines.py")
FIRST_HOP = f"{PIPELINES}:checked"
WARM = 0.8
"""Visitors who may act, as a share of the events per second, before the load runs at its full rate."""
SYNCED = ("buyers", "interested")
"""Segments that are delivered: one whose members stay, and one whose members are gone at the end."""
RATE_OF_CORE, LAST_RATE = 150, 4000
"""Events per second for each core that runs all parts, with which two cores keep delays short; and the most."""
OVERDUE = 2_000
"""Milliseconds for which a row may outlast its membership: its TTL is in whole seconds."""


class Demo(Stage[Status, Verdict]):
    """The parts of ad-tech, and the proof."""

    target = f"{PIPELINES}:adtech"
    load_module, load_status = "penstock_demo.adtech.load", Status
    also, parts = ("postgres",), ("ingest", "first-hop", "pipeline")
    logs = ("pipeline.log", "first-hop.log", "ingest.log", "deliveries.log")
    starting, draining = "starting ingest and the pipelines", "waiting for what is due"
    warming, working, judging = "signing in", "acting", "comparing everything with the model"
    # Three queries, whose tasks mostly wait for Python and for databases.
    cores = 4
    warm_longest, warm_delay, patience = 20.0, 4.0, START
    topics = tuple(reads.TOPICS)
    _reader: reads.Reader

    def __init__(self, options: Options, view: View, stack: ExitStack) -> None:
        super().__init__(options, view, Board(names=("posted", "matched", "posted, not yet matched")), stack)
        self._report = Report()
        self._receipts: dict[str, list[dict[str, Any]]] = {segment: [] for segment in SYNCED}

    def _create(self) -> None:
        create(self._running)

    def _read(self) -> reads.Reader:
        return reads.Reader(self._running.kafka)

    def _start_parts(self) -> None:
        self._ingest = self._processes["ingest"] = self._take_in()
        self._stack.callback(self._ingest.close)
        self._first_hop = self._processes["first-hop"] = Pipeline(
            self._root, FIRST_HOP, self._environment(), stay=self._options.keep, cores=None, part="first-hop"
        )
        self._stack.callback(self._first_hop.close)
        super()._start_parts()

    def _take_in(self) -> Ingest:
        return Ingest(self._root, self._running.kafka, stay=self._options.keep)

    def _await_parts(self) -> None:
        """The first events wait in Kafka for the pipeline."""
        self._until(lambda: self._ingest.serves, "ingest does not serve", self.start)

    def _load_arguments(self) -> list[str]:
        to = ["--address", self._ingest.address, "--kafka", self._running.kafka]
        return [*to, "--rate", self._chosen_rate(), *super()._load_arguments()]

    def _chosen_rate(self) -> str:
        """The user's rate, or one by the number of cores: the visitors sign in at it, so it cannot be tried."""
        return self._options.rate if self._options.rate != AUTO else str(min(LAST_RATE, RATE_OF_CORE * cores()))

    def _first(self) -> bool:
        """Whether enough visitors may act, and the first changes have arrived."""
        return self._load.status.able >= WARM * float(self._chosen_rate()) and bool(self._reader.times)

    def _before_load(self) -> None:
        # The first change need not be one of these segments. Their members may be gone by now, which counts are not.
        known = set(SYNCED)
        self._until(lambda: known <= reads.counted(self._running.cql), f"nobody became a member of {SYNCED}")
        self._deliver("full")

    def _deliver(self, mode: str) -> None:
        """Deliver the segments, and keep the receipts."""
        under_way = start_deliveries(self._options.root, self._running, SYNCED, mode)
        for one in under_way.values():
            self._stack.callback(one.close)
        self._until(lambda: all(one.done for one in under_way.values()), "the deliveries do not end")
        for segment, one in under_way.items():
            self._receipts[segment].append(one.receipt)

    def _drain(self) -> None:
        """Wait for all that is due, while there is progress; then deliver the changes."""
        posted = reconcile.posted(journal.read(self._load.journal))
        self._stored = stored = reads.stored(self._running.kafka, site.EVENTS)
        self._wanted = wanted = reconcile.check_stored(self._report, posted, stored)
        copies = sum(wanted.copies.values())
        due = Counter(change for change in wanted.changes if wanted.in_time(change.person))
        rows = minutes_of(wanted.acts)
        self._wait(lambda: (due - Counter(self._reader.changes)).total() + max(0, copies - self._reader.visits))
        self._wait(lambda: len(rows.items() - reads.minutes(self._running.postgres).items()))
        self._wait(lambda: sum(until < now() - OVERDUE for until in reads.members(self._running.cql).values()))
        self._deliver("changes")

    def _wait(self, missing: Callable[[], int]) -> None:
        least, progress = missing(), time.monotonic()
        while least and time.monotonic() - progress < self.patience:
            self._turn()
            if (left := missing()) < least:
                least, progress = left, time.monotonic()

    def _judge(self, cpu: dict[str, float]) -> Verdict:
        if not self._options.keep:
            self._pipeline.close()
            self._first_hop.close()
            self._ingest.close()
        report, wanted, running, at = self._report, self._wanted, self._running, now()
        reconcile.check_checked(report, self._stored, reads.stored(running.kafka, site.CHECKED))
        visits = [reads.visit_of(one.value) for one in reads.stored(running.kafka, site.VISITS)]
        reconcile.check_persons(report, wanted, visits)
        changes = [reads.change_of(one.value) for one in reads.stored(running.kafka, *site.CHANGES)]
        reconcile.check_changes(report, wanted, changes)
        members = members_at(wanted.changes, at)
        found = {key: until for key, until in reads.members(running.cql).items() if until > at}
        in_time = [{key: t for key, t in rows.items() if wanted.in_time(key[1])} for rows in (members, found)]
        reconcile.check_table(report, "members", *in_time)
        if not wanted.late:
            reconcile.check_table(report, "reach", entered(wanted.changes), _reach(running.cql, wanted))
        reconcile.check_table(report, "minutes", minutes_of(wanted.acts), reads.minutes(running.postgres))
        values = [one.value for one in reads.stored(running.kafka, site.DELIVERED)]
        for segment, receipts in self._receipts.items():
            reconcile.check_deliveries(report, segment, wanted, at, receipts, values)
        return self._verdict(members, cpu)

    def _verdict(self, members: dict[tuple[str, str], int], cpu: dict[str, float]) -> Verdict:
        report, wanted, status = self._report, self._wanted, self._load.status
        shares = {"p50": 0.5, "p99": 0.99, "max": 1.0}
        delays, hops = self._reader.delays(status.started_us), self._reader.hops_since(status.started_us)
        return Verdict(
            events=status.events,
            acts=status.acts,
            persons=len({act.person for act in wanted.acts}),
            changes=len(wanted.changes),
            members=len(members),
            copies=report.copies,
            repeated=report.repeated,
            retries=status.retries,
            refused=status.refused,
            late=report.late,
            **{problem: report.total(problem) for problem in reconcile.PROBLEMS},
            stages=verdict.stages(report),
            delay_s={name: percentile(delays, share) for name, share in shares.items()},
            first_hop_s={name: percentile(hops, share) for name, share in shares.items()},
            rate_per_s=round((status.acts - status.warm_up_acts) / max(status.seconds, 1e-3), 1),
            seconds=round(status.seconds, 2),
            cpu_s=cpu,
            lag_max=self._lag,
            asked_per_s=float(self._chosen_rate()),
            broken=list(self._options.broken),
            receipts=[receipt for some in self._receipts.values() for receipt in some],
            examples=report.examples,
        )

    def _measure(self, status: Status) -> None:
        super()._measure(status)
        self._board.parts["ingest"] = self._ingest.address
        self._board.parts["first-hop"] = f"pid {self._first_hop.pid}"

    def _counts(self, status: Status) -> tuple[int, int, int]:
        return status.events, self._reader.visits, max(0, status.events - self._reader.visits)


def create(running: Running, *, copies: int = 1, config: Mapping[str, str] | None = None) -> None:
    """Create topics, with this configuration, and tables; `copies` is the replication factor."""
    options: dict[str, str | int] = {"class": "SimpleStrategy", "replication_factor": copies}
    id_store.create(id_store.ids(site.KEYSPACE, hosts=running.cql), replication=options)
    with connect(running.cql) as session:
        create_tables(session, site.KEYSPACE)
    reads.create_counts(running.postgres)
    reads.create_topics(running.kafka, copies=copies, config=config)


def _reach(hosts: str, wanted: Expected) -> dict[str, int]:
    """The persons who entered or prolonged each segment, from the counts, which are exact at these numbers."""
    since = datetime.fromtimestamp(min((act.at for act in wanted.acts), default=0) / 1000, UTC)
    until = datetime.now(UTC) + timedelta(minutes=1)
    told = counts(site.KEYSPACE, hosts=hosts)
    return {segment: round(told.count(segment, since, until).members) for segment in entered(wanted.changes)}
