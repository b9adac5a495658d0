"""Values in the log of a Delta table: those of a file's partition, and the statistics of a file.

The statistics come from the file's Parquet footer. Readers skip files by them, so a bound that is not certain is left
out. https://github.com/delta-io/delta/blob/master/PROTOCOL.md#per-file-statistics
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from math import isfinite, isinf, isnan
from typing import Any, TypeAlias
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from penstock.durations import EPOCH

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
LONGEST_NAME = 200
"""Characters of a folder's name; file systems allow 255."""
MOST_STATISTICS = 32
"""Columns with statistics: Delta's own default (delta.dataSkippingNumIndexedCols)."""
LONGEST_BOUND = 32
"""Characters of a string in the statistics, as Delta's own."""
LAST_CHARACTER = "\U0010ffff"

Leaf: TypeAlias = tuple[str, ...]
"""The path to the values of a column or of a struct's field."""


def partition_text(value: Any) -> str | None:
    """A partition value as Delta's protocol spells it; an empty string is null there."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return _float_text(value)
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, datetime):
        return _time_text(value)
    return value.isoformat() if isinstance(value, date) else str(value)


def _float_text(value: float) -> str:
    if isnan(value):
        return "NaN"
    if isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value or 0.0)


def _time_text(value: datetime) -> str:
    """With Z, readers need not know the time zone of the writer."""
    if value.tzinfo is None:
        return value.isoformat(sep=" ", timespec="microseconds")
    return f"{value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def folder_name(name: str, value: str | None) -> str:
    """The name of a partition's folder; readers take the value from the log, so a long one may be shortened."""
    whole = f"{_escaped(name)}={NO_VALUE if value is None else _escaped(value)}"
    if len(whole) <= LONGEST_NAME:
        return whole
    return f"{whole[: LONGEST_NAME - 65]}-{hashlib.sha256(whole.encode()).hexdigest()}"


def _escaped(text: str) -> str:
    return quote(text, safe="").replace("~", "%7E")


# Statistics.


class FileStatistics:
    """The statistics of a file: rows, nulls, and the least and greatest values of its first columns."""

    def __init__(self, schema: pa.Schema) -> None:
        kinds = [leaf for field in schema for leaf in _leaves((field.name,), field.type)]
        self._leaves = [(place, path, kind) for place, (path, kind) in enumerate(kinds) if path][:MOST_STATISTICS]
        self._floats = [path for _, path, kind in self._leaves if pa.types.is_floating(kind)]
        self._with_nan: set[Leaf] = set()

    def look(self, rows: pa.RecordBatch) -> None:
        """Note which columns have NaN, of which the footer says nothing; readers sort it after all numbers."""
        for path in self._floats:
            if path not in self._with_nan and pc.any(pc.is_nan(_column(rows, path))).as_py():
                self._with_nan.add(path)

    def text(self, footer: Any) -> str:
        """The statistics as JSON, from the metadata of the whole file."""
        least: dict[str, Any] = {}
        greatest: dict[str, Any] = {}
        nulls: dict[str, Any] = {}
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        for place, path, kind in self._leaves:
            of_groups = [group.column(place).statistics for group in groups]
            if not all(stats is not None and stats.has_null_count for stats in of_groups):
                continue
            _put(nulls, path, str(sum(stats.null_count for stats in of_groups)))
            low, high = _bounds(of_groups, kind)
            if low is not None:
                _put(least, path, low)
            if high is not None and path not in self._with_nan:
                _put(greatest, path, high)
        statistics = {"numRecords": str(footer.num_rows), "minValues": least, "maxValues": greatest, "nullCount": nulls}
        return _json(statistics)


def _leaves(path: Leaf, kind: pa.DataType) -> Iterator[tuple[Leaf, pa.DataType]]:
    """The columns of a Parquet file that a column becomes, in their order; those in lists and maps have no path."""
    if pa.types.is_struct(kind):
        for child in kind:
            yield from _leaves((*path, child.name) if path else (), child.type)
    elif pa.types.is_map(kind):
        yield from _leaves((), kind.key_type)
        yield from _leaves((), kind.item_type)
    elif pa.types.is_list(kind):
        yield from _leaves((), kind.value_type)
    else:
        yield path, kind


def _column(rows: pa.RecordBatch, path: Leaf) -> pa.Array:
    column = rows.column(path[0])
    return pc.struct_field(column, list(path[1:])) if path[1:] else column


def _bounds(groups: Sequence[Any], kind: pa.DataType) -> tuple[str | None, str | None]:
    """JSON of the least and the greatest value; None for those that are not known."""
    known = [stats for stats in groups if stats.num_values]
    if not known or not all(stats.has_min_max for stats in known):
        return None, None
    with suppress(ValueError, OverflowError):  # of strings that are not UTF-8, and of years that Python has not
        return _low(min(_value(stats.min_raw, stats.min, kind) for stats in known), kind), _high(
            max(_value(stats.max_raw, stats.max, kind) for stats in known), kind
        )
    return None, None


def _value(raw: Any, value: Any, kind: pa.DataType) -> Any:
    return raw if pa.types.is_timestamp(kind) else value


def _low(value: Any, kind: pa.DataType) -> str | None:
    return json.dumps(value[:LONGEST_BOUND]) if isinstance(value, str) else _bound(value, kind)


def _high(value: Any, kind: pa.DataType) -> str | None:
    if not isinstance(value, str):
        return _bound(value, kind)
    if len(value) <= LONGEST_BOUND:
        return json.dumps(value)
    # As Delta's own: greater than all strings that begin so, unless they go on with this character.
    above = value[:LONGEST_BOUND] + LAST_CHARACTER
    return json.dumps(above) if above > value else None


def _bound(value: Any, kind: pa.DataType) -> str | None:
    if pa.types.is_timestamp(kind):
        at = (EPOCH + timedelta(microseconds=value)).replace(tzinfo=None).isoformat(timespec="microseconds")
        return json.dumps(f"{at}Z" if kind.tz else at)
    if isinstance(value, bool | bytes):
        return None
    if isinstance(value, float):
        return repr(value) if isfinite(value) else None
    return f"{value:f}" if isinstance(value, Decimal) else json.dumps(str(value) if isinstance(value, date) else value)


def _put(tree: dict[str, Any], path: Leaf, value: str) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value


def _json(tree: Any) -> str:
    """JSON of nested dicts whose values are JSON already: Python's encoder would write decimals as floats."""
    if isinstance(tree, str):
        return tree
    return "{" + ",".join(f"{json.dumps(name)}:{_json(value)}" for name, value in tree.items()) + "}"
