"""Why a database refuses a request: its table is not what it was, or a value is none that it takes.

The answer is the same for both. So the table is described anew: a changed one is built for by a restart, which a value
that comes again would not outlive.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from cassandra import InvalidRequest

from penstock.database.access import Access
from penstock.database.cql_connection import CqlConnection, connection
from penstock.database.retrying import retrying
from penstock.database.table_catalog import base_name, describe
from penstock.errors import PenstockError, SchemaChanged
from penstock.schema import CqlTable


def refusal(
    error: InvalidRequest,
    access: Access,
    table: CqlTable | None,
    statements: Iterable[str],
    *,
    what: str,
    where: str,
    patience: timedelta,
) -> PenstockError:
    """The error to raise; where no one `table` is written or read, its `statements` tell whether something changed."""
    changed = retrying(
        lambda: _changed(connection(access), table, statements),
        what="describing the table",
        where=where,
        patience=patience,
    )
    if changed:
        return SchemaChanged(
            f"{what} failed, the table is not what it was when the query was built: {error}",
            where=where,
            next="restart the query: it checks the table again",
        )
    return PenstockError(
        f"{what} failed, the database refuses a value: {error}",
        where=where,
        next="filter such rows out, or make the value one that the database takes",
    )


def _changed(link: CqlConnection, table: CqlTable | None, statements: Iterable[str]) -> bool:
    # A node that has not heard of a change yet would say that there is none.
    link.cluster.control_connection.wait_for_schema_agreement()
    if table is None:
        return not all(_prepares(link, text) for text in statements)
    try:
        return describe(link.rows, base_name(table)).columns != table.columns
    except PenstockError:
        return True


def _prepares(link: CqlConnection, text: str) -> bool:
    try:
        link.pages.prepare(text)
    except InvalidRequest:
        return False
    return True
