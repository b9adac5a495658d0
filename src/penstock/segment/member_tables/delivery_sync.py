"""Delivers a segment's members to a destination's topic: all members, or the changes since the last delivery.

The table `delivered` has what each destination got. Bucket by bucket the members are compared with it; the difference
goes to the topic and, once the brokers have it, to `delivered`, with a step of the run. A killed run continues after
its last step: a bucket that was sent but not noted is compared, and may be sent, again. A record has the state of a
person, so a repeat does no harm. A removal can be sent for `REMOVALS_KEPT` after the end of a membership; later the row
is gone, and the destination ends the membership by its `until`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any, Literal, TypeAlias, Unpack, get_args
from uuid import UUID, uuid1

import pyarrow as pa
from cassandra.concurrent import execute_concurrent_with_args

from penstock.border.public import public
from penstock.database.access import Access, AccessOptions
from penstock.database.cql_connection import connection
from penstock.errors import PenstockError
from penstock.kafka.security import require_servers
from penstock.segment.member_tables.member_schema import BUCKETS, RECEIPTS_KEPT, aware, explained
from penstock.wire.producer.blocking import BlockingProducer

Mode: TypeAlias = Literal["full", "changes"]
MODES = get_args(Mode)
REMOVALS_KEPT = timedelta(days=30)
READERS = 8
"""Buckets to deliver at a time."""
WRITES_AT_ONCE = 64
SIGNED = 1 << 63
PLACES = 100_000
"""Partitions of each table that are looked through for the names of segments."""
NAMED = ("members", "bucket"), ("counts", "level, span")
"""The tables with these names, and the rest of their partition keys. Counts outlast members."""
SHOWN = 20
"""Names in a message."""

RUNS = "SELECT run, mode, began, ended, added, removed, digest FROM {ks}.syncs WHERE destination = %s AND segment = %s"
Members = Mapping[str, datetime]


class UnknownSegment(PenstockError):
    """Nobody ever was a member of the segment, as far as counts and deliveries are kept."""


@dataclass(frozen=True)
class Receipt:
    """What a run delivered: `added` and `removed` count records, `began` and `ended` are UTC.

    `digest` is the sum modulo 2^64, in hexadecimal, of the first 8 bytes of the SHA-256 of each value sent.
    """

    segment: str
    destination: str
    run: str
    mode: str
    began: datetime
    ended: datetime
    added: int
    removed: int
    digest: str

    def as_json(self) -> str:
        """The fields as a JSON object; times are strings in ISO 8601."""
        return json.dumps(asdict(self), default=lambda time: time.isoformat())


@dataclass(frozen=True)
class DeliveryRun:
    """A running delivery; `done` has counts and digest of each delivered bucket."""

    id: UUID
    mode: str
    began: datetime
    done: dict[int, tuple[int, int, int]]


@dataclass(frozen=True)
class Sync:
    """The delivery of a segment to a destination."""

    segment: str
    destination: str
    keyspace: str
    access: Access
    servers: str

    def run(self, mode: str) -> Receipt:
        """Deliver, or finish an interrupted delivery, and store the receipt."""
        return self.finish(self.begin(mode))

    def finish(self, run: DeliveryRun) -> Receipt:
        """Deliver the remaining buckets."""
        left = [bucket for bucket in range(BUCKETS) if bucket not in run.done]
        with (
            explained(self.keyspace, self.access.hosts, self.servers),
            BlockingProducer(self.servers) as producer,
            ThreadPoolExecutor(READERS) as pool,
        ):
            for bucket, step in pool.map(lambda bucket: (bucket, self._deliver(run, bucket, producer)), left):
                run.done[bucket] = step
        added, removed, digest = (sum(step[i] for step in run.done.values()) for i in range(3))
        ended, sums = _now(), f"{digest % (1 << 64):016x}"
        self._execute(
            "UPDATE {ks}.syncs USING TTL %s SET ended = %s, added = %s, removed = %s, digest = %s"
            " WHERE destination = %s AND segment = %s AND run = %s",
            (RECEIPTS_KEPT, ended, added, removed, sums, self.destination, self.segment, run.id),
        )
        return Receipt(self.segment, self.destination, str(run.id), run.mode, run.began, ended, added, removed, sums)

    def receipts(self) -> list[Receipt]:
        """The receipts of all finished runs, latest first."""
        rows = self._execute(f"{RUNS} ORDER BY run DESC", (self.destination, self.segment))
        return [self._receipt(row) for row in rows if row[3]]

    def find(self, run: UUID) -> Receipt | UUID | None:
        """The receipt of a run; its id if it is not finished; None if there is no such run."""
        rows = self._execute(f"{RUNS} AND run = %s", (self.destination, self.segment, run))
        return None if not rows else self._receipt(rows[0]) if rows[0][3] else run

    def _receipt(self, row: tuple[Any, ...]) -> Receipt:
        times = aware(row[2]), aware(row[3])
        return Receipt(self.segment, self.destination, str(row[0]), row[1], *times, *row[4:])

    def begin(self, mode: str) -> DeliveryRun:
        """The last run if it is not finished and has this mode, else a new run."""
        rows = self._execute(f"{RUNS} ORDER BY run DESC LIMIT 1", (self.destination, self.segment))
        if rows and rows[0][3] is None and rows[0][1] == mode:
            run, _, began, *_ = rows[0]
            steps = self._execute(
                "SELECT bucket, added, removed, digest FROM {ks}.sync_steps"
                " WHERE destination = %s AND segment = %s AND run = %s",
                (self.destination, self.segment, run),
            )
            return DeliveryRun(
                run, mode, aware(began), {bucket: (added, removed, sums) for bucket, added, removed, sums in steps}
            )
        if not rows:
            self._require_members()
        run, began = uuid1(), _now()
        self._execute(
            "INSERT INTO {ks}.syncs (destination, segment, run, mode, began) VALUES (%s, %s, %s, %s, %s) USING TTL %s",
            (self.destination, self.segment, run, mode, began, RECEIPTS_KEPT),
        )
        return DeliveryRun(run, mode, began, {})

    def _require_members(self) -> None:
        """Refuse the first delivery of a segment that nobody ever was in: its name is more likely wrong than new."""
        with explained(self.keyspace, self.access.hosts):
            session = connection(self.access).rows
            select = session.prepare(
                f"SELECT person FROM {self.keyspace}.members WHERE segment = ? AND bucket = ? LIMIT 1"
            )
            asked = [(self.segment, bucket) for bucket in range(BUCKETS)]
            answers = execute_concurrent_with_args(session, select, asked, concurrency=WRITES_AT_ONCE)
            if any(result.one() for _, result in answers):
                return
            names = {segment for table, part in NAMED for segment in self._names(session, table, part)}
            if self.segment in names:
                return
        raise UnknownSegment(
            f"no segment {self.segment!r} has members",
            where=f"{self.keyspace}.members at {self.access.hosts}",
            next=_choice(self.segment, sorted(names)),
        )

    def _names(self, session: Any, table: str, part: str) -> set[str]:
        """The segments in a table whose partitions have the columns `segment` and `part`."""
        rows = session.execute(f"SELECT DISTINCT segment, {part} FROM {self.keyspace}.{table} LIMIT {PLACES}")
        return {row[0] for row in rows}

    def _deliver(self, run: DeliveryRun, bucket: int, producer: BlockingProducer) -> tuple[int, int, int]:
        """Compare and send one bucket, and note what the destination has; returns counts and digest of the records."""
        members, had = self._members(bucket), self._had(bucket)
        added = {p: until for p, until in members.items() if run.mode == "full" or had.get(p) != until}
        removed = had.keys() - members.keys()
        values = [record(self.segment, "add", person, until) for person, until in added.items()]
        values += [record(self.segment, "remove", person, None) for person in removed]
        if values:
            keys = [person.encode() for person in (*added, *removed)]
            producer.send_table(self.destination, pa.table({"key": keys, "value": values}))
        self._note(bucket, added, removed)
        step = len(added), len(removed), sum(map(_hash, values)) % (1 << 64)
        signed = (step[2] + SIGNED) % (1 << 64) - SIGNED
        self._execute(
            "INSERT INTO {ks}.sync_steps (destination, segment, run, bucket, added, removed, digest)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s) USING TTL %s",
            (self.destination, self.segment, run.id, bucket, step[0], step[1], signed, RECEIPTS_KEPT),
        )
        return step

    def _members(self, bucket: int) -> Members:
        """The members whose time is not over; their rows may exist longer, since a time to live starts at the write."""
        now = _now()
        rows = self._execute(
            "SELECT person, until FROM {ks}.members WHERE segment = %s AND bucket = %s", (self.segment, bucket)
        )
        return {person: aware(until) for person, until in rows if until and aware(until) > now}

    def _had(self, bucket: int) -> Members:
        rows = self._execute(
            "SELECT person, until FROM {ks}.delivered WHERE destination = %s AND segment = %s AND bucket = %s",
            (self.destination, self.segment, bucket),
        )
        return {person: aware(until) for person, until in rows if until}

    def _note(self, bucket: int, added: Members, removed: Iterable[str]) -> None:
        session, place, now = connection(self.access).rows, (self.destination, self.segment, bucket), _now()
        put = session.prepare(
            f"INSERT INTO {self.keyspace}.delivered (destination, segment, bucket, person, until)"
            " VALUES (?, ?, ?, ?, ?) USING TTL ?"
        )
        drop = session.prepare(
            f"DELETE FROM {self.keyspace}.delivered WHERE destination = ? AND segment = ? AND bucket = ? AND person = ?"
        )
        puts = [(*place, person, until, _ttl(until, now)) for person, until in added.items()]
        drops = [(*place, person) for person in removed]
        for statement, rows in ((put, puts), (drop, drops)):
            execute_concurrent_with_args(session, statement, rows, concurrency=WRITES_AT_ONCE)

    def _execute(self, statement: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        with explained(self.keyspace, self.access.hosts):
            return list(connection(self.access).rows.execute(statement.format(ks=self.keyspace), values) or ())


@public("segment.sync")
def sync(
    segment: str, *, to: str, mode: Mode, keyspace: str, hosts: str, servers: str, **access: Unpack[AccessOptions]
) -> Receipt:
    """Deliver the members of `segment` to the topic `to`; `mode` is "full", or "changes" since the last delivery to it.

    Records are JSON with person, segment, event ("add", or "remove" for former members) and until (not for "remove");
    the key is the person. Run one delivery at a time for a segment and topic; an interrupted run continues, and may
    repeat records. Raises PenstockError for an unknown mode, for the first delivery of a segment without any member, or
    if the database or Kafka fails.
    """
    if mode not in MODES:
        raise PenstockError(f"unknown mode {mode!r}", where="segment.sync", next=f"use {' or '.join(MODES)}")
    require_servers(servers, "segment.sync")
    return Sync(segment, to, keyspace, Access.of(hosts, access, where="segment.sync", function=sync), servers).run(mode)


def _choice(wrong: str, names: list[str]) -> str:
    if not names:
        return "start the pipeline that writes members with segment.sink; no segment has any yet"
    close = get_close_matches(wrong, names, 3)
    shown = ", ".join(close or names[:SHOWN])
    return f"did you mean {shown}?" if close else f"check the name; known segments: {shown}"


def record(segment: str, event: str, person: str, until: datetime | None) -> bytes:
    """The value of a destination's record about a person."""
    fields = {"person": person, "segment": segment, "event": event}
    return json.dumps(fields | ({"until": until.isoformat()} if until else {})).encode()


def _hash(value: bytes) -> int:
    return int.from_bytes(hashlib.sha256(value).digest()[:8], "big")


def _ttl(until: datetime, now: datetime) -> int:
    return max(1, int((until - now + REMOVALS_KEPT).total_seconds()))


def _now() -> datetime:
    """The current time in milliseconds, the precision of CQL."""
    now = datetime.now(UTC)
    return now.replace(microsecond=now.microsecond // 1000 * 1000)
