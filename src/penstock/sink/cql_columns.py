"""Which columns of a frame go into which of a table, and as what type: found when the query is built."""

from __future__ import annotations

from difflib import get_close_matches

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as st

from penstock.database.fitting import require_fit
from penstock.errors import PenstockError
from penstock.schema import CqlType, Table

# Columns beside the tables' own; no column of a table is called so.
TABLE, DELETE, TTL, TIMESTAMP = "penstock$table", "penstock$delete", "penstock$ttl", "penstock$timestamp"


def check(frame: DataFrame, tables: tuple[Table, ...], *, ignored: set[str]) -> dict[str, CqlType]:
    """The columns to write with their types; raises for a frame that does not fit the tables."""
    known: dict[str, CqlType] = {}
    for table in tables:
        _require_key(frame, table)
        for column in table.columns:
            if known.setdefault(column.name, column.type) != column.type:
                raise PenstockError(
                    f"column {column.name} is {known[column.name]} in one table and {column.type} in another",
                    where=", ".join(each.full_name for each in tables),
                    next="give each table a sink of its own",
                )
    unknown = [name for name in frame.columns if name not in known and name not in ignored]
    if unknown:
        raise _unknown(unknown[0], known, tables)
    for name in frame.columns:
        if name in known:
            require_fit(frame, name, known[name], ", ".join(table.full_name for table in tables))
    return {name: known[name] for name in frame.columns if name in known}


def _require_key(frame: DataFrame, table: Table) -> None:
    key = [column.name for column in (*table.partition_key, *table.clustering_key)]
    missing = [name for name in key if name not in frame.columns]
    if missing:
        raise PenstockError(
            f"the frame has no column {', '.join(missing)}, of the table's primary key",
            where=f"{table.full_name}, key {', '.join(key)}; frame {', '.join(frame.columns)}",
            next="add or rename columns: frame.withColumnRenamed(...)",
        )


def _unknown(name: str, known: dict[str, CqlType], tables: tuple[Table, ...]) -> PenstockError:
    close = get_close_matches(name, known, 1)
    place = ", ".join(table.full_name for table in tables)
    return PenstockError(
        f"the table has no column {name}",
        where=place,
        next=(f"did you mean {close[0]}? Else " if close else "")
        + f"frame.drop({name!r}), or ALTER TABLE {tables[0].full_name} ADD {name} ...",
    )


def require_kind(frame: DataFrame, column: str | Column, kind: type[st.DataType], argument: str, where: str) -> Column:
    """The column, which may be in SQL, if the frame can have it and it is of this kind of type."""
    try:
        made = F.expr(column) if isinstance(column, str) else column
        given = frame.select(made).schema[0].dataType
    except PySparkException as error:
        raise PenstockError(
            f"{argument} does not fit the frame: {str(error).strip().splitlines()[0]}",
            where=f"{where}, columns {', '.join(frame.columns)}",
            next=f"correct {argument}=",
        ) from error
    if not isinstance(given, kind):
        raise PenstockError(
            f"{argument} is {given.simpleString()}", where=where, next=f"give a column of {kind.__name__[:-4].lower()}s"
        )
    return made


def used_by(frame: DataFrame, columns: list[Column]) -> set[str]:
    """The frame's columns that these are made of."""
    if not columns:
        return set()
    found = frame.select(*columns)._jdf.queryExecution().analyzed().references().toSeq().iterator()
    names = set()
    while found.hasNext():
        names.add(str(found.next().name()))
    return names
