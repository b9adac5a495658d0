"""A keyspace with the tables of segments."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cassandra.cluster import Session
from keyspaces import new_keyspace

from penstock import segment
from penstock.database import cql_connection
from penstock.database.access import Access
from penstock.local.services import Services


@pytest.fixture(scope="module")
def keyspace(cql: Session, services: Services) -> Iterator[str]:
    with new_keyspace(cql, "seg") as name:
        segment.create_tables(cql, name)
        yield name
    cql_connection.close(Access(services.cql))
