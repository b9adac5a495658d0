"""The mapping of a frame to a Delta table: which columns fit or are missing, and the table that fits a frame."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame, functions as F, types as st

from penstock.errors import PenstockError
from penstock.metrics import delays
from penstock.query.upsert import newest
from penstock.spark_runtime import casts

PLAIN = (
    *(st.BooleanType, st.ByteType, st.ShortType, st.IntegerType, st.LongType, st.FloatType, st.DoubleType),
    *(st.DecimalType, st.StringType, st.BinaryType, st.DateType, st.TimestampType, st.TimestampNTZType),
)
"""Spark's types that Delta has, beside structs, arrays and maps."""
NO_PARTITIONS = (st.BinaryType, st.StructType, st.ArrayType, st.MapType)
WIDTHS = (st.ByteType, st.ShortType, st.IntegerType, st.LongType)
DIGITS: Mapping[type[st.DataType], int] = {st.ByteType: 3, st.ShortType: 5, st.IntegerType: 10, st.LongType: 19}
FORBIDDEN = re.compile(r"[ ,;{}()\n\t=]")
"""Characters that Spark refuses in the names of a Delta table's columns."""
COMPUTED = ("delta.invariants", "delta.generationExpression", "delta.identity.start", "__CHAR_VARCHAR_TYPE_STRING")
"""Marks of columns with rules: conditions, computed values, and strings of a limited length."""
CONSTRAINT = "delta.constraints."
VERSION, DELETED = "penstock$version", "penstock$deleted"
"""Columns of the rows that replace others, beside those of the table."""


@dataclass(frozen=True)
class TableLayout:
    """The columns of a table: their types, those that are not null, those of its folders; its properties and features.

    `computed` are columns with rules or values of their own.
    """

    columns: Mapping[str, st.DataType]
    required: tuple[str, ...]
    partition_by: tuple[str, ...]
    properties: Mapping[str, str] = field(default_factory=dict)
    features: frozenset[str] = frozenset()
    computed: tuple[str, ...] = ()

    def schema(self) -> str:
        """The columns, all nullable, as Delta's JSON, which is Spark's."""
        return st.StructType([st.StructField(name, _nullable(kind)) for name, kind in self.columns.items()]).json()


@dataclass(frozen=True)
class Keys:
    """How rows replace others: by `key`, of several rows that of the highest `version`; `deleted` marks deletions."""

    key: tuple[str, ...] = ()
    version: str | None = None
    deleted: str | None = None


def of_table(
    schema: str, partition_by: Sequence[str], properties: Mapping[str, str], features: Iterable[str], where: str
) -> TableLayout:
    """The layout of an existing table with this schema (Delta's JSON); raises PenstockError for an unknown type."""
    fields = st.StructType.fromJson(json.loads(schema)).fields
    for column in fields:
        _require_known(column.dataType, column.name, where)
    columns = {column.name: column.dataType for column in fields}
    required = tuple(column.name for column in fields if not column.nullable)
    computed = tuple(column.name for column in fields if any(name in column.metadata for name in COMPUTED))
    return TableLayout(columns, required, tuple(partition_by), properties, frozenset(features), computed)


def of_frame(frame: DataFrame, partition_by: Sequence[str], keys: Keys, where: str) -> TableLayout:
    """The layout of a new table for the frame's rows; raises PenstockError if Delta has no such table."""
    fields = [column for column in frame.schema.fields if column.name not in (keys.deleted, delays.TIME)]
    if wrong := [column.name for column in fields if FORBIDDEN.search(column.name)]:
        raise PenstockError(
            f"the names {', '.join(map(repr, wrong))} have characters that a Delta table's columns must not have",
            where=where,
            next="rename the columns to names without spaces and , ; { } ( ) =",
        )
    names = [column.name.lower() for column in fields]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise PenstockError(
            f"the frame has several columns {', '.join(twice)}, and Delta does not tell upper and lower case apart",
            where=where,
            next="rename or drop all but one",
        )
    for column in fields:
        _require_known(column.dataType, column.name, where)
    return TableLayout({column.name: _nullable(column.dataType) for column in fields}, (), tuple(partition_by))


