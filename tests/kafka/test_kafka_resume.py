"""Where a query continues in a topic, and the messages about records that are gone; no broker runs here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import pytest

from penstock.errors import DataLost
from penstock.kafka.kafka_resume import KafkaResume
from penstock.kafka.kafka_settings import KafkaSettings
from penstock.kafka.kafka_source import Ranges, TopicStreamReader
from penstock.kafka.source_format import EARLIEST, TopicOffsets, topics
from penstock.kafka.topic_reader import TopicReader
from penstock.wire.errors import KafkaError, OffsetOutOfRange
from penstock.wire.fetcher import TopicReplaced

GIVEN = {"servers": "nowhere:1", "topic": "clicks", "tasks": "2"}
TIME = 1_795_371_899_283


@dataclass
class Known:
    """A topic of two partitions."""

    made: str = "a1"
    first: dict[int, int] = field(default_factory=lambda: {0: 5, 1: 0})
    timed: dict[int, int] = field(default_factory=lambda: {0: 17, 1: 3})

    def id(self) -> str:
        return self.made

    def earliest(self) -> dict[int, int]:
        return self.first

    def at_time(self, ms: int) -> dict[int, int]:
        assert ms == TIME
        return self.timed


END = {0: 20, 1: 9}


def resume(known: Known | None = None, *, lossy: bool = False) -> KafkaResume:
    given = GIVEN | ({"failOnDataLoss": "false"} if lossy else {})
    return KafkaResume(KafkaSettings.of(given), cast(TopicReader, known or Known()))


def at(zero: int, one: int, id: str = "a1") -> TopicOffsets:
    return TopicOffsets("clicks", {0: zero, 1: one}, id)


def test_a_query_goes_on_where_it_was() -> None:
    assert resume().moved(at(10, 9), END) is None
    assert resume(Known(made="")).moved(at(10, 9, ""), END) is None


def test_the_id_of_a_topic_is_kept_once_it_is_known() -> None:
    assert resume().moved(at(10, 9, ""), END) == TopicOffsets("clicks", {0: 10, 1: 9}, "a1", moved=True)


@pytest.mark.parametrize(
    ("begin", "end", "said", "going"),
    [
        (
            at(10, 2, "b2"),
            END,
            r"created again; not read: .* offset 10 \(partition 0\), 2",
            {0: 5, 1: 0},
        ),
        (at(10, 2), {0: 20}, r"partitions are gone; not read: their records from offset 2 \(partition 1\)", {0: 10}),
        (at(10, 12), END, r"ends before .* not read: .* its end, 9 \(partition 1\), up to 12", {0: 10, 1: 0}),
        (at(2, 0), END, "deleted before they were read, .* not read: offsets 2 to 4 of partition 0", {0: 5, 1: 0}),
    ],
)
def test_what_is_gone_is_told_and_stops_the_query_unless_it_is_to_go_on(
    begin: TopicOffsets, end: dict[int, int], said: str, going: dict[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(DataLost, match=said):
        resume().moved(begin, end)
    assert resume(lossy=True).moved(begin, end) == TopicOffsets("clicks", going, "a1", moved=True)
    assert "kafka.read of clicks at nowhere:1 continues although" in caplog.text


def test_a_position_that_was_set_is_looked_up() -> None:
    set_to = TopicOffsets("clicks", {}, time=TIME)
    assert resume().moved(set_to, END) == TopicOffsets("clicks", {0: 17, 1: 3}, "a1", moved=True)
    # A query of present data does not read what comes after its start.
    assert resume().moved(set_to, END, {0: 15, 1: 9}) == TopicOffsets("clicks", {0: 15, 1: 3}, "a1", moved=True)
    first = resume().moved(TopicOffsets("clicks", {}, time=EARLIEST), END)
    assert first == TopicOffsets("clicks", {0: 5, 1: 0}, "a1", moved=True)


def test_a_planned_batch_is_read_from_the_topic_that_it_was_planned_for() -> None:
    assert resume().check(at(10, 2), at(12, 2))
    assert not resume().check(at(10, 2), TopicOffsets("clicks", {0: 5, 1: 0}, "a1", moved=True))
    with pytest.raises(DataLost, match="created again; not read: a batch from 10"):
        resume().check(at(10, 2, "b2"), at(12, 2, "b2"))
    with pytest.raises(DataLost, match="offsets 2 to 4 of partition 0"):
        resume().check(at(2, 2), at(12, 2))


@pytest.mark.parametrize(("tasks", "expected"), [(2, [[1, 3], [0, 2]]), (0, [[1], [0], [2], [3]])])
def test_a_batch_is_read_by_as_many_tasks_as_when_it_was_planned(tasks: int, expected: list[list[int]]) -> None:
    reader = TopicStreamReader(KafkaSettings.of(GIVEN | {"tasks": "4"}))
    reader.topic = cast(TopicReader, Known(first=dict.fromkeys(range(4), 0)))
    begin = TopicOffsets("clicks", dict.fromkeys(range(4), 0), "a1", tasks=1)
    until = TopicOffsets("clicks", {0: 30, 1: 40, 2: 20, 3: 10}, "a1", tasks=tasks)
    parts = reader.partitions(begin.offset(), until.offset())
    assert [list(cast(Ranges, part).end) for part in parts] == expected
    assert TopicOffsets.of(reader._spark_offset({0: 1}), "clicks").tasks == 4


@pytest.mark.parametrize(
    "offsets",
    [at(1, 2), at(1, 2, ""), TopicOffsets("clicks", {0: 1}, "a1", moved=True), TopicOffsets("clicks", {}, time=TIME)],
)
def test_offsets_are_read_as_they_were_written(offsets: TopicOffsets) -> None:
    told = offsets.offset()
    assert TopicOffsets.of(told, "clicks") == offsets
    assert topics(told) == ["clicks"] and all(value == {} for name, value in told.items() if name != "clicks")


@pytest.mark.parametrize("told", [{}, {"clicks": 1}, {"clicks": {"x": 1}}, {"clicks": {"0": 1}, "time:x": {}}])
def test_other_offsets_are_refused(told: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not offsets of clicks"):
        TopicOffsets.of(told, "clicks")


@pytest.mark.parametrize("error", [OffsetOutOfRange("offset 10", topic="clicks", partition=0), TopicReplaced()])
@pytest.mark.parametrize("lossy", [False, True])
def test_what_is_lost_while_a_task_reads_is_passed_over_at_the_next_start(error: KafkaError, lossy: bool) -> None:
    given = GIVEN | ({"failOnDataLoss": "false"} if lossy else {})
    told = TopicReader(KafkaSettings.of(given))._explained(error)
    assert isinstance(told, DataLost) and told.retriable is lossy
    assert "start the query again: it reports the missing offsets" in told.next
