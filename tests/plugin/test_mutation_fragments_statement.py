"""The plugin answers `SELECT ... FROM MUTATION_FRAGMENTS(table)` with the columns and the JSON of ScyllaDB."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from cassandra import InvalidRequest
from keyspaces import new_keyspace


@pytest.fixture(scope="module")
def table(cql: Any) -> Iterator[str]:
    with new_keyspace(cql, "stored") as keyspace:
        name = f'{keyspace}."T"'
        cql.execute(f"CREATE TYPE {keyspace}.place (street text, zip int)")
        cql.execute(
            f"CREATE TABLE {name} (pk int, pt text, ck int, ct text, s int static, v int, m map<text, int>, u place, "
            "PRIMARY KEY ((pk, pt), ck, ct)) WITH CLUSTERING ORDER BY (ck DESC, ct ASC)"
        )
        for statement in (
            f"DELETE FROM {name} USING TIMESTAMP 5 WHERE pk = 1 AND pt = 'a'",
            f"UPDATE {name} USING TIMESTAMP 6 SET s = 1 WHERE pk = 1 AND pt = 'a'",
            f"INSERT INTO {name} (pk, pt, ck, ct, v, m, u) VALUES (1, 'a', 2, 'x', 5, {{'k\"': 1}}, {{zip: 3}}) "
            "USING TIMESTAMP 7",
            f"DELETE v FROM {name} USING TIMESTAMP 8 WHERE pk = 1 AND pt = 'a' AND ck = 2 AND ct = 'x'",
            f"DELETE FROM {name} USING TIMESTAMP 9 WHERE pk = 1 AND pt = 'a' AND ck > 4 AND ck < 8",
            f"DELETE FROM {name} USING TIMESTAMP 4 WHERE pk = 2 AND pt = 'a'",
        ):
            cql.execute(statement)
        yield name


def without_seconds(text: str | None) -> Any:
    """The JSON without the seconds at which deletions were written."""

    def plain(some: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in some.items() if name != "deletion_time"}

    return None if text is None else json.loads(text, object_hook=plain)


REGULAR = {"is_live": True, "type": "regular", "timestamp": 7}
FRAGMENTS = [
    (0, None, None, None, "partition start", {"tombstone": {"timestamp": 5}}, None),
    (1, None, None, None, "static row", {"s": REGULAR | {"timestamp": 6}}, {"s": "1"}),
    (2, 8, None, 1, "range tombstone change", {"tombstone": {"timestamp": 9}}, None),
    (2, 4, None, -1, "range tombstone change", {"tombstone": {}}, None),
    (
        *(2, 2, "x", 0, "clustering row"),
        {
            "marker": {"timestamp": 7},
            "columns": {
                "v": REGULAR | {"is_live": False, "timestamp": 8},
                "m": {"tombstone": {"timestamp": 6}, "cells": [{"key": 'k"', "value": REGULAR}]},
                "u": {"tombstone": {"timestamp": 6}, "cells": [{"key": "zip", "value": REGULAR}]},
            },
        },
        {"v": None, "m": [{"key": 'k"', "value": "1"}], "u": [{"key": "zip", "value": "3"}]},
    ),
    (3, None, None, None, "partition end", None, None),
]


def test_a_partition_is_shown_as_scylladb_shows_it(cql: Any, table: str) -> None:
    rows = list(cql.execute(f"SELECT * FROM MUTATION_FRAGMENTS({table}) WHERE pk = 1 AND pt = 'a'"))
    assert {row[:3] for row in rows} == {(1, "a", "merged")}
    assert [(*row[3:7], row[8], without_seconds(row[7]), without_seconds(row[9])) for row in rows] == FRAGMENTS


@pytest.mark.parametrize("size", [1, 2, 3])
def test_pages_of_a_range_of_tokens_go_on_where_the_last_one_ended(cql: Any, table: str, size: int) -> None:
    """A page that begins inside a deleted range begins with this range."""
    where = "token(pk, pt) > ? AND token(pk, pt) <= ?"
    statement = cql.prepare(f"SELECT pk, position_weight, metadata FROM mutation_fragments({table}) WHERE {where}")
    bounds = (-(2**63), 2**63 - 1)
    statement.fetch_size = 5000
    whole = list(cql.execute(statement, bounds))
    statement.fetch_size = size
    paged = list(cql.execute(statement, bounds))
    assert {row[0] for row in whole} == {1, 2}
    assert [row for row, before in zip(paged, [None, *paged], strict=False) if row != before] == whole
    # A statement that was prepared before a change of the table is prepared again.
    cql.execute(f"ALTER TABLE {table} WITH comment = '{size}'")
    assert len(list(cql.execute(statement, bounds))) == len(paged)


REFUSED = {
    "SELECT nothing FROM MUTATION_FRAGMENTS({t})": "MUTATION_FRAGMENTS has no column nothing, but pk, pt",
    "SELECT * FROM MUTATION_FRAGMENTS({t}) LIMIT 3": "takes no LIMIT",
    "SELECT DISTINCT pk, pt FROM MUTATION_FRAGMENTS({t})": "takes no DISTINCT",
    "SELECT * FROM MUTATION_FRAGMENTS({t}) WHERE pk = 1 AND pt = 'a' AND ck = 1": "one partition key or a range of tok",
    "SELECT * FROM MUTATION_FRAGMENTS({t}) WHERE pk IN (1, 2) AND pt = 'a'": "one partition key at a time",
    "SELECT * FROM MUTATION_FRAGMENTS(no.such)": "no does not exist",
}


@pytest.mark.parametrize("statement", REFUSED)
def test_other_statements_are_refused(cql: Any, table: str, statement: str) -> None:
    with pytest.raises(InvalidRequest, match=REFUSED[statement]):
        cql.execute(statement.replace("{t}", table))
