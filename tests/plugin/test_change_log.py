"""The change log on Cassandra beyond single writes: a log's life, refusals, prepared and conditional statements."""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from uuid import uuid1

import pytest
from cassandra import ConsistencyLevel, InvalidRequest, Unauthorized, WriteTimeout
from cassandra.cluster import Session
from cassandra.metadata import Murmur3Token
from cassandra.protocol import ConfigurationException
from cassandra.query import BatchStatement, SimpleStatement
from keyspaces import new_keyspace
from log_rows import microseconds

KEYSPACE = "change_log"
ON = "cdc = {'enabled': true}"
IMAGES = "cdc = {'enabled': true, 'preimage': 'full', 'postimage': true}"


@pytest.fixture(scope="module")
def session(cql: Session) -> Iterator[Session]:
    cql.execute(f"CREATE KEYSPACE {KEYSPACE} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}")
    yield cql
    cql.execute(f"DROP KEYSPACE {KEYSPACE}")


@pytest.fixture
def table(session: Session, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a table for the test to create."""
    name = f"{KEYSPACE}.{request.node.name.removeprefix('test_')}"
    yield name
    session.execute(f"DROP TABLE IF EXISTS {name}")


def log(table: str) -> str:
    return table + "_scylla_cdc_log"


def rows(session: Session, table: str, columns: str) -> list[tuple[Any, ...]]:
    """Columns of the log's rows, in the order of their times and places."""
    found = session.execute(f'SELECT "cdc$time", "cdc$batch_seq_no", {columns} FROM {log(table)}')
    return [row[2:] for row in sorted(found, key=lambda row: (row[0].time, row[0].bytes, row[1]))]


def log_columns(session: Session, table: str) -> set[str]:
    query = "SELECT column_name FROM system_schema.columns WHERE keyspace_name = %s AND table_name = %s"
    return {name for (name,) in session.execute(query, tuple(log(table).split(".")))}


def table_id(session: Session, table: str) -> Any:
    query = "SELECT id FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s"
    found = session.execute(query, tuple(table.split("."))).one()
    return found and found[0]


def stored_options(session: Session, table: str) -> dict[str, str]:
    """extensions['cdc']: a count, then length and bytes of each text, little-endian."""
    query = "SELECT extensions FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s"
    data = session.execute(query, tuple(table.split("."))).one()[0]["cdc"]
    texts, at = [], 4
    while at < len(data):
        (size,) = struct.unpack_from("<I", data, at)
        texts.append(data[at + 4 : at + 4 + size].decode())
        at += 4 + size
    assert struct.unpack_from("<I", data)[0] == len(texts) / 2
    return dict(zip(texts[::2], texts[1::2], strict=True))


def test_options_are_stored_as_scylladb_stores_them(session: Session, table: str) -> None:
    session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v int) WITH cdc = {{'enabled': 'TRUE', 'ttl': '12x'}}")
    expected = {"delta": "full", "enabled": "true", "postimage": "false", "preimage": "false", "ttl": "12"}
    assert stored_options(session, table) == expected


def test_alter_replaces_all_options(session: Session, table: str) -> None:
    session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v int) WITH {IMAGES}")
    session.execute(f"ALTER TABLE {table} WITH cdc = {{'enabled': true, 'delta': 'keys'}} AND comment = 'x'")
    assert stored_options(session, table)["preimage"] == "false"
    with pytest.raises(InvalidRequest, match='"enabled" flag'):
        session.execute(f"ALTER TABLE {table} WITH cdc = {{'preimage': true}}")


COMMENT = """\
/* Do NOT execute this statement! It's only for informational purposes.
   A CDC log table is created automatically when creating the base with CDC
   enabled option or creating the vector index on the base table's vector column.

CREATE TABLE {log} ("""


def described(session: Session, statement: str) -> list[tuple[str, ...]]:
    """Each row on a page of its own, so that pages end everywhere."""
    return list(session.execute(SimpleStatement(statement, fetch_size=1)))


