"""Whether our sink makes the rows of ScyllaDB's own sink connector: both write the records of the sink's vectors.

    python benchmarks/_compare_rows.py --reference DIR --connect DIR

DIR are folders of jars (see _reference.py). Each vector of tests/vectors/sink_connector.json that a topic can hold is
written by both, into keyspaces of their own, with one configuration. What is compared is what a client sees: the
columns of each table, its rows with write times and times to live, and whether the task has failed.

Prints a JSON line for each vector. Where they are not the same it has both sides, and what the vector says of the
original (`reference`); ends with 1 if it says nothing. Cassandra refuses the original's CREATE TABLE, which names the
compression as only ScyllaDB reads it: where that is the cause, `same` is null.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.query import dict_factory
from confluent_kafka import Consumer, Producer, TopicPartition

from _measure import import_test_support
from _reference import Connect, Reference, running, serving
from _stream_data import topics
from penstock.errors import PenstockError
from penstock.local import ports, services
from penstock.local.services import Services

ROOT = Path(__file__).parents[1]
import_test_support()
from cell_states import columns_of, session_for_states, state_of  # noqa: E402
from connect_json import encoded  # noqa: E402

VECTORS = ROOT / "tests/vectors/sink_connector.json"
OURS, THEIRS = "ours", "theirs"
JSON = "org.apache.kafka.connect.json.JsonConverter"
COMMITS = "offset.flush.interval.ms=500\n"  # Kafka Connect's default is a minute
PATIENCE = 60.0  # seconds for one vector
POLL = 0.05
SLACK = 2 * PATIENCE  # seconds between the writes of both, by which their expiries may differ
OFFSETS = "kafka_connect_offsets"
NO_TABLE = "Missing sub-option 'class' for the 'compression' option"
NAMES = {True: "same", False: "different", None: "no table"}
Vector = dict[str, Any]


@dataclass
class Outcome:
    """What became of a vector's records: the columns and rows of each table, and the trace if the task failed.

    The table of positions has no write times: they are the clock's.
    """

    columns: dict[str, dict[str, str]] = field(default_factory=dict)
    rows: dict[str, Any] = field(default_factory=dict)
    failed: str = ""

    def same(self, other: Outcome) -> bool:
        return (
            self.columns == other.columns and alike(self.rows, other.rows) and bool(self.failed) == bool(other.failed)
        )


def alike(one: Any, other: Any) -> bool:
    """Whether two states are the same; expiries are so within what passes between two writes."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(
            near(one[name], other[name]) if name == "expires" else alike(one[name], other[name]) for name in one
        )
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)


def near(one: int | None, other: int | None) -> bool:
    return one == other if one is None or other is None else abs(one - other) <= SLACK


def runnable(vector: Vector) -> bool:
    """Whether both can run it: its records must be such as a topic can hold, and its configuration without a fault.

    A producer gives every record a time, and offsets only grow.
    """
    records = vector["records"]
    times = all(record["timestamp_ms"] is not None for record in records)
    grows = all(one["offset"] < two["offset"] for one, two in pairwise(records))
    refused = vector["expect"].get("error", {}).get("class") == "config"
    harness = any(name.startswith("test.") for name in vector["config"])
    return bool(records) and times and grows and not refused and not harness and vector["basis"] != "datastax"


@dataclass(frozen=True)
class Side:
    """One of the two: its worker, and the keyspaces of each of its vectors."""

    name: str
    worker: Connect
    found: Services
    session: Session

    def run(self, vector: Vector, number: int) -> Outcome:
        place = f"{self.name}_{number}"
        self._create(vector["ddl"], place)
        names = names_of(vector)
        config = self._config(vector, place, names)
        connector = f"{self.name}-{number}"
        self.worker.ask("PUT", f"/connectors/{connector}/config", config)
        failed = self._await(connector, names)
        self.worker.stop(connector)
        own = config.get("scylladb.offset.storage.table", OFFSETS)
        return Outcome(*self._tables(place, own), failed)

    def _create(self, statements: list[str], place: str) -> None:
        options = "replication = {'class': 'SimpleStrategy', 'replication_factor': 1} AND durable_writes = false"
        self.session.execute(f"CREATE KEYSPACE {place} WITH {options}")
        for statement in statements:
            self.session.execute(named(statement, place))

    def _config(self, vector: Vector, place: str, names: list[str]) -> dict[str, str]:
        host, port = self.found.cql.split(":")
        base = {
            "connector.class": "io.connect.scylladb.ScyllaDbSinkConnector",
            "tasks.max": "1",
            "topics": ",".join(names),
            "key.converter": JSON,
            "value.converter": JSON,
            "scylladb.contact.points": host,
            "scylladb.port": port,
            "scylladb.loadbalancing.localdc": "datacenter1",
            "scylladb.keyspace.create.enabled": "false",
            "scylladb.consistency.level": "ONE",
            "scylladb.offset.storage.table.enable": str(vector["group"] == "offsets").lower(),
        }
        return base | {named(name, place): named(text, place) for name, text in vector["config"].items()}

    def _await(self, connector: str, names: list[str]) -> str:
        """Until it has committed the end of each topic, or its task has failed: then the trace of that."""
        consumer = Consumer({"bootstrap.servers": self.found.kafka, "group.id": f"connect-{connector}"})
        parts = [TopicPartition(name, 0) for name in names]
        deadline = time.monotonic() + PATIENCE
        try:
            ends = [consumer.get_watermark_offsets(part, timeout=10)[1] for part in parts]
            while [part.offset for part in consumer.committed(parts, timeout=10)] != ends:
                if traces := self.worker.failures(connector):
                    return traces[0]
                if time.monotonic() > deadline:
                    problem = f"{connector} has neither committed the end of its topics nor failed"
                    raise PenstockError(problem, where=str(self.worker.log), next="read that log")
                time.sleep(POLL)
            return ""
        finally:
            consumer.close()

    def _tables(self, place: str, offsets: str) -> tuple[dict[str, dict[str, str]], dict[str, Any]]:
        columns, rows = {}, {}
        for keyspace in place, f"{place}2":
            query = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s"
            for table in sorted(row["table_name"] for row in self.session.execute(query, (keyspace,))):
                name = f"{keyspace.replace(place, 'ks')}.{table}"
                found = columns_of(self.session, keyspace, table)
                columns[name] = {one["column_name"]: f"{one['kind']} {one['type']}" for one in found}
                rows[name] = state_of(self.session, keyspace, table)
                if table == offsets:
                    rows[name] = without_times(rows[name])
        return columns, rows


