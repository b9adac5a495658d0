"""Batches of whole chunks: a partition is read up to a multiple of a number of offsets, so that files can be alike.

The records after the last multiple wait for those that are missing, at most as long as `wait`. As chunks depend only on
offsets, a batch that is planned again has the same ones, wherever it begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Offsets = dict[int, int]


@dataclass
class WholeChunks:
    """Plans the ends of batches; `records` is the size of a chunk in offsets, `wait` in seconds, None for ever."""

    records: int
    wait: float | None
    clock: Callable[[], float] = time.monotonic
    _waiting: dict[int, tuple[int, float]] = field(default_factory=dict)
    """For each partition with a part of a chunk, where it begins, and since when it waits."""

    def ready(self, start: Mapping[int, int], end: Mapping[int, int]) -> Offsets:
        """The offsets up to which partitions can be read."""
        return {p: self._ready(p, start[p], until) for p, until in end.items()}

    def _ready(self, partition: int, start: int, until: int) -> int:
        whole = until // self.records * self.records
        if whole > start or until <= start:
            self._waiting.pop(partition, None)
            return max(whole, min(start, until))
        begun, since = self._waiting.get(partition, (-1, 0.0))
        if begun != start:
            since = self.clock()
            self._waiting[partition] = start, since
        return until if self.wait is not None and self.clock() - since >= self.wait else start

    def limited(self, start: Mapping[int, int], ready: Mapping[int, int], cut: Mapping[int, int]) -> Offsets:
        """Whole chunks up to `cut`, which is before `ready`: at least one chunk, of the partition with most records."""
        ends = {p: self._whole(start[p], ready[p], until) for p, until in cut.items()}
        if all(ends[p] <= start[p] for p in ends):
            most = max(ends, key=lambda p: (ready[p] - start[p], -p))
            ends[most] = min((start[most] // self.records + 1) * self.records, ready[most])
        return ends

    def _whole(self, start: int, ready: int, cut: int) -> int:
        return cut if cut == ready else max(cut // self.records * self.records, start)
