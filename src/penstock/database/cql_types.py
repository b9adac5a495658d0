"""CQL types and tables as data, and their Spark types; uses no connection and no wire format.

A type is parsed once from the string in `system_schema` (`frozen<map<timeuuid, text>>`) into a `CqlType` tree. Scalars
without a Spark type of the same range become strings, so that no value is rounded: decimal, varint, uuid, timeuuid,
inet and duration.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import types as st

from penstock.errors import PenstockError

LOG_SUFFIX = "_scylla_cdc_log"

SCALARS: dict[str, st.DataType] = {
    "ascii": st.StringType(),
    "bigint": st.LongType(),
    "blob": st.BinaryType(),
    "boolean": st.BooleanType(),
    "counter": st.LongType(),
    "date": st.DateType(),
    "decimal": st.StringType(),
    "double": st.DoubleType(),
    "duration": st.StringType(),
    "float": st.FloatType(),
    "inet": st.StringType(),
    "int": st.IntegerType(),
    "smallint": st.ShortType(),
    "text": st.StringType(),
    "time": st.LongType(),
    "timestamp": st.TimestampType(),
    "timeuuid": st.StringType(),
    "tinyint": st.ByteType(),
    "uuid": st.StringType(),
    "varchar": st.StringType(),
    "varint": st.StringType(),
}

# Bytes on the wire; a vector of one of these types has no lengths between its elements.
FIXED_WIDTHS = {
    "bigint": 8,
    "boolean": 1,
    "double": 8,
    "float": 4,
    "int": 4,
    "timestamp": 8,
    "timeuuid": 16,
    "uuid": 16,
}


_PLAIN = re.compile("[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class CqlType:
    """A CQL type: the name of a scalar, or list, set, map, tuple, vector or udt with its arguments."""

    name: str
    args: tuple[CqlType, ...] = ()
    frozen: bool = False
    fields: tuple[str, ...] = ()
    udt: str = ""
    size: int = 0

    @property
    def multi_cell(self) -> bool:
        """Whether the database stores each element as its own cell (non-frozen collection or user type)."""
        return not self.frozen and self.name in ("list", "set", "map", "udt")

    @property
    def nonfrozen_list(self) -> bool:
        """Whether its elements are cells with keys that the database makes."""
        return self.multi_cell and self.name == "list"

    def __str__(self) -> str:
        if self.name == "udt":
            text = _name(self.udt)
        elif self.name == "vector":
            text = f"vector<{self.args[0]}, {self.size}>"
        elif self.args:
            text = f"{self.name}<{', '.join(map(str, self.args))}>"
        else:
            return self.name
        return f"frozen<{text}>" if self.frozen else text


def _name(udt: str) -> str:
    """The name of a user type, quoted for CQL if needed."""
    if _PLAIN.fullmatch(udt) and udt not in SCALARS:
        return udt
    return '"' + udt.replace('"', '""') + '"'


@dataclass(frozen=True)
class Column:
    """A column of a base table; `kind` is partition_key, clustering, static or regular, as in `system_schema`."""

    name: str
    type: CqlType
    kind: str
    position: int = -1
    descending: bool = False


@dataclass(frozen=True)
class CqlTable:
    """A base table; its columns are in byte order of their names, as in the change log.

    `log` is the id of the log's table, and `altered` is when the table's options were last written (microseconds since
    1970); both are empty if they were not looked up.
    """

    keyspace: str
    name: str
    columns: tuple[Column, ...]
    cdc: tuple[tuple[str, str], ...] = ()
    log: str = ""
    altered: int = 0

    @property
    def full_name(self) -> str:
        return f"{self.keyspace}.{self.name}"

    @property
    def log_name(self) -> str:
        return self.name + LOG_SUFFIX

    @cached_property
    def partition_key(self) -> tuple[Column, ...]:
        return self._key("partition_key")

    @cached_property
    def clustering_key(self) -> tuple[Column, ...]:
        return self._key("clustering")

    @cached_property
    def values(self) -> tuple[Column, ...]:
        """All columns outside the primary key."""
        return tuple(c for c in self.columns if c.kind in ("static", "regular"))

    @cached_property
    def udts(self) -> dict[str, CqlType]:
        """All user types that a column uses, by name."""
        types_by_name: dict[str, CqlType] = {}
        for column in self.columns:
            _collect_udts(column.type, types_by_name)
        return types_by_name

    @cached_property
    def descending(self) -> tuple[str, ...]:
        """The columns of the clustering key whose rows are in descending order."""
        return tuple(c.name for c in self.clustering_key if c.descending)

    def option(self, name: str) -> str:
        return dict(self.cdc).get(name, "")

    def has_image(self, option: str) -> bool:
        """Whether the option `preimage` or `postimage` is on, so that the log holds the image."""
        return self.option(option).lower() not in ("", "false", "0")

    def _key(self, kind: str) -> tuple[Column, ...]:
        return tuple(sorted((c for c in self.columns if c.kind == kind), key=lambda c: c.position))


def _collect_udts(kind: CqlType, types_by_name: dict[str, CqlType]) -> None:
    if kind.name == "udt":
        types_by_name[kind.udt] = kind
    for arg in kind.args:
        _collect_udts(arg, types_by_name)


def clustering_order(key: Iterable[str], descending: Collection[str]) -> list[str]:
    """The order of a partition's rows, as CLUSTERING ORDER BY has it: "day DESC", "id ASC"."""
    return [f"{name} {'DESC' if name in descending else 'ASC'}" for name in key]


