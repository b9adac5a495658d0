"""How many tasks read a batch of changes: the number when it was planned, also with more cores after a crash."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.cdc.cdc_options import settings
from penstock.cdc.generations import Generations, Position
from penstock.cdc.planner import Planner, Snapshot

STREAMS = tuple(bytes([n]) for n in range(8))


class Streams:
    """One generation of eight streams."""

    def streams(self, generation: int) -> tuple[bytes, ...]:
        return STREAMS

    def streams_within(self, since: int, after: int, until: int) -> tuple[bytes, ...]:
        return ()


def planner(cores: int) -> Planner:
    """A planner of a source with this number of cores; it needs no database."""
    made = Planner.__new__(Planner)
    made.settings = settings({"table": "shop.orders", "hosts": "127.0.0.1:1", "partitions": str(cores)})
    made.generations = cast(Generations, Streams())
    column: Any = SimpleNamespace(name="id")
    made.table = cast(Any, SimpleNamespace(partition_key=[column], keyspace="shop", name="orders"))
    return made


@pytest.mark.parametrize(("kept", "expected"), [(2, 2), (0, 4)])
def test_streams_and_token_ranges_are_parted_as_when_the_batch_was_planned(kept: int, expected: int) -> None:
    begin = Position(5, 5_000_000, 1, tasks=1)
    until = Position(5, 6_000_000, 2, tasks=kept)
    spans = planner(4).spans(begin, until)
    assert len(spans) == expected and sum((span.streams for span in spans), ()) == STREAMS
    first, last = Position(5, 5_000_000, 1, snapshot=0), Position(5, 5_000_000, 2, snapshot=1000, tasks=kept)
    ranges = Snapshot(planner(4)).ranges(first, last)
    assert len(ranges) == expected and (ranges[0].after, ranges[-1].until) == (0, 1000)
