"""Describes tables from the database's schema tables, quotes names for CQL, and says which Spark types fit a column."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from pyspark.sql import Column as SparkColumn, DataFrame, functions as F, types as st

from penstock.database.cql_types import LOG_SUFFIX, Column, CqlTable, CqlType, Udts, parse_type, spark_type
from penstock.errors import Missing, PenstockError
from penstock.spark_runtime import casts


class NoTable(Missing):
    """The database has no table of this name."""


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


def token_of_key(table: CqlTable) -> str:
    """The CQL expression of the token of a row's partition."""
    return f"token({', '.join(quoted(c.name) for c in table.partition_key)})"


def describe(session: Any, name: str) -> CqlTable:
    """The table `name` ("keyspace.table") with its columns.

    Raises PenstockError if it does not exist.
    """
    keyspace, table = split_name(name)
    rows = _columns(session, keyspace, table)
    if not rows:
        raise NoTable(f"there is no table {keyspace}.{table}", next=_others(session, keyspace, table))
    udts = _udts(session, keyspace)
    columns = [
        Column(column, parse_type(kind, udts), role, position, order.lower() == "desc")
        for column, kind, role, position, order in rows
    ]
    return CqlTable(keyspace, table, tuple(sorted(columns, key=lambda c: c.name.encode())))


def is_scylla(session: Any) -> bool:
    """Whether the database is ScyllaDB, which has a system table of its own."""
    return "scylla_local" in table_names(session, "system")


def table_names(session: Any, keyspace: str) -> set[str]:
    rows = session.execute("SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s", (keyspace,))
    return {name for (name,) in rows}


def did_you_mean(keyspace: str, table: str, names: Iterable[str]) -> str:
    """A question with the table that is near to a wrong name; "" if there is none."""
    close = get_close_matches(table, names, 1)
    return f"did you mean {keyspace}.{close[0]}? " if close else ""


def _others(session: Any, keyspace: str, table: str) -> str:
    names = sorted(name for name in table_names(session, keyspace) if not name.endswith(LOG_SUFFIX))
    if names:
        near = did_you_mean(keyspace, table, names)
        rest = f"CREATE TABLE, or use one of the tables in {keyspace}: {', '.join(names[:10])}"
        return f"{near}Else run {rest}" if near else f"run {rest}"
    return f"check the name: keyspace {keyspace} does not exist or is empty"


def _columns(session: Any, keyspace: str, table: str) -> list[tuple[str, str, str, int, str]]:
    return list(
        session.execute(
            "SELECT column_name, type, kind, position, clustering_order FROM system_schema.columns "
            "WHERE keyspace_name = %s AND table_name = %s",
            (keyspace, table),
        )
    )


def _udts(session: Any, keyspace: str) -> Udts:
    rows = session.execute(
        "SELECT type_name, field_names, field_types FROM system_schema.types WHERE keyspace_name = %s", (keyspace,)
    )
    return {name: (tuple(fields), tuple(kinds)) for name, fields, kinds in rows}


# Which Spark types fit a CQL type without loss, and the cast to the type that is encoded.

_INTEGERS: tuple[type[st.DataType], ...] = (st.ByteType, st.ShortType, st.IntegerType, st.LongType)
# Types that fit in addition to `spark_type`: they are cast without loss.
_ALSO: dict[str, tuple[type[st.DataType], ...]] = {
    "bigint": _INTEGERS,
    "int": _INTEGERS[:3],
    "smallint": _INTEGERS[:2],
    "time": _INTEGERS,
    "varint": _INTEGERS,
    "decimal": (*_INTEGERS, st.DecimalType),
    "double": (*_INTEGERS[:3], st.FloatType),
    "float": _INTEGERS[:2],
    "ascii": (st.VarcharType, st.CharType),
    "text": (st.VarcharType, st.CharType),
    "varchar": (st.VarcharType, st.CharType),
}


def require_fit(frame: DataFrame, name: str, kind: CqlType, where: str) -> None:
    """Raise PenstockError if the type of the frame's column does not fit."""
    source, wanted = frame.schema[name].dataType, spark_type(kind)
    if not fits(source, kind):
        raise PenstockError(
            f"column {name} is {source.simpleString()}, but in the table it is {kind}",
            where=where,
            next=casts.advice(name, source, wanted),
        )


def fits(source: st.DataType, kind: CqlType) -> bool:
    """Whether every value of a Spark type fits the CQL type; strings for uuid, inet and so on are checked later."""
    wanted = spark_type(kind)
    if isinstance(source, _ALSO.get(kind.name, ())):
        return not (kind.name == "varint" and isinstance(source, st.DecimalType) and source.scale)
    if isinstance(source, st.ArrayType) and isinstance(wanted, st.ArrayType):
        return fits(source.elementType, kind.args[0])
    if isinstance(source, st.MapType) and isinstance(wanted, st.MapType):
        return fits(source.keyType, kind.args[0]) and fits(source.valueType, kind.args[1])
    if isinstance(source, st.StructType) and isinstance(wanted, st.StructType):
        pairs = zip(wanted.names, kind.args, strict=False)
        return sorted(source.names) == sorted(wanted.names) and all(
            fits(source[name].dataType, arg) for name, arg in pairs
        )
    return source == wanted


def canonical(frame: DataFrame, name: str, kind: CqlType) -> SparkColumn:
    """The column, cast to the Spark type that is encoded for the table."""
    wanted = spark_type(kind)
    return _as(F.col("`" + name.replace("`", "``") + "`"), frame.schema[name].dataType, wanted)


def _as(column: SparkColumn, source: st.DataType, wanted: st.DataType) -> SparkColumn:
    """The column cast, but structs by the names of their fields: a cast goes by position."""
    if source == wanted:
        return column
    if source.simpleString() == wanted.simpleString():
        return column.cast(wanted)
    if isinstance(source, st.StructType) and isinstance(wanted, st.StructType):
        fields = [
            _as(column.getField(field.name), source[field.name].dataType, field.dataType).alias(field.name)
            for field in wanted
        ]
        return F.when(column.isNotNull(), F.struct(*fields))
    if isinstance(source, st.ArrayType) and isinstance(wanted, st.ArrayType):
        few, many = source.elementType, wanted.elementType
        return F.transform(column, lambda element: _as(element, few, many))
    if isinstance(source, st.MapType) and isinstance(wanted, st.MapType):
        (key, to_key), (value, to_value) = (source.keyType, wanted.keyType), (source.valueType, wanted.valueType)
        keys = F.transform_keys(column, lambda map_key, _: _as(map_key, key, to_key))
        return F.transform_values(keys, lambda _, map_value: _as(map_value, value, to_value))
    return column.cast(wanted)