DEEPEST = 100
"""Levels of types in types."""
_TOKEN = re.compile(r"""("(?:[^"]|"")*"|'[^']*'|[\w.$]+|[<>,])""")

Udts = Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
"""The user types of one keyspace, as in `system_schema.types`: name -> (field names, field types)."""


def parse_type(text: str, udts: Udts) -> CqlType:
    """Parse a type as `system_schema` writes it; a name that is not a built-in type is looked up in `udts`.

    Raises PenstockError if the type cannot be parsed or is not supported.
    """
    # The next one is the last of the list, where it costs nothing to take it away.
    tokens = _TOKEN.findall(text)[::-1]
    kind = _parse(tokens, udts, text, 0)
    if tokens:
        raise PenstockError(f"cannot read the CQL type {text!r}", where=f"at {tokens[-1]!r}")
    return kind


def _parse(tokens: list[str], udts: Udts, text: str, depth: int) -> CqlType:
    if not tokens:
        raise PenstockError(f"cannot read the CQL type {text!r}", where="it ends too early")
    if depth > DEEPEST:
        raise PenstockError(f"cannot read the CQL type {text[:100]!r}...", where=f"it has more than {DEEPEST} levels")
    name = tokens.pop()
    if tokens[-1:] != ["<"]:
        return _named(name, udts, text)
    args: list[CqlType] = []
    size = 0
    while tokens.pop() != ">":
        if name.lower() == "vector" and args:
            if len(tokens) < 2 or not re.fullmatch("[0-9]{1,10}", tokens[-1]):
                raise PenstockError(f"cannot read the CQL type {text!r}", where="the vector's dimension is missing")
            size = int(tokens.pop())
            continue
        args.append(_parse(tokens, udts, text, depth + 1))
        if not tokens:
            raise PenstockError(f"cannot read the CQL type {text!r}", where="a '>' is missing")
    return _with_arguments(name.lower(), tuple(args), size, text)


def _named(name: str, udts: Udts, text: str) -> CqlType:
    if name.lower() in SCALARS:
        return CqlType(name.lower())
    plain = name[1:-1].replace('""', '"') if name.startswith('"') else name
    if plain not in udts:
        raise PenstockError(
            f"the CQL type {text!r} is not supported",
            where=f"{name} is neither a built-in nor a user type of this keyspace",
            next="leave the column's table out, or change the column's type",
        )
    fields, kinds = udts[plain]
    return CqlType("udt", tuple(parse_type(kind, udts) for kind in kinds), fields=fields, udt=plain)


def _with_arguments(name: str, args: tuple[CqlType, ...], size: int, text: str) -> CqlType:
    if name == "frozen":
        inner = args[0]
        return CqlType(inner.name, inner.args, True, inner.fields, inner.udt, inner.size)
    if name == "vector" and args[0].name not in FIXED_WIDTHS:
        raise PenstockError(
            f"the CQL type {text!r} is not supported",
            where="a vector needs elements of a fixed-width type",
            next="leave the column's table out, or change the column's type",
        )
    if name not in ("list", "set", "map", "tuple", "vector"):
        raise PenstockError(
            f"the CQL type {text!r} is not supported", where=f"{name} is not a known type with arguments"
        )
    # A tuple or vector is always one cell, frozen or not.
    return CqlType(name, args, name in ("tuple", "vector"), size=size)


def spark_type(kind: CqlType) -> st.DataType:
    """The Spark type that holds every value of `kind` without loss."""
    if kind.name in SCALARS:
        return SCALARS[kind.name]
    inner = [spark_type(arg) for arg in kind.args]
    if kind.name in ("list", "set", "vector"):
        return st.ArrayType(inner[0])
    if kind.name == "map":
        return st.MapType(inner[0], inner[1])
    names = kind.fields if kind.name == "udt" else tuple(f"field_{i}" for i in range(len(inner)))
    return st.StructType([st.StructField(name, field) for name, field in zip(names, inner, strict=True)])


TIMEUUID = CqlType("timeuuid")


def log_value_type(kind: CqlType) -> CqlType:
    """The type of a base column's value in the log: collections are frozen, a non-frozen list is a map by id."""
    if kind.nonfrozen_list:
        return CqlType("map", (TIMEUUID, kind.args[0]), True)
    return CqlType(kind.name, kind.args, True, kind.fields, kind.udt, kind.size) if kind.multi_cell else kind


def deleted_elements_type(kind: CqlType) -> CqlType:
    """The type of `cdc$deleted_elements_X`: a set of the keys of the removed elements of a non-frozen column X."""
    keys = {"list": TIMEUUID, "udt": CqlType("smallint")}
    return CqlType("set", (keys.get(kind.name) or kind.args[0],), True)
