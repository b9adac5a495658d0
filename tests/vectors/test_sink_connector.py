"""Each vector of sink_connector.json on a real node: records of Kafka Connect, and the rows that they become.

Records are bytes of JsonConverter with schemas, and are written as a task of the sink connector writes a batch.
PENSTOCK_VECTORS names a folder whose file of the same name runs instead.
"""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cassandra.cluster import Session
from cell_states import session_for_states
from connect_json import driven, encoded, plain
from waiting import patience

from penstock.connect.records.deserializers import JsonBytes, RawRecord
from penstock.connect.sinks.cql import properties as sink_properties
from penstock.connect.sinks.cql.routes import CqlSettings
from penstock.connect.sinks.cql.tables import keep_offsets, prepare_keyspace
from penstock.connect.sinks.cql.writer import RecordWriter
from penstock.connect.sinks.destination import Bad
from penstock.connect.sinks.task import decoded
from penstock.connect.worker.checks import check
from penstock.connect.worker.providers import Provided
from penstock.database.requests import RequestLimits
from penstock.database.retrying import DatabaseUnavailable
from penstock.local.services import Services

VECTORS = "sink_connector.json"


@pytest.fixture(scope="module")
def node(node: Session) -> Session:
    """The session of all vectors, with a reader of times."""
    return session_for_states(node)


SLACK = patience(20)
"""Seconds that may pass until a time to live is looked at."""
Vector = dict[str, Any]


@dataclass
class Place:
    """The keyspaces of a vector, which it calls ks and ks2."""

    node: Session
    name: str = field(default_factory=lambda: f"sk_{uuid.uuid4().hex[:10]}")

    def named(self, text: str) -> str:
        return re.sub(r"(?<![\w])ks(2?)(?![\w])", rf"{self.name}\1", text)

    def create(self, statements: list[str]) -> None:
        options = "replication = {'class': 'SimpleStrategy', 'replication_factor': 1} AND durable_writes = false"
        self.node.execute(f"CREATE KEYSPACE {self.name} WITH {options}")
        for statement in statements:
            self.node.execute(self.named(statement))

    def clear(self, statements: list[str]) -> None:
        for statement in statements:
            if found := re.match(r"CREATE TABLE (\S+)", statement):
                self.node.execute(f"TRUNCATE {self.named(found[1])}")
            elif not statement.startswith("CREATE"):
                self.node.execute(self.named(statement))


_places: dict[tuple[str, ...], Place] = {}


@pytest.fixture
def place(node: Session, vector: Vector) -> Place:
    """Fresh keyspaces; vectors that change no table share those of the same tables."""
    config, expect, ddl = vector["config"], vector["expect"], tuple(vector["ddl"])
    changes = {"columns", "column_names", "absent_tables", "options_unchanged", "primary_key"} & set(expect)
    shared = ddl and not changes and vector["group"] != "ddl" and "scylladb.keyspace.create.enabled" not in config
    if shared and ddl in _places:
        _places[ddl].clear(vector["ddl"])
        return _places[ddl]
    made = Place(node)
    made.create(vector["ddl"])
    if shared:
        _places[ddl] = made
    return made


@dataclass
class Outcome:
    """What became of the records."""

    errors: dict[str, list[str]] = field(default_factory=dict)
    bad: list[Bad] = field(default_factory=list)
    task: str = "running"
    committed: int | None = None
    retried: bool = False
    settings: CqlSettings | None = None


def configured(place: Place, vector: Vector, services: Services, existing: Path) -> tuple[dict[str, str], Outcome]:
    """The configuration, and the errors that its checks find."""
    host, port = services.cql.split(":")
    given = {
        place.named(name): place.named(text).replace("$existing_file", str(existing))
        for name, text in vector["config"].items()
        if not name.startswith("test.")
    }
    base = {
        "name": "sink",
        "connector.class": sink_properties.CLASS,
        "topics": ",".join({record["topic"] for record in vector["records"]} or {"t"}),
        "scylladb.contact.points": host,
        "scylladb.port": port,
        "scylladb.loadbalancing.localdc": "datacenter1",
        "scylladb.keyspace.replication.factor": "1",
        "scylladb.consistency.level": "ONE",
        # A table of positions for each keyspace would take most of the time.
        "scylladb.offset.storage.table.enable": str(vector["group"] == "offsets").lower(),
    }
    config = base | given
    reaches = not {"scylladb.contact.points", "scylladb.ssl.enabled"} & set(given)
    checked = check(config, Provided(), ask=reaches)
    found = Outcome(errors=checked.errors)
    if not checked.errors and reaches:
        found.settings = sink_properties.settings(checked.values, config)
    return config, found