def test_rows_of_describe_create_the_keyspace_again(session: Session) -> None:
    with new_keyspace(session, "described") as keyspace:
        for statement in [
            f'CREATE TABLE {keyspace}."T" (k int, c int, v int, w int, PRIMARY KEY (k, c)) WITH {IMAGES}',
            f"ALTER TABLE {keyspace}.\"T_scylla_cdc_log\" WITH comment = 'mine'",
            f'ALTER TABLE {keyspace}."T" DROP w',
            f'CREATE INDEX values_of ON {keyspace}."T" (v)',
            f'CREATE MATERIALIZED VIEW {keyspace}.turned AS SELECT k, c FROM {keyspace}."T"'
            " WHERE k IS NOT NULL AND c IS NOT NULL PRIMARY KEY (c, k)",
            f"CREATE TABLE {keyspace}.off (k int PRIMARY KEY) WITH {ON}",
            f"ALTER TABLE {keyspace}.off WITH cdc = {{'enabled': false}}",
        ]:
            session.execute(statement)
        before = described(session, f"DESCRIBE KEYSPACE {keyspace}")
        of_log = ("table", '"T_scylla_cdc_log"')
        assert [row[1:3] for row in before] == [
            *[("keyspace", keyspace), ("table", "off"), ("table", "off_scylla_cdc_log"), ("table", '"T"')],
            *[("index", "values_of"), ("materialized_view", "turned"), of_log],
        ]
        assert all(row[3].count(";") == 1 for row in before)
        assert described(session, f'DESCRIBE {keyspace}."T"') == before[3:]
        assert [row for row in session.execute("DESCRIBE SCHEMA") if row[0] == keyspace] == before
        (internals,) = (
            row for row in described(session, f"DESCRIBE KEYSPACE {keyspace} WITH INTERNALS") if row[1:3] == of_log
        )
        assert internals == before[-1]
        session.execute(f"DROP KEYSPACE {keyspace}")
        for row in before:
            session.execute(row[3])
        again = described(session, f"DESCRIBE KEYSPACE {keyspace}")
        assert [row[:3] for row in again] == [row[:3] for row in before]
        # Options of a log that is off are forgotten by a CREATE.
        assert again[2:] == before[2:]
        assert stored_options(session, f"{keyspace}.T")["preimage"] == "full"


def test_a_log_is_described_in_a_comment_while_it_is_in_use(session: Session, table: str) -> None:
    session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY) WITH {ON}")
    ((*_, name, create),) = described(session, f"DESCRIBE TABLE {log(table)}")
    assert name == log(table).split(".")[1]
    assert create.startswith(COMMENT.format(log=log(table))) and create.endswith("\n*/")
    listed = {name for _, _, name in described(session, "DESCRIBE TABLES")}
    assert {table.split(".")[1], name} & listed == {table.split(".")[1]}
    session.execute(f"ALTER TABLE {table} WITH cdc = {{'enabled': false}}")
    ((*_, create),) = described(session, f"DESCRIBE TABLE {log(table)}")
    assert create.startswith(f"CREATE TABLE {log(table)} (")


def test_attached_log_cannot_be_changed_or_dropped(session: Session, table: str) -> None:
    session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v int) WITH {ON}")
    assert refusal(session, f"DROP TABLE {log(table)}") == f"Cannot DROP cdc log table {log(table).split('.')[1]}"
    for change in ("ADD x int", "DROP v", "DROP missing"):
        assert refusal(session, f"ALTER TABLE {log(table)} {change}") == (
            "You cannot modify the set of columns of a CDC log table directly. Modify the base table instead."
        )
    for name in ('"cdc$time"', "v"):
        assert refusal(session, f"ALTER TABLE {log(table)} RENAME {name} TO t") == (
            "Cannot rename a column of a CDC log table."
        )
    assert refusal(session, f"ALTER TABLE {log(table)} WITH {ON}") == (
        f"Cannot create a CDC log for a table {log(table)}, because creating nested CDC logs is not allowed"
    )
    session.execute(f"ALTER TABLE {log(table)} WITH comment = 'allowed'")


