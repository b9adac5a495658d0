"""Members of a segment in the database: rows/s written, and how large their partitions become.

    python benchmarks/segment_members.py --members 2000000 --json segment_members.json

The rows are those of `segment.sink`, written in batches by Spark on local[2] to a node of its own, which does not
compress them. The node is started again, so that all lies in its files. Their bytes for each row, and the partition
with the most rows, tell how large partitions are, and will be with 50 million members.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from cassandra.cluster import Cluster
from pyspark.sql import DataFrame, SparkSession

from _measure import tell, timed
from penstock import segment
from penstock.local import services
from penstock.local.services import Services
from penstock.query.query import Batch
from penstock.segment.member_tables.member_schema import BUCKETS, create_tables
from penstock.spark_runtime.session import spark as spark_session

KEYSPACE = "bench"
MANY = 50_000_000


def connect(found: Services) -> Any:
    host, port = found.cql.split(":")
    return Cluster([host], port=int(port), connect_timeout=60).connect()


def entered(spark: SparkSession, first: int, count: int) -> DataFrame:
    """Membership events of new members whose names are UUIDs, as `cql.match` gives them."""
    return spark.range(first, first + count, 1, 2).selectExpr(
        r"regexp_replace(md5(CAST(id AS STRING)), '(.{8})(.{4})(.{4})(.{4})(.{12})', '$1-$2-$3-$4-$5') AS person",
        "'all' AS segment",
        "'enter' AS event",
        "current_timestamp() AS at",
        "current_timestamp() + INTERVAL 14 DAYS AS until",
        "1209600 AS ttl",
    )


def write(spark: SparkSession, found: Services, members: int, batch: int) -> dict[str, Any]:
    sink = segment.sink(KEYSPACE, hosts=found.cql)

    def work() -> int:
        for number, first in enumerate(range(0, members, batch)):
            sink.save(entered(spark, first, min(batch, members - first)), Batch("bench", number))
        return members

    run = timed(work)
    rates = {"rate_per_s": round(run.rows / run.seconds), "cpu_s_per_million": round(run.cpu / run.rows * 1e6, 1)}
    return {"case": "members/write", "members": members, **rates}


def sizes(session: Any, root: Path, members: int) -> dict[str, Any]:
    """Bytes of the largest partition and of a row, from the node's files."""
    count = session.prepare(f"SELECT count(*) FROM {KEYSPACE}.members WHERE segment = 'all' AND bucket = ?")
    rows = [session.execute(count, (bucket,)).one()[0] for bucket in range(BUCKETS)]
    assert sum(rows) == members, (sum(rows), members)
    written = sum(file.stat().st_size for file in root.rglob(f"{KEYSPACE}/members-*/*-Data.db"))
    row_bytes = written / members
    share = max(rows) / members
    return {
        "case": "members/partitions",
        "row_bytes": round(row_bytes, 1),
        "largest_partition_mb": round(max(rows) * row_bytes / 1e6, 3),
        "largest_to_mean": round(share * BUCKETS, 3),
        "largest_mb_at_50_million": round(MANY * share * row_bytes / 1e6, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--members", type=int, default=2_000_000, help="default: %(default)s")
    parser.add_argument("--batch", type=int, default=200_000, help="members of a batch (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        try:
            found = services.up(root, only=["cassandra"])
            session = connect(found)
            session.execute(
                f"CREATE KEYSPACE {KEYSPACE} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
            )
            create_tables(session, KEYSPACE)
            session.execute(f"ALTER TABLE {KEYSPACE}.members WITH compression = {{'enabled': 'false'}}")
            session.cluster.shutdown()
            spark = spark_session("members", memory="2g")
            rows = [write(spark, found, options.members, options.batch)]
            spark.stop()
            services.down(root)
            again = connect(services.up(root, only=["cassandra"]))
            rows.append(sizes(again, root, options.members))
            again.cluster.shutdown()
        finally:
            services.down(root)
    tell(rows, options.json)


if __name__ == "__main__":
    main()
