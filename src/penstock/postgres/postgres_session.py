"""A connection to PostgreSQL whose errors say what happened and whether trying again can help."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from adbc_driver_postgresql import dbapi

from penstock.errors import PenstockError
from penstock.query import Unavailable

# Classes and codes of SQLSTATE that pass: no connection, no room, the server stops or starts, a lost race, a standby.
# https://www.postgresql.org/docs/current/errcodes-appendix.html
PASSING = ("08", "53", "57P", "58030", "40001", "40P01", "55P03", "25006")
# What libpq says of a place or a user that will not be there later either; without a connection there is no SQLSTATE.
MISTAKEN = re.compile(
    r"Failed to connect: .*(?:(?:database|role) \".*\" does not exist|password authentication failed"
    r"|no password supplied|no pg_hba\.conf entry|certificate|does not support SSL|connection option"
    r"|\bURI\b|percent-encoded|invalid \S+ value: )"
)
# Behind these it shows what it could not read, perhaps with a password.
SECRET = re.compile(r"(Failed to connect: .*?(?: in URI\b(?! query)| spaces found|percent-encoded (?:token|value))).*")
# Results as COPY pay for many rows and are refused for some statements.
NO_COPY = {"adbc.postgresql.use_copy": "false"}


class Session:
    """One open transaction after the other; made by `connected`."""

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
        """Append these rows by binary COPY; how many there were."""
        with self._connection.cursor() as cursor:
            return int(cursor.adbc_ingest(table, batches, mode="append", db_schema_name=schema))

    def commit(self) -> None:
        self._connection.commit()

    def rollback(self) -> None:
        self._connection.rollback()


@contextmanager
def connected(url: str, where: str) -> Iterator[Session]:
    """A session that ends with the block; what was not committed is undone. `where` is for errors."""
    try:
        with dbapi.connect(url) as connection:
            yield Session(connection)
    except dbapi.Error as error:
        raise failure(error, where) from (None if SECRET.search(str(error)) else error)


def literal(text: str) -> str:
    """The text as SQL has it."""
    return "'" + text.replace("'", "''") + "'"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def failure(error: Any, where: str) -> PenstockError:
    """The driver's error in ours: without a SQLSTATE there was no connection, which passes unless `url` is wrong."""
    said = _said(str(error))
    state = error.sqlstate or ""
    if not state and MISTAKEN.search(str(error)):
        step = "correct url= or libpq's environment (PGPASSWORD, sslmode), or make what is missing"
        return PenstockError(f"PostgreSQL cannot be reached with this url: {said}", where=where, next=step)
    if not state or state.startswith(PASSING):
        return Unavailable(f"PostgreSQL is away or has no room: {said}", where=where, next="look at its log")
    step = "give the user this right" if state == "42501" else "correct the data or the table; nothing was written"
    return PenstockError(f"PostgreSQL refused: {said}", where=where, next=step)


def _said(text: str) -> str:
    """What the server said, without the driver's words around it and the statement behind."""
    first = SECRET.sub(r"\1", text.split("\n\nQuery was:")[0].strip())
    found = re.search(r"(?:ERROR|FATAL|PANIC):\s+(.*)", first) or re.search(r"\[libpq\]\s+(.*)", first)
    details = re.findall(r"^(DETAIL|CONTEXT):\s+(.*)$", first, re.MULTILINE)
    return " ".join([found[1] if found else first, *(f"({text})" for _, text in details)])
