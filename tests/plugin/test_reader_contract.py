"""What ScyllaDB's own CDC libraries ask a server, statement by statement, and what they must be told.

The statements are those that scylla-cdc-java 1.3 and the driver under it send. Their protocol is version 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cassandra import InvalidRequest
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.protocol import SyntaxException
from cassandra.query import SimpleStatement, tuple_factory
from cassandra.util import max_uuid_from_time, min_uuid_from_time, unix_time_from_uuid1
from waiting import PATIENCE

from penstock.local.services import Services

KEYSPACE = "contract"
EVERYTHING = "cdc = {'enabled': true, 'preimage': true, 'postimage': true, 'ttl': 3600}"
GENERATIONS = "SELECT min(time) FROM system_distributed.cdc_generation_timestamps WHERE key='timestamps' AND time>?"
STREAMS = "SELECT streams FROM system_distributed.cdc_streams_descriptions_v2 WHERE time=?"
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def reader(services: Services) -> Iterator[Session]:
    """A session as those libraries open one."""
    host, port = services.cql.split(":")
    profile = ExecutionProfile(row_factory=tuple_factory, request_timeout=PATIENCE)
    with Cluster([host], port=int(port), protocol_version=4, execution_profiles={EXEC_PROFILE_DEFAULT: profile}) as it:
        session = it.connect()
        session.execute(
            f"CREATE KEYSPACE {KEYSPACE} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
        )
        session.execute(f"CREATE TYPE {KEYSPACE}.place (street text, zip int)")
        session.execute(
            f"CREATE TABLE {KEYSPACE}.t (b int, a text, z int, y int, plain text, l list<int>, s set<text>,"
            f" m map<int, text>, u place, f frozen<set<int>>, PRIMARY KEY ((b, a), z, y)) WITH {EVERYTHING}"
        )
        yield session
        session.execute(f"DROP KEYSPACE {KEYSPACE}")


def ask(reader: Session, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    return list(reader.execute(reader.prepare(statement), values))


def option(name: str) -> bytes:
    return len(name).to_bytes(4, "little") + name.encode()


@pytest.mark.parametrize(
    ("table", "given", "stored"),
    [
        ("all", EVERYTHING, {"delta": "full", "postimage": "true", "preimage": "true", "ttl": "3600"}),
        ("defaults", "cdc = {'enabled': true}", {}),
        ("keys", "cdc = {'enabled': true, 'preimage': 'full', 'delta': 'keys'}", {"preimage": "full", "delta": "keys"}),
        ("forever", "cdc = {'enabled': true, 'ttl': 0}", {"ttl": "0"}),
    ],
)
def test_options_byte_for_byte(reader: Session, table: str, given: str, stored: dict[str, str]) -> None:
    """The count, then each name and value in the order of the names, numbers in little-endian."""
    reader.execute(f"CREATE TABLE {KEYSPACE}.{table} (k int PRIMARY KEY, v int) WITH {given}")
    query = "SELECT extensions FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s"
    ((extensions,),) = reader.execute(query, (KEYSPACE, table))
    defaults = {"delta": "full", "enabled": "true", "postimage": "false", "preimage": "false", "ttl": "86400"}
    expected = (5).to_bytes(4, "little")
    for name, value in sorted({**defaults, **stored}.items()):
        expected += option(name) + option(value)
    assert extensions["cdc"] == expected


def test_table_without_log_has_no_option(reader: Session) -> None:
    reader.execute(f"CREATE TABLE {KEYSPACE}.plain (k int PRIMARY KEY)")
    query = "SELECT extensions FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s"
    ((extensions,),) = reader.execute(query, (KEYSPACE, "plain"))
    assert "cdc" not in (extensions or {})


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT min(timestamp) FROM system.cdc_timestamps",
        "SELECT stream_id FROM system.cdc_streams",
        "SELECT * FROM system.cdc_local WHERE key='rewritten'",
        "SELECT streams FROM system_distributed.cdc_streams_descriptions",
    ],
)
def test_tables_of_other_modes_do_not_exist(reader: Session, statement: str) -> None:
    """An InvalidRequest is how a reader learns that no tablets and no older streams have streams of their own."""
    with pytest.raises(InvalidRequest, match="does not exist"):
        reader.execute(statement)


SCYLLA_TABLES = "SELECT table_name, version, partitioner, cdc FROM system_schema.scylla_tables WHERE keyspace_name = ?"


def test_no_keyspace_has_tablets(reader: Session) -> None:
    """Each reader asks differently; a keyspace without tablets and other options of ScyllaDB's has no row."""
    for columns in ("*", "initial_tablets", "keyspace_name, consistency"):
        query = f"SELECT {columns} FROM system_schema.scylla_keyspaces"
        assert list(reader.execute(query)) == []
        assert ask(reader, f"{query} WHERE keyspace_name = ?", KEYSPACE) == []


