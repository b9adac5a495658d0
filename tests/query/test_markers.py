"""Markers of sinks: which batch was written, which batch is another one, and when sink and checkpoint do not match."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from penstock.checkpoint.batch_offsets import newest_in_checkpoint
from penstock.errors import PenstockError
from penstock.kafka import kafka_writer
from penstock.query.markers import Marker, is_written, require_next
from penstock.query.query import Batch
from penstock.wire.coordinator import Committed
from penstock.wire.producer.transactions import Transactions

BATCH = Batch("q", 5, '[{"clicks":{"0":100}}]', '[{"clicks":{"0":150}}]')
OTHER = replace(BATCH, end='[{"clicks":{"0":170}}]')
AHEAD = (
    r"^Kafka is ahead of the checkpoint: it has batches up to 6 of this query, and the checkpoint continues with batch"
    r" 5, whose rows would be skipped \(from \[\{.clicks.*100.*150.*\). Was an older checkpoint restored.* "
    r"\(query q, batch 5\). Next: restore the newest checkpoint; or .*`penstock checkpoints set NAME --to TIME`"
)


@pytest.mark.parametrize(
    ("marker", "tasks", "expected"),
    [
        (None, 2, False),
        (Marker(4), 2, False),
        (Marker(0), 2, False),
        (Marker(5), 2, True),  # of an earlier build
        (Marker.for_batch(BATCH), 2, True),
        (Marker.for_batch(BATCH, 2), 2, True),
        (Marker.for_batch(BATCH, 2), 0, True),  # a writer that does not know the number of tasks
        (Marker.for_batch(Batch("q", 5), 2), 2, True),
        (Marker(6), 2, AHEAD),
        (Marker.for_batch(replace(BATCH, number=6), 2), 2, AHEAD),
        (Marker.for_batch(OTHER), 2, r"^Kafka has another batch 5 of this query, with other offsets: .*Next: restore"),
        (
            Marker.for_batch(BATCH, 2),
            4,
            r"batch 5 was written, perhaps in part, by 2 tasks, and is run again with 4: .*--cores.* gave 2 tasks",
        ),
    ],
)
def test_a_batch_is_known_by_its_number_its_offsets_and_its_tasks(
    marker: Marker | None, tasks: int, expected: bool | str
) -> None:
    if isinstance(expected, bool):
        assert is_written(marker, BATCH, "Kafka", tasks=tasks) is expected
        return
    with pytest.raises(PenstockError, match=expected) as told:
        is_written(marker, BATCH, "Kafka", tasks=tasks)
    assert not told.value.retriable


def test_a_batch_whose_offsets_are_not_known_is_known_by_its_number() -> None:
    assert is_written(Marker.for_batch(OTHER), Batch("q", 5), "Kafka")


def test_a_sink_that_lacks_batches_is_older_than_the_checkpoint() -> None:
    for marker in (None, Marker(2), Marker.for_batch(replace(BATCH, number=4)), Marker.for_batch(BATCH)):
        require_next(marker, BATCH, "the table", next="or forget")
    older = Marker.for_batch(replace(BATCH, number=3))
    require_next(older, Batch("q", 5), "the table", next="or forget")
    with pytest.raises(
        PenstockError, match=r"the table is older than the checkpoint: it has batches up to 3.*or forget"
    ):
        require_next(older, BATCH, "the table", next="or forget")


def test_a_marker_is_read_back_and_what_is_none_is_a_number_only() -> None:
    made = Marker.for_batch(BATCH, 3)
    assert made.digest and Marker.read(5, made.text()) == made
    # A build that writes only numbers has continued after a marker of this build.
    for text in ("", None, "{", "[]", "7", '{"batch": 5}', Marker.for_batch(replace(BATCH, number=4)).text()):
        assert Marker.read(5, text) == Marker(5)


def test_the_newest_batch_is_read_from_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    assert newest_in_checkpoint(str(tmp_path)) == (-1, "", "")
    first, second = '[{"clicks":{"0":100}}, -]', '[{"clicks":{"0":150}}, {"logOffset":1}]'
    found = []
    settings = json.dumps({"batchTimestampMs": 7})
    lines = '{"clicks":{"0":100}}\n-', '{"clicks":{"0":150}}\n{"logOffset":1}'
    for number, text in enumerate([f"v1\n{settings}\n{lines[0]}", f"v1\n{settings}\n{lines[1]}", "v1"]):
        (tmp_path / "offsets" / str(number)).write_text(text)
        found.append(newest_in_checkpoint(tmp_path.as_uri() if number else str(tmp_path)))
    assert found == [(0, "", first), (1, first, f"{second} planned at 7 ms"), (2, second, "")]
    for nowhere in ("", "hdfs://host/a", str(tmp_path / "none")):
        assert newest_in_checkpoint(nowhere) == (-1, "", "")


class Offsets:
    """A broker's offsets of groups for a topic of `width` partitions, as a transaction shows and sets them."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.kept: dict[str, dict[int, Committed]] = defaultdict(dict)

    async def all_committed(self, group: str, topic: str) -> dict[int, Committed]:
        return dict(self.kept[group])

    async def committed(self, group: str, topic: str, partition: int) -> Committed | None:
        assert partition < self.width
        return self.kept[group].get(partition)

    async def partitions(self, topic: str) -> int:
        return self.width

    async def add_offsets(self, group: str, offsets: Mapping[tuple[str, int], Committed]) -> None:
        for (_, partition), committed in offsets.items():
            assert partition < self.width, "the broker refuses offsets of partitions that do not exist"
            self.kept[group][partition] = committed


@pytest.mark.parametrize("tasks", [1, 3, 4, 5, 8, 10])
def test_each_task_of_a_batch_has_a_marker_however_many_there_are(tasks: int) -> None:
    offsets = Offsets(width=4)

    def write(batch: Batch, task: int) -> bool:
        """Whether the task wrote its part now, and not before."""
        place = asyncio.run(kafka_writer.unwritten(cast(Transactions, offsets), batch, task, tasks))
        if place:
            made = Committed(batch.number + 1, Marker.for_batch(batch, tasks).text())
            asyncio.run(offsets.add_offsets(place.group, {(kafka_writer.MARKERS, place.partition): made}))
        return place is not None

    batch, following = (Batch("q", number, f"{number}", f"{number + 1}") for number in (6, 7))
    assert [write(batch, task) for task in range(tasks) for _ in range(2)] == [True, False] * tasks
    assert [write(following, task) for task in range(tasks)] == [True] * tasks
    assert all(group.startswith("penstock-q") for group in offsets.kept)
    for task in range(tasks):
        with pytest.raises(PenstockError, match="Kafka is ahead of the checkpoint"):
            write(batch, task)
