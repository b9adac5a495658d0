"""Tables with a change log: finds them in the schema tables, and says which columns the log and the frame have."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from pyspark.sql import types as st

from penstock.codec.problem import CHANGE_TYPE, PROBLEM
from penstock.database.cql_types import LOG_SUFFIX, CqlTable, CqlType, deleted_elements_type, log_value_type, spark_type
from penstock.database.table_catalog import describe, did_you_mean, quoted, split_name, table_names
from penstock.errors import PenstockError


def log_name(table: CqlTable) -> str:
    """The full name of the table's log, quoted for CQL."""
    return f"{quoted(table.keyspace)}.{quoted(table.log_name)}"


def find_table(session: Any, name: str) -> CqlTable:
    """The table `name` with its columns and CDC options.

    Raises PenstockError if the table does not exist or has no change log.
    """
    keyspace, table = split_name(name)
    of_table = "FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s"
    row = session.execute(f"SELECT extensions, WRITETIME(extensions) {of_table}", (keyspace, table)).one()
    names = table_names(session, keyspace)
    if row is None:
        raise PenstockError(f"there is no table {keyspace}.{table}", next=_suggest(names, keyspace, table))
    if table + LOG_SUFFIX not in names:
        raise PenstockError(
            f"table {keyspace}.{table} has no change log",
            next=f"run: ALTER TABLE {keyspace}.{table} WITH cdc = {{'enabled': true}}",
        )
    options = cdc_options((row[0] or {}).get("cdc", b""))
    log = session.execute(f"SELECT id {of_table}", (keyspace, table + LOG_SUFFIX)).one()
    described = describe(session, name)
    return replace(described, cdc=tuple(sorted(options.items())), log=str(log[0]) if log else "", altered=row[1] or 0)


def _suggest(names: set[str], keyspace: str, table: str) -> str:
    logged = sorted(name for name in names if name + LOG_SUFFIX in names)
    if logged:
        near = did_you_mean(keyspace, table, logged)
        rest = f"one of the tables with a change log in {keyspace}: {', '.join(logged[:10])}"
        return f"{near}Else use {rest}" if near else f"use {rest}"
    state = "has no table with a change log" if names else "does not exist or is empty"
    return f"check the name: keyspace {keyspace} {state}"


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
    full_names: dict[str, None] = {}
    logged: list[tuple[str, str]] | None = None
    for name in names:
        if '"' in name or not set("*?") & set(name):
            full_names[name] = None
            continue
        if logged is None:
            logged = _logged(session)
        keyspace, table = name.lower().split(".")
        matches = (pair for pair in logged if fnmatchcase(pair[0], keyspace) and fnmatchcase(pair[1], table))
        full_names |= dict.fromkeys(f"{_written(pair[0])}.{_written(pair[1])}" for pair in matches)
    return list(full_names)


def _logged(session: Any) -> list[tuple[str, str]]:
    rows = session.execute("SELECT keyspace_name, table_name FROM system_schema.tables")
    tables = {(keyspace, table) for keyspace, table in rows}
    return sorted((keyspace, table) for keyspace, table in tables if (keyspace, table + LOG_SUFFIX) in tables)


def _written(name: str) -> str:
    """The name, quoted for CQL only if needed."""
    return name if name.isidentifier() and name == name.lower() else quoted(name)


# The columns of a change log and of the frame made from them: names and types, no values.

WRITE_TIME, TIME_TO_LIVE = "penstock$writetime$", "penstock$ttl$"
"""Before the name of a column: the column's CQL function; no column of a table can have such a name."""
LEFT = TIME_TO_LIVE + "cdc$operation"
"""For how many more seconds the log holds a row."""
MARKER = ("penstock$inserted", "penstock$expires")
"""The names of what follows the columns of a SELECT with row markers, both bigint."""
INSERTED = st.StructType([st.StructField("time", st.LongType()), st.StructField("expires", st.LongType())])
"""When an INSERT made a row of a snapshot, and when that expires; both null if only UPDATEs did."""
_FUNCTIONS = {WRITE_TIME: "WRITETIME", TIME_TO_LIVE: "TTL"}

FIXED_COLUMNS = ("cdc$stream_id", "cdc$time", "cdc$batch_seq_no", "cdc$operation", "cdc$ttl")
_FIXED_TYPES = ("blob", "timeuuid", "int", "tinyint", "bigint")


@dataclass(frozen=True)
class LogLayout:
    """The columns selected from a log table, in order, with their types."""

    table: CqlTable
    names: tuple[str, ...]
    kinds: tuple[CqlType, ...]

    def at(self, name: str) -> int:
        return self.names.index(name)

    def selection(self) -> str:
        """The columns as CQL selects them; those of row markers follow by themselves."""
        return ", ".join(_selected(name) for name in self.names if name not in MARKER)


def _selected(name: str) -> str:
    for prefix, function in _FUNCTIONS.items():
        if name.startswith(prefix):
            return f"{function}({quoted(name.removeprefix(prefix))})"
    return quoted(name)


