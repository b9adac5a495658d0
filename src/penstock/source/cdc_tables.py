"""Finding a table and its change log in the database's own schema tables."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

from penstock.database.tables import describe, quoted, split_name, table_names
from penstock.errors import PenstockError
from penstock.schema import LOG_SUFFIX, Table


def log_name(table: Table) -> str:
    """The table's log as CQL names it."""
    return f"{quoted(table.keyspace)}.{quoted(table.log_name)}"


def find_table(session: Any, name: str) -> Table:
    """The table `name` with its columns and CDC options; refuses one that does not exist or has no change log."""
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
        return f"tables with a change log in {keyspace}: {', '.join(logged[:10])}"
    return f"keyspace {keyspace} " + ("has no table with a change log" if names else "does not exist or is empty")


def cdc_options(blob: bytes) -> dict[str, str]:
    """The table option `cdc` as ScyllaDB serialises it: a count, then keys and values, each behind its length.

    All numbers are 32-bit little-endian.
    """
    texts: list[str] = []
    at = 4
    for _ in range(2 * struct.unpack_from("<I", blob)[0] if blob else 0):
        (length,) = struct.unpack_from("<I", blob, at)
        texts.append(blob[at + 4 : at + 4 + length].decode())
        at += 4 + length
    return dict(zip(texts[::2], texts[1::2], strict=True))
