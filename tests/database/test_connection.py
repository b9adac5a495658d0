"""Connections that fail, and their error messages."""

from __future__ import annotations

import pytest
from cassandra.cluster import NoHostAvailable

from penstock.database.access import Access
from penstock.database.cql_connection import _refused, connection
from penstock.errors import PenstockError
from penstock.local.services import Services


def test_a_data_centre_without_nodes_is_told(services: Services) -> None:
    with pytest.raises(PenstockError) as raised:
        connection(Access(services.cql, local_dc="nowhere"))
    assert str(raised.value) == (
        f"no node is in the data centre 'nowhere' ({services.cql}). "
        "Next: check local_dc: the data centres are datacenter1"
    )


@pytest.mark.parametrize("centres", [{"one"}, {None}, set()])
def test_a_node_that_may_come_back_is_waited_for(centres: set[str | None]) -> None:
    away = NoHostAvailable("the second connection failed", ["127.0.0.1"])
    assert _refused(Access("127.0.0.1:9042", local_dc="one"), away, centres) is away
