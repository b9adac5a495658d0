"""Calls Penstock's functions in a session of Spark Connect, which SPARK_REMOTE names, and prints what each one did.

The arguments are the addresses of Kafka and of the database, a topic of clicks, a keyspace with the tables `changed`
and `names`, and a folder. The result is a JSON object: by the function's name the number of rows, or the error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession, functions as F
from waiting import until

import penstock as ps
from penstock import cdc, cql, delta, files, join, kafka, segment, table, window
from penstock.errors import PenstockError
from penstock.query.query import Batch
from penstock.table import Table

SCHEMA = "user string, page string, ts timestamp"
BATCH = Batch("00000000-0000-0000-0000-000000000001", 0)
BATCHES = 4
"""More than a query needs that reads some clicks and ends."""
RULES = [segment.rule("seen", when="page = 'a'", ttl="1 day", to="seen")]
PATTERNS = [segment.rule("seen", when="page LIKE 'a%'", ttl="1 day", to="seen")]


@dataclass
class Client:
    spark: SparkSession
    kafka: str
    cql: str
    topic: str
    keyspace: str
    folder: Path

    def read(self, **options: str) -> DataFrame:
        given = {"servers": self.kafka, "schema": SCHEMA, "at": "ts", "late": "1 second", "name": "clicks"}
        return kafka.read(self.spark, self.topic, **(given | options))  # type: ignore[arg-type]

    @cached_property
    def clicks(self) -> DataFrame:
        return self.read()

    @cached_property
    def batch(self) -> DataFrame:
        return self.spark.sql("SELECT 'u0' AS user, 'a' AS page, timestamp'2026-01-01 00:00:00' AS ts")

    @cached_property
    def users(self) -> Table:
        return Table(self.clicks.select("user", "page", "offset"), key=("user",), version="offset")

    @cached_property
    def pages(self) -> Table:
        return Table(self.clicks.select("page", F.col("offset").alias("n")), key=("page",), version="n")

    @cached_property
    def ages(self) -> Table:
        return Table(self.clicks.select("user", F.col("offset").alias("age")), key=("user",), version="age")

    def counted(self, found: DataFrame | Table) -> int:
        """The rows that a query of the server gives."""
        frame = found.df if isinstance(found, Table) else found
        if not frame.isStreaming:
            return len(frame.collect())
        name = f"rows_{len(self.spark.streams.active)}_{id(frame)}"
        query = frame.writeStream.format("memory").queryName(name).trigger(availableNow=True).start()
        # Stages with timers of the wall clock have one batch after the other, and do not end by themselves.
        until(lambda: not query.isActive or len(query.recentProgress) > BATCHES, f"end of {name}")
        if failure := query.exception():
            raise failure
        query.stop()
        return self.spark.table(name).count()

    def changes(self) -> DataFrame:
        options = {"hosts": self.cql, "name": "changed", "images": "full", "confidence": timedelta(0)}
        return cdc.read(self.spark, f"{self.keyspace}.changed", **options)  # type: ignore[arg-type]

    def matched(self) -> DataFrame:
        store = cql.ids(self.keyspace, hosts=self.cql)
        cql.create(store, replication={"class": "SimpleStrategy", "replication_factor": 1})
        return cql.match(self.clicks, store=store, ids=["user"], into="person", unknown="create", ttl="1 day")

    def looked_up(self) -> DataFrame:
        about = {"hosts": self.cql, "on": {"id": "user"}, "columns": ["name"], "ttl": "1 minute", "name": "names"}
        return cql.lookup(self.clicks, f"{self.keyspace}.names", **about)  # type: ignore[arg-type]

    def enriched(self) -> DataFrame:
        names = table.global_table(self.topic, servers=self.kafka, schema="user string")
        return join.enrich(self.clicks.drop("user"), names, on="page", name="enriched")

    def folded(self) -> Table:
        def add(total: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
            return {"n": total["n"] + 1}

        def subtract(total: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
            return {"n": total["n"] - 1}

        options = {"by": "page", "name": "folded", "returns": "n long"}
        return table.fold(self.users, initial={"n": 0}, add=add, subtract=subtract, **options)

    def near(self) -> DataFrame:
        other = self.clicks.select("user", F.col("ts").alias("seen"))
        return join.streams(self.clicks.select("user", "ts"), other, on="user", at=("ts", "seen"), within="1 second")

    def window(self, function: Callable[..., DataFrame], *size: str, **options: str) -> DataFrame:
        return function(self.clicks, *size, **options, at="ts", key="page", name="windows", n="count(*)")

    def calls(self) -> dict[str, Callable[[], object]]:
        """By the name on the page: a call that gives a frame or a table to count, or writes something."""
        kept = str(self.folder / "files")
        return {
            "penstock.spark": ps.spark,
            "penstock.write": lambda: ps.write(self.clicks, kafka.sink("written", servers=self.kafka, key="user")),
            "penstock.preview of a stream": lambda: ps.preview(self.clicks),
            "penstock.preview of other frames": lambda: ps.preview(self.batch),
            "kafka.read": lambda: self.clicks,
            'kafka.read with client="spark"': lambda: self.read(client="spark"),
            'kafka.read with format="avro"': lambda: self.read(format="avro", schema=AVRO),
            "kafka.read_table": lambda: kafka.read_table(
                *(self.spark, self.topic), key="user", servers=self.kafka, schema=SCHEMA, name="keyed"
            ),
            "cdc.read": self.changes,
            "cdc.events": lambda: cdc.events(self.changes(), prefix="shop"),
            "cql.lookup": self.looked_up,
            "cql.match": self.matched,
            "segment.match": lambda: segment.match(self.clicks, RULES, key="user", at="ts", name="seen"),
            'segment.match with clock="events"': lambda: segment.match(
                *(self.clicks, RULES), key="user", at="ts", name="past", clock="events"
            ),
            "segment.match with LIKE or a regular expression": lambda: segment.match(
                self.clicks, PATTERNS, key="user", at="ts", name="liked"
            ),
            "table.count": lambda: table.count(self.users, by="page", name="counted"),
            "table.aggregate": lambda: table.aggregate(self.users, by="page", name="summed", n="count(*)"),
            "table.fold": self.folded,
            "join.tables": lambda: join.tables(self.users, self.ages, name="both"),
            "join.stream_table": lambda: join.stream_table(self.clicks.select("user", "ts"), self.ages, name="known"),
            "join.foreign_key": lambda: join.foreign_key(self.users, self.pages, on="page", name="placed"),
            "join.enrich": self.enriched,
            "join.streams": self.near,
            "window.tumbling": lambda: self.window(window.tumbling, "1 minute"),
            "window.hopping": lambda: self.window(window.hopping, "2 minutes", every="1 minute"),
            "window.session": lambda: self.window(window.session, "1 minute"),
            "windows of other frames": lambda: window.tumbling(
                *(self.batch, "1 minute"), at="ts", key="page", name="batch", n="count(*)"
            ),
            "kafka.sink": lambda: kafka.sink("written", servers=self.kafka, key="user").save(self.batch, BATCH),
            'kafka.sink with delivery="exactly-once"': lambda: kafka.sink(
                "written", servers=self.kafka, key="user", delivery="exactly-once"
            ).save(self.batch, BATCH),
            "files.sink": lambda: files.sink(kept).save(self.batch, BATCH),
            "delta.sink": lambda: delta.sink(kept).save(self.batch, BATCH),
            "cql.sink": lambda: cql.sink(f"{self.keyspace}.names", hosts=self.cql).save(
                self.batch.select(F.col("user").alias("id"), F.col("page").alias("name")), BATCH
            ),
        }

    def outcome(self, call: Callable[[], object]) -> int | str:
        try:
            found = call()
            return self.counted(found) if isinstance(found, DataFrame | Table) else 1
        except PenstockError as error:
            return f"refused: {error}"
        except Exception as error:
            return f"{type(error).__name__}: {error}"


AVRO = '{"type": "record", "name": "click", "fields": [{"name": "user", "type": "string"}]}'


def main(kafka: str, cql: str, topic: str, keyspace: str, folder: str) -> None:
    client = Client(SparkSession.builder.getOrCreate(), kafka, cql, topic, keyspace, Path(folder))
    print(json.dumps({name: client.outcome(call) for name, call in client.calls().items()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
