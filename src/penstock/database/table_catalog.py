"""Describes tables from the database's schema tables, and quotes names for CQL."""

from __future__ import annotations

import re
from typing import Any

from penstock.errors import PenstockError
from penstock.schema import Column, CqlTable, Udts, parse_type

_NAME = re.compile(r'(\w+|"(?:[^"]|"")+")\.(\w+|"(?:[^"]|"")+")')


def split_name(name: str) -> tuple[str, str]:
    """Split "ks.table" into keyspace and table; a name in double quotes keeps its case.

    Raises PenstockError if it is not the name of a table.
    """
    match = _NAME.fullmatch(name.strip())
    if not match:
        raise PenstockError(
            f"{name!r} is not the name of a table", next='write it as "keyspace.table", quoted where CQL needs quotes'
        )
    return _plain(match[1]), _plain(match[2])


def _plain(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def base_name(table: CqlTable) -> str:
    """The full name of the table, quoted for CQL."""
    return f"{quoted(table.keyspace)}.{quoted(table.name)}"


def describe(session: Any, name: str) -> CqlTable:
    """The table `name` ("keyspace.table") with its columns.

    Raises PenstockError if it does not exist.
    """
    keyspace, table = split_name(name)
    rows = _columns(session, keyspace, table)
    if not rows:
        raise PenstockError(f"there is no table {keyspace}.{table}", next=_others(session, keyspace))
    udts = _udts(session, keyspace)
    columns = [Column(column, parse_type(kind, udts), role, position) for column, kind, role, position in rows]
    return CqlTable(keyspace, table, tuple(sorted(columns, key=lambda c: c.name.encode())))


def table_names(session: Any, keyspace: str) -> set[str]:
    rows = session.execute("SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s", (keyspace,))
    return {name for (name,) in rows}


def _others(session: Any, keyspace: str) -> str:
    names = sorted(table_names(session, keyspace))
    if names:
        return f"run CREATE TABLE, or use one of the tables in {keyspace}: {', '.join(names[:10])}"
    return f"check the name: keyspace {keyspace} does not exist or is empty"


def _columns(session: Any, keyspace: str, table: str) -> list[tuple[str, str, str, int]]:
    return list(
        session.execute(
            "SELECT column_name, type, kind, position FROM system_schema.columns "
            "WHERE keyspace_name = %s AND table_name = %s",
            (keyspace, table),
        )
    )


def _udts(session: Any, keyspace: str) -> Udts:
    rows = session.execute(
        "SELECT type_name, field_names, field_types FROM system_schema.types WHERE keyspace_name = %s", (keyspace,)
    )
    return {name: (tuple(fields), tuple(kinds)) for name, fields, kinds in rows}
