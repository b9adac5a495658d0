"""The load without a node: which writes it makes, what it journals of attempts, and how it paces itself."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings, strategies as st

from penstock_demo import journal, load as module
from penstock_demo.load import Load, Pace
from penstock_demo.mix import Mix, statements
from penstock_demo.shop import TABLES, add_column

Answer = Callable[[int], bool]
"""Whether the node acknowledges the attempt with this number."""


class Node:
    """Stands for a driver's session: it answers each request at once, or never."""

    def __init__(self, answer: Answer, *, silent: bool = False) -> None:
        self.answer, self.silent = answer, silent
        self.sent: list[tuple[str, list[Any]]] = []

    def prepare(self, cql: str) -> Any:
        return SimpleNamespace(bind=lambda values: (cql, list(values)))

    def execute_async(self, bound: tuple[str, list[Any]]) -> Any:
        self.sent.append(bound)
        number = len(self.sent) - 1
        if self.silent:
            return SimpleNamespace(add_callbacks=lambda answered, lost: None)
        good = self.answer(number)
        return SimpleNamespace(
            add_callbacks=lambda answered, lost: answered(None) if good else lost(TimeoutError("no answer"))
        )

    def execute(self, query: str, values: list[Any]) -> Any:
        """The list after two attempts that were both applied."""
        return SimpleNamespace(one=lambda: (["a", "x", "x"],))


def loading(node: Node, *, tables: tuple[str, ...] = tuple(TABLES), in_flight: int = 5) -> tuple[Load, io.BytesIO]:
    written = io.BytesIO()
    return Load(node, Mix(Random(3), partitions=8, tables=tables), written, in_flight=in_flight), written


def lines(written: io.BytesIO) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in written.getvalue().splitlines()]


def test_writes_in_flight_are_limited() -> None:
    node = Node(lambda number: True, silent=True)
    load, _ = loading(node, in_flight=4)
    for _ in range(3):
        load.turn(Pace(None), new=True)
    assert len(node.sent) == load.status.in_flight == 4 and not load.idle()


def test_each_acknowledged_write_is_a_line() -> None:
    node = Node(lambda number: True)
    load, written = loading(node)
    for _ in range(40):
        load.turn(Pace(None), new=True)
    load.turn(Pace(None), new=False)
    found = lines(written)
    assert load.idle() and load.status.writes == len(found) == len(node.sent) == 200
    assert all(len(one["stamps"]) == 1 and not one["late"] for one in found)
    events = sum(1 + one.tombstone for one in journal.expected(written.getvalue().splitlines()))
    assert load.status.events == events


def test_a_write_without_an_answer_is_sent_again_with_a_later_time_before_new_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "BACK_OFF", 0.0)
    node = Node(lambda number: number != 0)
    load, written = loading(node, tables=("visits",), in_flight=1)
    load.turn(Pace(None), new=True)
    for _ in range(4):
        load.turn(Pace(None), new=True)
    (first, again) = node.sent[:2]
    assert first[0] == again[0] and load.status.retries == 1
    stamps = lines(written)[0]["stamps"]
    assert len(stamps) == 2 and stamps[0] < stamps[1]
    assert all(stamp in values for stamp, (_, values) in zip(stamps, node.sent, strict=False))
    assert len(lines(written)[1]["stamps"]) == 1


def test_nothing_new_is_sent_while_a_failed_write_waits() -> None:
    node = Node(lambda number: False)
    load, written = loading(node, in_flight=2)
    for _ in range(5):
        load.turn(Pace(None), new=True)
    assert len(node.sent) == 2 and load.status.in_flight == 0
    assert not load.idle() and written.getvalue() == b""


def test_a_request_that_the_driver_refuses_counts_as_one_without_an_answer() -> None:
    class Down(Node):
        def execute_async(self, bound: tuple[str, list[Any]]) -> Any:
            self.sent.append(bound)
            raise ConnectionError("no host")

    node = Down(lambda number: True)
    load, written = loading(node, in_flight=1)
    load.turn(Pace(None), new=True)
    load.turn(Pace(None), new=True)
    assert len(node.sent) == 1 and written.getvalue() == b"" and not load.idle()


