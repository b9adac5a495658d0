"""Reading from a node with authentication: wrong passwords and missing permissions raise at once, without retries."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import Cluster, NoHostAvailable, Session
from pyspark.sql import SparkSession
from waiting import until

from penstock import cdc
from penstock.errors import PenstockError
from penstock.local import cql_node as node, services
from penstock.local.service import ServiceFolder

# A node of its own starts for it.
pytestmark = pytest.mark.slow
SUPERUSER = "cassandra"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a node with users and permissions."""
    root = tmp_path_factory.mktemp("guarded")
    plain = node._configuration

    def with_rights(place: ServiceFolder) -> str:
        rights = {"authenticator": "PasswordAuthenticator", "authorizer": "CassandraAuthorizer"}
        # No cache, so that a new permission is valid at once.
        rights |= {"permissions_validity": "0ms"}
        return json.dumps(json.loads(plain(place)) | rights)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node, "_configuration", with_rights)
        try:
            yield services.up(root, only=["cassandra"]).cql
        finally:
            services.down(root)


@pytest.fixture(scope="module")
def superuser(guarded: str) -> Iterator[Any]:
    """A session of the node's first user, which exists only some seconds after the node has started."""
    opened: list[Cluster] = []

    def session_of_superuser() -> Session | None:
        opened.append(connect(guarded, SUPERUSER, SUPERUSER))
        try:
            return opened[-1].connect()
        except NoHostAvailable:
            opened.pop().shutdown()
            return None

    session = until(session_of_superuser, "first user")
    session.execute("CREATE KEYSPACE ks WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    session.execute("CREATE TABLE ks.t (id int PRIMARY KEY) WITH cdc = {'enabled': true}")
    session.execute("CREATE ROLE reader WITH PASSWORD = 'right' AND LOGIN = true")
    yield session
    opened[-1].shutdown()


def connect(address: str, user: str, password: str) -> Cluster:
    host, port = address.split(":")
    return Cluster([host], port=int(port), auth_provider=PlainTextAuthProvider(user, password))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs a user and a password"),
        ({"user": "reader", "password": "wrong"}, r"refused user 'reader'.*check the options user and password"),
        ({"user": "reader", "password": "right"}, r"no permission.*GRANT SELECT"),
    ],
)
def test_a_refused_reader_is_told_what_is_missing(
    spark: SparkSession, superuser: Any, guarded: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(PenstockError, match=message) as failure:
        cdc.read(spark, "ks.t", hosts=guarded, name="guarded", **options)
    assert not failure.value.retriable


@pytest.mark.slow
def test_a_reader_with_the_rights_it_was_told_to_get_reads(spark: SparkSession, superuser: Any, guarded: str) -> None:
    superuser.execute("GRANT SELECT ON ks.t TO reader")
    superuser.execute("GRANT SELECT ON ks.t_scylla_cdc_log TO reader")
    superuser.execute("GRANT SELECT ON KEYSPACE system_distributed TO reader")
    frame = cdc.read(spark, "ks.t", hosts=guarded, name="guarded", user="reader", password="right")
    assert frame.isStreaming


@pytest.mark.slow
def test_a_password_does_not_show_in_messages(guarded: str) -> None:
    from penstock.database.access import Access

    assert "right" not in repr(Access(guarded, user="reader", password="right"))


def test_every_user_may_read_the_tables_that_only_scylladb_has(superuser: Any, guarded: str) -> None:
    with connect(guarded, "reader", "right") as cluster:
        session = cluster.connect()
        query = "SELECT table_name FROM system_schema.scylla_tables WHERE keyspace_name = ?"
        assert [name for (name,) in session.execute(session.prepare(query), ["ks"])] == ["t", "t_scylla_cdc_log"]
        assert list(session.execute("SELECT * FROM system_schema.scylla_keyspaces")) == []
