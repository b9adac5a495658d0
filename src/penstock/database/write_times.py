"""Which write times and times to live a database reports.

Of values in one cell, all databases tell them, but not of counters; of the elements of collections and the fields of
user types, Cassandra since 5.0, and ScyllaDB since 2026, but not of lists. Whether a row was inserted, or only its
columns were updated, and when, only a Cassandra with our plugin tells.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar, cast

from cassandra import InvalidRequest
from cassandra.protocol import SyntaxException

from penstock.database.access import Access
from penstock.database.cql_connection import connection
from penstock.database.cql_types import Column, CqlTable
from penstock.database.retrying import retrying
from penstock.database.table_catalog import base_name, quoted

T = TypeVar("T")

_known: dict[tuple[str, Access, str, tuple[str, ...]], object] = {}
"""What was found, as long as the process lives, by what was asked, the cluster, the table and its columns' types."""

MARKED = "ROWS_WITH_MARKERS"
"""The plugin's function of a table in a SELECT."""


def timed_columns(access: Access, table: CqlTable, patience: timedelta) -> frozenset[str]:
    """The names of the columns outside the key whose `WRITETIME` and `TTL` can be selected.

    Raises DatabaseUnavailable if no node answers within `patience`.
    """
    return _looked_up(
        lambda: frozenset(column.name for column in table.values if _is_timed(access, table, column)),
        "looking up which write times can be read",
        access,
        table,
        patience,
    )


def _is_timed(access: Access, table: CqlTable, column: Column) -> bool:
    if not column.type.multi_cell:
        return column.type.name != "counter"
    name = quoted(column.name)
    return _is_prepared(access, f"SELECT WRITETIME({name}), TTL({name}) FROM {base_name(table)}")


def rows_with_markers(access: Access, table: CqlTable, patience: timedelta) -> str | None:
    """What a SELECT reads from so that two columns follow, when each row was inserted and when that expires.

    In microseconds and seconds since 1970; None if the database does not tell. Raises DatabaseUnavailable if no node
    answers within `patience`.
    """
    source = f"{MARKED}({base_name(table)})"
    is_known = _looked_up(
        lambda: _is_prepared(access, f"SELECT {quoted(table.partition_key[0].name)} FROM {source}"),
        "looking up whether row markers can be read",
        access,
        table,
        patience,
    )
    return source if is_known else None


def _looked_up(look: Callable[[], T], what: str, access: Access, table: CqlTable, patience: timedelta) -> T:
    """What `look` finds, which is asked once in a process: each range of a table is read with it."""
    key = (what, access, base_name(table), tuple(f"{column.name} {column.type}" for column in table.values))
    if key not in _known:
        where = f"{table.full_name} at {access.hosts}"
        _known[key] = retrying(look, what=what, where=where, patience=patience)
    return cast(T, _known[key])


def _is_prepared(access: Access, text: str) -> bool:
    try:
        connection(access).pages.prepare(text)
    except (InvalidRequest, SyntaxException):
        return False
    return True
