"""Which Spark column goes into which PostgreSQL column, and as what it travels.

A column travels in COPY's binary form as one of few types and gets its own by a cast in the database: text becomes
uuid, jsonb, numeric or an enum there. Nothing is narrowed: what could lose digits is refused when the query is built,
and a text that is too long when it is written. Only what Spark's types do not tell is rounded there: a time to its
column's precision, a number in a text to its column's scale.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as st

from penstock.errors import PenstockError

Types = tuple[type[st.DataType], ...]

# PostgreSQL's type: the Spark types that fit into it, and the Spark type as which they travel.
PLAIN: Mapping[str, tuple[Types, st.DataType]] = {
    "bool": ((st.BooleanType,), st.BooleanType()),
    "int2": ((st.ByteType, st.ShortType), st.ShortType()),
    "int4": ((st.ByteType, st.ShortType, st.IntegerType), st.IntegerType()),
    "int8": ((st.ByteType, st.ShortType, st.IntegerType, st.LongType), st.LongType()),
    "float4": ((st.FloatType,), st.FloatType()),
    "float8": ((st.FloatType, st.DoubleType), st.DoubleType()),
    "bytea": ((st.BinaryType,), st.BinaryType()),
    "date": ((st.DateType,), st.DateType()),
    "timestamptz": ((st.TimestampType,), st.TimestampType()),
    "timestamp": ((st.TimestampNTZType,), st.TimestampNTZType()),
}
INTEGERS: Types = (st.ByteType, st.ShortType, st.IntegerType, st.LongType)
STRINGS: Types = (st.StringType,)
NESTED: Types = (st.StructType, st.ArrayType, st.MapType)
JSON = ("json", "jsonb")
# The names of the types as which columns travel.
NAMES: Mapping[type[st.DataType], str] = {type(spark): name for name, (_, spark) in PLAIN.items()} | {
    st.StringType: "text"
}


@dataclass(frozen=True)
class Target:
    """A column of the table; `type` is its short name, an array's with "_" in front, `full` as one would declare it.

    `cast` is the type that a value is cast to before it is assigned: of a domain the one below, never one that cuts.
    """

    name: str
    type: str
    full: str
    cast: str
    required: bool
    generated: bool


@dataclass(frozen=True)
class Travel:
    """How a column travels: what Spark hands over, and the type of that in the staging table."""

    column: Column
    type: str


def travel(source: Column, kind: st.DataType, target: Target) -> Travel | None:
    """The way of a Spark column of this type into the target; None when it does not fit."""
    if target.type.startswith("_"):
        return _array(source, kind, target)
    if target.type in JSON and isinstance(kind, NESTED):
        return Travel(F.to_json(source), "text")
    chosen = _transport(kind, target.type, target.cast)
    return Travel(source.cast(chosen), NAMES[type(chosen)]) if chosen else None


def _transport(kind: st.DataType, wanted: str, cast: str) -> st.DataType | None:
    if wanted in PLAIN:
        accepted, chosen = PLAIN[wanted]
        return chosen if isinstance(kind, accepted) else None
    exact = wanted == "numeric" and isinstance(kind, (*INTEGERS, st.DecimalType)) and not _rounds(kind, cast)
    return st.StringType() if exact or isinstance(kind, STRINGS) else None


def _rounds(kind: st.DataType, cast: str) -> bool:
    """Whether the column has fewer digits behind the point than the values."""
    scale = _scale(cast)
    return scale is not None and scale < (kind.scale if isinstance(kind, st.DecimalType) else 0)


def _scale(cast: str) -> int | None:
    """Of "numeric(precision,scale)", also of an array of it."""
    declared = re.match(r"numeric\(\d+,(-?\d+)\)", cast)
    return int(declared[1]) if declared else None


def _array(source: Column, kind: st.DataType, target: Target) -> Travel | None:
    if not isinstance(kind, st.ArrayType):
        return None
    chosen = _transport(kind.elementType, target.type[1:], target.cast)
    return Travel(source.cast(st.ArrayType(chosen)), f"{NAMES[type(chosen)]}[]") if chosen else None


def misfit(name: str, kind: st.DataType, target: Target, table: str) -> PenstockError:
    return PenstockError(
        f"the column {name} is {kind.simpleString()} and does not fit into {target.full}",
        where=f"PostgreSQL table {table}",
        next=f"{_advice(kind, target)}, or change the table's column",
    )


def _advice(kind: st.DataType, target: Target) -> str:
    if target.type == "timestamp" and isinstance(kind, st.TimestampType):
        return f'cast it: F.col("{target.name}").cast("timestamp_ntz"), or declare the column timestamptz'
    if (scale := _scale(target.cast)) is not None and scale >= 0:
        return f"cast it in the frame to a decimal with {scale} digits behind the point"
    accepted = PLAIN.get(target.type, ((st.StringType,), None))[0]
    names = " or ".join(one().simpleString() for one in accepted)
    return f"cast it in the frame to {names}"
