"""A pipeline that keeps tables of one cluster equal to tables of another: what `penstock replicate` runs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pyspark.sql import SparkSession

from penstock.cdc.cdc_source import read
from penstock.cql.cql_writer import described
from penstock.database.access import Access
from penstock.database.table_catalog import split_name
from penstock.errors import PenstockError
from penstock.query import Query, write
from penstock.replicate.replicate_sink import sink
from penstock.replicate.target_schema import prepare

PATIENCE = timedelta(minutes=5)


@dataclass(frozen=True)
class TablePair:
    """A table "keyspace.table" of the source, and the one of the target that is kept equal to it."""

    source: str
    target: str

    @property
    def name(self) -> str:
        """The name of the pair's query, and of its checkpoint."""
        return re.sub(r"[^\w.-]", "_", ".".join(split_name(self.source)))


@dataclass(frozen=True)
class Replication:
    """Pairs of tables, each with a query of its own; `create` and `alter` say what may be done to the targets.

    `start` is where a new query begins, as in `cdc.read`: "snapshot" copies the rows that are there first.
    """

    name: str
    pairs: tuple[TablePair, ...]
    source: Access
    target_access: Access
    every: timedelta
    target: timedelta
    start: str = "snapshot"
    confidence: timedelta = timedelta(seconds=30)
    create: bool = False
    alter: bool = False

    def __post_init__(self) -> None:
        names = [pair.name for pair in self.pairs]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise PenstockError(
                f"{twice} is to be replicated twice",
                where=f"replication {self.name}",
                next="start a second replication, with a name of its own, for the other target",
            )

    def queries(self, spark: SparkSession) -> dict[str, Query]:
        """The queries by the name of their checkpoint; called at each start, so that the tables are as they are now."""
        return {pair.name: self._query(spark, pair) for pair in self.pairs}

    def _query(self, spark: SparkSession, pair: TablePair) -> Query:
        table = described(self.source, pair.source, PATIENCE)
        prepare(table, self.target_access, pair.target, PATIENCE, create=self.create, alter=self.alter)
        options = _options(self.source)
        # Order among changes does not matter, since each has its time: they are read at once.
        changes = read(
            spark,
            pair.source,
            name=pair.name,
            start=self.start,
            confidence=self.confidence,
            latency="low",
            write_times=True,
            **options,
        )
        return write(changes, sink(pair.target, **_options(self.target_access)), name=pair.name)


def _options(access: Access) -> dict[str, Any]:
    """The arguments that reach a cluster."""
    given = {name: getattr(access, name) for name in Access.__dataclass_fields__}
    return {name: value for name, value in given.items() if value != ""}