def run(vector: Vector, config: dict[str, str], found: Outcome) -> None:
    """Write the records as one batch."""
    assert found.settings
    delayed = "test.server.delay_ms" in vector["config"]
    limits = RequestLimits(timeout=timedelta(seconds=30), patience=timedelta(seconds=0 if delayed else 60))
    if delayed:
        limits = RequestLimits(timeout=timedelta(microseconds=1), patience=timedelta(0))
    prepare_keyspace(found.settings, RequestLimits())
    raw = [raw_record(record) for record in vector["records"]]
    records = list(decoded(raw, JsonBytes(enveloped=True), JsonBytes(enveloped=True)))
    assert not any(isinstance(record, Bad) for record in records)
    fails = config.get("behavior.on.error", "FAIL").upper() == "FAIL"
    writer = RecordWriter(found.settings, limits)
    try:
        found.bad = writer.write([one for one in records if not isinstance(one, Bad)], until_bad=fails)
    except DatabaseUnavailable:
        found.retried = True
        return
    if found.bad and fails:
        found.task = "failed"
        return
    ends: dict[tuple[str, int], int] = {}
    for record in raw:
        place = record.topic, record.partition
        ends[place] = max(ends.get(place, 0), record.offset + 1)
    keep_offsets(found.settings, limits, ends)
    found.committed = max(ends.values(), default=None)


def raw_record(record: dict[str, Any]) -> RawRecord:
    headers = []
    for header in record.get("headers") or []:
        value = header["value"]
        text = value if isinstance(value, str) else None
        headers.append((header["name"], (text if text is not None else _header_text(header)).encode()))
    return RawRecord(
        record["topic"],
        record["partition"],
        record["offset"],
        record["timestamp_ms"],
        encoded(record["key"]),
        encoded(record["value"]),
        tuple(headers),
    )


def _header_text(header: dict[str, Any]) -> str:
    """As SimpleHeaderConverter writes it."""
    value = header["value"]
    if isinstance(value, dict) and next(iter(value), "").startswith("$"):
        return str(next(iter(value.values())))
    return json.dumps(value)


def test_vector(place: Place, node: Session, services: Services, vector: Vector, tmp_path: Path) -> None:
    existing = tmp_path / "truststore.jks"
    existing.write_bytes(b"")
    config, found = configured(place, vector, services, existing)
    expect = vector["expect"]
    wanted = expect.get("error")
    if wanted and wanted["class"] == "config":
        assert found.errors, "the configuration is accepted"
        if "property" in wanted:
            assert place.named(wanted["property"]) in found.errors, found.errors
        return
    assert not found.errors
    if expect.get("accepted") and not vector["records"]:
        return
    run(vector, config, found)
    if wanted:
        check_error(place, vector, wanted, found)
    elif not {"skipped", "dead_letters", "task"} & set(expect):
        assert not found.bad, found.bad
    check_outcome(expect, found)
    check_tables(place, node, expect)


def check_error(place: Place, vector: Vector, wanted: dict[str, Any], found: Outcome) -> None:
    assert found.bad, "no record is refused"
    first = found.bad[0]
    if "record" in wanted:
        assert first.record.offset == vector["records"][wanted["record"]]["offset"]
    assert wanted.get("column", "") in first.reason, first.reason
    assert place.named(wanted.get("contains", "")) in first.reason, first.reason


def check_outcome(expect: dict[str, Any], found: Outcome) -> None:
    if "task" in expect:
        assert found.task == expect["task"]
    if "committed" in expect:
        assert found.committed == expect["committed"]
    if "retried" in expect:
        assert found.retried == bool(expect["retried"])
    for name in ("skipped", "dead_letters"):
        if name in expect:
            assert len(found.bad) == (expect[name] if isinstance(expect[name], int) else len(expect[name]))
    if "consistency" in expect:
        assert found.settings
        levels = [route.consistency for route in found.settings.routes("t")]
        assert levels == [expect["consistency"]]