def test_columns_of_a_log_that_is_off_cannot_be_changed(session: Session, table: str) -> None:
    session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v int) WITH {ON}")
    session.execute(f"ALTER TABLE {table} WITH cdc = {{'Enabled': false}}")
    assert refusal(session, f"ALTER TABLE {log(table)} DROP v") == (
        "You cannot modify the set of columns of a CDC log table directly. Although the base table has deactivated CDC,"
        " this table will continue being a CDC log table until it is dropped. If you want to modify the columns in it,"
        " you can only do that by reenabling CDC on the base table, which will reattach this log table. Then you will"
        " be able to modify the columns in the base table, and that will have effect on the log table too. Modifying"
        " the columns of a CDC log table directly is never allowed."
    )
    assert refusal(session, f'ALTER TABLE {log(table)} RENAME "cdc$time" TO t') == (
        "You cannot rename a column of a CDC log table. Although the base table has deactivated CDC, this table will"
        " continue being a CDC log table until it is dropped."
    )


def test_other_refusals_have_scylladbs_words(session: Session, table: str) -> None:
    session.execute(f"CREATE TABLE {log(table)} (k int PRIMARY KEY)")
    assert refusal(session, f"CREATE TABLE {table} (k int PRIMARY KEY) WITH {ON}") == (
        f"Cannot create CDC log table for table {table} because a table of name {log(table)} already exists"
    )
    session.execute(f"DROP TABLE {log(table)}")
    session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY)")
    view = f"CREATE MATERIALIZED VIEW {table}_view AS SELECT k FROM {table} WHERE k IS NOT NULL PRIMARY KEY (k)"
    off = "cdc = {'enabled': false}"
    assert refusal(session, f"{view} WITH {off}") == "Cannot enable CDC for a materialized view"
    for bad, words in {
        "'ttl': '-1'": "Invalid CDC option: ttl must be >= 0",
        "'ttl': '-99999999999'": "Invalid CDC option: ttl too large",
        "'delta': 'off', 'Unknown': 1": "Invalid CDC option: Unknown",
        "'Preimage': 'x', 'delta': 'off'": 'Invalid value for CDC option "preimage": x',
    }.items():
        assert refusal(session, f"ALTER TABLE {table} WITH cdc = {{{bad}}}") == words


def refusal(session: Session, statement: str) -> str:
    with pytest.raises((InvalidRequest, Unauthorized, ConfigurationException)) as caught:
        session.execute(statement)
    error = caught.value
    return error.message if isinstance(error, ConfigurationException) else str(error).split('message="')[1][:-1]


def test_dropped_columns_are_described_by_the_last_name_first(session: Session, table: str) -> None:
    columns = ", ".join(f"{name} int" for name in "cabd")
    session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, {columns}) WITH {ON}")
    for name in "badc":
        session.execute(f"ALTER TABLE {table} DROP {name}")
    create = described(session, f"DESCRIBE TABLE {log(table)} WITH INTERNALS")[0][3]
    dropped = [f'"cdc$deleted_{name}"' for name in "abcd"] + list("abcd")
    assert re.findall(r"ALTER TABLE \S+ DROP (\S+) USING", create) == sorted(
        dropped, key=lambda name: name.strip('"'), reverse=True
    )


