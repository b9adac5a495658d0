"""The columns that a comparison reads of two tables, and the rows of a range of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import NamedTuple, Unpack

import numpy as np

from penstock.border.public import public
from penstock.cdc.cdc_options import CdcSettings
from penstock.cdc.cdc_tables import Images
from penstock.cdc.log_pages import pages_of_table
from penstock.cql.cql_writer import described
from penstock.database import Page
from penstock.database.access import Access, AccessOptions
from penstock.database.cells import indexed
from penstock.database.cql_types import Column, CqlTable
from penstock.database.table_catalog import base_name, quoted, token_of_key
from penstock.database.write_times import timed_columns
from penstock.errors import PenstockError
from penstock.native import Array
from penstock.replicate.row_digests import CELL, KEY, TIME_TO_LIVE, TIMES_TO_LIVE, TOKEN


@dataclass(frozen=True)
class Side:
    """A table of one cluster; from `side`."""

    table: str
    access: Access

    def __str__(self) -> str:
        return f"{self.table} at {self.access.hosts}"


@public("replicate.side")
def side(table: str, *, hosts: str, **access: Unpack[AccessOptions]) -> Side:
    """The table "keyspace.table" of a cluster, for `replicate.verify`.

    `access` are `user`, `password`, `local_dc`, `consistency` and the TLS arguments.
    """
    return Side(table, Access.of(hosts, access, where="replicate.side", function=side))


class Scanned(NamedTuple):
    """A column of a scan: its CQL, what it is (`row_digests`), and the table's column.

    `is_value` says that it is the column itself; if it is `timed`, its write time and its time to live follow.
    """

    text: str
    kind: int
    column: Column | None
    is_value: bool = False
    timed: bool = False

    @property
    def has_elements(self) -> bool:
        """Whether it has a write time for each of its elements or fields."""
        return self.column is not None and self.column.type.multi_cell


@dataclass(frozen=True)
class TableScan:
    """A table, and the columns that are read of it, in the same order as of the other one.

    At `level` 1 only values are compared: write times are read with the rows that differ, to see whether they change.
    """

    side: Side
    table: CqlTable
    columns: tuple[Scanned, ...]
    level: int
    patience: timedelta
    page_size: int

    @property
    def compared(self) -> TableScan:
        """A scan of what is compared alone."""
        if self.level > 1:
            return self
        scanned = (column for column in self.columns if column.is_value or column.kind in (TOKEN, KEY))
        return replace(self, columns=tuple(column._replace(timed=False) for column in scanned))

    @property
    def value_columns(self) -> list[Column]:
        """The table's columns whose values are read, in the order of the scan."""
        return [scanned.column for scanned in self.columns if scanned.is_value and scanned.column]

    @property
    def kinds(self) -> Array:
        return np.array([column.kind for column in self.columns], np.int64)

    def pages(self, after: int, until: int) -> Iterator[Page]:
        """The pages of the tokens (after, until]."""
        key = token_of_key(self.table)
        selected = ", ".join(column.text for column in self.columns)
        text = f"SELECT {selected} FROM {base_name(self.table)} WHERE {key} > ? AND {key} <= ?"
        chosen = CdcSettings(
            self.side.access,
            base_name(self.table),
            "verify",
            Images(),
            page_size=self.page_size,
            patience=self.patience,
        )
        return pages_of_table(chosen, text, (after, until))

    def cells(self, page: Page) -> tuple[Array, Array, Array]:
        return indexed(page.data, page.rows, len(self.columns), where=self.table.full_name)


class Scans(NamedTuple):
    """Both tables, and what a comparison of them cannot see."""

    source: TableScan
    target: TableScan
    unlike: tuple[str, ...]
    unseen: tuple[str, ...]


def scans(source: Side, target: Side, level: int, *, patience: timedelta, page_size: int) -> Scans:
    """Describe both tables.

    Raises PenstockError if their keys differ: then no rows of them can be compared.
    """
    tables = [described(side.access, side.table, patience) for side in (source, target)]
    _require_key(*tables)
    shared, unlike = _shared(*tables)
    timed_names = [
        timed_columns(side.access, table, patience) for side, table in zip((source, target), tables, strict=True)
    ]
    timed = [column for column in shared if not column.type.nonfrozen_list]
    timed = [column for column in timed if all(column.name in names for names in timed_names)]
    columns = tuple(_columns(tables[0], shared, {column.name for column in timed}))
    source_scan, target_scan = (
        TableScan(each, table, columns, level, patience, page_size)
        for each, table in zip((source, target), tables, strict=True)
    )
    return Scans(source_scan, target_scan, tuple(unlike), tuple(_unseen(level, shared, timed)))


def _require_key(source: CqlTable, target: CqlTable) -> None:
    keys = [
        [f"{column.name} {column.type}" for column in (*table.partition_key, *table.clustering_key)]
        for table in (source, target)
    ]
    parts = [len(table.partition_key) for table in (source, target)]
    if keys[0] != keys[1] or parts[0] != parts[1]:
        raise PenstockError(
            f"the tables have different keys: {', '.join(keys[0])}; and {', '.join(keys[1])}",
            where=f"{source.full_name} and {target.full_name}",
            next="compare tables with the same PRIMARY KEY",
        )


def _shared(source: CqlTable, target: CqlTable) -> tuple[list[Column], list[str]]:
    """The columns that both have, and how the others differ."""
    there = {column.name: column for column in target.values}
    shared = [
        column for column in source.values if column.name in there and str(there[column.name].type) == str(column.type)
    ]
    unlike = []
    for column in source.values:
        if column.name not in there:
            unlike.append(f"column {column.name} {column.type} is only in the source")
        elif str(there[column.name].type) != str(column.type):
            unlike.append(f"column {column.name} is {column.type} and {there[column.name].type}")
    known = {column.name for column in source.values}
    unlike += [
        f"column {column.name} {column.type} is only in the target"
        for column in target.values
        if column.name not in known
    ]
    return shared, unlike


def _columns(table: CqlTable, shared: Sequence[Column], timed: set[str]) -> Iterator[Scanned]:
    yield Scanned(token_of_key(table), TOKEN, None)
    for column in (*table.partition_key, *table.clustering_key):
        yield Scanned(quoted(column.name), KEY, column)
    for column in shared:
        name = quoted(column.name)
        yield Scanned(name, CELL, column, is_value=True, timed=column.name in timed)
        if column.name in timed:
            yield Scanned(f"WRITETIME({name})", CELL, column)
            yield Scanned(f"TTL({name})", TIMES_TO_LIVE if column.type.multi_cell else TIME_TO_LIVE, column)


def _unseen(level: int, shared: Sequence[Column], timed: Sequence[Column]) -> Iterator[str]:
    if level < 2:
        yield "write times and times to live"
        return
    known = {column.name for column in timed}
    lists = [column.name for column in shared if column.type.nonfrozen_list]
    others = [column.name for column in shared if column.name not in known and column.name not in lists]
    if lists:
        yield f"keys and write times of the elements of lists ({', '.join(lists)})"
    if others:
        yield f"write times of {', '.join(others)}, which the databases do not tell"
    yield "whether rows were inserted or updated (their markers), and deletions that hide nothing"
