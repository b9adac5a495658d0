"""A round of the shop: changes of four tables as events in Kafka, and in PostgreSQL or files if the round says so."""

from __future__ import annotations

import io
import json
from array import array
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pyarrow.dataset as ds
from adbc_driver_postgresql import dbapi
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from fastavro import parse_schema, schemaless_reader

from campaign.breaks import GROWN, Breaking, Clock, Disk, Struck, grow
from campaign.plan import RATES, Round
from campaign.world import World
from penstock.errors import PenstockError
from penstock_demo import consume, journal, shop, watch
from penstock_demo.journal import Expected
from penstock_demo.node import connect
from penstock_demo.parts import Pipeline
from penstock_demo.reconcile import Record, Report, reconcile
from penstock_demo.run import Demo
from penstock_demo.stage import Options
from penstock_demo.verdict import examples
from penstock_demo.view import View

TARGET = f"{Path(__file__).with_name('pipelines.py')}:changes"
LATE = {"fast": 5.0, "default": 30.0}
"""Confidence in seconds: no guarantee for an acknowledged write that took longer."""
PARTITIONS_OF_TABLES = 100
EPOCH = date(1970, 1, 1)
CREATE = (
    "CREATE SCHEMA IF NOT EXISTS soak",
    "CREATE TABLE soak.events (topic text, key text, value text)",
)


class Reader(consume.Reader):
    """Reads committed records, also from new partitions and with Avro keys."""

    def __init__(self, servers: str, registry: str) -> None:
        super().__init__(servers, **{"isolation.level": "read_committed", "enable.partition.eof": True})
        self.partitions = dict.fromkeys(consume.TOPICS, consume.PARTITIONS)
        self._registry = registry
        self._new: SimpleQueue[list[TopicPartition]] = SimpleQueue()
        self._schemas: dict[int, Any] = {}

    def grow(self, topic: str, count: int) -> None:
        new = [TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(self.partitions[topic], count)]
        self.partitions[topic] = count
        self._new.put(new)

    def _adjust(self) -> None:
        while not self._new.empty():
            self._consumer.incremental_assign(self._new.get())

    def ends(self, servers: str) -> dict[tuple[str, int], int]:
        """The current end offsets of the topics."""
        consumer = Consumer({"bootstrap.servers": servers, "group.id": "penstock-demo-look", "log_level": 0})
        found = {}
        for topic, count in self.partitions.items():
            for partition in range(count):
                _, found[topic, partition] = consumer.get_watermark_offsets(
                    TopicPartition(topic, partition), timeout=watch.PATIENCE
                )
        consumer.close()
        return found

    def _reached_end(self, message: Message) -> None:
        """Records the end of a partition, which comes after the last record: transaction markers have offsets, too."""
        self._ends[message.topic(), message.partition()] = message.offset()

    def _values(self, table: str, key: bytes | None) -> tuple[Any, ...]:
        if key is None or key[:1] != b"\0":
            return super()._values(table, key)
        number = int.from_bytes(key[1:5], "big")
        if number not in self._schemas:
            self._schemas[number] = self._fetched(number)
        members = schemaless_reader(io.BytesIO(key[5:]), self._schemas[number])
        return tuple(_plain(members[column]) for column in shop.TABLES[table].key)

    def _fetched(self, number: int) -> Any:
        """A schema; waits until the registry answers."""
        while not self._closing.is_set():
            try:
                with urlopen(f"{self._registry}/schemas/ids/{number}", timeout=5) as answer:
                    return parse_schema(json.loads(json.load(answer)["schema"]))
            except (URLError, OSError):
                self._closing.wait(0.5)
        raise PenstockError(f"schema {number} was not read before the end", where=self._registry)


def _plain(value: Any) -> Any:
    """A key's value as in JSON."""
    if isinstance(value, date):
        return (value - EPOCH).days
    return value if value is None or isinstance(value, int) else str(value)


