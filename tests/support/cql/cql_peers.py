"""CQL clients of others: DataStax's Java driver, gocql and cqlsh, each running statements and reading rows as JSON.

Beside them ScyllaDB's library for Go, which reads a change log.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from java_kafka import jvm_with
from waiting import patience

from penstock.local import jars

GO = Path(__file__).parent
PATIENCE = patience(300)


def java(address: str, statements: Iterable[str]) -> list[str]:
    """The first columns of all rows that DataStax's Java driver 3 gets."""
    host, port = address.split(":")
    with jvm_with(jars.fetch("cassandra")) as jvm:
        cluster = jvm.com.datastax.driver.core.Cluster.builder().withPort(int(port)).withoutJMXReporting()
        points = jvm.java.util.ArrayList()
        points.add(jvm.java.net.InetSocketAddress(host, int(port)))
        driver = cluster.addContactPointsWithPorts(points).build()
        try:
            session = driver.connect()
            return [row.getString(0) for text in statements for row in session.execute(text).all() if row_of_text(row)]
        finally:
            driver.close()


def row_of_text(row: object) -> bool:
    """Not the answer of a conditional write."""
    return bool(row.getColumnDefinitions().getType(0).getName().toString() in ("varchar", "text"))  # type: ignore[attr-defined]


def gocql(address: str, statements: Iterable[str]) -> list[str]:
    """The first columns of all rows that gocql gets."""
    done = _run([str(_built("gocql")), *address.split(":")], "\n".join(statements))
    return [json.loads(line)[0] for line in done.splitlines()]


def cdcgo(address: str, table: str, rows: int) -> list[dict[str, Any]]:
    """The first rows of a log by scylla-cdc-go, which waits until there are so many."""
    done = _run([str(_built("cdcgo")), *address.split(":"), table, str(rows)], "")
    return [json.loads(line) for line in done.splitlines()]


def cqlsh(address: str, statements: Iterable[str]) -> list[str]:
    """The lines of cqlsh's output that are JSON.

    Queries run in a shell of their own: cqlsh looks tables up in what its driver knows, and the driver hears of a log
    some time after its table was made.
    """
    texts = list(statements)
    queries = [text for text in texts if text.startswith("SELECT")]
    _shell(address, [text for text in texts if text not in queries])
    lines = (line.strip() for line in _shell(address, ["PAGING OFF", *queries]).splitlines())
    return [line for line in lines if line.startswith("{")]


def _shell(address: str, statements: Iterable[str]) -> str:
    command = [str(Path(sys.executable).with_name("cqlsh")), *address.split(":"), "--request-timeout=60"]
    return _run(command, "".join(f"{text};\n" for text in statements))


def _run(command: list[str], text: str) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _built(name: str) -> Path:
    """A Go program, compiled once for its sources."""
    if not shutil.which("go"):
        pytest.skip(f"{name} needs Go, not on this machine")
    folder = GO / name
    sources = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
    program = jars.cache() / "go" / hashlib.sha256(sources).hexdigest()[:12]
    if not program.exists():
        subprocess.run(["go", "build", "-o", str(program), "."], cwd=folder, timeout=PATIENCE, check=True)
    return program
