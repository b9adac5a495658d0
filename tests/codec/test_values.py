"""Values of every CQL type as JSON, compared with a separate encoder in plain Python."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from cql_values import TYPES
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from pyspark.sql import SparkSession, functions as F, types as spark_types

from penstock.codec.change_frame import encode
from penstock.database.cql_types import CqlType, spark_type

COLUMNS, ROWS = 12, 25
COLLECTIONS = ("list", "set", "map")

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
_SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "blob": st.binary(max_size=10),
    "boolean": st.booleans(),
    "date": st.dates(),
    "double": st.floats(),
    "float": st.floats(width=32),
    "int": st.integers(-(2**31), 2**31 - 1),
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "time": st.integers(0, 86_400 * 10**9 - 1),
    "timestamp": st.datetimes(timezones=st.just(dt.UTC)),
    "tinyint": st.integers(-128, 127),
}


def values(kind: CqlType) -> st.SearchStrategy[Any]:
    """Values of a type in the form that Spark accepts."""
    inner = [st.none() | values(arg) for arg in kind.args]
    if kind.name in ("list", "set", "vector"):
        return st.lists(inner[0], max_size=3)
    if kind.name == "map":
        return st.dictionaries(values(kind.args[0]), inner[1], max_size=3)
    if kind.name in ("tuple", "udt"):
        return st.tuples(*inner)
    return _SCALARS.get(kind.name, _TEXT)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[CqlType], list[tuple[Any, ...]]]:
    kinds = draw(st.lists(TYPES, min_size=COLUMNS, max_size=COLUMNS))
    row = st.tuples(*(st.none() | values(kind) for kind in kinds))
    return kinds, draw(st.lists(row, min_size=ROWS, max_size=ROWS))


def by_key(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries of a map in a fixed order: Spark's `createDataFrame` does not keep the order of a dict."""
    return sorted(entries, key=lambda entry: json.dumps(entry["key"]))


def connect(value: Any, kind: CqlType) -> Any:
    """The value as Connect's JsonConverter writes it; a null collection inside a tuple or a user type is empty."""
    if value is None:
        return None
    if kind.name == "date":
        return (value - dt.date(1970, 1, 1)).days
    if kind.name == "timestamp":
        return (value - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)
    if kind.name == "blob":
        return base64.b64encode(value).decode()
    if kind.name in ("float", "double"):
        return value if math.isfinite(value) else str(value).replace("nan", "NaN").replace("inf", "Infinity")
    if kind.name in ("list", "set", "vector"):
        return [connect(element, kind.args[0]) for element in value]
    if kind.name == "map":
        return by_key({"key": connect(k, kind.args[0]), "value": connect(v, kind.args[1])} for k, v in value.items())
    if kind.name in ("tuple", "udt"):
        names = kind.fields or [f"field_{i}" for i in range(len(kind.args))]
        fields = {
            n: [] if v is None and arg.name in COLLECTIONS else connect(v, arg)
            for n, v, arg in zip(names, value, kind.args, strict=True)
        }
        empty = all(
            field is None or (field == [] and arg.name in COLLECTIONS)
            for field, arg in zip(fields.values(), kind.args, strict=True)
        )
        return None if kind.name == "udt" and empty else fields
    return value


def read(found: Any, kind: CqlType) -> Any:
    """Parsed JSON with floats rounded to 32 bits: Java writes enough digits for a float, not for a double."""
    if found is None:
        return None
    if kind.name == "float" and not isinstance(found, str):
        return float(np.float32(found))
    if kind.name in ("list", "set", "vector"):
        return [read(element, kind.args[0]) for element in found]
    if kind.name == "map":
        return by_key({"key": read(e["key"], kind.args[0]), "value": read(e["value"], kind.args[1])} for e in found)
    if kind.name in ("tuple", "udt"):
        return {name: read(found[name], arg) for name, arg in zip(found, kind.args, strict=True)}
    return found


@given(table=tables())
@settings(
    # An example is a Spark job over many types and rows; a smaller example would not be faster.
    max_examples=3,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_value_is_written_as_connect_does(
    spark: SparkSession, table: tuple[list[CqlType], list[tuple[Any, ...]]]
) -> None:
    kinds, rows = table
    names = [f"c{i}" for i in range(len(kinds))]
    fields = [spark_types.StructField(name, spark_type(kind)) for name, kind in zip(names, kinds, strict=True)]
    frame = spark.createDataFrame(rows, spark_types.StructType(fields))
    encoded = [encode(F.col(name), kind).alias(name) for name, kind in zip(names, kinds, strict=True)]
    texts = frame.select(F.to_json(F.struct(*encoded), {"ignoreNullFields": "false"})).collect()
    for row, (text,) in zip(rows, texts, strict=True):
        found = json.loads(text)
        for name, value, kind in zip(names, row, kinds, strict=True):
            assert read(found[name], kind) == connect(value, kind), (kind, value)
