"""Whether our events are those of ScyllaDB's own connector: both read one log, and each key's records are compared.

    python benchmarks/_compare_events.py --reference DIR --connect DIR

DIR are folders of jars (see _reference.py). Every CQL type in every kind of change is written once, and read in each of
the formats below. Records are compared as the bytes that a consumer gets: key, value without the times of reading and
the version, headers, tombstones. Prints each difference as a JSON line, and ends with 1 if there is one.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import zip_longest
from pathlib import Path
from typing import Any

from cassandra.cluster import Cluster
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession

from _event_diff import Record, comparable, difference
from _every_change import KEYSPACE, TYPES, tables
from _reference import Connect, Reference, running
from penstock import cdc, kafka, write
from penstock.cdc.cdc_options import Image
from penstock.local import services
from penstock.local.services import Services
from penstock.spark_runtime.session import spark as spark_session

PREFIX = "p"
PLACES = "kafka-key,payload-after,payload-before"
EVERYWHERE = f"kafka-headers,payload-key,{PLACES}"
QUIET = 10.0  # seconds without a further record, after which the connector is taken to be done


@dataclass(frozen=True)
class Style:
    """One way to write events: the connector's settings; ours follow from them."""

    before: str = "none"
    after: str = "none"
    legacy: bool = False
    preimages: bool = False
    schemas: bool = False
    places: str = PLACES
    tombstones: bool = True

    def reference(self) -> dict[str, str]:
        shared = {"tombstones.on.delete": str(self.tombstones).lower()}
        for side in ("key", "value"):
            shared |= {f"{side}.converter": "org.apache.kafka.connect.json.JsonConverter"}
            shared |= {f"{side}.converter.schemas.enable": str(self.schemas).lower()}
        if self.legacy:
            return {**shared, "experimental.preimages.enabled": str(self.preimages).lower()}
        return shared | {
            "cdc.output.format": "advanced",
            "cdc.include.before": self.before,
            "cdc.include.after": self.after,
            "cdc.include.primary-key.placement": self.places,
        }

    def read(self) -> tuple[Image, Image]:
        """The images that `cdc.read` must bring."""
        if self.legacy:
            return "full" if self.preimages else "none", "none"
        return "none" if self.before == "none" else "full", "none" if self.after == "none" else "full"

    def events(self) -> dict[str, Any]:
        """The arguments of `cdc.events`."""
        shared: dict[str, Any] = {"schemas": self.schemas, "tombstones": self.tombstones}
        if self.legacy:
            return {**shared, "format": "legacy"}
        return {**shared, "images": (self.before, self.after), "placement": self.places.split(",")}


STYLES = {
    "none": Style(),
    "full": Style("full", "full", schemas=True),
    "updated": Style("only-updated", "only-updated", places=EVERYWHERE),
    "mixed": Style("full", "only-updated", tombstones=False),
    "legacy": Style(legacy=True, schemas=True),
    "legacy_preimages": Style(legacy=True, preimages=True),
}


def fill(hosts: str) -> None:
    host, port = hosts.split(":")
    with Cluster([host], port=int(port)) as cluster:
        session = cluster.connect()
        session.default_timeout = 60
        session.execute(f"DROP KEYSPACE IF EXISTS {KEYSPACE}")
        session.execute(
            f"CREATE KEYSPACE {KEYSPACE} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
        )
        session.set_keyspace(KEYSPACE)
        for statement in [*TYPES, *(each for statements in tables().values() for each in statements)]:
            session.execute(statement)


def create_topics(servers: str, names: list[str]) -> None:
    """One partition each: the whole order of a table can be seen."""
    admin = AdminClient({"bootstrap.servers": servers})
    for future in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        future.result()


def ours(spark: SparkSession, found: Services, name: str, style: Style, table: str) -> DataFrame:
    changes = cdc.read(
        spark, f"{KEYSPACE}.{table}", hosts=found.cql, name=name, images=style.read(), confidence="0 seconds"
    )
    return cdc.events(changes, prefix=f"{PREFIX}_{name}", topic=f"ours.{name}.{table}", **style.events())