def layout(table: CqlTable, *, write_times: bool = False) -> LogLayout:
    """The columns to SELECT from the log: the fixed columns, then each base column with its deletion columns.

    With `write_times` the time to live of the log's row is among them: it says when the row was written.
    """
    names, kinds = list(FIXED_COLUMNS), [CqlType(name) for name in _FIXED_TYPES]
    if write_times:
        names.append(LEFT)
        kinds.append(CqlType("int"))
    for column in table.columns:
        names.append(column.name)
        kinds.append(log_value_type(column.type))
        if column.kind in ("static", "regular"):
            names.append(f"cdc$deleted_{column.name}")
            kinds.append(CqlType("boolean"))
            if column.type.multi_cell:
                names.append(f"cdc$deleted_elements_{column.name}")
                kinds.append(deleted_elements_type(column.type))
    return LogLayout(table, tuple(names), tuple(kinds))


def _struct(fields: Iterable[tuple[str, CqlType]]) -> st.StructType:
    return st.StructType([st.StructField(name, spark_type(kind)) for name, kind in fields])


def frame_schema(table: CqlTable, *, problem: bool = False, write_times: bool = False) -> st.StructType:
    """The Spark schema of the changes of `table`; the metadata of the field `key` describes the table.

    The optional field `problem` is last, because it is known only after all other fields are decoded.
    """
    row = _struct((c.name, c.type) for c in table.columns)
    key = _struct((c.name, c.type) for c in (*table.partition_key, *table.clustering_key))
    bounds = _struct((c.name, c.type) for c in table.clustering_key)
    names = st.ArrayType(st.StringType())
    elements = _struct((c.name, deleted_elements_type(c.type)) for c in table.values if c.type.multi_cell)
    fields = [
        ("op", st.StringType()),
        ("key", key),
        ("before", row),
        ("after", row),
        ("delta", _struct((c.name, log_value_type(c.type)) for c in table.values)),
        ("written", names),
        ("deleted", names),
        ("deleted_elements", elements),
        ("range", _range_type(bounds)),
        ("operation", st.ByteType()),
        ("ttl", st.LongType()),
        ("ts", st.TimestampType()),
        ("read_ts", st.TimestampType()),
        ("stream_id", st.BinaryType()),
        ("time", st.StringType()),
        ("batch_seq_no", st.IntegerType()),
        ("end_of_batch", st.BooleanType()),
        ("keyspace", st.StringType()),
        ("table", st.StringType()),
    ]
    if write_times:
        times = st.StructType([st.StructField(c.name, _times_type(c.type)) for c in table.values])
        lists = st.StructType(
            [st.StructField(c.name, _list_type(c.type)) for c in table.values if c.type.nonfrozen_list]
        )
        fields += [("expires", st.TimestampType()), ("write_times", times), ("expiries", times)]
        fields += [("lists", lists), ("inserted", INSERTED)]
    # Spark has no struct without fields: leave out structs that a table without values or collections would not fill.
    absent = {name for name, kind in fields if isinstance(kind, st.StructType) and not kind.fields}
    if not bounds.fields:
        absent.add("range")
    if problem:
        fields.append((PROBLEM, CHANGE_TYPE))
    metadata = {"key": _metadata(table)}
    return st.StructType(
        [st.StructField(name, kind, True, metadata.get(name)) for name, kind in fields if name not in absent]
    )


def _times_type(kind: CqlType) -> st.DataType:
    """The type of a column's write times, or of its times of expiry: one time, or one for each element or field."""
    return st.ArrayType(st.LongType()) if kind.multi_cell else st.LongType()


def _list_type(kind: CqlType) -> st.StructType:
    """The type of a whole list, and of when each of its elements expires."""
    return st.StructType().add("values", spark_type(kind)).add("expiries", st.ArrayType(st.LongType()))


def _range_type(bounds: st.StructType) -> st.StructType:
    inclusive = st.BooleanType()
    fields = st.StructType().add("start", bounds).add("start_inclusive", inclusive)
    fields = fields.add("end", bounds).add("end_inclusive", inclusive)
    # Of one column, the bounds are in the order of its values.
    return fields.add("order", st.ArrayType(st.StringType())) if len(bounds) > 1 else fields


def _metadata(table: CqlTable) -> dict[str, object]:
    return {
        "penstock.table": table.full_name,
        "penstock.partition_key": [c.name for c in table.partition_key],
        "penstock.clustering_key": [c.name for c in table.clustering_key],
        "penstock.descending": list(table.descending),
        "penstock.cql": {c.name: str(c.type) for c in table.columns},
        "penstock.udts": {
            name: dict(zip(udt.fields, map(str, udt.args), strict=True)) for name, udt in table.udts.items()
        },
    }


@dataclass(frozen=True)
class Images:
    """The images that a reader wants in a change; each is "none" or "full"."""

    before: str = "none"
    after: str = "none"


def log_schema(columns: LogLayout, *, problem: bool = False) -> st.StructType:
    """The Spark schema of the unchanged log rows (`rows=log`), with `problem` if requested."""
    schema = _struct(zip(columns.names, columns.kinds, strict=True))
    return schema.add(PROBLEM, CHANGE_TYPE) if problem else schema
