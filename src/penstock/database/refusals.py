"""Why a database refused a request: its table has changed, or a value is not valid.

The database's answer is the same for both, so the table is described again. If it has changed, a restart helps; a value
that is not valid would fail again.
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
    """The error to raise: SchemaChanged if the table has changed, else PenstockError.

    Without a single `table`, preparing the `statements` shows whether something has changed.
    """
    changed = retrying(
        lambda: _changed(connection(access), table, statements),
        what="describing the table",
        where=where,
        patience=patience,
    )
    if changed:
        return SchemaChanged(
            f"{what} failed, the table has changed since the query was built: {error}",
            where=where,
            next="restart the query: it checks the table again",
        )
    return PenstockError(
        f"{what} failed, the database refuses a value: {error}",
        where=where,
        next="filter these rows out, or change the value to one that the database accepts",
    )


def _changed(link: CqlConnection, table: CqlTable | None, statements: Iterable[str]) -> bool:
    # A node that does not know of a schema change yet would report the old table.
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
