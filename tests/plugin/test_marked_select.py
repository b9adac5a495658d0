"""The plugin answers `SELECT ... FROM ROWS_WITH_MARKERS(table)`: the rows, with when an INSERT made each."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from cassandra import InvalidRequest, Unauthorized
from cassandra.protocol import SyntaxException
from cassandra.query import SimpleStatement
from keyspaces import new_keyspace

ROWS = [
    ("a", None, 1, None, None),
    ("b", 1, 1, 20, None),
    ("b", 2, 1, None, None),
    ("b", 3, 1, 41, None),
    ("c", 1, 5, 52, None),
    ("d", 1, None, 60, None),
]
"""pk, ck, v (s for the partition without rows), when it was inserted, and when that expires."""
STATEMENTS = (
    "UPDATE {t} USING TIMESTAMP 10 SET s = 1 WHERE pk = 'a'",
    "INSERT INTO {t} (pk, ck, v) VALUES ('b', 1, 1) USING TIMESTAMP 20",
    "UPDATE {t} USING TIMESTAMP 30 SET v = 1 WHERE pk = 'b' AND ck = 2",
    "INSERT INTO {t} (pk, ck) VALUES ('b', 3) USING TIMESTAMP 40",
    "UPDATE {t} USING TIMESTAMP 42 SET v = 1 WHERE pk = 'b' AND ck = 3",
    "INSERT INTO {t} (pk, ck) VALUES ('b', 3) USING TIMESTAMP 41",
    "INSERT INTO {t} (pk, ck, v) VALUES ('c', 1, 4) USING TIMESTAMP 50",
    "DELETE FROM {t} USING TIMESTAMP 51 WHERE pk = 'c'",
    "INSERT INTO {t} (pk, ck, v) VALUES ('c', 1, 5) USING TIMESTAMP 52",
    "INSERT INTO {t} (pk, ck) VALUES ('d', 1) USING TIMESTAMP 60",
    "INSERT INTO {t} (pk, ck) VALUES ('e', 1) USING TIMESTAMP 70",
    "DELETE FROM {t} USING TIMESTAMP 71 WHERE pk = 'e' AND ck = 1",
)


@pytest.fixture(scope="module")
def table(cql: Any) -> Iterator[str]:
    with new_keyspace(cql, "marked") as keyspace:
        name = f'{keyspace}."T"'
        cql.execute(f"CREATE TABLE {name} (pk text, ck int, s int static, v int, PRIMARY KEY (pk, ck))")
        for statement in STATEMENTS:
            cql.execute(statement.replace("{t}", name))
        yield name


def shown(rows: Any) -> list[Any]:
    return sorted((pk, ck, v if ck else s, *marker) for pk, ck, s, v, *marker in rows)


@pytest.mark.parametrize("size", [None, 1, 2, 5000])
def test_a_row_has_the_time_of_its_insert(cql: Any, table: str, size: int | None) -> None:
    where = "token(pk) > ? AND token(pk) <= ?"
    statement = cql.prepare(f"select pk, ck, s, v from rows_with_markers({table}) where {where}")
    statement.fetch_size = size
    bounds = (-(2**63), 2**63 - 1)
    assert shown(cql.execute(statement, bounds)) == ROWS
    # A statement that was prepared before a change of the table is prepared again.
    cql.execute(f"ALTER TABLE {table} WITH comment = '{size}'")
    assert shown(cql.execute(statement, bounds)) == ROWS


def test_the_columns_follow_those_that_are_selected(cql: Any, table: str) -> None:
    found = cql.execute(f"SELECT v, writetime(v) FROM ROWS_WITH_MARKERS({table}) WHERE pk = 'b'")
    assert found.column_names[-2:] == ["row_inserted", "row_expires"] and len(found.column_names) == 4
    assert list(found) == [(1, 20, 20, None), (1, 30, None, None), (1, 42, 41, None)]


def test_an_insert_with_a_time_to_live_expires(cql: Any, table: str) -> None:
    before = int(time.time())
    cql.execute(f"INSERT INTO {table} (pk, ck, v) VALUES ('f', 1, 1) USING TTL 5000")
    cql.execute(f"UPDATE {table} SET v = 2 WHERE pk = 'f' AND ck = 1")
    text = f"SELECT pk, ttl(v) FROM ROWS_WITH_MARKERS({table}) WHERE pk = 'f'"
    ((_, left, inserted, expires),) = cql.execute(SimpleStatement(text, fetch_size=1))
    assert left is None and inserted // 1_000_000 >= before
    assert before + 5000 <= expires <= int(time.time()) + 5001
    cql.execute(f"DELETE FROM {table} WHERE pk = 'f'")


REFUSED = {
    "SELECT nothing FROM ROWS_WITH_MARKERS({t})": "Undefined column name nothing",
    "SELECT * FROM ROWS_WITH_MARKERS({t}) LIMIT 3": "takes no LIMIT",
    "SELECT DISTINCT pk FROM ROWS_WITH_MARKERS({t})": "takes no LIMIT, ORDER BY, GROUP BY, DISTINCT",
    "SELECT JSON pk FROM ROWS_WITH_MARKERS({t})": "and JSON",
    "SELECT count(*) FROM ROWS_WITH_MARKERS({t})": "takes no aggregates",
    "SELECT * FROM ROWS_WITH_MARKERS({t}) WHERE pk = 'b' AND ck = 1": "one partition key or a range of token",
    "SELECT * FROM ROWS_WITH_MARKERS({t}) WHERE v = 1 ALLOW FILTERING": "one partition key or a range of token",
    "SELECT * FROM ROWS_WITH_MARKERS(no.such)": "no does not exist",
}


@pytest.mark.parametrize("statement", REFUSED)
def test_other_statements_are_refused(cql: Any, table: str, statement: str) -> None:
    with pytest.raises((InvalidRequest, SyntaxException, Unauthorized), match=REFUSED[statement]):
        cql.execute(statement.replace("{t}", table))
