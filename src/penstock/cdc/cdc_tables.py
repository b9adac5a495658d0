"""Finds a table and its change log in the database's schema tables."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from penstock.database.table_catalog import describe, quoted, split_name, table_names
from penstock.errors import PenstockError
from penstock.schema import LOG_SUFFIX, CqlTable


def log_name(table: CqlTable) -> str:
    """The full name of the table's log, quoted for CQL."""
    return f"{quoted(table.keyspace)}.{quoted(table.log_name)}"


def find_table(session: Any, name: str) -> CqlTable:
    """The table `name` with its columns and CDC options.

    Raises PenstockError if the table does not exist or has no change log.
    """
    keyspace, table = split_name(name)
    of_table = "FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s"
    found = session.execute(f"SELECT extensions, WRITETIME(extensions) {of_table}", (keyspace, table)).one()
    names = table_names(session, keyspace)
    if found is None:
        raise PenstockError(f"there is no table {keyspace}.{table}", next=_suggest(names, keyspace))
    if table + LOG_SUFFIX not in names:
        raise PenstockError(
            f"table {keyspace}.{table} has no change log",
            next=f"ALTER TABLE {keyspace}.{table} WITH cdc = {{'enabled': true}}",
        )
    options = cdc_options((found[0] or {}).get("cdc", b""))
    log = session.execute(f"SELECT id {of_table}", (keyspace, table + LOG_SUFFIX)).one()
    made = describe(session, name)
    return replace(made, cdc=tuple(sorted(options.items())), log=str(log[0]) if log else "", altered=found[1] or 0)


def _suggest(names: set[str], keyspace: str) -> str:
    logged = sorted(name for name in names if name + LOG_SUFFIX in names)
    if logged:
        return f"use one of the tables with a change log in {keyspace}: {', '.join(logged[:10])}"
    found = "has no table with a change log" if names else "does not exist or is empty"
    return f"check the name: keyspace {keyspace} {found}"


def cdc_options(blob: bytes) -> dict[str, str]:
    """Parse the table option `cdc` as ScyllaDB serialises it.

    The bytes are a count, then keys and values, each after its length; all numbers are 32-bit little-endian.
    """
    texts: list[str] = []
    at = 4
    for _ in range(2 * struct.unpack_from("<I", blob)[0] if blob else 0):
        (length,) = struct.unpack_from("<I", blob, at)
        texts.append(blob[at + 4 : at + 4 + length].decode())
        at += 4 + length
    return dict(zip(texts[::2], texts[1::2], strict=True))


# Which tables of a cluster have a change log.


def expand(session: Any, names: Iterable[str]) -> list[str]:
    """Expand names and patterns with `*` and `?` to a list of tables without duplicates.

    A name stays as it is. A pattern such as `shop.*` gives the matching tables with a change log, in order of their
    names.
    """
    found: dict[str, None] = {}
    logged: list[tuple[str, str]] | None = None
    for name in names:
        if '"' in name or not set("*?") & set(name):
            found[name] = None
            continue
        if logged is None:
            logged = _logged(session)
        keyspace, table = name.lower().split(".")
        matches = (pair for pair in logged if fnmatchcase(pair[0], keyspace) and fnmatchcase(pair[1], table))
        found |= dict.fromkeys(f"{_written(pair[0])}.{_written(pair[1])}" for pair in matches)
    return list(found)


def _logged(session: Any) -> list[tuple[str, str]]:
    rows = session.execute("SELECT keyspace_name, table_name FROM system_schema.tables")
    tables = {(keyspace, table) for keyspace, table in rows}
    return sorted((keyspace, table) for keyspace, table in tables if (keyspace, table + LOG_SUFFIX) in tables)


def _written(name: str) -> str:
    """The name, quoted for CQL only if needed."""
    return name if name.isidentifier() and name == name.lower() else quoted(name)