def test_times_far_from_now_are_refused_with_scylladbs_words(session: Session, table: str) -> None:
    session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY) WITH {ON}")
    insert = f"INSERT INTO {table} (k) VALUES (1) USING TIMESTAMP"
    now = r"current server time: 20\d\d/[\d/]{5} [\d:]{8}\.\d{6}\)\. With CDC you cannot send writes with timestamps"
    future = refusal(session, f"{insert} 4102444800000001")
    assert re.fullmatch(
        rf'cdc: attempted to get a stream "from the future" \(2100/01/01 00:00:00\.000001; {now} arbitrarily into the'
        r" future, because we don't know what streams will be used at that time\.\nWe \*do\* allow sending writes into"
        r" the near future, but our ability to do that is limited\. If you really must use your own timestamps, then"
        r" make sure your clocks are well-synchronized  with the database's clocks\.",
        future,
    )
    past = refusal(session, f"{insert} 0")
    assert re.fullmatch(
        rf'cdc: attempted to get a stream "from the past" \(1970/01/01 00:00:00\.000000; {now} too far into the past,'
        r" because that would break consistency properties\.\nWe \*do\* allow sending writes into the near past, but"
        r" our ability to do that is limited\. Are you using client-side timestamps\? Make sure your clocks are"
        r" well-synchronized with the database's clocks\.",
        past,
    )


def test_attached_log_takes_rows(session: Session, table: str) -> None:
    session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v int) WITH {ON}")
    session.execute(
        f'INSERT INTO {log(table)} ("cdc$stream_id", "cdc$time", "cdc$batch_seq_no", "cdc$operation", k)'
        " VALUES (%s, %s, 0, 2, 77)",
        (bytes(16), uuid1()),
    )
    assert rows(session, table, 'k, "cdc$operation"') == [(77, 2)]


def test_log_outlives_being_switched_off(session: Session, table: str) -> None:
    session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v int, w int) WITH {ON}")
    session.execute(f"INSERT INTO {table} (k, v) VALUES (1, 1)")
    kept = table_id(session, log(table))
    session.execute(f"ALTER TABLE {table} WITH cdc = {{'enabled': false}}")
    session.execute(f"INSERT INTO {table} (k, v) VALUES (2, 2)")
    session.execute(f"ALTER TABLE {table} DROP w")
    session.execute(f"ALTER TABLE {table} ADD x text")
    assert "w" in log_columns(session, table)
    session.execute(f"ALTER TABLE {table} WITH {ON}")
    assert table_id(session, log(table)) == kept
    session.execute(f"INSERT INTO {table} (k, x) VALUES (3, 'c')")
    assert rows(session, table, "k, v, x") == [(1, 1, None), (3, None, "c")]
    assert not {"w", "cdc$deleted_w"} & log_columns(session, table)


def test_detached_log_can_be_dropped_and_is_made_anew(session: Session, table: str) -> None:
    session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v int) WITH {ON}")
    first = table_id(session, log(table))
    session.execute(f"ALTER TABLE {table} WITH cdc = {{'enabled': false}}")
    session.execute(f"DROP TABLE {log(table)}")
    session.execute(f"ALTER TABLE {table} WITH {ON}")
    assert table_id(session, log(table)) not in (first, None)


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_log_goes_with_its_table(session: Session, enabled: str) -> None:
    table = f"{KEYSPACE}.gone_{enabled}"
    session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v int) WITH {ON}")
    session.execute(f"ALTER TABLE {table} WITH cdc = {{'enabled': {enabled}}}")
    session.execute(f"DROP TABLE {table}")
    assert table_id(session, log(table)) is None


def test_renamed_key_column_is_a_new_column(session: Session, table: str) -> None:
    session.execute(f"CREATE TABLE {table} (k int, c int, v int, PRIMARY KEY (k, c)) WITH {ON}")
    session.execute(f"INSERT INTO {table} (k, c, v) VALUES (1, 1, 1)")
    session.execute(f"ALTER TABLE {table} RENAME c TO place")
    session.execute(f"INSERT INTO {table} (k, place, v) VALUES (1, 2, 2)")
    assert rows(session, table, "k, place, v") == [(1, None, 1), (1, 2, 2)]


