"""Each vector of cdc_log.json on a real node: statements through the Python driver, then the whole log compared.

PENSTOCK_VECTORS names a folder whose file of the same name runs instead.
"""

from __future__ import annotations

import re
import time
import uuid
from dataclasses import dataclass
from typing import Any

import cassandra
import pytest
from cassandra.cluster import Session
from cassandra.protocol import ConfigurationException
from log_rows import expected_rows, found_rows, matching, partitions

VECTORS = "cdc_log.json"
IMPOSSIBLE = {"scylla-row-ttl": "the per-row TTL is syntax and a background process of ScyllaDB that Cassandra has not"}
ERRORS = {
    "ConfigurationException": ConfigurationException,
    "InvalidRequest": cassandra.InvalidRequest,
    "Unauthorized": cassandra.Unauthorized,
}
SUFFIX = "_scylla_cdc_log"

Vector = dict[str, Any]


@dataclass(frozen=True)
class Keyspace:
    """A keyspace of a vector's own, which the vector calls ks: to make one is faster than to drop one."""

    node: Session
    name: str

    def execute(self, statement: str, values: tuple[Any, ...] | None = None) -> Any:
        return self.node.execute(self.own(statement), values)

    def own(self, text: str) -> str:
        """The text with this keyspace's name."""
        return re.sub(r"(?<!\w)ks(?=\.|')", self.name, text)


@pytest.fixture
def keyspace(node: Session) -> Keyspace:
    name = f"log_{uuid.uuid4().hex[:8]}"
    node.execute(f"CREATE KEYSPACE {name} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}")
    return Keyspace(node, name)


def test_vector(keyspace: Keyspace, vector: Vector) -> None:
    base_time = time.time_ns() // 1000 - 2_000_000
    run(keyspace, vector, base_time)
    table = first_table(vector)
    if table is None or not exists(keyspace, table + SUFFIX):
        assert vector["expect_log"] == []
        return
    check_rows(keyspace, table, vector["expect_log"], base_time)
    for other, rows in vector.get("expect_log_other", {}).items():
        check_rows(keyspace, other, rows, base_time)
    if "expect_log_schema" in vector:
        assert log_schema(keyspace, table) == vector["expect_log_schema"]
    if "expect_log_options" in vector:
        check_options(keyspace, table, vector["expect_log_options"])
    if "expect_cell_ttl" in vector:
        check_cell_ttl(keyspace, table, vector["expect_cell_ttl"])


def run(node: Keyspace, vector: Vector, base_time: int) -> None:
    """Run all statements; an expected error must come from the named statement."""
    for statement in vector["ddl"]:
        node.execute(statement)
    failing = vector.get("expect_error")
    for number, statement in enumerate(vector["statements"]):
        assert not statement.startswith("--"), f"no way to do: {statement}"
        if failing and number == failing["statement"]:
            with pytest.raises(ERRORS[failing["class"]], match=re.escape(failing["message_contains"])):
                node.execute(timed(statement, base_time))
        else:
            node.execute(timed(statement, base_time))


def timed(statement: str, base_time: int) -> str:
    """The statement with {T}, {T+n} and {T-n} as microseconds."""
    return re.sub(r"\{T([+-]\d+)?\}", lambda found: str(base_time + int(found[1] or 0)), statement)


def first_table(vector: Vector) -> str | None:
    """The name of the first table that the vector creates."""
    for statement in [*vector["ddl"], *vector["statements"]]:
        created = re.match(r'CREATE TABLE (?:IF NOT EXISTS )?ks\.("?)(\w+)\1', statement)
        if created:
            return created[2]
    return None


def columns(node: Keyspace, table: str) -> list[dict[str, Any]]:
    query = "SELECT * FROM system_schema.columns WHERE keyspace_name = 'ks' AND table_name = %s"
    return sorted(node.execute(query, (table,)), key=lambda column: column["position"])


def exists(node: Keyspace, table: str) -> bool:
    return bool(columns(node, table))


def check_rows(node: Keyspace, table: str, expected: list[dict[str, Any]], base_time: int) -> None:
    key = [column["column_name"] for column in columns(node, table) if column["kind"] == "partition_key"]
    rows = list(node.execute(f'SELECT * FROM ks."{table}{SUFFIX}"'))
    wanted = expected_rows(expected)
    found = found_rows(rows, base_time, list(partitions(expected, key)), key)
    assert matching(found, wanted) == wanted


def log_schema(node: Keyspace, table: str) -> dict[str, str]:
    return {column["column_name"]: described(column) for column in columns(node, table + SUFFIX)}


def described(column: dict[str, Any]) -> str:
    """A column's type and its position in the key."""
    if column["kind"] == "partition_key":
        return f"{column['type']} (partition key)"
    if column["kind"] == "clustering":
        return f"{column['type']} (clustering {column['position'] + 1}, {column['clustering_order'].upper()})"
    return str(column["type"])


def check_options(node: Keyspace, table: str, expected: dict[str, Any]) -> None:
    query = "SELECT * FROM system_schema.tables WHERE keyspace_name = 'ks' AND table_name = %s"
    (found,) = node.execute(query, (table + SUFFIX,))
    wanted = {name: node.own(value) if isinstance(value, str) else value for name, value in expected.items()}
    assert {name: option(found, name) for name in expected} == wanted


def option(table: dict[str, Any], name: str) -> Any:
    """A table option as in the vectors: `compaction.x` of a map, the short name of a class, caching on or off."""
    if name == "caching":
        return "disabled" if set(table["caching"].values()) == {"NONE"} else "enabled"
    if "." not in name:
        return table[name]
    first, second = name.split(".")
    value = table[first].get(second)
    return value.rpartition(".")[2] if second == "class" else value


def check_cell_ttl(node: Keyspace, table: str, expected: dict[str, int] | None) -> None:
    """Check the TTL of each log cell that is not part of the key."""
    names = [column["column_name"] for column in columns(node, table + SUFFIX) if column["kind"] == "regular"]
    for name in names:
        for row in node.execute(f'SELECT "{name}" AS value, TTL("{name}") AS ttl FROM ks."{table}{SUFFIX}"'):
            if row["value"] is None:
                continue
            if expected is None:
                assert row["ttl"] is None, name
            else:
                assert expected["min"] <= row["ttl"] <= expected["max"], name
