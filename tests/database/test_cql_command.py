"""`penstock cql` as a process, on a real database: statements from everywhere, and a prompt on a terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cassandra.cluster import Session
from waiting import PATIENCE

from penstock.local.services import Services


@pytest.fixture(scope="module")
def table(cql: Session, keyspace: str) -> Iterator[str]:
    cql.execute(
        f"CREATE TABLE {keyspace}.kinds (id int PRIMARY KEY, note text, at timestamp, data blob, tags set<text>)"
    )
    cql.execute(
        f"INSERT INTO {keyspace}.kinds (id, note, at, data, tags)"
        " VALUES (1, 'a;b\x1b[31m', '2026-11-20T10:00:00Z', 0x00ff, {'x', 'y'})"
    )
    cql.execute(f"INSERT INTO {keyspace}.kinds (id) VALUES (2)")
    yield f"{keyspace}.kinds"


def penstock(services: Services, *words: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", "cql", "--hosts", services.cql, *words]
    return subprocess.run(command, input=given or "", capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_rows_are_aligned_and_safe_for_a_terminal(services: Services, table: str) -> None:
    ran = penstock(services, f"SELECT id, note, at, data, tags FROM {table} WHERE id IN (1, 2)")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == [
        "id  note         at                   data    tags",
        r"1   a;b\x1b[31m  2026-11-20T10:00:00  0x00ff  ['x', 'y']",
        "2   null         null                 null    null",
        "(2 rows)",
    ]


def test_json_has_an_object_per_row(services: Services, table: str) -> None:
    ran = penstock(services, "--json", given=f"SELECT * FROM {table} WHERE id = 1; -- nothing more; here")
    assert json.loads(ran.stdout) == {
        "id": 1,
        "at": "2026-11-20T10:00:00",
        "data": "0x00ff",
        "note": "a;b\x1b[31m",
        "tags": ["x", "y"],
    }


@pytest.mark.slow
def test_a_file_is_executed_up_to_its_first_error(services: Services, table: str, tmp_path: Path) -> None:
    file = tmp_path / "some.cql"
    file.write_text(
        f"/* two rows; */ INSERT INTO {table} (id) VALUES (3);\n"
        f"BEGIN BATCH INSERT INTO {table} (id) VALUES (4); INSERT INTO {table} (id) VALUES (5); APPLY BATCH;\n"
        f"SELEKT 1; INSERT INTO {table} (id) VALUES (6);"
    )
    ran = penstock(services, "--file", str(file))
    assert ran.returncode == 1
    assert "the database refuses the request" in ran.stderr and "SELEKT 1" in ran.stderr
    found = penstock(services, f"SELECT id FROM {table} WHERE id IN (3, 4, 5, 6)", "--json")
    assert [json.loads(line)["id"] for line in found.stdout.splitlines()] == [3, 4, 5]
    missing = penstock(services, "--file", str(tmp_path / "none.cql"))
    assert missing.returncode == 1 and "the file cannot be read" in missing.stderr


def test_describe_shows_statements(services: Services, table: str) -> None:
    keyspace, _, name = table.partition(".")
    ran = penstock(services, "--keyspace", keyspace, f"DESCRIBE TABLE {name}")
    assert f"CREATE TABLE {table} (" in ran.stdout


def test_wrong_addresses_are_told(services: Services) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "penstock", "cql", "USE a", "--hosts", "127.0.0.1:1"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ran.returncode == 1 and "the database does not answer" in ran.stderr
    assert "Next: check the address" in ran.stderr and "Traceback" not in ran.stderr


def test_a_prompt_takes_statements_over_several_lines(services: Services, table: str) -> None:
    """What is typed at a terminal; an error does not end it."""
    own, others = pty.openpty()
    command = [sys.executable, "-m", "penstock", "cql", "--hosts", services.cql]
    process = subprocess.Popen(command, stdin=others, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    os.close(others)
    os.write(own, f"SELEKT 1;\nhelp\nSELECT id\nFROM {table}\nWHERE id = 2;\nexit\n".encode())
    out, said = process.communicate(timeout=PATIENCE)
    os.close(own)
    text = out.decode()
    assert process.returncode == 0
    assert "DESCRIBE KEYSPACES" in text
    assert "(1 row)" in text
    assert b"the database refuses the request" in said
