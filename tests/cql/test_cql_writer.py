"""Record batches as CQL statements, without a database: what is written for each row, and what is refused."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest
from cassandra.query import UNSET_VALUE
from hypothesis import given, settings, strategies as st

from penstock.cql import cql_writer
from penstock.cql.cql_writer import DELETE, MAX_TTL, TABLE, TIMESTAMP, TTL, CqlWriter
from penstock.cql.row_cache import MEASURED, Measures
from penstock.database.access import Access
from penstock.database.cql_types import Column, CqlTable, CqlType
from penstock.database.requests import CqlRequest, RequestLimits
from penstock.errors import PenstockError

TEXT, INT = CqlType("text"), CqlType("int")
USERS = CqlTable(
    "ks",
    "users",
    (Column("id", TEXT, "partition_key", 0), Column("Day", INT, "clustering", 0), Column("v", INT, "regular")),
)
OTHER = CqlTable("ks", "Other", (Column("id", TEXT, "partition_key", 0), Column("v", INT, "regular")))
INSERT = 'INSERT INTO "ks"."users" ("id", "Day", "v") VALUES (?, ?, ?) USING TIMESTAMP ?'
DELETION = 'DELETE FROM "ks"."users" USING TIMESTAMP ? WHERE "id" = ? AND "Day" = ?'
TYPES = {TABLE: pa.string(), DELETE: pa.bool_(), TTL: pa.int32(), TIMESTAMP: pa.int64(), "id": pa.string()}
Statement = tuple[str, list[Any]]


def collecting(patch: pytest.MonkeyPatch) -> list[Statement]:
    """The statements that are sent from now on, instead of sending them."""
    found: list[Statement] = []

    def collect(access: Access, keyspace: str, rows: Any, limits: RequestLimits) -> list[CqlRequest]:
        assert keyspace == "ks"
        found.extend((text, list(values)) for _, statements in rows for text, values in statements)
        return []

    patch.setattr(cql_writer, "together", collect)
    patch.setattr(cql_writer, "send_all", lambda *_, **__: None)
    return found


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Statement]:
    return collecting(monkeypatch)


def write(*batches: dict[str, list[Any]], mode: str = "insert", tables: tuple[CqlTable, ...] = (USERS,)) -> int:
    """Write the batches of a task; returns the number of rows."""
    writer = CqlWriter(Access("h:1"), tables, mode, 1000, RequestLimits())
    made = [
        pa.record_batch({name: pa.array(some, TYPES.get(name, pa.int32())) for name, some in batch.items()})
        for batch in batches
    ]
    (count,) = writer(iter(made))
    rows: int = count["rows"][0].as_py()
    return rows


def big(value: int) -> bytes:
    return struct.pack(">q", value)


def small(value: int) -> bytes:
    return struct.pack(">i", value)


def test_a_row_is_inserted_with_a_time_that_grows_over_all_batches_of_a_task(sent: list[Statement]) -> None:
    batch: dict[str, list[Any]] = {"id": ["a", "é"], "Day": [1, -2], "v": [None, 7]}
    assert write(batch, {"id": [], "Day": [], "v": []}, batch) == 4
    assert sent == [
        (INSERT, [b"a", small(1), None, big(1000)]),
        (INSERT, ["é".encode(), small(-2), small(7), big(1001)]),
        (INSERT, [b"a", small(1), None, big(1002)]),
        (INSERT, ["é".encode(), small(-2), small(7), big(1003)]),
    ]


def test_a_task_without_rows_writes_nothing(sent: list[Statement]) -> None:
    assert write() == 0 and sent == []


def test_an_upsert_leaves_out_nulls(sent: list[Statement]) -> None:
    write({"id": ["a"], "Day": [1], "v": [None]}, mode="upsert")
    assert sent == [(INSERT, [b"a", small(1), UNSET_VALUE, big(1000)])]


def test_columns_that_the_frame_does_not_have_are_not_named(sent: list[Statement]) -> None:
    write({"Day": [1], "id": ["a"]})
    assert sent == [
        ('INSERT INTO "ks"."users" ("Day", "id") VALUES (?, ?) USING TIMESTAMP ?', [small(1), b"a", big(1000)])
    ]


ROWS = st.lists(
    st.tuples(
        st.text(max_size=3),
        st.integers(-(2**31), 2**31 - 1),
        st.none() | st.integers(-9, 9),
        st.booleans(),
        st.none() | st.integers(0, MAX_TTL),
        st.integers(-(2**63), 2**63 - 1),
    ),
    max_size=8,
)


@settings(max_examples=50)
@given(rows=ROWS)
def test_each_row_is_written_or_deleted_at_its_time_and_for_its_time_to_live(rows: list[tuple[Any, ...]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        found = collecting(patch)
        columns = [list(some) for some in zip(*rows, strict=True)] if rows else [[]] * 6
        assert write(dict(zip(("id", "Day", "v", DELETE, TTL, TIMESTAMP), columns, strict=True))) == len(rows)
    expected: list[Statement] = []
    for id, day, v, gone, ttl, at in rows:
        key, value = [id.encode(), small(day)], None if v is None else small(v)
        if gone:
            expected.append((DELETION, [big(at), *key]))
        elif ttl is None:
            expected.append((INSERT, [*key, value, big(at)]))
        else:
            expected.append((f"{INSERT} AND TTL ?", [*key, value, big(at), small(ttl)]))
    assert found == expected


def test_each_row_goes_to_its_table_in_the_order_of_the_rows(sent: list[Statement]) -> None:
    names = ["ks.Other", "ks.users", "ks.Other"]
    batch: dict[str, list[Any]] = {TABLE: names, "id": ["a", "b", "c"], "Day": [1, 2, 3], "v": [4, 5, 6]}
    assert write(batch, tables=(USERS, OTHER)) == 3
    other = 'INSERT INTO "ks"."Other" ("id", "v") VALUES (?, ?) USING TIMESTAMP ?'
    assert sent == [
        (other, [b"a", small(4), big(1000)]),
        (other, [b"c", small(6), big(1002)]),
        (INSERT, [b"b", small(2), small(5), big(1001)]),
    ]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"id": [None, "b"]}, r"id is null in 1 of 2 rows .cql.sink.*frame.where\('id IS NOT NULL'\)"),
        ({"Day": [None, None]}, r"Day is null in 2 of 2 rows"),
        ({TIMESTAMP: [1, None]}, "timestamp is null in 1 of 2 rows"),
        ({TTL: [1, -1]}, "a TTL is -1 seconds .ks.users.*null or 0"),
        ({TTL: [MAX_TTL + 1, 1]}, f"a TTL is {MAX_TTL + 1} seconds .ks.users.*at most 20 years"),
        ({TABLE: ["ks.users", "ks.nosuch"]}, "a row goes to ks.nosuch, which is not in tables=.*next to ks.users"),
        ({TABLE: [None, "ks.users"]}, "a row goes to None, which is not in tables="),
        ({"id": ["x" * 65_536, "b"]}, r"65536.*ks\.users\.id|ks\.users\.id.*65536"),
    ],
)
def test_a_wrong_row_is_refused_with_what_to_do(
    sent: list[Statement], changed: dict[str, list[Any]], said: str
) -> None:
    batch: dict[str, list[Any]] = {"id": ["a", "b"], "Day": [1, 2], "v": [3, 4]}
    with pytest.raises(PenstockError, match=said):
        write(batch | changed)


def test_the_numbers_of_a_batch_are_in_its_first_row() -> None:
    measures = Measures(("rows", "wait_ms", "cached"))
    assert measures.column([3, 5, 7], 3).to_pylist() == [{"rows": 3, "wait_ms": 5, "cached": 7}, None, None]
    assert measures.column([1, 0, 0], 1).to_pylist() == [{"rows": 1, "wait_ms": 0, "cached": 0}]
    assert measures.field.name == MEASURED
    with pytest.raises(ValueError, match="zip"):
        measures.column([1, 2], 1)