def named(text: str, place: str) -> str:
    """With the keyspaces of a side, which a vector calls ks and ks2."""
    return re.sub(r"(?<!\w)ks(2?)(?!\w)", rf"{place}\1", text)


def without_times(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: without_times(value) for name, value in state.items() if name != "writetime"}
    return [without_times(one) for one in state] if isinstance(state, list) else state


@contextmanager
def records_of(servers: str, vector: Vector) -> Iterator[None]:
    """The vector's topics with its records, deleted after the block. Old as they are, the broker must keep them."""
    with topics(servers, names_of(vector), 1, **{"retention.ms": "-1"}):
        producer = Producer({"bootstrap.servers": servers, "linger.ms": 50})
        for record in vector["records"]:
            key, value = encoded(record["key"]), encoded(record["value"])
            headers = [(one["name"], json.dumps(one["value"]).encode()) for one in record.get("headers") or []]
            producer.produce(record["topic"], value, key, 0, timestamp=record["timestamp_ms"], headers=headers)
        producer.flush()
        yield


def names_of(vector: Vector) -> list[str]:
    """The vector's topics."""
    return sorted({record["topic"] for record in vector["records"]})


@contextmanager
def ours(found: Services, folder: Path) -> Iterator[Connect]:
    """A worker of `penstock connect` with what Kafka Connect's is given."""
    folder.mkdir()
    file = folder / "worker.properties"
    sides = "".join(f"{side}.converter={JSON}\n{side}.converter.schemas.enable=true\n" for side in ("key", "value"))
    file.write_text(f"bootstrap.servers={found.kafka}\n{sides}{COMMITS}")
    url = f"http://{ports.HOST}:{ports.free(set())}"
    command = [sys.executable, "-m", "penstock", "connect", str(file), "--data", str(folder), "--listen", url]
    with serving([*command, "--metrics", "none"], url, folder / "connect.log") as worker:
        yield worker


def compare(found: Services, workers: dict[str, Connect]) -> Iterator[tuple[Vector, dict[str, Outcome]]]:
    host, port = found.cql.split(":")
    profile = ExecutionProfile(row_factory=dict_factory, request_timeout=60)
    cluster = Cluster([host], port=int(port), execution_profiles={EXEC_PROFILE_DEFAULT: profile})
    session = session_for_states(cluster.connect())
    sides = [Side(name, worker, found, session) for name, worker in workers.items()]
    try:
        for number, vector in enumerate(filter(runnable, json.loads(VECTORS.read_text()))):
            with records_of(found.kafka, vector):
                yield vector, {side.name: side.run(vector, number) for side in sides}
    finally:
        cluster.shutdown()


def compared(vector: Vector, outcomes: dict[str, Outcome]) -> dict[str, Any]:
    same = None if NO_TABLE in outcomes[THEIRS].failed else outcomes[OURS].same(outcomes[THEIRS])
    row = {"vector": vector["id"], "same": same}
    if same is False:
        row |= {"reference": vector["reference"]} if "reference" in vector else {}
        row |= {name: shown(one) for name, one in outcomes.items()}
    return row


def shown(outcome: Outcome) -> dict[str, Any]:
    causes = [line for line in outcome.failed.splitlines() if line.startswith("Caused by:")]
    failed = {"failed": causes or outcome.failed} if outcome.failed else {}
    return {"columns": outcome.columns, "rows": {name: str(rows) for name, rows in outcome.rows.items()}, **failed}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--reference", type=Path, required=True, help="folder with the connector's jars")
    parser.add_argument("--connect", type=Path, required=True, help="folder with Kafka Connect's jars")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        try:
            found = services.up(root / "services", only=["kafka", "cassandra"])
            reference = Reference(options.reference, options.connect)
            with (
                running(reference, root / "connect", found.kafka, schemas=True, settings=COMMITS) as theirs,
                ours(found, root / "penstock") as penstock,
            ):
                for vector, outcomes in compare(found, {THEIRS: theirs, OURS: penstock}):
                    row = compared(vector, outcomes)
                    counts["different as the vector says" if "reference" in row else NAMES[row["same"]]] += 1
                    print(json.dumps(row, ensure_ascii=False), flush=True)
        finally:
            services.down(root / "services")
    print(json.dumps(counts))
    sys.exit(counts[NAMES[False]] > 0)


if __name__ == "__main__":
    main()
