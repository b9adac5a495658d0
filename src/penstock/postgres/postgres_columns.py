"""The mapping of a frame to a PostgreSQL table: which columns fit or are missing, and each column's transport type."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, functions as F, types as st

from penstock.errors import PenstockError
from penstock.metrics import delays
from penstock.postgres.postgres_session import quoted
from penstock.spark_runtime import casts

Types = tuple[type[st.DataType], ...]

# PostgreSQL's type: the Spark types that fit into it, and the Spark type for transport.
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
DECLARED: Mapping[type[st.DataType], str] = {
    st.BooleanType: "boolean",
    st.ByteType: "smallint",
    st.ShortType: "smallint",
    st.IntegerType: "integer",
    st.LongType: "bigint",
    st.FloatType: "real",
    st.DoubleType: "double precision",
    st.BinaryType: "bytea",
    st.DateType: "date",
    st.TimestampType: "timestamptz",
    st.TimestampNTZType: "timestamp",
}
INTEGERS: Types = (st.ByteType, st.ShortType, st.IntegerType, st.LongType)
STRINGS: Types = (st.StringType,)
MOST_DIGITS = 38
"""Digits of Spark's decimals."""
JSON = ("json", "jsonb")
# PostgreSQL's names of the transport types.
NAMES: Mapping[type[st.DataType], str] = {type(spark): name for name, (_, spark) in PLAIN.items()} | {
    st.StringType: "text"
}
# A domain accepts the same values as its base type, and so does an array of it: `plain` ends with the type below all
# domains. A cast to a character or bit type with a length would truncate values that an assignment refuses, so the cast
# omits the length. Other modifiers round like the assignment; keys need that, to be compared as in the table.
COLUMNS = """\
WITH RECURSIVE plain AS (
    SELECT attnum AS place, atttypid AS type, atttypmod AS modifier, 0 AS depth
    FROM pg_attribute WHERE attrelid = to_regclass({table}) AND attnum > 0 AND NOT attisdropped
    UNION ALL
    SELECT p.place, coalesce(b.typarray, t.typbasetype), coalesce(e.typtypmod, t.typtypmod), p.depth + 1
    FROM plain p JOIN pg_type t ON t.oid = p.type
    LEFT JOIN pg_type e ON e.typarray = t.oid AND e.typtype = 'd' LEFT JOIN pg_type b ON b.oid = e.typbasetype
    WHERE t.typtype = 'd' OR b.typarray <> 0)
SELECT DISTINCT ON (a.attnum) a.attname::text, t.typname::text, format_type(a.atttypid, a.atttypmod)::text,
       format_type(t.oid, CASE WHEN ltrim(t.typname, '_') IN ('varchar', 'bpchar', 'bit', 'varbit') THEN -1
                               ELSE p.modifier END)::text,
       a.attnotnull AND NOT a.atthasdef AND a.attidentity = '', a.attgenerated <> '' OR a.attidentity = 'a',
       CASE ltrim(t.typname, '_') WHEN 'varchar' THEN nullif(p.modifier, -1) - 4
                                  WHEN 'money' THEN scale('0'::money::numeric) END
FROM plain p JOIN pg_type t ON t.oid = p.type
JOIN pg_attribute a ON a.attrelid = to_regclass({table}) AND a.attnum = p.place
ORDER BY a.attnum, p.depth DESC"""
# The table's name in SQL: `to_regclass` accepts reserved words, such as user, without quotes; statements do not.
NAME = "SELECT to_regclass({table})::text"
UNIQUE = """\
SELECT array_agg(a.attname::text) AS columns, bool_and(a.attnotnull) AS certain
FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1])
WHERE i.indrelid = to_regclass({table}) AND i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL
GROUP BY i.indexrelid"""


@dataclass(frozen=True)
class WrittenColumn:
    """A column to write: its name in the table, its name and type in the staging table, and the type to cast to."""

    name: str
    alias: str
    travel: Travel
    cast: str


@dataclass(frozen=True)
class StagingLayout:
    """The columns of the staging table: the table's columns and, with keys, `version` and `deleted` if needed."""

    columns: tuple[WrittenColumn, ...]
    version: Travel | None = None
    deleted: bool = False


