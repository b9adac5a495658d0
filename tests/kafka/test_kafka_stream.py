"""Our own Kafka source: the records of a batch, and topics that grow or lose records."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from hypothesis import given, strategies as st
from kafka_topics import create_topics, new_topic
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from raw_batches import raw_batch, send_batch, stamped
from waiting import PATIENCE, until
from wire_rows import Row

from penstock import kafka
from penstock.checkpoint.checkpoint_folder import Local
from penstock.errors import PenstockError
from penstock.kafka.kafka_source import limited
from penstock.local.services import Services
from penstock.run.positions import move
from penstock.wire.records.compression import ZSTD

numbers = st.dictionaries(st.integers(0, 9), st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1)


@given(numbers, st.integers(1, 200))
def test_a_batch_takes_of_each_partition_its_share(parts: dict[int, tuple[int, int]], most: int) -> None:
    start = {p: first for p, (first, _) in parts.items()}
    end = {p: first + count for p, (first, count) in parts.items()}
    total = sum(count for _, count in parts.values())
    taken = {p: offset - start[p] for p, offset in limited(start, end, most).items()}
    assert sum(taken.values()) == min(total, most)
    for p, (_, count) in parts.items():
        assert 0 <= taken[p] <= count
        assert total <= most or abs(taken[p] * total - count * most) <= total


@dataclass
class Sink:
    """The rows of each partition, as pairs of offset and value, and the number of rows of each batch."""

    came: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    sizes: list[int] = field(default_factory=list)

    def __call__(self, frame: DataFrame, batch: int) -> None:
        rows = frame.select("partition", "offset", "v").collect()
        self.sizes.append(len(rows))
        for row in rows:
            self.came[row.partition].append((row.offset, row.v))

    def values(self, partition: int) -> list[int]:
        return [value for _, value in self.came[partition]]


def read(spark: SparkSession, services: Services, topic: str, **more: object) -> DataFrame:
    return kafka.read(spark, topic, servers=services.kafka, schema="v int", name="numbers", **more)  # type: ignore[arg-type]


def run(frame: DataFrame, sink: Sink, checkpoint: Path) -> None:
    """Read all present records."""
    query = frame.writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query.foreachBatch(sink).start().awaitTermination()


def produce(services: Services, topic: str, values: range, partition: int, *, abort: bool = False) -> None:
    producer = Producer({"bootstrap.servers": services.kafka} | ({"transactional.id": topic} if abort else {}))
    if abort:
        producer.init_transactions(30)
        producer.begin_transaction()
    for value in values:
        producer.produce(topic, json.dumps({"v": value}).encode(), partition=partition)
    assert producer.flush(30) == 0
    if abort:
        producer.abort_transaction(30)


@contextmanager
def topic_that_was_read(spark: SparkSession, services: Services, checkpoint: Path) -> Iterator[tuple[str, Sink]]:
    """A topic of one partition with ten records, and the query that read them with this checkpoint."""
    with new_topic(services.kafka, "numbers", 1) as topic:
        produce(services, topic, range(10), 0)
        sink = Sink()
        run(read(spark, services, topic), sink, checkpoint)
        yield topic, sink


def test_each_record_comes_once_in_order_though_batches_are_bounded_and_the_topic_grows(
    spark: SparkSession, services: Services, tmp_path: Path
) -> None:
    sink = Sink()
    with new_topic(services.kafka, "numbers", 2) as topic:
        produce(services, topic, range(900), 0)
        produce(services, topic, range(300), 1)
        run(read(spark, services, topic, batch=400), sink, tmp_path)
        assert sink.sizes == [400, 400, 400]
        produce(services, topic, range(300, 310), 1, abort=True)
        produce(services, topic, range(900, 905), 0)
        admin = AdminClient({"bootstrap.servers": services.kafka})
        for done in admin.create_partitions([NewPartitions(topic, 3)]).values():
            done.result()
        until(lambda: len(admin.list_topics(topic, 10).topics[topic].partitions) == 3, "third partition")
        produce(services, topic, range(7), 2)
        run(read(spark, services, topic), sink, tmp_path)
        # Spark's own source continues from our offsets, and ours from Spark's.
        produce(services, topic, range(905, 908), 0)
        run(read(spark, services, topic, client="spark"), sink, tmp_path)
        produce(services, topic, range(908, 910), 0)
        run(read(spark, services, topic), sink, tmp_path)
        latest = Sink()
        run(read(spark, services, topic, start="latest"), latest, tmp_path / "latest")
        chosen = Sink()
        start = json.dumps({topic: {"0": 908, "1": -1, "2": -2}})
        run(read(spark, services, topic, start=start), chosen, tmp_path / "chosen")
    assert [sink.values(p) for p in range(3)] == [list(range(910)), list(range(300)), list(range(7))]
    assert [offset for offset, _ in sink.came[0]] == list(range(910))
    assert not any(latest.sizes)
    assert {p: chosen.values(p) for p in chosen.came} == {0: [908, 909], 2: list(range(7))}


@pytest.mark.slow
def test_records_that_retention_deleted_are_missed_or_passed_over(
    spark: SparkSession, services: Services, tmp_path: Path
) -> None:
    with topic_that_was_read(spark, services, tmp_path) as (topic, sink):
        produce(services, topic, range(10, 30), 0)
        admin = AdminClient({"bootstrap.servers": services.kafka})
        for deleted in admin.delete_records([TopicPartition(topic, 0, 20)]).values():
            deleted.result()
        with pytest.raises(StreamingQueryException, match="not read: offsets 10 to 19 of partition 0"):
            run(read(spark, services, topic), sink, tmp_path)
        run(read(spark, services, topic, fail_on_data_loss=False), sink, tmp_path)
        assert sink.values(0) == [*range(10), *range(20, 30)]


@pytest.mark.slow
def test_a_topic_made_anew_is_not_taken_for_the_one_before(
    spark: SparkSession, services: Services, tmp_path: Path
) -> None:
    with topic_that_was_read(spark, services, tmp_path) as (topic, sink):
        admin = AdminClient({"bootstrap.servers": services.kafka})
        for done in admin.delete_topics([topic]).values():
            done.result()
        until(lambda: topic not in admin.list_topics(timeout=PATIENCE).topics, "end of the topic")
        create_topics(admin, [NewTopic(topic, 1, 1)])
        # As many records as the old topic had, and more: only the topic's id tells them apart.
        produce(services, topic, range(100, 115), 0)
        with pytest.raises(
            StreamingQueryException, match=r"deleted and created again; not read: its old records from offset 10 \(part"
        ):
            run(read(spark, services, topic), sink, tmp_path)
        assert sink.values(0) == list(range(10))
        run(read(spark, services, topic, options={"failondataloss": "false"}), sink, tmp_path)
        assert sink.values(0) == [*range(10), *range(100, 115)]
        with pytest.raises(StreamingQueryException, match=r"start has the partitions 0, 1.*each of 0"):
            run(read(spark, services, topic, start=json.dumps({topic: {"0": 1, "1": 2}})), sink, tmp_path / "other")


def json_rows(*values: bytes, at: int = 1000, headers: Sequence[tuple[str, bytes]] = ()) -> list[Row]:
    return [(b"k", value, headers, at) for value in values]


@pytest.mark.slow
def test_a_batch_that_cannot_be_read_ends_the_query_or_is_a_row_with_a_problem(
    spark: SparkSession, services: Services, tmp_path: Path
) -> None:
    large = raw_batch(json_rows(*[b'{"v": 1%s}' % (b" " * 10_000)] * 30), ZSTD)
    strange = raw_batch(json_rows(b'{"v": 3}', at=-9_300_000_000_000_000, headers=[("abc", b"")]))
    assert len(large) < 1000
    with new_topic(services.kafka, "numbers", 1) as topic:
        sent = [raw_batch(json_rows(b'{"v": 2}')), large, stamped(bytearray(strange.replace(b"abc", b"a\xffc")))]
        assert [send_batch(services.kafka, topic, one) for one in sent] == [0, 0, 0]
        options = {"kafka.fetch.max.decompressed.bytes": "100000"}
        told = (
            r"RECORDS_TOO_LARGE \(topic numbers.*, partition 0\).*offsets 1 to 30, 30 records in \d+ bytes \(zstd\).*"
            r"more than 100000 bytes.*Next: .*\"kafka.fetch.max.decompressed.bytes\": \"400000\"}"
        )
        with pytest.raises(StreamingQueryException, match=told):
            run(read(spark, services, topic, options=options), Sink(), tmp_path / "stop")
        frame = read(spark, services, topic, options=options | {"failOnUnreadableBatch": "false"})
        query = frame.writeStream.option("checkpointLocation", str(tmp_path / "go")).trigger(availableNow=True)
        query.format("memory").queryName("unreadable").start().awaitTermination()
        rows = spark.table("unreadable").orderBy("offset").collect()
    assert [(row.v, row.offset, row.timestamp.year) for row in rows] == [(2, 0, 1970), (None, 1, 1970), (3, 31, 1)]
    assert [row.problem and row.problem.reason[:17] for row in rows] == [None, "RECORDS_TOO_LARGE", None]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"failOnDataLoss": "perhaps"}, "the unknown failondataloss 'perhaps'.*true or false"),
        ({"kafka.isolation.level": "serializable"}, "the unknown isolation.level 'serializable'.*read_committed"),
        ({"minPartitions": "4"}, "no option 'minpartitions'"),
        ({"kafka.fetch.max.bytes": "0"}, "the invalid fetch.max.bytes '0'.*above zero"),
        ({"kafka.ssl.ca.location": "x"}, "no use for ssl.ca.location"),
    ],
)
def test_a_wrong_option_is_refused_when_the_frame_is_built(
    spark: SparkSession, services: Services, wrong: dict[str, str], said: str
) -> None:
    with pytest.raises(PenstockError, match=said):
        read(spark, services, "t", options=wrong)


def test_a_topic_that_is_not_there_is_told(spark: SparkSession, services: Services, tmp_path: Path) -> None:
    with pytest.raises(StreamingQueryException, match=r"UNKNOWN_TOPIC.*nobody at "):
        run(read(spark, services, "nobody"), Sink(), tmp_path)
    with pytest.raises(PenstockError, match="servers is not a list of host:port: 'x'"):
        kafka.read(spark, "t", servers="x", schema="v int", name="t")


@pytest.mark.slow
def test_a_checkpoint_of_before_gets_the_id_of_its_topic(
    spark: SparkSession, services: Services, tmp_path: Path
) -> None:
    with topic_that_was_read(spark, services, tmp_path) as (topic, sink):
        file = tmp_path / "offsets" / "0"
        (tmp_path / "offsets" / ".0.crc").unlink()
        *lines, offsets = file.read_text().splitlines()
        assert json.loads(offsets).keys() > {topic}
        file.write_text("\n".join([*lines, json.dumps({topic: {"0": 10}})]))
        run(read(spark, services, topic), sink, tmp_path)
        kept = json.loads((tmp_path / "offsets" / "1").read_text().splitlines()[-1])
        (id,) = (name for name in json.loads(offsets) if name.startswith("id:"))
        assert kept == {topic: {"0": 10}, id: {}, "moved:": {}}
        produce(services, topic, range(10, 12), 0)
        run(read(spark, services, topic), sink, tmp_path)
        assert sink.values(0) == list(range(12))


@pytest.mark.slow
def test_a_position_that_is_set_to_a_time_reads_exactly_the_records_from_then_on(
    spark: SparkSession, services: Services, tmp_path: Path
) -> None:
    with topic_that_was_read(spark, services, tmp_path / "numbers") as (topic, sink):
        # Records' times are whole milliseconds.
        time.sleep(0.002)
        then = datetime.now(UTC).isoformat()
        time.sleep(0.002)
        produce(services, topic, range(10, 15), 0)
        run(read(spark, services, topic), sink, tmp_path / "numbers")
        assert move(Local(tmp_path), "numbers", then).before == ("0: 15",)
        run(read(spark, services, topic), sink, tmp_path / "numbers")
        assert sink.values(0) == [*range(15), *range(10, 15)]
        move(Local(tmp_path), "numbers", "latest")
        run(read(spark, services, topic), sink, tmp_path / "numbers")
        produce(services, topic, range(15, 17), 0)
        run(read(spark, services, topic), sink, tmp_path / "numbers")
        assert sink.values(0) == [*range(15), *range(10, 15), 15, 16]
        move(Local(tmp_path), "numbers", "earliest")
        run(read(spark, services, topic), sink, tmp_path / "numbers")
        assert sink.values(0)[22:] == list(range(17))
