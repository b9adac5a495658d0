"""A connection to PostgreSQL whose errors say what happened and whether a retry can help."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from adbc_driver_postgresql import dbapi

from penstock.errors import PenstockError
from penstock.spark_runtime.failures import Unavailable

# Transient SQLSTATE classes and codes: no connection, no resources, the server stops or starts, a lost race, a standby.
# https://www.postgresql.org/docs/current/errcodes-appendix.html
PASSING = ("08", "53", "57P", "58030", "40001", "40P01", "55P03", "25006")
# libpq's errors for a wrong address or user, which a retry does not fix; without a connection there is no SQLSTATE.
MISTAKEN = re.compile(
    r"Failed to connect: .*(?:(?:database|role) \".*\" does not exist|password authentication failed"
    r"|no password supplied|no pg_hba\.conf entry|certificate|does not support SSL|connection option"
    r"|\bURI\b|percent-encoded|invalid \S+ value: )"
)
# After these words libpq shows the part of the url that it could not parse, which may contain a password.
SECRET = re.compile(r"(Failed to connect: .*?(?: in URI\b(?! query)| spaces found|percent-encoded (?:token|value))).*")
# Results by COPY only pay off for many rows, and some statements refuse them.
NO_COPY = {"adbc.postgresql.use_copy": "false"}


class Session:
    """A session with one open transaction after another; created by `connected`."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def run(self, statement: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(statement)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.adbc_statement.set_options(**NO_COPY)
            cursor.execute(query)
            return [tuple(row) for row in cursor.fetchall()]

    def copy(self, schema: str, table: str, batches: pa.RecordBatchReader) -> int:
        """Append these rows by binary COPY; returns their number."""
        with self._connection.cursor() as cursor:
            return int(cursor.adbc_ingest(table, batches, mode="append", db_schema_name=schema))

    def commit(self) -> None:
        self._connection.commit()

    def rollback(self) -> None:
        self._connection.rollback()


@contextmanager
def connected(url: str, where: str) -> Iterator[Session]:
    """A session that ends with the block and rolls back uncommitted changes. `where` is for errors."""
    try:
        with dbapi.connect(url) as connection:
            yield Session(connection)
    except dbapi.Error as error:
        raise failure(error, where) from (None if SECRET.search(str(error)) else error)


def literal(text: str) -> str:
    """The string as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def failure(error: Any, where: str) -> PenstockError:
    """The driver's error as a PenstockError. No SQLSTATE means no connection: transient unless `url` is wrong."""
    message = said(str(error))
    state = error.sqlstate or ""
    if is_mistaken(error):
        step = "fix url= or libpq's environment (PGPASSWORD, sslmode), or create what is missing"
        return PenstockError(f"PostgreSQL cannot be reached with this url: {message}", where=where, next=step)
    if is_passing(error):
        step = "check its log" if state else "check that PostgreSQL runs at the address of url=, then its log"
        return Unavailable(f"PostgreSQL is unavailable or out of resources: {message}", where=where, next=step)
    step = "grant the user this right" if state == "42501" else "fix the data or the table; nothing was written"
    return PenstockError(f"PostgreSQL refused: {message}", where=where, next=step)


def is_mistaken(error: Any) -> bool:
    """Whether the driver's error is that it cannot connect with this address or user."""
    return not error.sqlstate and bool(MISTAKEN.search(str(error)))


def is_passing(error: Any) -> bool:
    """Whether the driver's error can end by itself."""
    state = error.sqlstate or ""
    return state.startswith(PASSING) if state else not is_mistaken(error)


def said(text: str) -> str:
    """The server's message, without the driver's words and the statement."""
    first = SECRET.sub(r"\1", text.split("\n\nQuery was:")[0].strip())
    match = re.search(r"(?:ERROR|FATAL|PANIC):\s+(.*)", first) or re.search(r"\[libpq\]\s+(.*)", first)
    details = re.findall(r"^(DETAIL|CONTEXT):\s+(.*)$", first, re.MULTILINE)
    return " ".join([match[1] if match else first, *(f"({text})" for _, text in details)])
