"""Finding a table and its change log in the database's own schema tables."""

from __future__ import annotations

import re
import struct
from typing import Any

from penstock.errors import PenstockError
from penstock.schema import LOG_SUFFIX, Column, Table, Udts, parse_type

_NAME = re.compile(r'(\w+|"(?:[^"]|"")+")\.(\w+|"(?:[^"]|"")+")')


def split_name(name: str) -> tuple[str, str]:
    """Keyspace and table of "ks.table"; a name in double quotes keeps its case."""
    match = _NAME.fullmatch(name.strip())
    if not match:
        raise PenstockError(f"{name!r} names no table", next='write it as "keyspace.table", quoted where CQL wants it')
    return _plain(match[1]), _plain(match[2])


def _plain(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def log_name(table: Table) -> str:
    """The table's log as CQL names it."""
    return f"{quoted(table.keyspace)}.{quoted(table.log_name)}"


def base_name(table: Table) -> str:
    """The table itself as CQL names it."""
    return f"{quoted(table.keyspace)}.{quoted(table.name)}"


def find_table(session: Any, name: str) -> Table:
    """The table `name` with its columns and CDC options; refuses one that does not exist or has no change log."""
    keyspace, table = split_name(name)
    found = session.execute(
        "SELECT extensions FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s", (keyspace, table)
    ).one()
    if found is None:
        raise PenstockError(f"there is no table {keyspace}.{table}", next=_suggest(session, keyspace))
    if not _columns(session, keyspace, table + LOG_SUFFIX):
        raise PenstockError(
            f"table {keyspace}.{table} has no change log",
            next=f"ALTER TABLE {keyspace}.{table} WITH cdc = {{'enabled': true}}",
        )
    options = cdc_options((found[0] or {}).get("cdc", b""))
    udts = _udts(session, keyspace)
    columns = [
        Column(column, parse_type(kind, udts), role, position)
        for column, kind, role, position in _columns(session, keyspace, table)
    ]
    return Table(keyspace, table, tuple(sorted(columns, key=lambda c: c.name.encode())), tuple(sorted(options.items())))


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


def _suggest(session: Any, keyspace: str) -> str:
    rows = session.execute("SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s", (keyspace,))
    names = {name for (name,) in rows}
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
