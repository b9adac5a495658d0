"""The state of low latency, compared with a model: rows arrive in any order, plans and restarts happen at any time."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from log_pages import stream_id, time_of

from penstock.cdc.generations import Position
from penstock.cdc.low_latency import FAR, NEAR, SentSoFar, again, step
from penstock.cdc.sent_groups import NONE, SentGroups, digest, groups_of, recover

T0 = 1_700_000_000_000_000
CONFIDENCE = 10_000_000


def groups(times: list[int], salt: int = 0) -> SentGroups:
    """Groups with these times, each with its own stream and id."""
    cells = [stream_id(i % 5) + uuid.UUID(int=time_of(t).int ^ (i + salt) << 8).bytes for i, t in enumerate(times)]
    return groups_of(np.frombuffer(b"".join(cells), np.uint8).reshape(-1, 32)) if cells else NONE


def test_a_group_is_its_stream_and_time_however_many_rows_it_has() -> None:
    rows = [(stream_id(s), time_of(T0 + t)) for s, t in ((1, 5), (1, 5), (2, 5), (1, 7), (2, 3), (1, 5))]
    cells = np.frombuffer(b"".join(stream + time.bytes for stream, time in rows), np.uint8).reshape(-1, 32)
    found = groups_of(cells)
    assert sorted(zip(found.times.tolist(), found.tokens.tolist(), strict=True)) == [
        (T0 + 3, 2),
        (T0 + 5, 1),
        (T0 + 5, 2),
        (T0 + 7, 1),
    ]
    assert len(set(found.ids.tolist())) == 4
    assert found.times.tolist() == sorted(found.times.tolist())


@given(
    sent=st.lists(st.integers(1, CONFIDENCE), max_size=300),
    late=st.lists(st.integers(1, CONFIDENCE), max_size=6),
)
def test_what_was_sent_is_known_again_and_no_other_group_is_taken_for_sent(sent: list[int], late: list[int]) -> None:
    before, added = groups([T0 + t for t in sent]), groups([T0 + t for t in late], salt=1000)
    end = T0 + CONFIDENCE
    known, unsure = recover(digest(before, T0, end), before.plus(added), T0, end)
    assert not set(known.ids.tolist()) & set(added.ids.tolist())
    assert set(before.ids.tolist()) <= set(known.ids.tolist()) | set(unsure.ids.tolist())
    if len(late) <= 2:
        assert set(known.ids.tolist()) == set(before.ids.tolist())
        assert not len(unsure)


def test_many_late_groups_leave_only_their_own_cell_unknown() -> None:
    end = T0 + CONFIDENCE
    before = groups([T0 + i * 10_000 for i in range(1, 1000)])
    late = groups([T0 + 4_500_000 + i for i in range(40)], salt=5000)
    known, unsure = recover(digest(before, T0, end), before.plus(late), T0, end)
    assert len(known) + len(unsure) == len(before) + len(late)
    assert 40 <= len(unsure) <= 140


def test_a_digest_of_another_shape_leaves_all_unknown() -> None:
    found = groups([T0 + 5])
    for text in ("", digest(found, T0, T0 + 1000)):
        known, unsure = recover(text, found, T0, T0 + CONFIDENCE)
        assert (len(known), len(unsure)) == (0, 1)


@pytest.mark.parametrize("seconds", [1, 30, 600])
def test_a_digest_stays_small(seconds: int) -> None:
    end = T0 + seconds * 1_000_000
    times = np.random.default_rng(1).integers(T0 + 1, end, 100_000)
    full = SentGroups.of(times, times, times.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    assert len(digest(full, T0, end)) < 4000
    assert len(digest(NONE, T0, end)) < 100


@dataclass
class Log:
    """A log where each group appears some time after its own time, and a reader with its checkpoint."""

    arrivals: list[tuple[int, int]]
    now: int = T0
    sent: Counter[int] = field(default_factory=Counter)
    offsets: list[Position] = field(default_factory=lambda: [Position(0, T0)])
    progress: SentSoFar | None = None

    def __post_init__(self) -> None:
        self.all = groups([time for time, _ in self.arrivals])
        shown = {time: time + delay for time, delay in self.arrivals}
        self.shown = np.array([shown[int(time)] for time in self.all.times], np.int64)

    def find(self, after: int, until: int) -> SentGroups:
        return self.all.at(self.shown <= self.now).within(after, until)

    def plan(self, back: int = NEAR) -> None:
        at = self.offsets[-1]
        if self.progress is None:
            found = self.find(at.time, at.newest)
            known, _ = recover(at.sent, found, at.time, at.newest)
            self.progress = SentSoFar(at.time, at.newest, known, at.time)
        self.progress, new = step(self.progress, self.find, self.now - CONFIDENCE, self.now, back)
        self.sent.update(new.ids.tolist())
        made = self.progress
        text = digest(made.sent, made.time, made.fresh)
        position = Position(0, made.time, self.now, made.fresh, text)
        self.offsets.append(Position.of(json.loads(json.dumps(position.offset()))))

    def look_back(self) -> None:
        self.plan(FAR)

    def restart(self) -> None:
        self.progress = None

    def repeat(self) -> None:
        """Run the last batch again, as after a crash before its commit."""
        if len(self.offsets) > 1:
            self.progress, new = again(self.offsets[-2], self.offsets[-1], self.find)
            self.sent.update(new.ids.tolist())
            self.repeated = set(new.ids.tolist())


TIMES = st.lists(
    st.tuples(st.integers(T0 + 1, T0 + 20_000_000), st.integers(0, CONFIDENCE - 1)),
    max_size=60,
    unique_by=lambda arrival: arrival[0],
)
ACTIONS = st.lists(
    st.tuples(st.integers(1, 4_000_000), st.sampled_from(["plan", "plan", "look_back", "restart", "repeat"])),
    max_size=20,
)


@given(arrivals=TIMES, actions=ACTIONS)
@settings(max_examples=200)
def test_nothing_is_lost_and_without_restarts_nothing_repeated(
    arrivals: list[tuple[int, int]], actions: list[tuple[int, str]]
) -> None:
    log = Log(arrivals)
    for pause, action in actions:
        log.now += pause
        getattr(log, action)()
    for _ in range(3):
        log.now = max(log.now, T0 + 20_000_000) + CONFIDENCE
        log.plan()
    assert set(log.sent) == set(log.all.ids.tolist())
    if not {"restart", "repeat"} & {action for _, action in actions}:
        assert all(count == 1 for count in log.sent.values())


@given(arrivals=TIMES, actions=ACTIONS)
@settings(max_examples=100)
def test_restarts_repeat_nothing_when_nothing_is_late(
    arrivals: list[tuple[int, int]], actions: list[tuple[int, str]]
) -> None:
    log = Log([(time, 0) for time, _ in arrivals])
    for pause, action in actions:
        log.now += pause
        if action == "repeat":
            before = Counter(log.sent)
            log.repeat()
            log.sent = before
        else:
            getattr(log, action)()
    log.now += 20_000_000
    log.plan()
    assert all(count == 1 for count in log.sent.values())


def test_late_groups_are_looked_for_where_they_mostly_are() -> None:
    """A plan reads `NEAR` or `FAR` back, and all that became complete, but nothing between; after a restart, all."""
    asked: list[tuple[float, float]] = []

    def find(after: int, until: int) -> SentGroups:
        asked.append(((after - T0) / 1e6, (until - T0) / 1e6))
        return NONE

    at = SentSoFar(T0, T0 + 1_000_000, NONE, T0)
    at, _ = step(at, find, T0, T0 + 8_000_000, NEAR)
    at, _ = step(at, find, T0, T0 + 9_000_000, NEAR)
    at, _ = step(at, find, T0 + 3_000_000, T0 + 13_000_000, FAR)
    at, _ = step(at, find, T0 + 12_000_000, T0 + 14_000_000, FAR)
    assert asked == [(0, 8), (7.75, 9), (7, 13), (0, 3), (3, 14)]


def test_a_position_of_either_kind_is_read_back() -> None:
    safe, low = Position(5, T0, 1), Position(5, T0, 1, T0 + 9, "x")
    assert safe.offset() == {"generation": 5, "time": T0, "planned": 1}
    assert [Position.of(p.offset()) for p in (safe, low)] == [safe, low]
    # Positions that differ only in the number of tasks are equal.
    told = replace(safe, tasks=4).offset()
    assert Position.of(told) == safe and Position.of(told).tasks == 4
