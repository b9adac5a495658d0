"""Spark expressions that turn a CQL value into the shape whose `to_json` is Kafka Connect's JSON of it.

`to_json` already writes most values as Connect's JsonConverter does: numbers, text, base64 for bytes, NaN and
infinities as text. Changed here are dates (days), timestamps (milliseconds), maps (arrays of {key, value}) and
user types (null when all their fields are null or empty), at any depth. A collection that is null within a tuple or a
user type is empty, as the connector's driver reads it.
"""

from __future__ import annotations

from functools import reduce
from operator import or_

from pyspark.sql import Column
from pyspark.sql import functions as F

from penstock.codec.fields import field_of
from penstock.schema import CqlType

COLLECTIONS = ("list", "set", "map")


def is_plain(kind: CqlType) -> bool:
    """Whether `to_json` is right for values of this type as they are."""
    if kind.name == "tuple" and any(arg.name in COLLECTIONS for arg in kind.args):
        return False
    return kind.name not in ("date", "timestamp", "map", "udt") and all(map(is_plain, kind.args))


def encode(value: Column, kind: CqlType) -> Column:
    """The value in Connect's shape; null stays null."""
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
    """Whether Connect writes something else than null; an empty collection counts only inside a user type.

    Asked of the raw value, not of the encoded one: otherwise each level of nesting would encode twice.
    """
    if kind.name != "udt":
        return value.isNotNull()
    kinds = dict(zip(kind.fields, kind.args, strict=True))
    return reduce(or_, (_has_content(field_of(value, n, kinds), arg) for n, arg in kinds.items()))


def _has_content(value: Column, kind: CqlType) -> Column:
    if kind.name in COLLECTIONS:
        return F.size(value) > 0
    return _filled(value, kind)