def write_ours(spark: SparkSession, found: Services, name: str, style: Style, folder: Path) -> None:
    frames = [ours(spark, found, name, style, table) for table in tables()]
    together = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), frames)
    query = write(together, kafka.sink(servers=found.kafka)).start(checkpoint=folder / name, trigger="once")
    query.awaitTermination()


def start_reference(connect: Connect, found: Services, name: str, style: Style) -> None:
    settings = {
        "topic.prefix": f"{PREFIX}_{name}",
        "scylla.cluster.ip.addresses": found.cql,
        "scylla.table.names": ",".join(f"{KEYSPACE}.{table}" for table in tables()),
        "scylla.query.time.window.size": "10000",
        "scylla.confidence.window.size": "500",
    }
    connect.start(name, {**settings, **style.reference()})


def await_quiet(servers: str, topics: list[str]) -> None:
    """Until no record has come to any of these topics for a while."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "ends"})
    try:
        before, since = -1, time.monotonic()
        while time.monotonic() < since + QUIET:
            count = sum(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)[1] for topic in topics)
            if count != before:
                before, since = count, time.monotonic()
            time.sleep(0.5)
    finally:
        consumer.close()


def records(servers: str, topic: str) -> Iterator[Record]:
    settings = {"bootstrap.servers": servers, "group.id": topic, "enable.partition.eof": True}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        while True:
            (message,) = consumer.consume(1, timeout=30)
            if message.error():
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                return
            yield message.key(), message.value(), tuple(message.headers() or ())
    finally:
        consumer.close()


def by_key(found: Iterator[Record]) -> dict[bytes | None, list[Record]]:
    """Each key's records in order, without deleted ranges, which the connector does not tell."""
    keys: dict[bytes | None, list[Record]] = defaultdict(list)
    for key, value, headers in found:
        if value is None or b',"range":{' not in value:
            keys[key].append(comparable((key, value, headers)))
    return keys


def compare(servers: str, name: str, table: str) -> tuple[int, dict[str, list[str]]]:
    """How many records the connector wrote, and by the member's path what differs: the connector's value and ours."""
    theirs = by_key(records(servers, f"{PREFIX}_{name}.{KEYSPACE}.{table}"))
    mine = by_key(records(servers, f"ours.{name}.{table}"))
    different: dict[str, list[str]] = defaultdict(list)
    for key in {**theirs, **mine}:
        for pair in zip_longest(theirs.get(key, []), mine.get(key, [])):
            if pair[0] != pair[1]:
                for path, values in difference(*pair).items():
                    different[path].append(values)
    return sum(map(len, theirs.values())), different


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--reference", type=Path, required=True, help="folder with the connector's jars")
    parser.add_argument("--connect", type=Path, required=True, help="folder with Kafka Connect's jars")
    parser.add_argument("--styles", nargs="*", choices=STYLES, default=list(STYLES), help="default: all")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        try:
            found = services.up(root / "services")
            failed = run(found, Reference(options.reference, options.connect), options.styles, root)
        finally:
            services.down(root / "services")
    sys.exit(failed)


def run(found: Services, reference: Reference, names: list[str], root: Path) -> bool:
    fill(found.cql)
    theirs = [f"{PREFIX}_{name}.{KEYSPACE}.{table}" for name in names for table in tables()]
    create_topics(found.kafka, [*theirs, *(f"ours.{name}.{table}" for name in names for table in tables())])
    spark = spark_session("compare", cores=2)
    with running(reference, root / "connect", found.kafka) as connect:
        for name in names:
            start_reference(connect, found, name, STYLES[name])
        for name in names:
            write_ours(spark, found, name, STYLES[name], root)
        await_quiet(found.kafka, theirs)
    spark.stop()
    failed = False
    for name in names:
        for table in tables():
            count, different = compare(found.kafka, name, table)
            failed |= bool(different)
            row = {"style": name, "table": table, "records": count}
            for path, values in different.items():
                print(json.dumps({**row, "at": path, "times": len(values), "first": values[0]}, ensure_ascii=False))
            print(json.dumps({**row, "same": not different}), flush=True)
    return failed


if __name__ == "__main__":
    main()
