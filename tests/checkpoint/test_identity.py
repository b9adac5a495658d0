"""What a checkpoint belongs to: which queries may continue from it; no Spark runs here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from checkpoints import write_batches

from penstock.checkpoint.checkpoint_folder import Local
from penstock.checkpoint.identity import (
    FILE,
    CheckpointIdentity,
    SinkTarget,
    SourceIdentity,
    keep,
    source_of,
    stored_identity,
)
from penstock.checkpoint.log import DamagedCheckpoint
from penstock.errors import PenstockError

ORDERS = SourceIdentity("cdc", {"table": "shop.orders", "rows": "changes"}, "scylla-cdc")
CLICKS = SourceIdentity("kafka", {"topic": "clicks"}, "penstock-kafka-topic")
EVENTS, TABLE = SinkTarget("kafka", "topics shop.*"), SinkTarget("cql", "shop.copies")
QUERY = CheckpointIdentity((ORDERS,), (EVENTS, TABLE))


@pytest.fixture
def store(tmp_path: Path) -> Local:
    """A checkpoint of QUERY with batches."""
    write_batches(tmp_path / "orders", ["{}"] * 2, committed=1)
    store = Local(tmp_path / "orders")
    keep(store, QUERY)
    return store


def test_the_same_query_goes_on(store: Local) -> None:
    keep(store, CheckpointIdentity.of_text(QUERY.text()))
    assert stored_identity(store) == QUERY


def test_a_sink_may_be_added_behind_the_others(store: Local) -> None:
    more = replace(QUERY, sinks=(*QUERY.sinks, SinkTarget("files", "/data")))
    keep(store, more)
    assert stored_identity(store) == more


def test_the_reader_of_a_topic_may_change(tmp_path: Path) -> None:
    write_batches(tmp_path, ["{}"], committed=0)
    ours = source_of("penstock-kafka-topic", {"topic": "clicks", "servers": "a:1"})
    sparks = source_of("kafka", {"subscribe": "clicks", "kafka.bootstrap.servers": "b:1"})
    keep(Local(tmp_path), CheckpointIdentity((ours,), ()))
    keep(Local(tmp_path), CheckpointIdentity((sparks,), ()))
    assert stored_identity(Local(tmp_path)) == CheckpointIdentity((sparks,), ())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            replace(QUERY, sources=(replace(ORDERS, of={"table": "shop.customers", "rows": "changes"}),)),
            "that one reads cdc rows changes table shop.orders, and this one reads .* table shop.customers",
        ),
        (replace(QUERY, sources=(CLICKS,)), "this one reads kafka topic clicks"),
        (replace(QUERY, sources=(ORDERS, CLICKS)), "this one reads cdc .*, kafka topic clicks"),
        (
            replace(QUERY, sinks=(TABLE, EVENTS)),
            r"writes to kafka topics shop.\*, cql shop.copies, and this one .* cql",
        ),
        (replace(QUERY, sinks=(EVENTS,)), r"this one writes to kafka topics shop.\* "),
    ],
)
def test_another_query_is_refused_with_what_to_do(store: Local, given: CheckpointIdentity, said: str) -> None:
    with pytest.raises(PenstockError, match=said) as raised:
        keep(store, given)
    folder = store.path.parent
    for step in ("another name", f"`penstock checkpoints show orders --checkpoints {folder}`", "reset", "adopt"):
        assert step in raised.value.next
    assert stored_identity(store) == QUERY


def test_what_was_started_without_a_batch_does_not_bind(tmp_path: Path) -> None:
    keep(Local(tmp_path), QUERY)
    keep(Local(tmp_path), CheckpointIdentity((CLICKS,), ()))
    assert stored_identity(Local(tmp_path)) == CheckpointIdentity((CLICKS,), ())


def test_a_checkpoint_of_before_gets_its_identity_at_the_first_start(tmp_path: Path) -> None:
    write_batches(tmp_path, ["{}"] * 3, committed=2)
    assert stored_identity(Local(tmp_path)) is None
    keep(Local(tmp_path), QUERY)
    assert stored_identity(Local(tmp_path)) == QUERY


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 2}', '{"version": 1, "sources": [{}], "sinks": []}'])
def test_a_damaged_identity_is_told(store: Local, text: str) -> None:
    (store.path / FILE).write_text(text)
    with pytest.raises(PenstockError, match=f"file {FILE} is damaged, or of a newer version.*move the file away"):
        keep(store, QUERY)


def test_a_damaged_checkpoint_is_told_before_the_query_starts(store: Local) -> None:
    (store.path / "offsets" / "1").write_text("")
    with pytest.raises(DamagedCheckpoint, match="offsets/1 is empty"):
        keep(store, QUERY)


@pytest.mark.parametrize(
    ("format", "options", "source"),
    [
        ("scylla-cdc", {"table": "Shop.Orders", "hosts": "h:1", "password": "p", "before": "full"}, ORDERS),
        (
            "scylla-cdc",
            {"table": '"S".t', "rows": "log"},
            SourceIdentity("cdc", {"table": '"S".t', "rows": "log"}, "scylla-cdc"),
        ),
        ("kafka", {"subscribe": "b, a"}, SourceIdentity("kafka", {"topic": "a,b"}, "kafka")),
        ("kafka", {"subscribePattern": "a.*"}, SourceIdentity("kafka", {"pattern": "a.*"}, "kafka")),
        ("kafka", {"assign": '{"a":[0]}'}, SourceIdentity("kafka", {"partitions": '{"a":[0]}'}, "kafka")),
        ("text", {"path": "s3a://key:secret@b/in"}, SourceIdentity("text", {"path": "s3a://b/in"}, "text")),
        ("rate", {"rowsPerSecond": "5"}, SourceIdentity("rate", {}, "rate")),
        (
            "kinesis",
            {"streamName": "s", "awsSecretKey": "k"},
            SourceIdentity("kinesis", {"streamname": "s"}, "kinesis"),
        ),
    ],
)
def test_a_source_is_known_by_what_it_reads(format: str, options: dict[str, str], source: SourceIdentity) -> None:
    assert source_of(format, options) == source
