"""Reads the description of the table from a change frame: keys, columns and CQL types, in the metadata of `key`.

The frame itself carries the description, so an encoder needs no connection, and it survives `where`, `select` and
checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pyspark.sql import types as st

from penstock.errors import PenstockError
from penstock.schema import CqlType, deleted_elements_type, log_value_type, parse_type

NEEDED = ("op", "key", "before", "after", "operation", "ts", "read_ts")


@dataclass(frozen=True)
class Layout:
    """The table of a change frame; `columns` are in the order of its images, which is the log's order.

    `key` has the key columns in record order: partition key, then clustering key, each sorted by name. `types` has all
    columns of the frame in its order, also if `columns` has only some of them.
    """

    keyspace: str
    table: str
    partition_key: tuple[str, ...]
    clustering_key: tuple[str, ...]
    key: tuple[str, ...]
    columns: tuple[str, ...]
    types: Mapping[str, CqlType]

    @property
    def full_name(self) -> str:
        return f"{self.keyspace}.{self.table}"

    def fields(self, struct: str) -> Mapping[str, CqlType]:
        """The fields of a struct of the change frame (key, before, after, delta, deleted_elements), in order."""
        key = (*self.partition_key, *self.clustering_key)
        if struct == "key":
            return {name: self.types[name] for name in key}
        values = {name: kind for name, kind in self.types.items() if name not in key}
        if struct == "delta":
            return {name: log_value_type(kind) for name, kind in values.items()}
        if struct == "deleted_elements":
            return {name: deleted_elements_type(kind) for name, kind in values.items() if kind.multi_cell}
        return self.types


def is_change_frame(schema: st.StructType) -> bool:
    """Whether the frame comes from `cdc.read`, perhaps with columns removed or added."""
    return "key" in schema.names and "penstock.table" in schema["key"].metadata


def layout(schema: st.StructType, also: Iterable[str] = ()) -> Layout:
    """The table that a change frame's schema describes.

    `also` names columns that are required in addition to the columns of every event. Raises PenstockError if the frame
    is not a change frame or lacks columns.
    """
    if not is_change_frame(schema):
        raise PenstockError(
            "this frame does not hold changes of a table",
            where=f"columns {', '.join(schema.names)}",
            next="pass a frame of penstock.cdc.read(...); a select() in between must keep its columns",
        )
    missing = [name for name in (*NEEDED, "range", *also) if name not in schema.names]
    table = str(schema["key"].metadata["penstock.table"])
    if "before" not in missing:
        made = _read(schema, table)
        missing = [name for name in missing if name not in _absent(made)]
        if not missing:
            return made
    raise PenstockError(
        f"the change frame has lost the columns {', '.join(missing)}",
        where=f"changes of {table}",
        next="keep these columns when selecting",
    )


def _absent(table: Layout) -> set[str]:
    """Columns that a frame of this table never has, because their struct would have no field."""
    values = [table.types[name] for name in table.columns if name not in table.key]
    there = {
        "range": table.clustering_key,
        "delta": values,
        "deleted_elements": [kind for kind in values if kind.multi_cell],
    }
    return {name for name, fields in there.items() if not fields}


def _read(schema: st.StructType, full_name: str) -> Layout:
    about = schema["key"].metadata
    image = schema["before"].dataType
    assert isinstance(image, st.StructType)
    udts = {name: (tuple(fields), tuple(fields.values())) for name, fields in about["penstock.udts"].items()}
    types = {name: parse_type(text, udts) for name, text in about["penstock.cql"].items()}
    partition, clustering = tuple(about["penstock.partition_key"]), tuple(about["penstock.clustering_key"])
    keyspace, table = full_name.split(".", 1)
    return Layout(
        keyspace,
        table,
        partition,
        clustering,
        (*sorted(partition), *sorted(clustering)),
        tuple(image.names),
        {field.name: _in_order(types[field.name], field.dataType) for field in image.fields},
    )


def _in_order(kind: CqlType, spark: st.DataType) -> CqlType:
    """`kind` with the fields of its user types in the order of the Spark type; metadata does not keep the order."""
    if isinstance(spark, st.ArrayType):
        return replace(kind, args=(_in_order(kind.args[0], spark.elementType),))
    if isinstance(spark, st.MapType):
        return replace(kind, args=(_in_order(kind.args[0], spark.keyType), _in_order(kind.args[1], spark.valueType)))
    if not isinstance(spark, st.StructType):
        return kind
    if kind.name != "udt":
        args = zip(kind.args, spark.fields, strict=True)
        return replace(kind, args=tuple(_in_order(arg, field.dataType) for arg, field in args))
    types = dict(zip(kind.fields, kind.args, strict=True))
    ordered = tuple(_in_order(types[field.name], field.dataType) for field in spark.fields)
    return replace(kind, args=ordered, fields=tuple(spark.names))
