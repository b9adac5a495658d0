"""Reads a change frame: the table that it describes, and its values as Kafka Connect writes them.

The description (keys, columns and CQL types) is in the metadata of the column `key`, so an encoder needs no connection,
and it survives `where`, `select` and checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Literal, TypeAlias, get_args

from pyspark.sql import Column, functions as F, types as st

from penstock.database.cql_types import CqlType, deleted_elements_type, log_value_type, parse_type, spark_type
from penstock.errors import PenstockError

NEEDED = ("op", "key", "before", "after", "operation", "ts", "read_ts")


@dataclass(frozen=True)
class Layout:
    """The table of a change frame; `columns` are in the order of its images, which is the log's order.

    `key` has the key columns in record order: partition key, then clustering key, each sorted by name. `types` has all
    columns of the frame in its order, also if `columns` has only some of them. `descending` names the columns of the
    clustering key that are in descending order.
    """

    keyspace: str
    table: str
    partition_key: tuple[str, ...]
    clustering_key: tuple[str, ...]
    key: tuple[str, ...]
    columns: tuple[str, ...]
    types: Mapping[str, CqlType]
    descending: tuple[str, ...] = ()

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


OF_CHANGES = ("op", "before", "after", "delta", "written")
"""Columns of which each makes a frame with the key of a table one of its changes."""


def is_change_frame(schema: st.StructType) -> bool:
    """Whether the frame has changes of `cdc.read`, perhaps with columns removed or added.

    The key alone, such as of `groupBy("key").count()`, is none.
    """
    names = set(schema.names)
    return "key" in names and "penstock.table" in schema["key"].metadata and not names.isdisjoint(OF_CHANGES)


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
        table_layout = _read(schema, table)
        missing = [name for name in missing if name not in _absent(table_layout)]
        if not missing:
            return table_layout
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
        tuple(about.get("penstock.descending", ())),
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


# Values of a change frame as Spark expressions whose `to_json` is the same as Kafka Connect's JSON.
#
# `to_json` already writes most values like Connect's JsonConverter: numbers, strings, base64 for bytes, NaN and
# infinities as strings. These functions convert dates (days), timestamps (milliseconds), maps (arrays of {key, value})
# and user types (null when all their fields are null or empty), at any depth. A null collection in a tuple or user type
# becomes empty, as the connector's driver reads it.

Images: TypeAlias = Literal["none", "full", "only-updated"]
IMAGES = get_args(Images)
COLLECTIONS = ("list", "set", "map")


def is_plain(kind: CqlType) -> bool:
    """Whether `to_json` is right for unconverted values of this type."""
    if kind.name == "tuple" and any(arg.name in COLLECTIONS for arg in kind.args):
        return False
    return kind.name not in ("date", "timestamp", "map", "udt") and all(map(is_plain, kind.args))


def encode(value: Column, kind: CqlType, *, exact: bool = False) -> Column:
    """The value in Connect's form; null stays null.

    With `exact` a user type whose fields are null is not null, and a null collection in it is not empty.
    """
    if is_plain(kind):
        return value
    if kind.name == "date":
        return F.unix_date(value)
    if kind.name == "timestamp":
        return F.unix_millis(value)
    if kind.name == "map":
        return _entries(value, kind, exact)
    if kind.name in ("tuple", "udt"):
        names = kind.fields or tuple(f"field_{i}" for i in range(len(kind.args)))
        kinds = dict(zip(names, kind.args, strict=True))
        fields = [_field(field_of(value, n, kinds), arg, exact).alias(n) for n, arg in kinds.items()]
        return F.when(value.isNotNull() if exact else _filled(value, kind), F.struct(*fields))
    return F.transform(value, lambda element: encode(element, kind.args[0], exact=exact))


def _field(value: Column, kind: CqlType, exact: bool) -> Column:
    """A field of a tuple or user type."""
    encoded = encode(value, kind, exact=exact)
    return F.coalesce(encoded, F.array()) if kind.name in COLLECTIONS and not exact else encoded


def _entries(value: Column, kind: CqlType, exact: bool) -> Column:
    entries = F.map_entries(value)
    if all(map(is_plain, kind.args)):
        return entries
    key, item = kind.args
    return F.transform(
        entries,
        lambda e: F.struct(
            encode(e.getField("key"), key, exact=exact).alias("key"),
            encode(e.getField("value"), item, exact=exact).alias("value"),
        ),
    )


def _filled(value: Column, kind: CqlType) -> Column:
    """Whether Connect writes a value other than null; an empty collection counts as null only inside a user type.

    The check uses the raw value, not the encoded one: otherwise each level of nesting would be encoded twice.
    """
    if kind.name != "udt":
        return value.isNotNull()
    kinds = dict(zip(kind.fields, kind.args, strict=True))
    return reduce(or_, (_has_content(field_of(value, n, kinds), arg) for n, arg in kinds.items()))


def _has_content(value: Column, kind: CqlType) -> Column:
    if kind.name in COLLECTIONS:
        return F.size(value) > 0
    return _filled(value, kind)


# A table's row in a record: the key, and the images before and after a change.


def row_key(table: Layout) -> Column:
    """The key columns in record order."""
    return F.struct(*(row_field("key", name, table) for name in table.key))


def row_field(struct: str, name: str, table: Layout) -> Column:
    """One column of a struct of the change frame."""
    return encode(field_of(F.col(struct), name, table.fields(struct)), table.types[name]).alias(name)


def row_image(side: str, table: Layout, mode: str, *, with_key: bool) -> Column:
    """The image `side` ("before" or "after"); null where the frame has no image. `mode` is "full" or "only-updated".

    With "only-updated", columns that an update did not touch are null; the key stays, and rows of inserts and deletes
    stay complete.
    """
    names = [name for name in table.columns if with_key or name not in table.key]
    if mode == "full" and len(names) == len(table.columns) and all(is_plain(table.types[name]) for name in names):
        return F.col(side)
    make = row_field if mode == "full" else _touched_field
    return F.when(F.col(side).isNotNull(), F.struct(*(make(side, name, table) for name in names)))


def _touched_field(side: str, name: str, table: Layout) -> Column:
    value = row_field(side, name, table)
    touched = (F.col("op") != "u") | F.array_contains("written", name)
    return value if name in table.key else F.when(touched, value).alias(name)


# Fields of structs by exact name: by default Spark does not distinguish `v` and `V`, but CQL does.


def field_of(struct: Column, name: str, kinds: Mapping[str, CqlType]) -> Column:
    """The field `name` of a struct whose fields, in order, are `kinds`."""
    if not alike(kinds):
        return struct.getField(name)
    # A cast takes fields by position, but Spark copies the struct for it: leave it out if the names are distinct.
    renamed = [st.StructField(f"_{place}", spark_type(kind)) for place, kind in enumerate(kinds.values())]
    return struct.cast(st.StructType(renamed)).getField(f"_{list(kinds).index(name)}")


def alike(names: Iterable[str]) -> list[str]:
    """The first names that differ only in case."""
    by_folded_name: dict[str, list[str]] = {}
    for name in names:
        by_folded_name.setdefault(name.casefold(), []).append(name)
    return next((each for each in by_folded_name.values() if len(each) > 1), [])