def test_type_follows(session: Session, table: str) -> None:
    session.execute(f"CREATE TYPE {KEYSPACE}.place (street text)")
    session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, at place) WITH {ON}")
    session.execute(f"ALTER TYPE {KEYSPACE}.place ADD zip int")
    session.execute(f"UPDATE {table} SET at.zip = 7 WHERE k = 1")
    ((at,),) = rows(session, table, "at")
    assert (at.street, at.zip) == (None, 7)


def test_create_if_not_exists_changes_nothing(session: Session, table: str) -> None:
    session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v int)")
    session.execute(f"CREATE TABLE IF NOT EXISTS {table} (k int PRIMARY KEY) WITH {ON}")
    assert table_id(session, log(table)) is None


def test_create_with_cdc_off_forgets_the_options(session: Session, table: str) -> None:
    session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY) WITH cdc = {{'enabled': false, 'ttl': 7}}")
    query = "SELECT extensions FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s"
    assert "cdc" not in session.execute(query, tuple(table.split("."))).one()[0]


def test_prepared_statements(session: Session, table: str) -> None:
    session.execute(session.prepare(f"CREATE TABLE {table} (k int, c int, v int, PRIMARY KEY (k, c)) WITH {ON}"))
    insert = session.prepare(f"INSERT INTO {table} (k, c, v) VALUES (?, ?, ?)")
    session.execute(insert, (1, 1, 1))
    batch = BatchStatement(consistency_level=ConsistencyLevel.ONE)
    for c in (2, 3):
        batch.add(insert, (1, c, c))
    session.execute(batch)
    # The prepared statement still holds the table without images.
    session.execute(session.prepare(f"ALTER TABLE {table} WITH {IMAGES}"))
    session.execute(insert, (1, 1, 5))
    assert rows(session, table, '"cdc$operation", c, v') == [
        (2, 1, 1),
        *[(2, 2, 2), (2, 3, 3)],
        *[(0, 1, 1), (2, 1, 5), (9, 1, 5)],
    ]


def test_unset_values_are_not_written(session: Session, table: str) -> None:
    session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v int, w int) WITH {ON}")
    session.execute(session.prepare(f"INSERT INTO {table} (k, v) VALUES (:k, :v)"), {"k": 1})
    assert rows(session, table, '"cdc$operation", v, "cdc$deleted_v"') == [(2, None, None)]


def test_batch_with_a_table_without_log(session: Session, table: str) -> None:
    session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v int) WITH {ON}")
    session.execute(f"CREATE TABLE {table}_plain (k int PRIMARY KEY, v int)")
    session.execute(
        f"BEGIN BATCH INSERT INTO {table}_plain (k, v) VALUES (1, 1);"
        f" INSERT INTO {table} (k, v) VALUES (2, 2); APPLY BATCH"
    )
    assert rows(session, table, "k") == [(2,)]
    assert list(session.execute(f"SELECT k FROM {table}_plain")) == [(1,)]


def test_row_written_and_deleted_by_one_batch_tells_both(session: Session, table: str) -> None:
    session.execute(f"CREATE TABLE {table} (k int, c int, v int, PRIMARY KEY (k, c)) WITH {IMAGES}")
    session.execute(
        f"BEGIN BATCH INSERT INTO {table} (k, c, v) VALUES (1, 1, 7);"
        f" DELETE FROM {table} WHERE k = 1 AND c = 1; APPLY BATCH"
    )
    assert rows(session, table, '"cdc$operation", v, "cdc$end_of_batch"') == [(2, 7, None), (3, None, True)]


@pytest.mark.parametrize(("name", "shift"), [("future", 60), ("past", -86400 * 365 * 20)])
def test_write_far_from_now_is_refused(session: Session, name: str, shift: int) -> None:
    table = f"{KEYSPACE}.far_{name}"
    session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v int) WITH {ON}")
    when = time.time_ns() // 1000 + shift * 1_000_000
    with pytest.raises(InvalidRequest, match=f"from the {name}"):
        session.execute(f"INSERT INTO {table} (k, v) VALUES (1, 1) USING TIMESTAMP {when}")
    assert list(session.execute(f"SELECT * FROM {table}")) == []


