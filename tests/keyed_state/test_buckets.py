"""The state of a bucket: a log of changes that any process can read, whatever it knows already."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.tws_tester import TwsTester

from penstock.errors import PenstockError
from penstock.keyed_state import buckets
from penstock.keyed_state.arrow_keys import packed, unpacked
from penstock.keyed_state.buckets import BLOB, Bucket, require_name
from penstock.native import shared_memory
from penstock.table.revisions import ROW_DELETED, ROW_VERSION, SIGN, Revisions

LOGIC = Revisions(pa.schema({"id": pa.int64(), "v": pa.int64()}), ("id",), ("id", "v"))
BUCKET = 3


def rows(pairs: dict[int, int | None], version: int) -> list[Row]:
    """One blob of rows; None deletes a row."""
    made = {
        "id": pa.array(list(pairs), pa.int64()),
        "v": pa.array(list(pairs.values()), pa.int64()),
        ROW_VERSION: pa.array([version] * len(pairs), pa.int64()),
        ROW_DELETED: pa.array([v is None for v in pairs.values()]),
    }
    return [Row(**{BLOB: packed(pa.table(made))})]


def sums(sent: list[Row]) -> int:
    return sum(row["v"] * row[SIGN] for one in sent for row in unpacked(one[BLOB]).to_pylist())


class Workers:
    """Two Python processes that get a bucket in turn: each has its own memory, they share the state."""

    def __init__(self) -> None:
        self.bucket = Bucket(LOGIC, "s", ("id",))
        self.tester = TwsTester(self.bucket)
        self.memory: list[dict[Any, Any]] = [{}, {}]

    def run(self, worker: int, pairs: dict[int, int | None], version: int) -> list[Row]:
        shared_memory._OWN = self.memory[worker]
        return self.tester.test(BUCKET, rows(pairs, version))


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("order", ["same", "turns", "random"])
def test_every_process_finds_the_state_that_the_others_left(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "_OWN", {})
    monkeypatch.setattr(buckets, "LOG_BLOBS", 5)
    draw, workers, model, total = random.Random(7), Workers(), dict[int, int](), 0
    for version in range(1, 60):
        pairs = {draw.randrange(30): draw.choice([None, draw.randrange(100)]) for _ in range(4)}
        worker = {"same": 0, "turns": version % 2, "random": draw.randrange(2)}[order]
        total += sums(workers.run(worker, pairs, version))
        model = {k: v for k, v in (model | pairs).items() if v is not None}
        assert total == sum(model.values())


def test_the_log_is_replaced_by_the_whole_table_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "_OWN", {})
    monkeypatch.setattr(buckets, "LOG_BLOBS", 5)
    workers = Workers()
    lengths = []
    for version in range(1, 20):
        workers.run(0, {1: version}, version)
        lengths.append(len(workers.tester.peekMapState("s__log", BUCKET)))
    assert max(lengths) == 5 and lengths[-1] <= 5


@pytest.mark.usefixtures("sharing")
def test_workers_that_share_read_nothing_that_one_of_them_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bucket, "_logged", pytest.fail)
    workers, total, model = Workers(), 0, dict[int, int]()
    # Tables grow, shrink and grow again, and so does their memory.
    for version, count in enumerate([3, 40, 2000, 2000, 1, 10, 3000, 0], 1):
        monkeypatch.setattr(shared_memory, "_NUMBERS", {})  # as in another worker
        pairs = {k: k + version if k < count else None for k in range(3000)}
        total += sums(workers.run(version % 2, pairs, version))
        model = {k: v for k, v in pairs.items() if v is not None}
        assert total == sum(model.values())
    assert not any(workers.memory)


@pytest.mark.usefixtures("sharing")
def test_a_worker_that_dies_in_a_batch_leaves_nothing_to_be_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers()
    workers.run(0, {1: 10}, 1)
    read = []
    logged = Bucket._logged

    def seen(bucket: Bucket, version: int) -> Any:
        read.append(version)
        return logged(bucket, version)

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Bucket, "_logged", seen)
    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "_write", dies)
        with pytest.raises(KeyboardInterrupt):
            workers.run(0, {1: 99}, 2)
    assert sums(workers.run(1, {1: 7}, 2)) == 7 - 10
    assert read == [1]


@pytest.mark.usefixtures("memory")
def test_a_table_of_a_batch_that_failed_is_not_taken_for_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "_OWN", {})
    workers = Workers()
    workers.run(0, {1: 10}, 1)
    head = workers.tester.peekValueState("s__head", BUCKET)
    assert head is not None
    log = workers.tester.peekMapState("s__log", BUCKET)
    workers.run(0, {1: 99}, 2)  # this batch fails later: Spark returns to the state before it
    workers.tester.updateValueState("s__head", BUCKET, head)
    for version in workers.tester.peekMapState("s__log", BUCKET):
        if version not in log:
            workers.tester.handle.setGroupingKey(BUCKET)
            workers.bucket._log.removeKey(version)
    sent = workers.run(0, {1: 7}, 2)
    assert [(r["v"], r[SIGN]) for r in unpacked(sent[0][BLOB]).to_pylist()] == [(10, -1), (7, 1)]


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("remembered", [True, False])
def test_a_stage_that_gets_other_columns_does_not_read_its_old_state(
    remembered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "_OWN", {})
    workers = Workers()
    workers.run(0, {1: 10}, 1)
    workers.bucket._logic = Revisions(pa.schema({"id": pa.int64(), "w": pa.int64()}), ("id",), ("id", "w"))
    if not remembered:
        workers.memory[0].clear()
    with pytest.raises(
        PenstockError, match=r"columns id, v, _version, but .* id, w, _version .the state s.*another name="
    ):
        workers.run(0, {1: 11}, 2)


def test_a_name_that_cannot_name_a_state_is_refused() -> None:
    with pytest.raises(PenstockError, match="'per page' is not a valid state name"):
        require_name("per page")