def check_tables(place: Place, node: Session, expect: dict[str, Any]) -> None:
    for table, rows in expect.get("tables", {}).items():
        assert shown(rows_of(node, place.named(table))) == shown([wanted_row(one) for one in rows], rows)
        check_times(node, place.named(table), rows)
    for table in expect.get("absent_tables", []):
        assert not columns_of(node, place.named(table))
    for table, columns in expect.get("columns", {}).items():
        assert {name: one["type"] for name, one in columns_of(node, place.named(table)).items()} == columns
    for table, names in expect.get("column_names", {}).items():
        assert sorted(columns_of(node, place.named(table))) == sorted(names)
    for table, key in expect.get("primary_key", {}).items():
        found = sorted(columns_of(node, place.named(table)).items(), key=lambda item: item[1]["position"])
        for part, kind in (("partition", "partition_key"), ("clustering", "clustering")):
            assert [name for name, one in found if one["kind"] == kind] == key[part]
    for table in expect.get("options_unchanged", {}):
        keyspace, name = place.named(table).split(".")
        text = "SELECT compression FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s"
        assert "class" in node.execute(text, (keyspace, name)).one()["compression"]


def columns_of(node: Session, table: str) -> dict[str, Any]:
    keyspace, name = (one.strip('"') for one in table.split("."))
    text = "SELECT * FROM system_schema.columns WHERE keyspace_name = %s AND table_name = %s"
    return {row["column_name"]: row for row in node.execute(text, (keyspace, name))}


def rows_of(node: Session, table: str) -> list[dict[str, Any]]:
    return [{name: plain(value) for name, value in row.items()} for row in node.execute(f"SELECT * FROM {table}")]


def wanted_row(row: dict[str, Any]) -> dict[str, Any]:
    return {name: driven(value) for name, value in row["columns"].items()}


def shown(rows: list[dict[str, Any]], given: list[dict[str, Any]] | None = None) -> list[Any]:
    """The rows in an order of their own, and with sets and empty collections alike."""
    return sorted(([(name, rows_value(row[name])) for name in sorted(row)] for row in rows), key=str)


def rows_value(value: Any) -> Any:
    return None if value in ([], {}) else sorted(value.items(), key=str) if isinstance(value, dict) else value


def check_times(node: Session, table: str, rows: list[dict[str, Any]]) -> None:
    """Write times and times to live of the values outside the key."""
    columns = columns_of(node, table)
    keys = sorted(name for name, one in columns.items() if one["kind"] in ("partition_key", "clustering"))
    values = [
        name for name, one in columns.items() if one["kind"] in ("regular", "static") and one["type"] != "counter"
    ]
    for name in values:
        quoted = f'"{name}"'
        listed = ", ".join(f'"{key}"' for key in keys)
        text = f"SELECT {listed}, WRITETIME({quoted}) AS at, TTL({quoted}) AS left FROM {table}"
        found = {str([plain(row[key]) for key in keys]): row for row in node.execute(text)}
        for row in rows:
            given = found[str([driven(row["columns"][key]) for key in keys])]
            check_time(row, name, given)


def check_time(row: dict[str, Any], name: str, given: dict[str, Any]) -> None:
    if row["columns"].get(name) is None or given["at"] is None:
        return
    times = given["at"] if isinstance(given["at"], list) else [given["at"]]
    lefts = given["left"] if isinstance(given["left"], list) else [given["left"]]
    if "writetime_us" in row:
        at = row["writetime_us"]
        at = at.get(name) if isinstance(at, dict) and "$any" not in at else at
        if isinstance(at, int):
            assert set(times) == {at}
    if "ttl_s" in row:
        wanted = row["ttl_s"]
        wanted = wanted.get(name) if isinstance(wanted, dict) else wanted
        for left in lefts:
            assert left is None if wanted is None else left is not None and wanted - SLACK <= left <= wanted
