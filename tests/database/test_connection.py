"""Connections that fail, and their error messages."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from cassandra import AuthenticationFailed
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionException
from cassandra.policies import IdentityTranslator
from tls_proxy import tcp_proxy
from waiting import until

from penstock.database.access import Access, NoTls
from penstock.database.cql_connection import Translated, _refused, close, connection
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


def test_nodes_are_reached_at_their_translated_addresses(cql: Any, services: Services) -> None:
    """A second node is in the table of peers only; both are the same one, behind proxies."""
    peer = "peer, peer_port, native_address, native_port, data_center, rack, host_id, tokens, schema_version"
    local = cql.execute("SELECT data_center, rack, schema_version FROM system.local").one()
    centre, rack, version = local
    own = "10.255.0.7"
    with tcp_proxy(services.cql) as first, tcp_proxy(services.cql) as second:
        access = Access(first, translated=((services.cql, first), (f"{own}:9042", second)))
        try:
            cql.execute(
                f"INSERT INTO system.peers_v2 ({peer}) VALUES (%s, 7000, %s, 9042, %s, %s, %s, %s, %s)",
                (own, own, centre, rack, uuid.uuid4(), {"0"}, version),
            )
            cql.execute(
                "INSERT INTO system.peers (peer, rpc_address, data_center, rack, host_id, tokens, schema_version) "
                "VALUES (%s, %s, %s, %s, %s, %s, %s)",
                (own, own, centre, rack, uuid.uuid4(), {"0"}, version),
            )
            made = connection(access)
            assert {str(host.endpoint) for host in made.cluster.metadata.all_hosts()} == {first, second}
            until(lambda: len(made.rows.get_pool_state()) == 2, "connections to both")
            asked = [made.rows.execute("SELECT key FROM system.local", host=host).one() for host in made.rows.hosts]
            assert asked == [("local",), ("local",)]
        finally:
            cql.execute("DELETE FROM system.peers_v2 WHERE peer = %s AND peer_port = 7000", (own,))
            cql.execute("DELETE FROM system.peers WHERE peer = %s", (own,))
            close(access)


@pytest.mark.parametrize(
    ("address", "port", "reached"),
    [
        ("10.0.0.1", 9042, "public:1"),
        ("10.0.0.2", 9043, "public:3"),
        ("10.0.0.1", 7777, "public:1"),
        ("10.0.0.2", 7777, "10.0.0.2:7777"),
        ("10.0.0.9", 9042, "10.0.0.9:9042"),
        ("::1", 9042, "[::2]:4"),
    ],
)
def test_translations_are_by_address_and_port_or_by_an_address_with_one_port(
    address: str, port: int, reached: str
) -> None:
    pairs = (
        *(("10.0.0.1:9042", "public:1"), ("10.0.0.2:9042", "public:2")),
        *(("10.0.0.2:9043", "public:3"), ("[::1]:9042", "[::2]:4")),
    )
    factory = Translated(Access("public:1", translated=pairs))
    factory.configure(SimpleNamespace(address_translator=IdentityTranslator()))
    made = factory.create({"native_address": address, "native_port": port})
    assert (made.address, made.port) == Access(reached).endpoints()[0]


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
