"""The columns of a change log and of the frame made from them: names and types, no values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql import types as st

from penstock.codec.problem import CHANGE_TYPE, PROBLEM
from penstock.schema import Column, CqlTable, CqlType, deleted_elements_type, log_value_type, spark_type

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


def layout(table: CqlTable) -> LogLayout:
    """The columns to SELECT from the log: the fixed columns, then each base column with its deletion columns."""
    names, kinds = list(FIXED_COLUMNS), [CqlType(name) for name in _FIXED_TYPES]
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


def multi_cell(table: CqlTable) -> list[Column]:
    return [column for column in table.values if column.type.multi_cell]


def frame_schema(table: CqlTable, *, problem: bool = False) -> st.StructType:
    """The Spark schema of the changes of `table`; the metadata of the field `key` describes the table.

    The optional field `problem` is last, because it is known only after all other fields are decoded.
    """
    row = _struct((c.name, c.type) for c in table.columns)
    key = _struct((c.name, c.type) for c in (*table.partition_key, *table.clustering_key))
    bounds = _struct((c.name, c.type) for c in table.clustering_key)
    names = st.ArrayType(st.StringType())
    fields = [
        ("op", st.StringType()),
        ("key", key),
        ("before", row),
        ("after", row),
        ("delta", _struct((c.name, log_value_type(c.type)) for c in table.values)),
        ("written", names),
        ("deleted", names),
        ("deleted_elements", _struct((c.name, deleted_elements_type(c.type)) for c in multi_cell(table))),
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


def _range_type(bounds: st.StructType) -> st.StructType:
    return (
        st.StructType()
        .add("start", bounds)
        .add("start_inclusive", st.BooleanType())
        .add("end", bounds)
        .add("end_inclusive", st.BooleanType())
    )


def _metadata(table: CqlTable) -> dict[str, object]:
    return {
        "penstock.table": table.full_name,
        "penstock.partition_key": [c.name for c in table.partition_key],
        "penstock.clustering_key": [c.name for c in table.clustering_key],
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