class ShopRound(Breaking, Demo):
    """A round; `run` raises PenstockError if a part ends or makes no progress."""

    start, warm_longest, patience = 1200.0, 0.0, 400.0

    def __init__(
        self, chosen: Round, world: World, folder: Path, struck: list[Struck], view: View, stack: ExitStack
    ) -> None:
        super().__init__(Options(folder, 3600, str(RATES["shop"]), (), keep=False), view, stack)
        self._round, self._world, self._folder = chosen, world, folder
        self._disks, self.struck = {}, struck
        self._grown: set[str] = set()
        self._kinds = {one.kind for one in chosen.breaks}
        self.tables = tuple(chosen.settings["tables"].split("+"))

    def outcome(self) -> dict[str, Any]:
        """Run the round; returns its counts of writes, events and problems."""
        self.run()
        return self._outcome

    def _serve(self) -> World:
        for part in ("checkpoints", "files"):
            if f"full {part}" in self._kinds:
                self._disks[part] = Disk(self._folder / part)
                self._stack.callback(self._disks[part].close)
        return self._world

    def _create(self) -> None:
        with connect(self._world.cql) as session:
            for statement in shop.statements(3, self.tables):
                session.execute(statement, timeout=120)
        config = {"min.insync.replicas": "2", "message.timestamp.type": "LogAppendTime"}
        consume.create_topics(self._world.kafka, copies=3, config=config)
        self._world.await_topics(dict.fromkeys(consume.TOPICS, consume.PARTITIONS))
        if "postgres" in self._round.settings["sinks"]:
            with dbapi.connect(self._world.postgres) as session, session.cursor() as cursor:
                for statement in CREATE:
                    cursor.execute(statement)
                session.commit()

    def _read(self) -> Reader:
        return Reader(self._world.kafka, self._world.registry)

    def _pipe(self) -> Pipeline:
        settings = self._round.settings
        environment = {f"CAMPAIGN_{name.upper()}": value for name, value in settings.items()}
        environment |= {
            "PENSTOCK_DEMO_CQL": self._world.cql,
            "PENSTOCK_DEMO_KAFKA": self._world.reached("kafka", self._kinds),
            "PENSTOCK_DEMO_POSTGRES": self._world.reached("postgres", self._kinds),
            "CAMPAIGN_REGISTRY": self._world.registry,
            "CAMPAIGN_FILES": str(self._folder / "files"),
        }
        if "jump clock" in self._kinds:
            self._clock = Clock(self._folder)
            environment |= self._clock.environment
        return Pipeline(self._folder, TARGET, environment, stay=False)

    def _load_arguments(self) -> list[str]:
        late = LATE[self._round.settings["pace"]]
        pace = ["--warm-rate", "20", "--seconds", "3600", "--late", str(late)]
        which = ["--seed", str(self._round.number), "--partitions", str(PARTITIONS_OF_TABLES), "--tables", *self.tables]
        if any("cql" in kind for kind in self._kinds):
            which.append("--no-appends")
        return ["--hosts", self._world.cql, *pace, *which]

    def _times(self) -> array[int]:
        return self._reader.times

    def _topic(self) -> str:
        return f"shop.{shop.KEYSPACE}.{self.tables[0]}"

    def _grow(self, servers: AdminClient) -> str:
        topic = self._topic()
        grow(servers, topic)
        self._grown.add(consume.TOPICS[topic])
        reader = self._reader
        assert isinstance(reader, Reader)
        reader.grow(topic, GROWN)
        return topic

    def _alteration(self) -> str:
        table = self.tables[len(self.struck) % len(self.tables)]
        return f"ALTER TABLE {shop.KEYSPACE}.{table} ADD {shop.ADDED}{len(self.struck)} text"

    def _due(self) -> list[Expected]:
        return list(journal.expected(journal.read(self._load.journal), cluster=True))

    def _ends(self) -> dict[tuple[str, int], int]:
        reader = self._reader
        assert isinstance(reader, Reader)
        return reader.ends(self._world.kafka)

    def _judge(self, cpu: dict[str, float]) -> Any:
        status, records = self._load.status, list(self._reader.records)
        self._look_at(self.struck)
        breaks = [one.at_us for one in self.struck]
        once = self._round.settings["delivery"] == "exactly-once"
        report = reconcile(self._expected, records, breaks=[] if once else breaks, grown=self._grown)
        numbers = _numbers(report)
        found = [f"kafka: {one}" for one in examples(report, self._load.journal, self._world.kafka)]
        for name, rows in self._other_sinks():
            other = reconcile(self._expected, numbered(rows))
            # A table and a folder of files have no order.
            other.misordered = 0
            found += [f"{name}: {one}" for one in other.examples if one.problem != "misordered"]
            numbers = {problem: count + _numbers(other)[problem] for problem, count in numbers.items()}
        self._outcome = {
            "writes": status.writes,
            "events": report.events,
            **numbers,
            "replayed": report.replayed,
            "late": status.late,
            "retries": status.retries,
            "examples": found,
        }
        return None

    def _look_at(self, struck: Iterable[Struck]) -> None:
        times = self._times()
        for one in struck:
            one.flows(times[::2], times[1::2])

    def _other_sinks(self) -> Iterator[tuple[str, list[tuple[str, str, str | None]]]]:
        sinks = self._round.settings["sinks"]
        if "postgres" in sinks:
            with dbapi.connect(self._world.postgres) as session, session.cursor() as cursor:
                cursor.execute("SELECT topic, key, value FROM soak.events")
                yield "postgres", cursor.fetchall()
        if "files" in sinks:
            table = ds.dataset(self._folder / "files", partitioning="hive").to_table(["topic", "key", "value"])
            yield "files", list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _numbers(report: Report) -> dict[str, int]:
    return {name: getattr(report, name) for name in ("lost", "duplicated", "misordered", "wrong")}


def numbered(rows: Iterable[tuple[str, str, str | None]]) -> list[Record]:
    """Rows of a sink as records of one partition; tombstones, which have no time, come last."""
    found = []
    for topic, key, value in rows:
        table = consume.TOPICS[topic]
        of = consume.key_of(table, key.encode())
        found.append(consume.record_of(table, of, None if value is None else value.encode(), 0, 0, 0))
    found.sort(key=lambda record: record.stamp or 1 << 62)
    return [record._replace(offset=number) for number, record in enumerate(found)]
