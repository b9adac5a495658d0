"""The package scylla-driver in place of cassandra-driver: requests go to the shard that owns their partition.

The shards are those of a proxy before Apache Cassandra: the embedded node is not ScyllaDB.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cassandra.metadata import Murmur3Token
from sharded_proxy import SHARDS, shard_of, sharded
from waiting import patience

from penstock.local.services import Services

pytestmark = pytest.mark.slow

WORK = """
import sys, time

import cassandra
import pyarrow as pa

from penstock.cql.cql_writer import CqlWriter
from penstock.database.access import Access
from penstock.database.cql_connection import close, connection
from penstock.database.requests import RequestLimits
from penstock.database.row_fetch import RowFetch
from penstock.database.table_catalog import describe

hosts, keyspace, shards, folder = sys.argv[1:]
assert cassandra.__file__.startswith(folder), cassandra.__file__
access, users = Access(hosts), pa.table({"id": range(300), "name": [f"user {id}" for id in range(300)]})
link = connection(access)
table = describe(link.rows, f"{keyspace}.users")
while any(len(pool._connections) < int(shards) for pool in link.pages.get_pools()):
    link.pages.execute("SELECT key FROM system.local")
print("connected", flush=True)
sys.stdin.readline()
list(CqlWriter(access, (table,), "insert", 1, RequestLimits())(iter(users.to_batches())))
rows = RowFetch(access, table, ("name",), RequestLimits())
found = rows.fetch(rows.keys([users["id"].combine_chunks()])[0].to_pylist())[0]
assert found["name"].to_pylist() == users["name"].to_pylist()
close(access)
"""


def keys_of(value: bytes) -> list[bytes]:
    """The keys in a bound value; for a SELECT with IN it is a list: a count, and each key after its length."""
    return [value] if len(value) == 4 else [value[at + 4 : at + 8] for at in range(4, len(value), 8)]


def test_requests_go_to_the_shard_of_their_partition(
    services: Services, cql: Any, keyspace: str, tmp_path: Path
) -> None:
    package = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path / "driver")]
    subprocess.run([*package, "scylla-driver==3.29.12"], check=True, timeout=patience(300))
    cql.execute(f"CREATE TABLE {keyspace}.users (id int PRIMARY KEY, name text)")
    with sharded(services.cql) as node:
        words = [f"127.0.0.1:{node.port}", keyspace, str(SHARDS), str(tmp_path)]
        environment = os.environ | {"PYTHONPATH": str(tmp_path / "driver")}
        with subprocess.Popen(
            [sys.executable, "-c", WORK, *words],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout and process.stdout.readline() == "connected\n"
            node.asked.clear()
            process.communicate("\n", timeout=patience(120))
        assert process.returncode == 0
    for shard, values in node.asked:
        assert {shard_of(Murmur3Token.hash_fn(key)) for value in values for key in keys_of(value)} == {shard}
    assert {shard for shard, _ in node.asked} == set(range(SHARDS))
    asked = [struct.unpack(">i", key)[0] for _, values in node.asked for value in values for key in keys_of(value)]
    assert sorted(asked) == sorted([*range(300), *range(300)])