def require_fit(frame: DataFrame, table: TableLayout, partition_by: Sequence[str], keys: Keys, where: str) -> None:
    """Raise PenstockError unless the frame's rows can be written to the table."""
    _require_keys(frame, keys, where)
    _require_partitions(frame, table, partition_by, where)
    names = data_columns(frame, table, keys)
    if more := [name for name in names if name not in table.columns]:
        raise PenstockError(
            f"the table has no column {', '.join(more)}",
            where=f"{where} with {', '.join(table.columns)}",
            next="drop or rename these columns in the frame, or add them: ALTER TABLE ... ADD COLUMN",
        )
    if missing := [name for name in table.columns if name not in names]:
        kind = table.columns[missing[0]].simpleString()
        raise PenstockError(
            f"the frame has no column {', '.join(missing)}",
            where=f"{where} with {', '.join(table.columns)}",
            next=f'select it, or write nulls: frame.withColumn("{missing[0]}", F.lit(None).cast("{kind}"))',
        )
    for name in names:
        source, wanted = frame.schema[name].dataType, table.columns[name]
        if not fits(source, wanted):
            raise PenstockError(
                f"the column {name} is {source.simpleString()} and does not fit into {wanted.simpleString()}",
                where=where,
                next=f"{casts.advice(name, source, wanted)}; or change the table's column",
            )
    _require_writable(table, keys, where)


def _require_keys(frame: DataFrame, keys: Keys, where: str) -> None:
    for name in (*keys.key, *filter(None, (keys.version, keys.deleted))):
        if name not in frame.columns:
            raise PenstockError(
                f"the frame has no column {name}",
                where=f"columns {', '.join(frame.columns)}, for {where}",
                next="select it, or fix key=, version= or deleted=",
            )
    if keys.deleted and not isinstance(frame.schema[keys.deleted].dataType, st.BooleanType):
        raise PenstockError(f"the column {keys.deleted} is not boolean", where=where, next="cast it to boolean")
    if keys.deleted in keys.key:
        raise PenstockError(f"the column {keys.deleted} is in key= and deleted=", where=where, next="correct one")
    for name in keys.key:
        if isinstance(frame.schema[name].dataType, (st.StructType, st.ArrayType, st.MapType)):
            kind = frame.schema[name].dataType.simpleString()
            raise PenstockError(f"the key {name} is {kind}", where=where, next="use columns of plain types as the key")


def _require_partitions(frame: DataFrame, table: TableLayout, partition_by: Sequence[str], where: str) -> None:
    if missing := [name for name in partition_by if name not in frame.columns]:
        raise PenstockError(
            f"the frame has no column {', '.join(missing)}", where=where, next="correct partition_by=, or select it"
        )
    if partition_by and tuple(partition_by) != table.partition_by:
        raise PenstockError(
            f"partition_by= is {', '.join(partition_by)}, and the table is partitioned by "
            f"{', '.join(table.partition_by) or 'no column'}",
            where=where,
            next="omit partition_by=: the table defines it; or write to another table",
        )
    if table.columns.keys() <= set(table.partition_by):
        raise PenstockError("partition_by= leaves no column for the files", where=where, next="name fewer columns")
    for name in table.partition_by:
        kind = table.columns[name]
        if isinstance(kind, NO_PARTITIONS):
            raise PenstockError(
                f"the partition column {name} is {kind.simpleString()}",
                where=where,
                next="partition by a string, a number, a date or a boolean",
            )


def _require_writable(table: TableLayout, keys: Keys, where: str) -> None:
    """Raise PenstockError for rules and features that the library does not check when it gets finished files."""
    rules = [name.removeprefix(CONSTRAINT) for name in table.properties if name.startswith(CONSTRAINT)]
    if rules or table.computed:
        raise PenstockError(
            "the table has constraints or computed columns, which are not checked here: "
            f"{', '.join((*rules, *table.computed))}",
            where=where,
            next="drop them, and check the rows in the frame with where(...); or write to another table",
        )
    if table.properties.get("delta.columnMapping.mode", "none") != "none":
        raise PenstockError(
            "the table maps the names of its columns, which is not written here",
            where=where,
            next="run in Spark: ALTER TABLE ... DROP FEATURE columnMapping, or write to another table",
        )
    if keys.key and "deletionVectors" in table.features:
        raise PenstockError(
            "the table has deletion vectors, and key= replaces rows, which is not done with them here",
            where=where,
            next="omit key=, or run in Spark: ALTER TABLE ... DROP FEATURE deletionVectors",
        )
    times = [name for name in table.partition_by if isinstance(table.columns[name], st.TimestampType)]
    if keys.key and times:
        raise PenstockError(
            # delta-rs writes them without a time zone, and Spark reads them in that of its session.
            f"key= replaces rows, and the partition column {times[0]} is a timestamp, which a merge may shift",
            where=where,
            next=f"partition by a date, such as F.to_date({times[0]!r}), or omit key=",
        )
    if keys.key and table.properties.get("delta.appendOnly") == "true":
        raise PenstockError(
            "the table is append-only, and key= replaces rows",
            where=where,
            next="omit key=, or run: ALTER TABLE ... SET TBLPROPERTIES (delta.appendOnly = false)",
        )


def data_columns(frame: DataFrame, table: TableLayout, keys: Keys) -> list[str]:
    """The frame's columns that the table is to have; the version only if the table has it."""
    aside = {keys.deleted, delays.TIME} | ({keys.version} if keys.version not in table.columns else set())
    return [name for name in frame.columns if name not in aside]


