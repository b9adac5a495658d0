"""How fast a change log is read, and where the time goes: the wire, decoding, Arrow, Spark.

    python benchmarks/cdc_source.py --rows 1000000 --json cdc_source.json

Fills a log of that many rows on a node of its own, then reads all of it in several ways in turn. Each case has the
Python driver's own decoding into rows beside ours:
  wire    result pages as bytes, nothing decoded: what the node and the connection can give
  arrow   result pages as Arrow batches; the peer decodes rows with the driver and hands its columns to pyarrow
  spark   a streaming query over `format("scylla-cdc")` into Spark's noop sink; the peer is a Python data source
          that yields the driver's rows
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from threading import Semaphore
from typing import Any
from uuid import UUID

import pyarrow as pa
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.query import BatchStatement, BatchType, tuple_factory
from cassandra.util import SortedSet
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from _measure import Row, alternate, report, rows_of
from penstock.cdc.cdc_options import CdcSettings, settings
from penstock.cdc.cdc_tables import layout, log_schema
from penstock.cdc.generations import Generations, Span, now_micros
from penstock.cdc.log_pages import pages_of_log, span_queries
from penstock.cdc.partition_read import read_span, span_select as select
from penstock.cdc.planner import describe
from penstock.database.cql_connection import connection
from penstock.local import services
from penstock.spark_runtime.arrow_types import to_arrow_schema
from penstock.spark_runtime.session import spark as spark_session

DDL = (
    "CREATE KEYSPACE IF NOT EXISTS bench WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
    """CREATE TABLE IF NOT EXISTS {table} (id bigint, at int, name text, price double, seen timestamp, ref uuid,
       tags set<text>, note text, n int, ok boolean, PRIMARY KEY (id, at)) WITH cdc = {log}""",
)
TABLE = "bench.visits"
ROWS_PER_BATCH = 50
BATCHES_IN_FLIGHT = 32


def connect(hosts: str) -> Any:
    host, port = hosts.split(":")
    profile = ExecutionProfile(row_factory=tuple_factory, request_timeout=60)
    return Cluster([host], port=int(port), execution_profiles={EXEC_PROFILE_DEFAULT: profile}).connect()


def fill(hosts: str, rows: int, table: str = TABLE, log: str = "{'enabled': true}") -> None:
    """Write `rows` rows in unlogged batches of one partition each, the fastest way through the Python driver."""
    session = connect(hosts)
    session.execute(DDL[0])
    session.execute(DDL[1].format(table=table, log=log))
    insert = session.prepare(
        f"INSERT INTO {table} (id, at, name, price, seen, ref, tags, note, n, ok) "
        "VALUES (?, ?, ?, ?, ?, uuid(), ?, ?, ?, ?)"
    )
    free = Semaphore(BATCHES_IN_FLIGHT)
    failures: list[BaseException] = []

    def failed(error: BaseException) -> None:
        failures.append(error)
        free.release()

    for number in range(rows // ROWS_PER_BATCH):
        free.acquire()
        session.execute_async(batch(insert, number)).add_callbacks(lambda _: free.release(), failed)
    for _ in range(BATCHES_IN_FLIGHT):
        free.acquire()
    if failures:
        raise failures[0]
    session.cluster.shutdown()


def batch(insert: Any, number: int) -> BatchStatement:
    seen = datetime(2026, 1, 1, tzinfo=UTC)
    made = BatchStatement(BatchType.UNLOGGED)
    for at in range(ROWS_PER_BATCH):
        values = (
            number,
            at,
            f"visitor {number}",
            at / 7,
            seen,
            {"new", "paid"},
            "a note of some length",
            at,
            at % 2 == 0,
        )
        made.add(insert, values)
    return made


class Log:
    """The whole log of the table, and its ways to be read; each returns how many rows it gave."""

    def __init__(self, chosen: CdcSettings, spark: SparkSession) -> None:
        self.settings, self.spark = chosen, spark
        self.table = describe(chosen)
        self.columns = layout(self.table)
        self.link = connection(chosen.access)
        (generation,) = Generations(self.link.rows).starts()[-1:]
        self.span = Span(Generations(self.link.rows).streams(generation), 0, now_micros())
        self.select = select(self.columns)

    def wire(self) -> int:
        return sum(
            page.rows
            for query in span_queries(self.settings, self.span)
            for page in pages_of_log(self.settings, self.select, query)
        )

    def arrow(self) -> int:
        schema = log_schema(self.columns)
        return sum(batch.num_rows for batch in read_span(self.settings, self.table, schema, self.span))

    def driver_rows(self) -> int:
        return sum(len(page) for page in driver_pages(self.settings, self.select, self.span))

    def driver_arrow(self) -> int:
        schema = to_arrow_schema(log_schema(self.columns), timezone="UTC")
        rows = 0
        for page in filter(None, driver_pages(self.settings, self.select, self.span)):
            columns = zip(*(plain(row) for row in page), strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
            rows += pa.RecordBatch.from_arrays(arrays, schema=schema).num_rows
        return rows

    def in_spark(self) -> int:
        return self._stream("scylla-cdc")

    def in_spark_by_rows(self) -> int:
        return self._stream("driver-rows")

    def _stream(self, source: str) -> int:
        options = {
            "table": TABLE,
            "hosts": self.settings.access.hosts,
            "rows": "log",
            "confidence": "0 seconds",
        }
        frame = (
            self.spark.readStream.format(source).options(**options, max_rows=str(10**9), max_time="9999 days").load()
        )
        with tempfile.TemporaryDirectory() as checkpoint:
            query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
            running = query.trigger(availableNow=True).start()
            running.awaitTermination()
            return sum(progress.numInputRows for progress in running.recentProgress)


def driver_pages(chosen: CdcSettings, select: str, span: Span) -> Iterator[list[tuple[Any, ...]]]:
    """The same SELECTs, decoded by the driver, which fetches a page while the one before is used."""
    session = connection(chosen.access).rows
    statement = session.prepare(select)
    statement.fetch_size = chosen.page_size
    arrived: SimpleQueue[list[tuple[Any, ...]] | Exception] = SimpleQueue()
    for query in span_queries(chosen, span):
        answer = session.execute_async(statement, query)
        answer.add_callbacks(arrived.put, arrived.put)
        more = True
        while more:
            page = arrived.get()
            if isinstance(page, Exception):
                raise page
            if more := answer.has_more_pages:
                answer.start_fetching_next_page()
            yield page


_PLAIN: dict[type, Callable[[Any], Any]] = {UUID: str, SortedSet: list}


def plain(row: tuple[Any, ...]) -> list[Any]:
    """The driver's values as pyarrow takes them."""
    return [_PLAIN[type(value)](value) if type(value) in _PLAIN else value for value in row]


