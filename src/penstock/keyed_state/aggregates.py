"""Aggregates as strings, such as `count(*)` or `sum(price * n)`: computed as partial results that are merged."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, functions as F, types as st

from penstock.border.spark_refusals import refusal
from penstock.errors import PenstockError
from penstock.keyed_state.exact_sums import DIGITS, divided, grouped
from penstock.spark_runtime.arrow_types import to_arrow_type

MERGES = {"count": "sum", "sum": "sum", "min": "min", "max": "max"}
"""The function that merges the partial results of each function."""
FUNCTIONS = (*MERGES, "avg")
ORDERED = (
    *(st.NumericType, st.StringType, st.BinaryType, st.BooleanType),
    *(st.DateType, st.TimestampType, st.TimestampNTZType),
)
"""Types with a min and a max."""
OF = "_of_"
"""Prefix of an aggregate's name: the column with its argument."""
_CALL = re.compile(r"\s*(\w+)\s*\((.*)\)\s*", re.DOTALL)


@dataclass(frozen=True)
class PartialColumn:
    """A column of partial results: Arrow's `function` of the column `source`; `MERGES` names the merging function."""

    column: str
    source: str
    function: str
    type: pa.DataType


@dataclass(frozen=True)
class Aggregate:
    """A column of the result, from one part, or for a mean from a sum and a count."""

    column: str
    parts: tuple[PartialColumn, ...]
    type: st.DataType

    def value(self, merged: pa.Table) -> pa.ChunkedArray:
        values = result(merged, [part.column for part in self.parts], self.column)
        return values.cast(to_arrow_type(self.type, timezone="UTC")) if pa.types.is_decimal(values.type) else values


def result(merged: pa.Table, parts: Sequence[str], name: str) -> pa.ChunkedArray:
    """The result `name` from the columns of its partial results: one, or for a mean a sum and a count."""
    if len(parts) == 1:
        return merged[parts[0]]
    total, count = (merged[part] for part in parts)
    return divided(total, count, name)


def parse(frame: DataFrame, wanted: Mapping[str, str]) -> tuple[DataFrame, tuple[Aggregate, ...]]:
    """The frame with a column for each argument, and the aggregates over these columns."""
    if not wanted:
        raise _wrong("there are no aggregates", "")
    aggregates = []
    for name, text in wanted.items():
        call = _CALL.fullmatch(text) if isinstance(text, str) else None
        if not call or call[1].lower() not in FUNCTIONS:
            raise _wrong(f"{text!r} is not an aggregate", name)
        function, argument = call[1].lower(), call[2].strip()
        source = OF + name
        frame = _with_argument(frame, source, argument, name)
        kind = frame.schema[source].dataType
        aggregates.append(_aggregate(name, function, source, kind, text))
        if function == "avg" and not isinstance(kind, st.DecimalType):
            # Arrow does not cast a sum of integers above 2**53 to a double.
            frame = frame.withColumn(source, F.col(source).cast("double"))
    return frame, tuple(aggregates)


def _with_argument(frame: DataFrame, source: str, argument: str, name: str) -> DataFrame:
    """The frame with a column for the argument; `count(*)` counts rows: a constant is never null."""
    try:
        return frame.withColumn(source, F.expr("true" if argument == "*" else argument))
    except (AnalysisException, ParseException) as error:
        reason = refusal(error, frame.columns)
        raise PenstockError(f"Spark refuses {argument!r}: {reason.what}", where=f"{name}=", next=reason.next) from None


def _aggregate(name: str, function: str, source: str, kind: st.DataType, text: str) -> Aggregate:
    if function in ("sum", "avg") and not isinstance(kind, st.NumericType):
        raise _not_taken(name, function, kind, text)
    if function in ("min", "max") and not isinstance(kind, ORDERED):
        raise _not_taken(name, function, kind, text)
    count = PartialColumn(f"{name}_count", source, "count", pa.int64())
    if function == "count":
        return Aggregate(name, (count,), st.LongType())
    if function == "avg":
        decimal = isinstance(kind, st.DecimalType)
        total = _part(f"{name}_sum", source, "sum", _total(kind) if decimal else st.DoubleType())
        return Aggregate(name, (total, count), _mean(kind))
    output = _total(kind) if function == "sum" else kind
    return Aggregate(name, (_part(f"{name}_{function}", source, function, output),), output)


def _part(column: str, source: str, function: str, kind: st.DataType) -> PartialColumn:
    return PartialColumn(column, source, function, to_arrow_type(kind, timezone="UTC"))


# The types of results are those of Spark's own functions.


def _total(kind: st.DataType) -> st.DataType:
    if isinstance(kind, st.DecimalType):
        return st.DecimalType(min(DIGITS, kind.precision + 10), kind.scale)
    return st.LongType() if isinstance(kind, st.IntegralType) else st.DoubleType()


def _mean(kind: st.DataType) -> st.DataType:
    if isinstance(kind, st.DecimalType):
        return st.DecimalType(min(DIGITS, kind.precision + 4), min(DIGITS, kind.scale + 4))
    return st.DoubleType()


def partial(rows: pa.Table, keys: Sequence[str], aggregates: Sequence[Aggregate]) -> pa.Table:
    """One row for each key: the keys and the partial results."""
    parts = _parts(aggregates)
    return grouped(rows, keys, {part.column: (part.source, part.function, part.type) for part in parts})


def merged(rows: pa.Table, keys: Sequence[str], aggregates: Sequence[Aggregate]) -> pa.Table:
    """Merges partial results to one row for each key; a single row of a key stays as it is."""
    parts = _parts(aggregates)
    return grouped(rows, keys, {part.column: (part.column, MERGES[part.function], part.type) for part in parts})


def fields(aggregates: Sequence[Aggregate]) -> list[pa.Field]:
    """The columns of the partial results."""
    return [pa.field(part.column, part.type) for part in _parts(aggregates)]


def parts_of(aggregates: Sequence[Aggregate]) -> dict[str, list[str]]:
    """The columns from which each result is computed."""
    return {aggregate.column: [part.column for part in aggregate.parts] for aggregate in aggregates}


def _parts(aggregates: Sequence[Aggregate]) -> list[PartialColumn]:
    return [part for aggregate in aggregates for part in aggregate.parts]


def _not_taken(name: str, function: str, kind: st.DataType, text: str) -> PenstockError:
    what = f"{function} does not take {kind.simpleString()}: {text!r}"
    if not isinstance(kind, st.StringType):
        return _wrong(what, name)
    argument = text[text.index("(") + 1 : text.rindex(")")].strip()
    cast = f'{name}="{function}(cast({argument} as decimal(38, 9)))"'
    return PenstockError(
        what, where=f"{name}=", next=f"cast text that has numbers, to a type with room for all their digits: {cast}"
    )


def _wrong(what: str, name: str) -> PenstockError:
    return PenstockError(
        what,
        where=f"{name}=" if name else "",
        next=f'write it like n="count(*)"; use {", ".join(FUNCTIONS)} for numbers, min, max for strings and times',
    )