def rows_of(frame: DataFrame, table: TableLayout, keys: Keys) -> DataFrame:
    """The rows to write: the table's columns as `c0`, `c1`, ... in its order and types, then what `keys` needs.

    With a key, of the rows of a key the one with the highest version, or the last one. The times of the rows' events
    are there if the frame has them.
    """
    columns = [_plain(name, kind, name in table.partition_by) for name, kind in table.columns.items()]
    chosen = [column.alias(alias) for column, alias in zip(columns, aliases(table.columns), strict=True)]
    if keys.version:
        chosen.append(F.col(_quoted(keys.version)).alias(VERSION))
    if keys.deleted:
        chosen.append(F.coalesce(F.col(_quoted(keys.deleted)), F.lit(False)).alias(DELETED))
    times = delays.event_micros(frame)
    rows = frame.select(*chosen, *([] if times is None else [times]))
    if keys.key:
        return newest(rows, aliases(table.columns, keys.key), VERSION if keys.version else None).drop(VERSION)
    return rows.sortWithinPartitions(*names) if (names := aliases(table.columns, table.partition_by)) else rows


def aliases(columns: Iterable[str], some: Sequence[str] | None = None) -> list[str]:
    """The names of columns, or of some of them, on the way to the tasks: those of users may have any characters."""
    known = {name: f"c{place}" for place, name in enumerate(columns)}
    return [known[name] for name in (known if some is None else some)]


def _plain(name: str, kind: st.DataType, partition: bool) -> Column:
    column = F.col(_quoted(name)).cast(kind)
    # Delta has no empty strings in partition columns: they are null there, also for the key.
    return F.nullif(column, F.lit("")) if partition and isinstance(kind, st.StringType) else column


def fits(source: st.DataType, wanted: st.DataType) -> bool:
    """Whether all values of a type are values of another one, which Spark's cast keeps."""
    if isinstance(source, st.StructType) and isinstance(wanted, st.StructType):
        pairs = list(zip(source, wanted, strict=False))
        known = all(b.nullable or not a.nullable for a, b in pairs)
        return known and source.names == wanted.names and all(fits(a.dataType, b.dataType) for a, b in pairs)
    if isinstance(source, st.ArrayType) and isinstance(wanted, st.ArrayType):
        return wanted.containsNull >= source.containsNull and fits(source.elementType, wanted.elementType)
    if isinstance(source, st.MapType) and isinstance(wanted, st.MapType):
        values = wanted.valueContainsNull >= source.valueContainsNull and fits(source.valueType, wanted.valueType)
        return values and fits(source.keyType, wanted.keyType)
    if isinstance(source, WIDTHS) and isinstance(wanted, WIDTHS):
        return WIDTHS.index(type(source)) <= WIDTHS.index(type(wanted))
    if isinstance(wanted, st.DecimalType):
        return _fits_decimal(source, wanted)
    if isinstance(source, st.FloatType) and isinstance(wanted, st.DoubleType):
        return True
    return isinstance(source, type(wanted))


def _fits_decimal(source: st.DataType, wanted: st.DecimalType) -> bool:
    whole = wanted.precision - wanted.scale
    if isinstance(source, st.DecimalType):
        return source.scale <= wanted.scale and source.precision - source.scale <= whole
    return type(source) in DIGITS and DIGITS[type(source)] <= whole


def _require_known(kind: st.DataType, name: str, where: str) -> None:
    """Raise PenstockError for a type that Delta has not."""
    if isinstance(kind, st.StructType):
        below = [field.dataType for field in kind]
    elif isinstance(kind, st.ArrayType):
        below = [kind.elementType]
    elif isinstance(kind, st.MapType):
        below = [kind.keyType, kind.valueType]
    elif isinstance(kind, PLAIN):
        below = []
    else:
        raise PenstockError(
            f"the column {name} has the type {kind.simpleString()}, which is not written to Delta Lake",
            where=where,
            next=f'make it a string: frame.withColumn("{name}", F.col("{name}").cast("string")), or drop it',
        )
    for part in below:
        _require_known(part, name, where)


def _nullable(kind: st.DataType) -> st.DataType:
    """The type with nullable parts, and strings without a collation: files have only their characters."""
    if isinstance(kind, st.StructType):
        return st.StructType([st.StructField(field.name, _nullable(field.dataType)) for field in kind])
    if isinstance(kind, st.ArrayType):
        return st.ArrayType(_nullable(kind.elementType))
    if isinstance(kind, st.MapType):
        return st.MapType(_nullable(kind.keyType), _nullable(kind.valueType))
    return st.StringType() if isinstance(kind, st.StringType) else kind


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
