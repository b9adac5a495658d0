"""Connections that fail, and their error messages."""

from __future__ import annotations

from typing import Any

import pytest
from cassandra import AuthenticationFailed
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionException

from penstock.database.access import Access, NoTls
from penstock.database.cql_connection import _refused, close, connection
from penstock.errors import PenstockError
from penstock.local.services import Services

NODE = "127.0.0.1:9042"


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


def failed(access: Access, *causes: Exception) -> Exception:
    """The error for a cluster whose nodes failed with these errors."""
    errors = {f"10.0.0.{number}:9042": cause for number, cause in enumerate(causes)}
    return _refused(access, NoHostAvailable("Unable to connect to any servers", errors), {None})


def test_a_refused_user_is_named_and_not_asked_again() -> None:
    refused = failed(Access(NODE, user="ann", password="s3cret"), AuthenticationFailed("Bad credentials"))
    assert str(refused) == f"the database refused user 'ann' ({NODE}). Next: check the options user and password"
    assert isinstance(refused, PenstockError) and not refused.retriable
    assert "the database needs a user and a password" in str(failed(Access(NODE), AuthenticationFailed("No login")))


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)", "wrong version number"),
        (
            "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate (_ssl.c:1006)",
            "certificate verify failed: self-signed certificate",
        ),
    ],
)
def test_a_failed_handshake_is_told_with_the_reason_of_openssl(said: str, reason: str) -> None:
    refused = failed(Access(NODE, tls=True), ConnectionException("closed"), ConnectionException(said))
    assert isinstance(refused, NoTls) and not refused.retriable
    assert str(refused).startswith(f"TLS with the database failed: {reason} ({NODE}). Next: check ca, ")


def test_nodes_that_do_not_answer_are_the_driver_s_error_which_is_tried_again() -> None:
    error = NoHostAvailable("Unable to connect to any servers", {NODE: ConnectionException("refused")})
    assert _refused(Access(NODE), error, set()) is error


def test_a_wrong_data_centre_is_told_with_all_that_exist_in_order() -> None:
    error = NoHostAvailable("no host", {})
    refused = _refused(Access(NODE, local_dc="west"), error, {"south", None, "east"})
    assert str(refused).endswith("check local_dc: the data centres are east, south")


def test_an_unknown_consistency_level_is_refused_before_a_node_is_asked() -> None:
    with pytest.raises(PenstockError, match=r"'QUORUMS' is not a consistency level.*ALL, .*LOCAL_QUORUM, .*, TWO"):
        connection(Access("127.0.0.1:1", consistency="QUORUMS"))


def test_a_process_has_one_connection_for_equal_settings_until_it_is_closed(services: Services) -> None:
    access = Access(services.cql, consistency="one")
    first = connection(access)
    assert connection(Access(services.cql, consistency="one")) is first
    text = "SELECT key FROM system.local WHERE key = ?"
    assert first.prepare(text) is first.prepare(text)
    # `rows` gives tuples, `pages` the bytes of the protocol.
    assert first.rows.execute("SELECT key FROM system.local").one() == ("local",)
    (page,) = first.pages.execute("SELECT key FROM system.local")
    assert (page.data, page.rows, page.final) == (b"\0\0\0\5local", 1, True)
    close(access)
    assert first.cluster.is_shutdown
    second = connection(access)
    assert second is not first and not second.statements
    close(access)
    close(access)


def test_pages_end_where_the_fetch_size_says(services: Services) -> None:
    access = Access(services.cql)
    pages = connection(access).pages
    statement: Any = connection(access).prepare("SELECT keyspace_name FROM system_schema.tables").bind(())
    statement.fetch_size = 2
    result = pages.execute(statement)
    sizes, last = [], result.current_rows[0]
    while not last.final:
        sizes.append(last.rows)
        result = pages.execute(statement, paging_state=result.paging_state)
        last = result.current_rows[0]
    assert set(sizes) == {2} and last.rows <= 2 and result.paging_state is None
    close(access)