def test_a_repeated_append_has_the_images_of_each_number_of_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACK_OFF", 0.0)
    attempts = {"count": 0}

    def second_try(number: int) -> bool:
        attempts["count"] += 1
        return attempts["count"] % 2 == 0

    load, written = loading(Node(second_try), tables=("orders",), in_flight=1)
    for _ in range(600):
        load.turn(Pace(None), new=True)
    appended = [
        event
        for one in lines(written)
        for event in one["events"]
        if any(before and after and before["notes"] != after["notes"] for before, after in event["also"])
        and event["op"] == "u"
    ]
    doubled = [
        (before["notes"], after["notes"])
        for event in appended
        for before, after in event["also"]
        if before and after and after["notes"] and before["notes"] and after["notes"][-1:] == before["notes"][-1:]
    ]
    assert any(after == [*before, before[-1]] for before, after in doubled)


@pytest.mark.parametrize(("words", "appends"), [([], True), (["--no-appends"], False)])
def test_the_option_without_appends_is_obeyed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, words: list[str], appends: bool
) -> None:
    """A second attempt would append again, which a cluster that lost an answer may do much later."""
    given: dict[str, Any] = {}

    class Stopped(Exception):
        pass

    def stop(rng: Random, **settings: Any) -> None:
        given.update(settings)
        raise Stopped

    monkeypatch.setattr(module, "Mix", stop)
    monkeypatch.setattr("os.nice", lambda more: None)
    usual = ["load", "--hosts", "h:1", "--journal", str(tmp_path / "journal"), "--partitions", "9"]
    monkeypatch.setattr(sys, "argv", [*usual, *words])
    with pytest.raises(Stopped):
        module.main()
    assert given == {"partitions": 9, "tables": list(TABLES), "appends": appends}


def test_without_appends_no_write_appends() -> None:
    mixes = [Mix(Random(1), partitions=2000, tables=["orders"], appends=appends) for appends in (True, False)]
    counts = [sum(mix.next().appends_to is not None for _ in range(800)) for mix in mixes]
    assert counts[0] > 10 and counts[1] == 0


def test_a_partition_has_one_write_at_a_time() -> None:
    mix = Mix(Random(1), partitions=5)
    taken = [mix.next().partition for _ in range(20)]
    assert len(set(map(id, taken))) == 20 and all(one.busy for one in mix.partitions())
    taken[3].busy = False
    assert mix.next().partition is taken[3]


def test_each_statement_binds_its_own_time() -> None:
    for statement in statements():
        markers = statement.cql.count("?")
        assert statement.cql.count("USING TIMESTAMP ?") == 1
        values = statement.values(*range(markers - 1))
        assert len(values) == markers and values[statement.stamp] is None
        assert statement.cql[: statement.cql.index("TIMESTAMP ?")].count("?") == statement.stamp


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_the_same_seed_makes_the_same_writes(seed: int) -> None:
    one, other = (Mix(Random(seed), partitions=20) for _ in range(2))
    for _ in range(30):
        first, second = one.next(), other.next()
        assert (first.statement.cql, first.values, first.events) == (second.statement.cql, second.values, second.events)


def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    now = {"at": 100.0}
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now["at"]))
    return lambda seconds: now.update(at=now["at"] + seconds)


def test_a_pace_asks_for_what_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = clock(monkeypatch)
    pace = Pace(64.0)
    assert pace.due() == 0
    passes(0.125)
    assert pace.due() == 8
    pace.sent(3)
    assert pace.due() == 5


def test_after_a_break_a_pace_does_not_catch_up(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = clock(monkeypatch)
    pace = Pace(64.0)
    passes(60.0)
    assert pace.due() == 1
    pace.sent(1)
    assert pace.due() == 0
    passes(0.125)
    assert pace.due() == 8


def test_without_a_rate_everything_is_due() -> None:
    assert Pace(None).due() > 1_000_000


def test_columns_are_added_to_all_tables_in_turn() -> None:
    added = [add_column(number) for number in range(8)]
    assert {text.split()[2] for text in added} == {f"shop.{table}" for table in TABLES}
    assert len({text.split()[4] for text in added}) == 8
