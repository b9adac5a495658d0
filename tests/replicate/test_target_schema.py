"""The table of a target is created like the source's, or gets the columns that it lacks; on a real node."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from keyspaces import new_keyspace

from penstock.database.access import Access
from penstock.database.cql_connection import connection
from penstock.database.table_catalog import describe
from penstock.errors import PenstockError
from penstock.local.services import Services
from penstock.replicate.target_schema import prepare

PATIENCE = timedelta(seconds=30)
TABLE = (
    'CREATE TABLE {ks}."Wide" (a int, "B" text, c timeuuid, d int, s int static, m map<text, frozen<"Line">>, '
    'u address, f frozen<list<address>>, t tuple<int, text>, v vector<float, 3>, PRIMARY KEY ((a, "B"), c, d)) '
    "WITH CLUSTERING ORDER BY (c DESC, d ASC) AND default_time_to_live = 100"
)


@pytest.fixture
def sides(cql: Any) -> Iterator[tuple[str, str]]:
    with new_keyspace(cql, "made") as source, new_keyspace(cql, "remade") as target:
        cql.execute(f'CREATE TYPE {source}."Line" (street text, "No" int)')
        cql.execute(f'CREATE TYPE {source}.address (line frozen<"Line">, zip int)')
        cql.execute(TABLE.replace("{ks}", source))
        yield source, target


def prepared(services: Services, sides: tuple[str, str], *, create: bool = False, alter: bool = False) -> None:
    access = Access(services.cql)
    source = describe(connection(access).rows, f'{sides[0]}."Wide"')
    prepare(source, access, f'{sides[1]}."Wide"', PATIENCE, create=create, alter=alter)


def columns(services: Services, keyspace: str) -> Any:
    return describe(connection(Access(services.cql)).rows, f'{keyspace}."Wide"').columns


def test_a_table_is_created_with_its_types_and_its_order(services: Services, cql: Any, sides: tuple[str, str]) -> None:
    prepared(services, sides, create=True)
    assert columns(services, sides[0]) == columns(services, sides[1])
    of_table = "SELECT default_time_to_live FROM system_schema.tables WHERE keyspace_name = %s"
    assert cql.execute(of_table, (sides[1],)).one()[0] == 0
    prepared(services, sides, create=True, alter=True)


def test_columns_and_fields_are_added(services: Services, cql: Any, sides: tuple[str, str]) -> None:
    prepared(services, sides, create=True)
    cql.execute(f'ALTER TYPE {sides[0]}."Line" ADD floor int')
    cql.execute(f"CREATE TYPE {sides[0]}.colour (name text)")
    cql.execute(f'ALTER TABLE {sides[0]}."Wide" ADD (z int static, "Y" frozen<colour>)')
    prepared(services, sides)
    assert columns(services, sides[0]) != columns(services, sides[1])
    prepared(services, sides, alter=True)
    assert columns(services, sides[0]) == columns(services, sides[1])


def test_a_table_that_is_not_there_is_named(services: Services, sides: tuple[str, str]) -> None:
    with pytest.raises(PenstockError, match=f"there is no table {sides[1]}.Wide"):
        prepared(services, sides)


def test_a_keyspace_that_is_not_there_is_not_created(services: Services, sides: tuple[str, str]) -> None:
    with pytest.raises(PenstockError, match="CREATE KEYSPACE nowhere WITH replication"):
        prepared(services, (sides[0], "nowhere"), create=True)