def layout(
    frame: DataFrame,
    table: str,
    targets: Sequence[TargetColumn],
    unique: Sequence[tuple[frozenset[str], bool]],
    key: Sequence[str],
    version: str | None,
    deleted: str | None,
) -> StagingLayout:
    """The layout of the staging table; raises PenstockError if the frame does not fit the table."""
    known = {target.name: target for target in targets}
    if not known:
        statement = create_statement(frame, table, key, deleted)
        raise PenstockError(
            f"there is no table {table}", where="PostgreSQL", next=f"name it with its schema, or run: {statement}"
        )
    _require_key(frame, table, unique, key)
    for extra in filter(None, (version, deleted)):
        _require_column(frame, extra, table)
    if deleted and not isinstance(frame.schema[deleted].dataType, st.BooleanType):
        raise PenstockError(f"the column {deleted} is not boolean", where="postgres.sink", next="cast it to boolean")
    aside = {deleted, delays.TIME} | ({version} if version not in known else set())
    names = [name for name in frame.columns if name not in aside]
    _require_known(names, known, table)
    _require_all(names, targets, table)
    columns = tuple(_written(frame, known[name], f"c{place}", table) for place, name in enumerate(names))
    return StagingLayout(columns, _version(frame, version, known, table), deleted is not None)


def create_statement(frame: DataFrame, table: str, key: Sequence[str], deleted: str | None) -> str:
    """The statement that creates a table for the frame's rows; `table` as in SQL."""
    fields = [field for field in frame.schema.fields if field.name not in (deleted, delays.TIME)]
    columns = [f"{quoted(field.name)} {_declared(field.dataType)}" for field in fields]
    if key:
        columns.append(f"PRIMARY KEY ({', '.join(map(quoted, key))})")
    return f"CREATE TABLE {table} ({', '.join(columns)})"


def _declared(kind: st.DataType) -> str:
    """PostgreSQL's type for the values of a Spark type."""
    if isinstance(kind, st.DecimalType):
        return f"numeric({kind.precision},{kind.scale})"
    if isinstance(kind, st.ArrayType) and not isinstance(kind.elementType, casts.NESTED):
        return f"{_declared(kind.elementType)}[]"
    return "jsonb" if isinstance(kind, casts.NESTED) else DECLARED.get(type(kind), "text")


def rows_of(frame: DataFrame, plan: StagingLayout, deleted: str | None) -> DataFrame:
    """The frame with the columns of the staging table, and the times of the rows' events if it has them."""
    columns = [column.travel.column.alias(column.alias) for column in plan.columns]
    if plan.version:
        columns.append(plan.version.column.alias("version"))
    if deleted:
        columns.append(F.coalesce(F.col(_quoted(deleted)), F.lit(False)).alias("deleted"))
    times = delays.event_micros(frame)
    return frame.select(*columns, *([] if times is None else [times]))


def _written(frame: DataFrame, target: TargetColumn, alias: str, table: str) -> WrittenColumn:
    kind = frame.schema[target.name].dataType
    way = travel(F.col(_quoted(target.name)), kind, target)
    if way is None:
        raise misfit(target.name, kind, target, table)
    return WrittenColumn(target.name, alias, way, target.cast)


def _version(frame: DataFrame, version: str | None, known: dict[str, TargetColumn], table: str) -> Travel | None:
    """A version that is not a column of the table is an extra column of the staging table."""
    if version is None or version in known:
        return None
    kind = frame.schema[version].dataType
    for name in ("int8", "timestamptz", "timestamp", "float8", "date", "text"):
        if way := travel(F.col(_quoted(version)), kind, TargetColumn(version, name, name, name, False, False)):
            return way
    raise PenstockError(
        f"the version {version} is {kind.simpleString()}, which cannot be ordered here",
        where=f"PostgreSQL table {table}",
        next="use a number, a time or a string",
    )


def _require_key(
    frame: DataFrame, table: str, unique: Sequence[tuple[frozenset[str], bool]], key: Sequence[str]
) -> None:
    for name in key:
        _require_column(frame, name, table)
    if not key or (frozenset(key), True) in unique:
        return
    listed = ", ".join(f'"{name}"' for name in key)
    raise PenstockError(
        f"the key {', '.join(key)} is neither the primary key of the table nor unique and NOT NULL",
        where=f"PostgreSQL table {table}",
        next=f"run: ALTER TABLE {table} ADD PRIMARY KEY ({listed})",
    )


