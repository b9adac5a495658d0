"""Spark expressions that convert a CQL value so that its `to_json` is the same as Kafka Connect's JSON.

`to_json` already writes most values like Connect's JsonConverter: numbers, strings, base64 for bytes, NaN and
infinities as strings. This module converts dates (days), timestamps (milliseconds), maps (arrays of {key, value}) and
user types (null when all their fields are null or empty), at any depth. A null collection in a tuple or user type
becomes empty, as the connector's driver reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from operator import or_

from pyspark.sql import Column, SparkSession, functions as F, types as st

from penstock.codec.change_frame import Layout
from penstock.codec.connect_schema import Schema
from penstock.errors import PenstockError
from penstock.schema import CqlType, spark_type

SETTING = "spark.sql.caseSensitive"
IMAGES = ("none", "full", "only-updated")
COLLECTIONS = ("list", "set", "map")


def is_plain(kind: CqlType) -> bool:
    """Whether `to_json` is right for unconverted values of this type."""
    if kind.name == "tuple" and any(arg.name in COLLECTIONS for arg in kind.args):
        return False
    return kind.name not in ("date", "timestamp", "map", "udt") and all(map(is_plain, kind.args))


def encode(value: Column, kind: CqlType) -> Column:
    """The value in Connect's form; null stays null."""
    if is_plain(kind):
        return value
    if kind.name == "date":
        return F.unix_date(value)
    if kind.name == "timestamp":
        return F.unix_millis(value)
    if kind.name == "map":
        return _entries(value, kind)
    if kind.name in ("tuple", "udt"):
        names = kind.fields or tuple(f"field_{i}" for i in range(len(kind.args)))
        kinds = dict(zip(names, kind.args, strict=True))
        fields = [_field(field_of(value, n, kinds), arg).alias(n) for n, arg in kinds.items()]
        return F.when(_filled(value, kind), F.struct(*fields))
    return F.transform(value, lambda element: encode(element, kind.args[0]))


def _field(value: Column, kind: CqlType) -> Column:
    """A field of a tuple or user type."""
    encoded = encode(value, kind)
    return F.coalesce(encoded, F.array()) if kind.name in COLLECTIONS else encoded


def _entries(value: Column, kind: CqlType) -> Column:
    entries = F.map_entries(value)
    if all(map(is_plain, kind.args)):
        return entries
    key, item = kind.args
    return F.transform(
        entries,
        lambda e: F.struct(
            encode(e.getField("key"), key).alias("key"), encode(e.getField("value"), item).alias("value")
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
    if not _alike(kinds):
        return struct.getField(name)
    # A cast takes fields by position, but Spark copies the struct for it: leave it out if the names are distinct.
    renamed = [st.StructField(f"_{place}", spark_type(kind)) for place, kind in enumerate(kinds.values())]
    return struct.cast(st.StructType(renamed)).getField(f"_{list(kinds).index(name)}")


def require_told_apart(schema: Schema) -> None:
    """Raise PenstockError if Spark cannot distinguish two fields of a schema by name."""
    for struct in _structs(schema):
        alike = _alike(field["field"] for field in struct["fields"])
        if alike and SparkSession.active().conf.get(SETTING) != "true":
            raise PenstockError(
                f"Spark does not distinguish the fields {' and '.join(alike)}, which differ only in case",
                where=str(struct.get("name") or "a struct without a name"),
                next=f'call spark.conf.set("{SETTING}", "true") before you encode the records, or send them as JSON',
            )


def _structs(schema: Schema) -> Iterator[Schema]:
    """The structs in a schema, at any depth."""
    if "fields" in schema:
        yield schema
    for inner in (*schema.get("fields", ()), *(schema[part] for part in ("items", "values") if part in schema)):
        yield from _structs(inner)


def _alike(names: Iterable[str]) -> list[str]:
    """The first names that differ only in case."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(name.casefold(), []).append(name)
    return next((each for each in found.values() if len(each) > 1), [])
