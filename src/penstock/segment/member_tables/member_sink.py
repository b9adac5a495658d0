"""`segment.sink`: writes the membership events of a stream to the tables of members and counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

from pyspark.sql import DataFrame, functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.border.public import public
from penstock.cql.cql_sink import CqlSink, sink as cql_sink
from penstock.database.access import AccessOptions
from penstock.durations import require_known
from penstock.query.delivery import AT_LEAST_ONCE
from penstock.query.query import Batch, in_batches
from penstock.segment.member_tables.member_counts import Counts, counts
from penstock.segment.member_tables.member_schema import BUCKETS


@dataclass(frozen=True)
class SegmentSink:
    """Writes members and counts to the tables of a keyspace; a batch that is written again changes nothing."""

    members: CqlSink
    counts: Counts
    delivery: str = AT_LEAST_ONCE

    @property
    def target(self) -> tuple[str, str]:
        """The identity of the sink in a checkpoint."""
        return "segments", self.members.tables[0].keyspace

    def records(self, frame: DataFrame) -> DataFrame:
        """The rows of the table of members."""
        return self.members.records(members(frame))

    def stream(self, frame: DataFrame) -> DataStreamWriter:
        """The writer of a query with only this sink."""
        return in_batches(frame, self.save)

    def save(self, frame: DataFrame, batch: Batch) -> None:
        """Write one batch: members, then counts."""
        self.members.save(members(frame), batch)
        self.counts.add(frame)


@public("segment.sink")
def sink(keyspace: str, *, hosts: str, **access: Unpack[AccessOptions]) -> SegmentSink:
    """A sink for `penstock.write` that takes the frame of `segment.match`.

    Create the keyspace's tables with `segment.create_tables` first. `access` are the arguments of `cql.sink` for users,
    TLS and so on.
    """
    require_known(access, AccessOptions.__annotations__, where="segment.sink")
    table = cql_sink(f"{keyspace}.members", hosts=hosts, ttl="ttl", delete="gone", **access)
    return SegmentSink(table, counts(keyspace, hosts=hosts, **access))


@public("segment.members")
def members(changes: DataFrame) -> DataFrame:
    """Membership events as rows of the table of members.

    The columns are segment (string), bucket (int), person (string), until, changed (timestamps), ttl (int: seconds) and
    gone (boolean: delete the row). Write them with `cql.sink("<keyspace>.members", ttl="ttl", delete="gone", ...)`.
    Expirations are left out: these rows expire by their time to live.
    """
    bucket = F.pmod(F.xxhash64("person"), F.lit(BUCKETS)).cast("int")
    return changes.where("event <> 'expire'").select(
        "segment",
        bucket.alias("bucket"),
        "person",
        "until",
        F.col("at").alias("changed"),
        F.when(F.col("ttl") > 0, F.col("ttl")).alias("ttl"),
        (F.col("event") == "leave").alias("gone"),
    )
