"""`replicate.progress` says by the checkpoints of a replication when the changes of before were applied."""

from __future__ import annotations

import json
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka import Producer
from kafka_topics import new_topic
from pyspark.sql import SparkSession
from waiting import PATIENCE

from penstock import replicate
from penstock.checkpoint.checkpoint_folder import Local
from penstock.checkpoint.identity import CDC, OUR_KAFKA, CheckpointIdentity, SourceIdentity, keep
from penstock.errors import PenstockError
from penstock.local.services import Services
from penstock.replicate.applied_changes import checkpoints_of

SOON = timedelta(milliseconds=50)
LONG = timedelta(minutes=1)


def checkpoint(folder: Path, source: SourceIdentity) -> Local:
    keep(Local(folder), CheckpointIdentity((source,), ()))
    return Local(folder)


def changes(folder: Path) -> Local:
    return checkpoint(folder, SourceIdentity("cdc", {"table": "shop.orders"}, CDC))


def topic(folder: Path, name: str) -> Local:
    return checkpoint(folder, SourceIdentity("kafka", {"topic": name}, OUR_KAFKA))


def finish(store: Local, batch: int, offset: dict[str, object]) -> None:
    store.write(f"offsets/{batch}", "\n".join(("v1", "{}", json.dumps(offset))))
    store.write(f"commits/{batch}", "v1\n{}")


def at(time: int, **more: int) -> dict[str, object]:
    return {"generation": 1, "time": time, "planned": time, **more}


def test_it_waits_until_the_time_was_applied_and_is_complete(spark: SparkSession, tmp_path: Path) -> None:
    store = changes(tmp_path)
    # Time up to `fresh` was read, too, but changes that become visible late may be missing.
    finish(store, 0, at(100, fresh=900))
    progress = replicate.progress(spark, str(tmp_path))
    waiter = threading.Thread(target=progress.wait, args=(500, LONG))
    waiter.start()
    store.write("offsets/1", "\n".join(("v1", "{}", json.dumps(at(500)))))
    waiter.join(SOON / timedelta(seconds=1))
    # A batch that is planned is not applied.
    assert waiter.is_alive()
    store.write("commits/1", "v1\n{}")
    waiter.join()


@pytest.mark.parametrize(
    "offset, said",
    [
        (None, "of no time yet"),
        (at(500, snapshot=7), "of no time yet, since it copies the rows that were there before"),
        (at(1_700_000_000_000_000), "of up to 2023-11-14 22:13:20 UTC, and no more for"),
    ],
)
def test_a_replication_that_stands_still_is_told(
    spark: SparkSession, tmp_path: Path, offset: dict[str, object] | None, said: str
) -> None:
    store = changes(tmp_path)
    if offset is not None:
        finish(store, 0, offset)
    with pytest.raises(PenstockError, match=said):
        replicate.progress(spark, str(tmp_path)).wait(1_800_000_000_000_000, SOON)


def test_through_kafka_the_records_of_before_must_be_applied_too(
    spark: SparkSession, services: Services, tmp_path: Path
) -> None:
    with new_topic(services.kafka, "changes", 1) as name:
        sent, applied = changes(tmp_path / "a"), topic(tmp_path / "b", name)
        finish(sent, 0, at(500))
        finish(applied, 0, {name: {"0": 0}})
        progress = replicate.progress(spark, sent.where, applied.where, servers=services.kafka)
        progress.wait(500, SOON)
        producer = Producer({"bootstrap.servers": services.kafka})
        producer.produce(name, b"a change")
        assert producer.flush(PATIENCE) == 0
        with pytest.raises(PenstockError, match=r"has applied changes of .* up to its offsets"):
            progress.wait(500, SOON)
        finish(applied, 1, {name: {"0": 1}})
        progress.wait(500, SOON)


def test_wrong_checkpoints_are_told(spark: SparkSession, tmp_path: Path) -> None:
    read, written = topic(tmp_path / "topic", "t"), changes(tmp_path / "changes")
    other = checkpoint(tmp_path / "other", SourceIdentity("file", {"path": "/x"}, "json"))
    with pytest.raises(PenstockError, match="there is no checkpoint of a query that has started"):
        replicate.progress(spark, str(tmp_path / "none"))
    with pytest.raises(PenstockError, match="the query reads file path /x: how far"):
        replicate.progress(spark, other.where)
    with pytest.raises(PenstockError, match="no checkpoint is of a query that reads a change log"):
        replicate.progress(spark, read.where, servers="127.0.0.1:1")
    with pytest.raises(PenstockError, match=r"the changes go through Kafka.*give servers="):
        replicate.progress(spark, written.where, read.where)
    with pytest.raises(PenstockError, match=r"the changes do not go through Kafka.*leave out servers="):
        replicate.progress(spark, written.where, servers="127.0.0.1:1")


def test_the_queries_of_a_table_are_found_by_the_replication_s_name(tmp_path: Path) -> None:
    for query in ("shop.orders.in", "shop.orders.out", "shop.orders2", "shop.items", "shop.items.back"):
        changes(tmp_path / "orders" / query)
    root = Local(tmp_path)
    assert checkpoints_of(root, "orders", "shop.orders") == ["orders/shop.orders.in", "orders/shop.orders.out"]
    assert checkpoints_of(root, "orders", "shop.items") == ["orders/shop.items", "orders/shop.items.back"]
    with pytest.raises(PenstockError, match="there is no checkpoint of a replication 'other'"):
        checkpoints_of(root, "other", "shop.orders")
    with pytest.raises(PenstockError, match=r"has no checkpoint of shop\.gone.*it has shop\.items, "):
        checkpoints_of(root, "orders", "shop.gone")