def test_compact_tables_have_no_inserts(session: Session, table: str) -> None:
    session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v int) WITH COMPACT STORAGE AND {IMAGES}")
    session.execute(f"INSERT INTO {table} (k, v) VALUES (1, 1)")
    session.execute(f"DELETE FROM {table} WHERE k = 1")
    assert rows(session, table, '"cdc$operation", k, v') == [(1, 1, 1), (9, 1, 1), (0, 1, 1), (4, 1, None)]


def test_each_write_is_in_the_stream_of_its_range(session: Session, table: str) -> None:
    session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v int) WITH {ON}")
    for k in range(50):
        session.execute(f"INSERT INTO {table} (k, v) VALUES ({k}, 0)")
    query = "SELECT time FROM system_distributed.cdc_generation_timestamps WHERE key = 'timestamps'"
    ((start,),) = session.execute(query)
    query = "SELECT range_end, streams FROM system_distributed.cdc_streams_descriptions_v2 WHERE time = %s"
    ranges = sorted((end, next(iter(streams))) for end, streams in session.execute(query, (start,)))
    for stream, k in session.execute(f'SELECT "cdc$stream_id", k FROM {log(table)}'):
        token = Murmur3Token.hash_fn(struct.pack(">i", k))
        assert stream == next((stream for end, stream in ranges if end >= token), ranges[0][1])
    assert {stream[-1] & 15 for _, stream in ranges} == {1}


def test_conditional_writes_on_one_row_are_told_in_order(session: Session, table: str) -> None:
    """Each applied write once, with the value before it, at the time of its ballot."""
    session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v int) WITH {IMAGES}")
    session.execute(f"INSERT INTO {table} (k, v) VALUES (1, 0) IF NOT EXISTS")
    raise_by_one = session.prepare(f"UPDATE {table} SET v = ? WHERE k = 1 IF v = ?")

    def raise_some(count: int) -> None:
        done = 0
        while done < count:
            value = session.execute(f"SELECT v FROM {table} WHERE k = 1").one()[0]
            # After a timeout nobody knows whether the write is applied: the row says it in the end.
            with suppress(WriteTimeout):
                done += session.execute(raise_by_one, (value + 1, value)).was_applied

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(raise_some, [5] * 4))
    serial = SimpleStatement(f"SELECT v FROM {table} WHERE k = 1", consistency_level=ConsistencyLevel.SERIAL)
    applied = session.execute(serial).one()[0]
    assert applied >= 20
    told = rows(session, table, '"cdc$operation", v')
    expected = [(2, 0), (9, 0)]
    for value in range(applied):
        expected += [(0, value), (1, value + 1), (9, value + 1)]
    assert told == expected

    def times() -> tuple[int, int]:
        """The newest time of the log, and the time of the value."""
        last = max(time for (time,) in session.execute(f'SELECT "cdc$time" FROM {log(table)}'))
        return microseconds(last), session.execute(f"SELECT WRITETIME(v) FROM {table} WHERE k = 1").one()[0]

    # A writer that finds another's write unfinished finishes it, too, under a ballot of its own.
    last, written = times()
    assert last <= written
    assert session.execute(raise_by_one, (applied + 1, applied)).was_applied
    last, written = times()
    assert last == written


def test_condition_that_fails_tells_nothing(session: Session, table: str) -> None:
    session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v int) WITH {IMAGES}")
    session.execute(f"UPDATE {table} SET v = 1 WHERE k = 1 IF v = 2")
    session.execute(f"BEGIN BATCH UPDATE {table} SET v = 1 WHERE k = 1 IF EXISTS; APPLY BATCH")
    assert rows(session, table, "k") == []
