"""Makes the table of a target like its source's: creates it, or adds the columns that it lacks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from cassandra import AlreadyExists, InvalidRequest

from penstock.database.access import Access
from penstock.database.cql_connection import connection
from penstock.database.cql_types import Column, CqlTable, CqlType, clustering_order
from penstock.database.retrying import retrying
from penstock.database.table_catalog import NoTable, base_name, describe, quoted, split_name
from penstock.errors import PenstockError


def prepare(
    source: CqlTable,
    access: Access,
    target: str,
    patience: timedelta,
    *,
    create: bool,
    alter: bool,
    logged: bool = False,
) -> None:
    """Create the table "keyspace.table" of a target if it is not there, or add what it lacks, as far as it is wanted.

    Without `create` and `alter` nothing is changed. With `logged` a table that is created has a change log. Raises
    PenstockError if the table is not there and may not be created, or the database refuses.
    """

    def work() -> None:
        session = connection(access).rows
        try:
            there = describe(session, target)
        except NoTable:
            if not create:
                raise
            statements = list(creating(source, target, logged=logged))
        else:
            statements = list(adding(source, there)) if alter else []
        for statement in statements:
            _execute(session, statement, target)

    retrying(work, what="preparing the target", where=f"{target} at {access.hosts}", patience=patience)


def _execute(session: object, statement: str, target: str) -> None:
    try:
        session.execute(statement)  # type: ignore[attr-defined]
    except AlreadyExists:
        return
    except InvalidRequest as error:
        keyspace, _ = split_name(target)
        raise PenstockError(
            f"the target cannot be changed: {error}",
            where=f"{target}, {statement}",
            next=f"if keyspace {keyspace} is missing, create it with the replication that its cluster needs: "
            f"CREATE KEYSPACE {keyspace} WITH replication = {{'class': 'NetworkTopologyStrategy', ...}}",
        ) from error


def creating(source: CqlTable, target: str, *, logged: bool) -> Iterator[str]:
    """The statements that create the user types and the table.

    Its default time to live is none: each write brings its own.
    """
    keyspace, name = split_name(target)
    for kind in _types(source):
        fields = ", ".join(f"{quoted(field)} {arg}" for field, arg in zip(kind.fields, kind.args, strict=True))
        yield f"CREATE TYPE IF NOT EXISTS {quoted(keyspace)}.{quoted(kind.udt)} ({fields})"
    columns = ", ".join(map(_defined, source.columns))
    partition = ", ".join(quoted(column.name) for column in source.partition_key)
    clustering = "".join(f", {quoted(column.name)}" for column in source.clustering_key)
    order = ", ".join(
        clustering_order(
            [quoted(column.name) for column in source.clustering_key], [quoted(name) for name in source.descending]
        )
    )
    options = [f"CLUSTERING ORDER BY ({order})"] if order else []
    options += ["cdc = {'enabled': true}"] if logged else []
    yield (
        f"CREATE TABLE IF NOT EXISTS {quoted(keyspace)}.{quoted(name)} ({columns}, "
        f"PRIMARY KEY (({partition}){clustering}))" + (f" WITH {' AND '.join(options)}" if options else "")
    )


def adding(source: CqlTable, target: CqlTable) -> Iterator[str]:
    """The statements that add the fields and columns that the target lacks."""
    known = target.udts
    there = {column.name for column in target.columns}
    for kind in _types(source):
        fields = list(zip(kind.fields, kind.args, strict=True))
        if kind.udt not in known:
            listed = ", ".join(f"{quoted(field)} {arg}" for field, arg in fields)
            yield f"CREATE TYPE IF NOT EXISTS {quoted(target.keyspace)}.{quoted(kind.udt)} ({listed})"
            continue
        for field, arg in fields:
            if field not in known[kind.udt].fields:
                yield f"ALTER TYPE {quoted(target.keyspace)}.{quoted(kind.udt)} ADD {quoted(field)} {arg}"
    for column in source.columns:
        if column.name not in there:
            yield f"ALTER TABLE {base_name(target)} ADD {_defined(column)}"


def _defined(column: Column) -> str:
    return f"{quoted(column.name)} {column.type}" + (" static" if column.kind == "static" else "")


def _types(table: CqlTable) -> list[CqlType]:
    """The user types of a table, each after those that it uses."""
    types_by_name: dict[str, CqlType] = {}

    def visit(kind: CqlType) -> None:
        for arg in kind.args:
            visit(arg)
        if kind.name == "udt":
            types_by_name.setdefault(kind.udt, kind)

    for column in table.columns:
        visit(column.type)
    return list(types_by_name.values())