class DriverRows(DataSource):
    """The peer in Spark: a data source that yields rows as the driver decodes them."""

    @classmethod
    def name(cls) -> str:
        return "driver-rows"

    def schema(self) -> StructType:
        return log_schema(layout(describe(settings(self.options))))

    def streamReader(self, schema: StructType) -> DriverRowsReader:
        return DriverRowsReader(settings(self.options))


class DriverRowsReader(DataSourceStreamReader):
    def __init__(self, chosen: CdcSettings) -> None:
        self.settings = chosen
        self.until = now_micros()

    def initialOffset(self) -> dict[str, int]:
        return {"time": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]
        return {"time": self.until}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        generations = Generations(connection(self.settings.access).rows)
        streams = generations.streams(generations.starts()[-1])
        size = -(-len(streams) // self.settings.partitions)
        return [
            InputPartition(Span(streams[i : i + size], start["time"], end["time"]))
            for i in range(0, len(streams), size)
        ]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        text = select(layout(describe(self.settings)))
        for page in driver_pages(self.settings, text, partition.value):
            for row in page:
                yield tuple(plain(row))


def compare(log: Log, rounds: int) -> list[Row]:
    cases = {
        "wire": {"penstock": log.wire, "cassandra-driver": log.driver_rows},
        "arrow": {"penstock": log.arrow, "cassandra-driver": log.driver_arrow},
        "spark": {"penstock": log.in_spark, "cassandra-driver": log.in_spark_by_rows},
    }
    found = []
    for case, subjects in cases.items():
        for work in subjects.values():
            work()
        found += rows_of(case, alternate(subjects, rounds), "cassandra-driver")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="log rows to write and read (default 1000000)")
    parser.add_argument("--rounds", type=int, default=3, help="counted runs of each subject (default 3)")
    parser.add_argument("--json", type=Path, help="write the report here as a list of objects")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        try:
            hosts = services.up(root, only=["cassandra"]).cql
            fill(hosts, args.rows)
            spark = spark_session("benchmark", cores=2)
            spark.dataSource.register(DriverRows)
            chosen = settings({"table": TABLE, "hosts": hosts, "rows": "log"})
            report(compare(Log(chosen, spark), args.rounds), args.json)
            spark.stop()
        finally:
            services.down(root)


if __name__ == "__main__":
    main()
