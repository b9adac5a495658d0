"""One transaction of PostgreSQL that goes on after a statement is refused, and whose statements take arrays of text.

The driver's own transactions end with the first error, so it commits each statement by itself here, and BEGIN,
savepoints and COMMIT are statements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import pyarrow as pa
from adbc_driver_postgresql import dbapi

from penstock.connect.sinks.jdbc.properties import JdbcSettings
from penstock.errors import PenstockError
from penstock.postgres.postgres_session import NO_COPY, is_mistaken, is_passing, said
from penstock.process.signals import pause
from penstock.spark_runtime.failures import Unavailable

OF_ROWS = ("21", "22", "23", "428C9", "44", "54", "P0001")
"""Classes and codes of SQLSTATE that are about rows: their values, constraints, sizes, values for a column that
PostgreSQL computes, and what triggers raise.

https://www.postgresql.org/docs/current/errcodes-appendix.html
"""
Columns: TypeAlias = pa.RecordBatch
"""The arguments of a statement: each is an array of text."""


class RefusedStatement(Exception):
    """A statement that PostgreSQL refuses because of its rows; the message is its reason."""


class NoLogin(PenstockError):
    """PostgreSQL does not take the address, the user or the password."""


def arrays(columns: Sequence[Sequence[str | None]]) -> Columns:
    """The arguments of a statement."""
    kind = pa.list_(pa.string())
    return pa.record_batch({str(place): pa.array([texts], kind) for place, texts in enumerate(columns)})


class Transaction:
    """An open transaction; it is rolled back unless `commit` is called."""

    def __init__(self, url: str, place: str) -> None:
        self._place = place
        with self._errors():
            self._connection = dbapi.connect(url, autocommit=True)
        self.run("BEGIN")
        # Else the row that breaks one is not known before the commit.
        self.run("SET CONSTRAINTS ALL IMMEDIATE")

    def run(self, statement: str, columns: Columns | None = None) -> None:
        """Execute a statement; raises RefusedStatement, or PenstockError."""
        with self._errors(), self._connection.cursor() as cursor:
            cursor.adbc_statement.set_options(**NO_COPY)
            cursor.execute(statement, columns)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with self._errors(), self._connection.cursor() as cursor:
            cursor.adbc_statement.set_options(**NO_COPY)
            cursor.execute(query)
            return [tuple(row) for row in cursor.fetchall()]

    def tried(self, statement: str, columns: Columns) -> str | None:
        """Execute a statement, or undo it and return the reason why it is refused."""
        self.run("SAVEPOINT tried")
        reason = None
        try:
            self.run(statement, columns)
        except RefusedStatement as error:
            reason = str(error)
            self.run("ROLLBACK TO SAVEPOINT tried")
        # Also of a refused one: savepoints that stay make all that follows slower.
        self.run("RELEASE SAVEPOINT tried")
        return reason

    def commit(self) -> None:
        self.run("COMMIT")

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except dbapi.Error as error:
            raise self._failure(error) from None

    def _failure(self, error: Any) -> Exception:
        message, state = said(str(error)), error.sqlstate or ""
        if is_mistaken(error):
            return NoLogin(
                f"PostgreSQL cannot be reached as configured: {message}",
                where=self._place,
                next="correct connection.url, connection.user and connection.password, or create what is missing",
            )
        if is_passing(error):
            return Unavailable(
                f"PostgreSQL is unavailable, or another transaction was in the way: {message}",
                where=self._place,
                next="check that it runs at the address of connection.url, then its log",
            )
        if state.startswith(OF_ROWS):
            return RefusedStatement(message)
        step = "grant the user this right" if state == "42501" else "correct the table or the configuration"
        return PenstockError(f"PostgreSQL refuses a statement: {message}", where=self._place, next=step)


def opened(settings: JdbcSettings) -> Transaction:
    """A transaction, after as many attempts to connect as configured."""
    for _ in range(settings.attempts - 1):
        try:
            return Transaction(settings.url, settings.place)
        except Unavailable:
            pause(settings.attempt_pause)
    return Transaction(settings.url, settings.place)
