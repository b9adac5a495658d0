"""Which tables of a cluster have a change log."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

from penstock.database.tables import quoted
from penstock.schema import LOG_SUFFIX


def expand(session: Any, names: Iterable[str]) -> list[str]:
    """The tables that names and patterns mean, each once: a name as it is, `*` and `?` as what they match.

    A pattern such as `shop.*` stands for the tables with a change log, in order of their names.
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
    """A name as CQL reads it: quoted only where it must be."""
    return name if name.isidentifier() and name == name.lower() else quoted(name)
