"""Judging before reading: how far a batch may go to hold no more rows than it should.

A log has no counts. Asking a stream for its first few row times is cheap, and tells more with each round: a stream
that gave as many as were asked for goes on beyond its last one, all others are known whole. Streams that keep the
batch short are asked for twice as many, until the batch is full enough.

Looking at each row's time costs the node nearly half of what reading the row does. So a large batch is judged by a
sample of the streams, another one each time, whose rows stand for those of the others by their shares of the ring;
streams that were found to hold much more than their share (those of a hot partition) are always looked at and stand
for themselves.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import numpy as np

from penstock.cdc.cdc_options import CdcSettings
from penstock.cdc.cdc_tables import log_name
from penstock.cdc.generations import Span
from penstock.cdc.log_pages import IN_SPAN, fetch_pages, id_cells, span_queries
from penstock.cdc.sent_groups import micros_of
from penstock.cdc.timeuuid import MICROSECOND
from penstock.native import Array
from penstock.schema import CqlTable

SAMPLE = 8000
"""About how many rows are looked at: a batch of no more than these is counted to the row."""
FEWEST = 2
"""Streams of a sample at least."""
HEAVY = 3
"""Times its share that a stream holds which is always looked at."""
EXCESS = 0.05
"""Of a batch's rows, held beyond its share by a stream which is always looked at: three times a third is all."""


class Probe:
    """Judges the batches of one query; remembers which streams are heavy."""

    def __init__(self, chosen: CdcSettings, table: CqlTable) -> None:
        self.chosen, self.table = chosen, table
        self.heavy: frozenset[bytes] = frozenset()

    def last_time_within(self, span: Span, shares: dict[bytes, float], most: int) -> int:
        """The point in time up to which the span holds about `most` rows, or a half of it and more; its end if fewer.

        `shares` are those of the span's streams. Rows of one instant are never parted, so the first instant with rows
        is always within.
        """
        weights = self._sample(shares, most)
        # Half as many again as if all held their share, which mostly spares a second round.
        limit = min(int(1.5 * most * sum(shares[stream] for stream in weights) / len(weights)) + 1, most)
        known = _first_times(self.chosen, self.table, span, weights, limit)
        while True:
            beyond = {stream: times for stream, times in known.items() if len(times) >= limit}
            until = min((int(times[-1]) for times in beyond.values()), default=span.until)
            times, rows = _running_count(known, weights, until)
            if not beyond or limit >= most or (len(rows) and rows[-1] >= most // 2):
                break
            limit *= 2
            known |= _first_times(self.chosen, self.table, span, beyond, limit)
        if len(rows) and rows[-1] > most:
            until = int(times[max(int(np.searchsorted(rows, most + 0.5)) - 1, 0)])
        self._remember(known, weights, shares, until)
        return self._no_longer(span, until)

    def _sample(self, shares: dict[bytes, float], most: int) -> dict[bytes, float]:
        """The streams to look at, and how many rows a row of each stands for."""
        light = [stream for stream in shares if stream not in self.heavy]
        random.shuffle(light)
        seen = np.cumsum([shares[stream] for stream in light])
        count = max(int(np.searchsorted(seen, SAMPLE / most)) + 1, FEWEST)
        each = float(seen[-1] / seen[min(count, len(seen)) - 1]) if light else 1.0
        return dict.fromkeys(light[:count], each) | dict.fromkeys(self.heavy.intersection(shares), 1.0)

    def _remember(
        self, known: dict[bytes, Array], weights: dict[bytes, float], shares: dict[bytes, float], until: int
    ) -> None:
        counts = {stream: int(np.searchsorted(times, until, side="right")) for stream, times in known.items()}
        rows = sum(count * weights[stream] for stream, count in counts.items())
        bounds = {stream: min(HEAVY * shares[stream], shares[stream] + EXCESS) * rows for stream in counts}
        self.heavy = frozenset(stream for stream, count in counts.items() if count > bounds[stream])

    def _no_longer(self, span: Span, until: int) -> int:
        """The end, but not beyond the longest time from the first row of all streams."""
        longest = self.chosen.max_time // MICROSECOND
        if until - span.after <= longest:
            return until
        firsts = _first_times(self.chosen, self.table, span, span.streams, 1)
        return min(until, min((int(times[0]) for times in firsts.values()), default=until) + longest)


def _running_count(known: dict[bytes, Array], weights: dict[bytes, float], until: int) -> tuple[Array, Array]:
    """The times up to `until`, in order, and how many rows there are about up to each."""
    none = np.empty(0)
    times = np.concatenate([none.astype(np.int64), *known.values()])
    stands_for = np.concatenate([none, *(np.full(len(each), weights[stream]) for stream, each in known.items())])
    order = np.argsort(times, kind="stable")
    within = order[times[order] <= until]
    return times[within], np.cumsum(stands_for[within])


def _first_times(
    chosen: CdcSettings, table: CqlTable, span: Span, streams: Iterable[bytes], limit: int
) -> dict[bytes, Array]:
    """The first `limit` times of each stream that has rows in the span, in order."""
    text = f'SELECT "cdc$stream_id", "cdc$time" FROM {log_name(table)} WHERE {IN_SPAN} PER PARTITION LIMIT ?'
    found: dict[bytes, list[Array]] = {}
    for query in span_queries(chosen, Span(tuple(streams), span.after, span.until)):
        for stream, times in _runs(chosen, text, (*query, limit)):
            found.setdefault(stream, []).append(times)
    return {stream: np.concatenate(times) for stream, times in found.items()}


def _runs(chosen: CdcSettings, text: str, values: tuple[object, ...]) -> Iterator[tuple[bytes, Array]]:
    """Neighbouring rows of one stream, page by page: the stream and its times."""
    for page in fetch_pages(chosen, text, values):
        if not page.rows:
            continue
        cells = id_cells(page, where=chosen.table)
        ids, times = cells[:, :16].copy().view("V16").ravel(), micros_of(cells.view(">u8")[:, 2].astype(np.uint64))
        ends = np.flatnonzero(np.append(ids[1:] != ids[:-1], True)) + 1
        for begin, end in zip([0, *ends[:-1]], ends, strict=True):
            yield ids[begin].tobytes(), times[begin:end]
