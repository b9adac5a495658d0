"""Clients of others against the node with the change log: each makes the same log, and reads what the others read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

import cql_peers
import pytest
from keyspaces import new_keyspace
from waiting import PATIENCE

from penstock.local.services import Services

Peer = Callable[[str, Iterable[str]], list[str]]
PEERS: dict[str, Peer] = {"Java": cql_peers.java, "Go": cql_peers.gocql, "cqlsh": cql_peers.cqlsh}
IMAGES = "{{'enabled': true, 'preimage': 'full', 'postimage': true}}"
STATEMENTS = [
    f"CREATE TABLE {{t}} (k int, c int, v text, s set<int>, PRIMARY KEY (k, c)) WITH cdc = {IMAGES}",
    "INSERT INTO {t} (k, c, v, s) VALUES (1, 1, 'ä', {{1, 2}}) USING TTL 3600",
    "UPDATE {t} SET v = null, s = s - {{1}} WHERE k = 1 AND c = 1",
    "BEGIN BATCH INSERT INTO {t} (k, c) VALUES (1, 2); DELETE FROM {t} WHERE k = 1 AND c = 1; APPLY BATCH",
    "INSERT INTO {t} (k, c, v) VALUES (2, 1, 'x') IF NOT EXISTS",
    "DELETE FROM {t} WHERE k = 1 AND c > 1",
    "ALTER TABLE {t} ADD w int",
    "UPDATE {t} SET w = 5 WHERE k = 2 AND c = 1",
]
LOG = "SELECT JSON * FROM {t}_scylla_cdc_log"


def rows(texts: Iterable[str]) -> list[dict[str, Any]]:
    """Rows of a log in the order they were written in, without what differs from run to run."""
    found: list[dict[str, Any]] = [json.loads(text) for text in texts]
    found.sort(key=lambda row: (_ticks(row.pop("cdc$time")), row["cdc$batch_seq_no"]))
    for row in found:
        assert re.fullmatch("0x[0-9a-f]{32}", row.pop("cdc$stream_id"))
    return found


def _ticks(uuid: str) -> int:
    low, mid, high = uuid.split("-")[:3]
    return int(high[1:] + mid + low, 16)


@pytest.mark.slow
def test_scylladbs_library_for_go_reads_the_log(services: Services, cql: Any) -> None:
    """It reads partitions side by side and a change's images apart, so the order of rows is not compared."""
    with new_keyspace(cql, "drivers") as keyspace:
        table = f"{keyspace}.read"
        for statement in STATEMENTS:
            cql.execute(statement.format(t=table), timeout=PATIENCE)
        expected = rows(text for (text,) in cql.execute(LOG.format(t=table)))
        found = cql_peers.cdcgo(services.cql, table, len(expected))
        # The library gives its own columns apart from the values.
        columns = ["cdc$operation", *(name for name in expected[0] if not name.startswith("cdc$")), "cdc$deleted_v"]
        assert columns[1:6] == ["c", "k", "s", "v", "w"]
        assert ordered(found, columns) == ordered(expected, columns)


def ordered(found: Iterable[dict[str, Any]], columns: list[str]) -> list[str]:
    return sorted(json.dumps([row[column] for column in columns]) for row in found)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", PEERS)
def test_a_client_makes_and_reads_the_log_that_the_python_driver_does(name: str, services: Services, cql: Any) -> None:
    with new_keyspace(cql, "drivers") as keyspace:
        ours, theirs = f"{keyspace}.ours", f"{keyspace}.theirs"
        for statement in STATEMENTS:
            cql.execute(statement.format(t=ours), timeout=PATIENCE)
        expected = rows(text for (text,) in cql.execute(LOG.format(t=ours)))
        found = PEERS[name](services.cql, [text.format(t=theirs) for text in [*STATEMENTS, LOG]])
        assert {row["cdc$operation"] for row in expected} >= {0, 1, 2, 3, 6, 9}
        assert rows(found) == expected
        # Its log, read by the driver here, is what it read itself.
        assert rows(text for (text,) in cql.execute(LOG.format(t=theirs))) == expected