def _require_column(frame: DataFrame, name: str, table: str) -> None:
    if name not in frame.columns:
        raise PenstockError(
            f"the frame has no column {name}",
            where=f"columns {', '.join(frame.columns)}, for PostgreSQL table {table}",
            next="select it, or fix key=, version= or deleted=",
        )


def _require_known(names: Sequence[str], known: dict[str, TargetColumn], table: str) -> None:
    if strange := [name for name in names if name not in known or known[name].generated]:
        raise PenstockError(
            f"the table has no writable column {', '.join(strange)}",
            where=f"PostgreSQL table {table} with {', '.join(n for n, t in known.items() if not t.generated)}",
            next="drop or rename these columns in the frame, or add them to the table",
        )


def _require_all(names: Sequence[str], targets: Sequence[TargetColumn], table: str) -> None:
    missing = [target.name for target in targets if target.required and target.name not in names]
    if missing:
        raise PenstockError(
            f"the frame lacks {', '.join(missing)}, which must not be null",
            where=f"PostgreSQL table {table}",
            next="select these columns, or give them a default in the table",
        )


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


# The Spark types that fit each PostgreSQL type, and their transport types.
#
# Columns are sent in COPY's binary format as one of a few types and cast to their own type in the database: a string
# becomes uuid, jsonb, numeric or an enum there. Values are not narrowed: a type that could lose digits is refused when
# the query is built, a string that is too long when it is written. The database rounds only what Spark's types do not
# show: a time to its column's precision, a number in a string to its column's scale.


@dataclass(frozen=True)
class TargetColumn:
    """A column of the table; `type` is its type's short name (for arrays with "_" in front), `full` its declaration.

    `cast` is the type for the cast before the assignment: for a domain its base type, never a type that truncates.
    `most` are the characters of a varchar, and the decimal places of money in the database's locale; None: any number.
    """

    name: str
    type: str
    full: str
    cast: str
    required: bool
    generated: bool
    most: int | None = None


@dataclass(frozen=True)
class Travel:
    """The transport of a column: the Spark column, and its type in the staging table."""

    column: Column
    type: str


def travel(source: Column, kind: st.DataType, target: TargetColumn) -> Travel | None:
    """The transport of a Spark column of this type to the target; None if it does not fit."""
    if target.type.startswith("_"):
        return _array(source, kind, target)
    if target.type in JSON and isinstance(kind, casts.NESTED):
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
    """Whether the column has fewer decimal places than the values."""
    scale = scale_of(cast)
    return scale is not None and scale < (kind.scale if isinstance(kind, st.DecimalType) else 0)


def scale_of(cast: str) -> int | None:
    """The scale of "numeric(precision,scale)", also of an array of it."""
    declared = re.match(r"numeric\(\d+,(-?\d+)\)", cast)
    return int(declared[1]) if declared else None


def _array(source: Column, kind: st.DataType, target: TargetColumn) -> Travel | None:
    if not isinstance(kind, st.ArrayType):
        return None
    chosen = _transport(kind.elementType, target.type[1:], target.cast)
    return Travel(source.cast(st.ArrayType(chosen)), f"{NAMES[type(chosen)]}[]") if chosen else None


def misfit(name: str, kind: st.DataType, target: TargetColumn, table: str) -> PenstockError:
    return PenstockError(
        f"the column {name} is {kind.simpleString()} and does not fit into {target.full}",
        where=f"PostgreSQL table {table}",
        next=f"{_advice(name, kind, target)}; or change the table's column",
    )


def _advice(name: str, kind: st.DataType, target: TargetColumn) -> str:
    plain = target.type.removeprefix("_")
    scale = scale_of(target.cast) if plain == "numeric" else None
    if scale is not None and 0 <= scale <= MOST_DIGITS:
        wanted: st.DataType = st.DecimalType(MOST_DIGITS, scale)
    else:
        wanted = PLAIN[plain][1] if plain in PLAIN else st.StringType()
    return casts.advice(name, kind, st.ArrayType(wanted) if plain != target.type else wanted)