def test_tables_have_versions_and_the_partitioner_of_the_cluster(reader: Session) -> None:
    """A driver that were told of ScyllaDB's partitioner would send the requests for a log to other nodes."""
    reader.execute(f"CREATE TABLE {KEYSPACE}.versions (k int PRIMARY KEY) WITH cdc = {{'enabled': true}}")
    before = {name: rest for name, *rest in ask(reader, SCYLLA_TABLES, KEYSPACE)}
    assert {"t", "t_scylla_cdc_log", "versions", "versions_scylla_cdc_log"} <= before.keys()
    assert all(version is not None and rest == [None, None] for version, *rest in before.values())
    reader.execute(f"ALTER TABLE {KEYSPACE}.versions ADD v int")
    after = {name: rest for name, *rest in ask(reader, SCYLLA_TABLES, KEYSPACE)}
    assert {name for name in after if after[name] != before[name]} == {"versions", "versions_scylla_cdc_log"}
    (row,) = ask(reader, f"{SCYLLA_TABLES} AND table_name = ?", KEYSPACE, "versions")
    assert list(row[1:]) == after["versions"]


def test_tables_of_scylladb_are_read_in_pages_and_in_their_keyspace(reader: Session) -> None:
    query = "SELECT keyspace_name, table_name FROM system_schema.scylla_tables"
    everything = list(reader.execute(query))
    for statement in (SimpleStatement(query, fetch_size=3), reader.prepare(query)):
        statement.fetch_size = 3
        assert list(reader.execute(statement)) == everything
    assert len(everything) == len(set(everything)) > 20
    inside = reader.cluster.connect("system_schema")
    assert list(inside.execute("SELECT keyspace_name, table_name FROM Scylla_Tables")) == everything
    keyspaces, tables, *_ = zip(*reader.prepare(query).result_metadata, strict=True)
    assert {*zip(keyspaces, tables, strict=True)} == {("system_schema", "scylla_tables")}


def test_a_select_may_bypass_the_cache(reader: Session) -> None:
    """scylla-cdc-go reads logs so. Other statements have no such words, on ScyllaDB neither."""
    reader.execute(f"CREATE TABLE {KEYSPACE}.bypassed (k int PRIMARY KEY, v text)")
    reader.execute(f"INSERT INTO {KEYSPACE}.bypassed (k, v) VALUES (1, ' BYPASS CACHE')")
    query = f"SELECT k FROM {KEYSPACE}.bypassed WHERE v = ' BYPASS CACHE' ALLOW FILTERING"
    assert list(reader.execute(query)) == ask(reader, f"{query} bypass\tCache ;") == [(1,)]
    with pytest.raises(SyntaxException):
        reader.execute(f"DELETE FROM {KEYSPACE}.bypassed WHERE k = 1 BYPASS CACHE")


def test_generations_one_after_the_other(reader: Session) -> None:
    ((first,),) = ask(reader, GENERATIONS, LONG_AGO)
    assert first is not None
    ((after,),) = ask(reader, GENERATIONS, datetime.now(UTC) + timedelta(days=1))
    assert after is None
    streams = [stream for (some,) in ask(reader, STREAMS, first) for stream in some]
    assert len(streams) == len(set(streams)) > 0
    assert {len(stream) for stream in streams} == {16}


def test_a_reader_finds_the_streams_in_its_schema(reader: Session) -> None:
    """It looks for the tables in the driver's metadata, which comes from these rows."""
    query = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = 'system_distributed'"
    names = {name for (name,) in reader.execute(query)}
    assert {"cdc_generation_timestamps", "cdc_streams_descriptions_v2"} <= names
    assert key_columns(reader, "system_distributed", "cdc_generation_timestamps") == [
        *[("partition_key", 0, "key", "text", "none"), ("clustering", 0, "time", "timestamp", "desc")],
    ]
    assert key_columns(reader, "system_distributed", "cdc_streams_descriptions_v2") == [
        *[("partition_key", 0, "time", "timestamp", "none"), ("clustering", 0, "range_end", "bigint", "asc")],
    ]


