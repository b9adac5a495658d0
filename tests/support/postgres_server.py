"""A PostgreSQL server of a test's own, and what lies in one."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.errors import PenstockError
from penstock.postgres.postgres_session import connected


@contextmanager
def require_postgres() -> Iterator[None]:
    """Skip the test, with the reason, where no server is installed."""
    try:
        yield
    except PenstockError as error:
        if "No PostgreSQL server is installed" not in str(error):
            raise
        pytest.skip(str(error))


@contextmanager
def new_table(url: str, columns: str) -> Iterator[str]:
    """A new table with these columns, dropped afterwards; its name."""
    name = f"test_{uuid.uuid4().hex[:8]}"
    execute(url, f"CREATE TABLE {name} ({columns})")
    yield name
    execute(url, f"DROP TABLE {name} CASCADE")


def execute(url: str, *statements: str) -> None:
    with connected(url, "a test") as session:
        for statement in statements:
            session.run(statement)
        session.commit()


def query(url: str, text: str) -> list[tuple[Any, ...]]:
    with connected(url, "a test") as session:
        return session.rows(text)
