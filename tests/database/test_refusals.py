"""Requests that a real node refuses: a changed table is distinguished from a bad value, in reads too."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from keyspaces import new_keyspace

from penstock.database.access import Access
from penstock.database.cql_connection import close
from penstock.database.requests import CqlRequest, RequestLimits, send_all
from penstock.database.row_fetch import RowFetch
from penstock.database.table_catalog import describe
from penstock.errors import PenstockError, SchemaChanged
from penstock.local.services import Services

LIMITS = RequestLimits(patience=timedelta(seconds=30))
REFUSED = "looking failed, the database refuses a value: .*Next: filter these rows out"


@pytest.fixture(scope="module")
def access(services: Services) -> Iterator[Access]:
    made = Access(services.cql)
    yield made
    close(made)


@pytest.fixture(scope="module")
def keyspace(cql: Any) -> Iterator[str]:
    with new_keyspace(cql, "refusals") as name:
        yield name


def test_requests_for_no_one_table_tell_a_value_from_a_change(access: Access, cql: Any, keyspace: str) -> None:
    cql.execute(f"CREATE TABLE {keyspace}.several (k text PRIMARY KEY, v int)")
    text = f"SELECT k, v FROM {keyspace}.several WHERE k = ?"

    def look(key: bytes) -> None:
        send_all(access, keyspace, [CqlRequest(((text, [key]),), key)], LIMITS, what="looking", where="several")

    look(b"a")
    with pytest.raises(PenstockError, match=REFUSED) as told:
        look(b"")
    assert not told.value.retriable
    cql.execute(f"ALTER TABLE {keyspace}.several DROP v")
    with pytest.raises(SchemaChanged, match="looking failed, the table has changed since"):
        look(b"")


def test_rows_of_a_table_that_changed_are_looked_up_after_a_restart(access: Access, cql: Any, keyspace: str) -> None:
    cql.execute(f'CREATE TABLE {keyspace}."Rows" (k text PRIMARY KEY, v int)')
    rows = RowFetch(access, describe(cql, f'{keyspace}."Rows"'), ("v",), LIMITS)
    keys, _ = rows.keys([pa.array(["a", ""])])
    with pytest.raises(PenstockError, match="the database refuses a value") as told:
        rows.fetch(keys.to_pylist()[1:])
    assert not told.value.retriable
    cql.execute(f'DROP TABLE {keyspace}."Rows"')
    with pytest.raises(SchemaChanged, match="the table has changed since"):
        rows.fetch(keys.to_pylist()[:1])


@pytest.mark.parametrize(
    ("columns", "lengths", "valid"),
    [
        ("k text PRIMARY KEY", [(1,), (0,), (65_535,), (65_536,)], [True, False, True, False]),
        ("k text, c text, PRIMARY KEY (k, c)", [(65_535, 65_535), (1, 65_536)], [True, False]),
        ("k text, c text, d text, PRIMARY KEY (k, c, d)", [(1, 65_535, 0), (1, 40_000, 40_000)], [True, False]),
        ("k text, c text, PRIMARY KEY ((k, c))", [(0, 1), (65_529, 0), (65_530, 0)], [True, True, False]),
    ],
)
def test_no_row_has_a_key_that_is_too_long(
    access: Access, cql: Any, keyspace: str, columns: str, lengths: list[tuple[int, ...]], valid: list[bool]
) -> None:
    name = f"{keyspace}.long_{sum(map(ord, columns))}"
    cql.execute(f"CREATE TABLE {name} (v int, {columns})")
    rows = RowFetch(access, describe(cql, name), ("v",), LIMITS)
    found, can = rows.keys([pa.array(["x" * size for size in sizes]) for sizes in zip(*lengths, strict=True)])
    assert can.tolist() == valid
    rows.fetch(found.filter(pa.array(can)).to_pylist())
