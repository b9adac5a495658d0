"""The stage with the state, without Spark: workers that start, lag and end, the log, the timer, changed rules."""

from __future__ import annotations

import copy
import json
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pytest
import segment_model
from pyspark.sql import Row
from pyspark.sql.streaming.tws_tester import TwsTester
from segment_events import RULES, modelled, rows, touches
from segment_model import Change

from penstock.errors import PenstockError
from penstock.native import shared_memory
from penstock.segment import processor
from penstock.segment.record_store import RecordStore
from penstock.segment.rule_plan import RulePlan, plan

BUCKET = 0


@pytest.fixture(autouse=True)
def new_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "_OWN", {})


def changes(found: Sequence[Row]) -> list[Change]:
    some = []
    for row in found:
        for batch in pa.ipc.open_stream(row.changes):
            at, until = (batch[name].cast(pa.int64()).to_numpy() // 1000 for name in ("at", "until"))
            names = zip(*(batch[name].to_pylist() for name in ("person", "segment", "event")), strict=True)
            some += [Change(*name, *times) for name, *times in zip(names, at.tolist(), until.tolist(), strict=True)]
    return some


def grouped(found: Sequence[Change]) -> dict[tuple[str, str], list[Change]]:
    by: dict[tuple[str, str], list[Change]] = defaultdict(list)
    for change in found:
        by[change.person, change.segment].append(change)
    return by


def packed(made: RulePlan, some: list[dict[str, object]]) -> list[Row]:
    """In two parts, as if from two tasks."""
    return [Row(events=touches(made, [modelled(row) for row in half]).pack()) for half in (some[:9], some[9:]) if half]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("reach", [0, 2, 100])
def test_workers_come_fall_behind_and_go(monkeypatch: pytest.MonkeyPatch, reach: int) -> None:
    monkeypatch.setattr(processor, "LOG_ENTRIES", 7)
    monkeypatch.setattr(processor, "REACH", reach)
    built, replayed = list[RecordStore](), processor.replayed

    def counted(log: Iterable[processor.Entry]) -> RecordStore:
        built.append(replayed(log))
        return built[-1]

    monkeypatch.setattr(processor, "replayed", counted)
    made, found, gone = plan(RULES), list[Change](), 0
    kept = processor.Segments(made, "s", 1, 0, True)
    tester = TwsTester(kept, timeMode="EventTime", eventTimeExtractor=lambda row: 1 << 60)
    pieces = [part[i : i + 20] for part in map(rows, (0, 100, 200)) for i in range(0, 160, 20)]
    batches = [(some, int(str(some[-1]["at"]))) for some in pieces]
    behind: dict[Any, Any] = {}
    for number, (some, now) in enumerate(batches):
        if number % 5 == 1:
            behind = copy.deepcopy(shared_memory._OWN)
        elif number % 5 == 3:
            monkeypatch.setattr(shared_memory, "_OWN", behind)  # without later events
        elif number % 5 == 4:
            monkeypatch.setattr(shared_memory, "_OWN", {})
            gone += 1
        found += changes(tester.test(BUCKET, packed(made, some)))
        found += changes(tester.setWatermark(now - 1))
    found += changes(tester.setWatermark(600))
    # A lagging worker replays what it missed if the log starts before the last snapshot.
    assert len(built) == gone if reach > 7 else len(built) > gone
    clocked = [([modelled(row) for row in some], now - 1) for some, now in batches]
    assert grouped(found) == segment_model.changes(RULES, [*clocked, ([], 600)])


@pytest.mark.usefixtures("memory")
def test_a_batch_that_failed_leaves_nothing_behind() -> None:
    made = plan(RULES)
    tester = TwsTester(processor.Segments(made, "s", 1, 0, False), timeMode="ProcessingTime")
    first, second = rows(0)[:80], rows(0)[80:]
    tester.setProcessingTime(1000)
    tester.test(BUCKET, packed(made, first))
    head, log = tester.peekValueState("s__head", BUCKET), dict(tester.peekMapState("s__entries", BUCKET))
    once = changes(tester.test(BUCKET, packed(made, second)))
    assert head
    tester.updateValueState("s__head", BUCKET, head)
    tester.updateMapState("s__entries", BUCKET, log)
    assert once and changes(tester.test(BUCKET, packed(made, second))) == once


@pytest.mark.usefixtures("memory")
def test_a_worker_that_dies_in_a_batch_leaves_nothing_to_be_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    made = plan(RULES)
    tester = TwsTester(processor.Segments(made, "s", 1, 0, False), timeMode="ProcessingTime")
    first, second = rows(0)[:80], rows(0)[80:]
    tester.setProcessingTime(1000)
    assert changes(tester.test(BUCKET, packed(made, first)))
    log = dict(tester.peekMapState("s__entries", BUCKET))

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(processor.Segments, "_timed", dies)
        with pytest.raises(KeyboardInterrupt):
            tester.test(BUCKET, packed(made, second[:30]))
    tester.updateMapState("s__entries", BUCKET, log)  # as Spark does
    found = changes(tester.test(BUCKET, packed(made, second)))
    well = TwsTester(processor.Segments(made, "t", 1, 0, False), timeMode="ProcessingTime")
    well.setProcessingTime(1000)
    well.test(BUCKET, packed(made, first))
    assert found and found == changes(well.test(BUCKET, packed(made, second)))


def test_records_of_an_earlier_build_are_refused() -> None:
    made = plan(RULES)
    tester = TwsTester(processor.Segments(made, "s", 1, 0, False), timeMode="ProcessingTime")
    tester.setProcessingTime(1000)
    tester.test(BUCKET, packed(made, rows(0)[:80]))
    log = dict(tester.peekMapState("s__entries", BUCKET))
    before = json.loads(zlib.decompress(log[(processor.SNAPSHOT,)][4]))
    del before["layout"]
    log[(processor.SNAPSHOT,)] = (*log[(processor.SNAPSHOT,)][:4], zlib.compress(json.dumps(before).encode()), b"")
    tester.updateMapState("s__entries", BUCKET, log)
    shared_memory._OWN.clear()
    with pytest.raises(PenstockError, match=r"earlier build.*new checkpoint"):
        tester.test(BUCKET, packed(made, rows(0)[80:]))


@pytest.mark.usefixtures("sharing")
def test_workers_that_share_build_records_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "LOG_ENTRIES", 3)
    monkeypatch.setattr(processor, "replayed", pytest.fail)
    made, found = plan(RULES), list[Change]()
    tester = TwsTester(
        processor.Segments(made, "s", 1, 0, True), timeMode="EventTime", eventTimeExtractor=lambda row: 1 << 60
    )
    batches = [(some, int(str(some[-1]["at"]))) for some in (rows(0)[i : i + 20] for i in range(0, 160, 20))]
    for some, now in batches:
        monkeypatch.setattr(shared_memory, "_NUMBERS", {})  # as in another worker
        found += changes(tester.test(BUCKET, packed(made, some)))
        found += changes(tester.setWatermark(now - 1))
    assert not shared_memory._OWN
    clocked = [([modelled(row) for row in some], now - 1) for some, now in batches]
    assert grouped(found) == segment_model.changes(RULES, clocked)


def test_what_is_due_waits_for_what_is_late() -> None:
    made = plan(RULES)
    tester = TwsTester(processor.Segments(made, "s", 1, 50, False), timeMode="ProcessingTime")
    cart = [{"person": "ann", "event": "cart", "amount": 0.0, "country": None, "at": 100}]
    tester.setProcessingTime(100)
    tester.test(BUCKET, packed(made, cart))
    assert changes(tester.setProcessingTime(170)) == []  # due at 130, emitted from 180 on
    assert [(c.segment, c.event, c.at) for c in changes(tester.setProcessingTime(182))] == [("lost", "enter", 130)]
