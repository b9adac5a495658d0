"""Reads a change log, and applies it to another table, as the tasks of a replication do: group by group."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.cdc.cdc_options import CdcSettings, settings
from penstock.cdc.cdc_tables import frame_schema
from penstock.cdc.generations import FIRST_TOKEN, LAST_TOKEN, Span, TokenRange, now_micros
from penstock.cdc.partition_read import read_range, read_span
from penstock.cdc.planner import Planner, describe as described_source
from penstock.database.access import Access
from penstock.database.cql_connection import connection
from penstock.database.requests import RequestLimits
from penstock.database.table_catalog import describe
from penstock.replicate.applied_groups import AppliedGroups, TwoWays
from penstock.replicate.replicate_sink import ChangeWriter

HOUR = 3_600_000_000


@dataclass(frozen=True)
class Reader:
    """Reads the log and the rows of a table as the tasks of a query do."""

    chosen: CdcSettings
    planner: Planner

    @classmethod
    def of(cls, cql: str, table: str) -> Reader:
        chosen = settings({"table": table, "hosts": cql, "write_times": "true"})
        return cls(chosen, Planner(chosen, described_source(chosen)))

    def groups(self, first: int, until: int = 0) -> list[list[pa.RecordBatch]]:
        """The groups of the log with a time from `first` on, and before `until`."""
        table, generations = self.planner.table, self.planner.generations
        found: list[list[pa.RecordBatch]] = []
        for start in generations.starts():
            span = Span(generations.streams(start), first - 1, (until or now_micros() + HOUR) - 1, now_micros())
            for batch in read_span(self.chosen, table, frame_schema(table, write_times=True), span):
                ends = [row for row, last in enumerate(batch.column("end_of_batch").to_pylist()) if last]
                begins = [0, *(row + 1 for row in ends[:-1])]
                found += [[batch.slice(b, e + 1 - b)] for b, e in zip(begins, ends, strict=True)]
        return found

    def rows(self, low: int) -> list[list[pa.RecordBatch]]:
        """The rows of the table; `low` is before all changes that follow."""
        table = self.planner.table
        part = TokenRange(FIRST_TOKEN, LAST_TOKEN, (), low, now_micros())
        return [[batch] for batch in read_range(self.chosen, table, frame_schema(table, write_times=True), part)]


def apply(cql: str, table: str, groups: list[list[pa.RecordBatch]], *, two_ways_with: str = "") -> None:
    """Apply the groups to a table; `two_ways_with` is the table that they come from, if it also gets changes back."""
    access, limits = Access(cql), RequestLimits()
    both = None
    if two_ways_with:
        names = [name.split(".") for name in (two_ways_with, table)]
        registers = [AppliedGroups(access, keyspace, name, limits) for keyspace, name in names]
        for register in registers:
            register.create(limits.patience)
        both = TwoWays(*registers)
    writer = ChangeWriter(access, describe(connection(access).rows, table), limits, both)
    list(writer(batch for group in groups for batch in group))


def place(group: list[pa.RecordBatch]) -> tuple[str, str, bytes]:
    """The table of a group, and its place in the log."""
    row = group[0].slice(0, 1)
    return tuple(row.column(name)[0].as_py() for name in ("keyspace", "time", "stream_id"))