def key_columns(reader: Session, keyspace: str, table: str) -> list[tuple[Any, ...]]:
    query = "SELECT kind, position, column_name, type, clustering_order FROM system_schema.columns"
    rows = reader.execute(f"{query} WHERE keyspace_name = %s AND table_name = %s", (keyspace, table))
    return sorted((row for row in rows if row[0] in ("partition_key", "clustering")), reverse=True)


def test_log_is_a_table_with_its_key(reader: Session) -> None:
    assert key_columns(reader, KEYSPACE, "t_scylla_cdc_log") == [
        ("partition_key", 0, "cdc$stream_id", "blob", "none"),
        ("clustering", 1, "cdc$batch_seq_no", "int", "asc"),
        ("clustering", 0, "cdc$time", "timeuuid", "asc"),
    ]


def test_schema_in_pages_of_keys(reader: Session) -> None:
    """The driver asks for what comes after the last row it has, until nothing comes."""
    tables = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = ?"
    names, last = [name for (name,) in ask(reader, f"{tables} LIMIT 1000", KEYSPACE)], ""
    for name in names:
        ((found,),) = ask(reader, f"{tables} AND table_name > ? LIMIT 1", KEYSPACE, last)
        assert found == name
        last = name
    assert ask(reader, f"{tables} AND table_name > ? LIMIT 1000", KEYSPACE, last) == []
    columns = "SELECT table_name, column_name FROM system_schema.columns WHERE keyspace_name = ?"
    everything = ask(reader, f"{columns} LIMIT 1000", KEYSPACE)
    rest = ask(reader, f"{columns} AND (table_name, column_name) > (?, ?) LIMIT 1000", KEYSPACE, *everything[4])
    assert rest == everything[5:]


def test_rows_of_a_window(reader: Session) -> None:
    """One stream between two times; columns by name, with the log's own name and types beside them."""
    reader.execute(
        f"INSERT INTO {KEYSPACE}.t (b, a, z, y, plain, l, s, m, u, f)"
        " VALUES (1, 'a', 2, 3, 'p', [1], {'x'}, {1: 'y'}, {street: 's'}, {4})"
    )
    query = f'SELECT * FROM {KEYSPACE}.t_scylla_cdc_log WHERE "cdc$stream_id"=? AND "cdc$time">? AND "cdc$time"<=?'
    window = reader.prepare(query)
    ((stream, at, *_), *_) = reader.execute(f"SELECT * FROM {KEYSPACE}.t_scylla_cdc_log")
    written = unix_time_from_uuid1(at)
    before, after = min_uuid_from_time(written - 1), max_uuid_from_time(written + 1)
    found = list(reader.execute(window, (stream, before, after)))
    # The change and the row after it.
    assert [row[:3] for row in found] == [(stream, at, 0), (stream, at, 1)]
    keyspaces, tables, names, _ = zip(*window.result_metadata, strict=True)
    assert names[:3] == ("cdc$stream_id", "cdc$time", "cdc$batch_seq_no")
    assert list(names[3:]) == sorted(names[3:])
    assert {*zip(keyspaces, tables, strict=True)} == {(KEYSPACE, "t_scylla_cdc_log")}
    assert ask(reader, query, stream, after, max_uuid_from_time(written + 2)) == []


def test_types_of_the_log_tell_which_columns_grow(reader: Session) -> None:
    """A frozen column has no removed elements; a list is a map by the time of its elements."""
    query = "SELECT column_name, type FROM system_schema.columns WHERE keyspace_name = %s AND table_name = %s"
    types = dict(reader.execute(query, (KEYSPACE, "t_scylla_cdc_log")))
    assert {name: kind for name, kind in types.items() if name.startswith("cdc$deleted_elements_")} == {
        "cdc$deleted_elements_l": "frozen<set<timeuuid>>",
        "cdc$deleted_elements_s": "frozen<set<text>>",
        "cdc$deleted_elements_m": "frozen<set<int>>",
        "cdc$deleted_elements_u": "frozen<set<smallint>>",
    }
    assert types["l"] == "frozen<map<timeuuid, int>>"
    assert {name: kind for name, kind in types.items() if name.startswith("cdc$") and "deleted" not in name} == {
        "cdc$batch_seq_no": "int",
        "cdc$end_of_batch": "boolean",
        "cdc$operation": "tinyint",
        "cdc$stream_id": "blob",
        "cdc$time": "timeuuid",
        "cdc$ttl": "bigint",
    }
