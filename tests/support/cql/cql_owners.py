"""Which node answered each request for rows of a keyspace without copies, and its owner by the driver's map."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from cassandra.cluster import Cluster, ResponseFuture
from cassandra.protocol import BatchMessage
from waiting import until

from penstock import cql
from penstock.cql.cql_writer import CqlWriter
from penstock.cql.matching.id_match import KEY, Match
from penstock.database.access import Access
from penstock.database.bursts import Bursts
from penstock.database.cql_connection import close, connection
from penstock.database.requests import RequestLimits
from penstock.database.row_fetch import KEYS_TOGETHER, RowFetch
from penstock.database.table_catalog import describe
from penstock.database.token_ring import partition_key

ONE_COPY: dict[str, str | int] = {"class": "SimpleStrategy", "replication_factor": 1}
STATEMENT = re.compile(r'(INSERT|SELECT) .*?(?:INTO|FROM) \S+\."?(\w+)')


def assert_rows_are_asked_for_at_owners(driver: Cluster, keyspace: str, hosts: Sequence[str]) -> None:
    """Each request to write, look up and match was answered by the node that owns all its partitions."""
    access = Access(",".join(hosts))
    link = connection(access)
    until(lambda: len(link.pages.get_pools()) == len(hosts), "connections to all nodes")
    futures: list[ResponseFuture] = []
    link.pages.add_request_init_listener(futures.append)
    with _bursts() as sent:
        work(access, keyspace)
    texts = {statement.query_id: text for text, statement in link.statements.items()}
    close(access)
    asked = [
        *((future.coordinator_host, _statements(future.message, texts)) for future in futures),
        *((host, [(texts[prepared.query_id], values) for prepared, values in batch]) for host, batch in sent),
    ]
    seen = set()
    for host, statements in asked:
        for text, values in statements:
            found = STATEMENT.match(text)
            seen.add(found and found.groups())
            owners = {driver.metadata.get_replicas(keyspace, each)[0] for each in _partitions(text, values)}
            assert owners == {host}, text
    tables = ("users", "links", "identities")
    assert seen == {(verb, table) for verb in ("INSERT", "SELECT") for table in tables} | {("SELECT", "visits")}
    assert {host for host, _ in asked} == set(driver.metadata.all_hosts())
    assert len(sent) > len(hosts)


@contextmanager
def _bursts() -> Iterator[list[tuple[Any, Any]]]:
    """The host and the statements of each batch that is sent in a burst meanwhile."""
    sent: list[tuple[Any, Any]] = []
    send = Bursts.send

    def noting(self: Bursts, link: Any, pool: Any, batches: Any) -> list[int]:
        sent.extend((pool.host, batch.statements) for batch in batches)
        return send(self, link, pool, batches)

    with patch.object(Bursts, "send", noting):
        yield sent


def work(access: Access, keyspace: str) -> None:
    """Write and look up users, look up visits that do not exist, and match persons."""
    link, ids = connection(access), list(range(300))
    table, visits = (describe(link.rows, f"{keyspace}.{name}") for name in ("users", "visits"))
    users = pa.RecordBatch.from_pydict({"id": pa.array(ids), "name": [f"user {id}" for id in ids]})
    list(CqlWriter(access, (table,), "insert", 1, RequestLimits())(iter([users])))
    rows = RowFetch(access, table, ("name",), RequestLimits())
    assert rows.fetch(rows.keys([users["id"]])[0].to_pylist())[0]["name"].to_pylist() == users["name"].to_pylist()
    of_two = RowFetch(access, visits, ("v",), RequestLimits())
    _, found, requests = of_two.fetch(of_two.keys([users["id"], pa.array([7] * len(ids))])[0].to_pylist())
    assert not found.any() and requests <= len(ids) // KEYS_TOGETHER + 3
    store = cql.ids(keyspace, hosts=access.hosts)
    cql.create(store, replication=ONE_COPY)
    seen = pa.StructArray.from_arrays([pa.array([f"{kind}{id}" for id in ids]) for kind in "ce"], ["c", "e"])
    events = pa.RecordBatch.from_pydict({KEY: seen})
    list(Match(store, ("c", "e"), "who", True, 3600, timedelta(0), 1000)(iter([events])))


def _statements(message: Any, texts: dict[bytes, str]) -> list[tuple[str, list[bytes]]]:
    """The text and the values of each statement of a request."""
    if isinstance(message, BatchMessage):
        return [(texts[id], values) for _, id, values in message.queries]
    return [(texts[message.query_id], message.query_params)]


def _partitions(text: str, values: list[bytes]) -> list[bytes]:
    """The partitions of a statement: from a list in its first value, or from its first values."""
    first = _listed(values[0]) if " IN ?" in text else [values[0]]
    if "bucket" not in text:
        return first
    return [partition_key((person, values[1] if text.startswith("INSERT") else bytes(2))) for person in first]


def _listed(value: bytes) -> list[bytes]:
    """The values in a list of values of the same size."""
    size = int.from_bytes(value[4:8], "big")
    return [value[at : at + size] for at in range(8, len(value), size + 4)]
