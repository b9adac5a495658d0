"""Chooses where a batch ends, so that it holds no more rows than it should.

A log has no row counts, but reading the first few row times of a stream is cheap. A stream that returns as many times
as the query asked for may have more rows after the last time; all other streams are known completely. The streams that
keep the batch short are asked for twice as many times, until the batch is full enough.

Reading each row's time costs the node nearly half of what reading the row costs. So a large batch is estimated from a
sample of the streams, a different sample each time. The rows of a sampled stream represent those of other streams by
their shares of the ring. Streams with much more than their share (those of a hot partition) are always read and
represent only themselves.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import numpy as np

from penstock.cdc.cdc_options import CdcSettings
from penstock.cdc.cdc_tables import log_name
from penstock.cdc.generations import MICROSECOND, Span
from penstock.cdc.log_pages import IN_SPAN, id_cells, pages_of_log, span_queries
from penstock.cdc.sent_groups import micros_of
from penstock.database.cql_types import CqlTable
from penstock.native import Array

SAMPLE = 8000
"""About how many rows are sampled; the rows of a batch up to this size are all counted."""
FEWEST = 2
"""The smallest number of streams in a sample."""
HEAVY = 3
"""A stream is always read if it holds more than this many times its share."""
EXCESS = 0.05
"""A stream is also always read if it exceeds its share by this part of a batch's rows: `HEAVY` thirds are all rows."""


class Probe:
    """Estimates the batches of one query; remembers which streams are heavy."""

    def __init__(self, chosen: CdcSettings, table: CqlTable) -> None:
        self.chosen, self.table = chosen, table
        self.heavy: frozenset[bytes] = frozenset()

    def last_time_within(self, span: Span, shares: dict[bytes, float], most: int) -> int:
        """Return the time up to which the span holds about `most` rows, at least half of them; else the span's end.

        `shares` are the shares of the span's streams. Rows with the same time are never split, so the first time with
        rows is always included.
        """
        weights = self._sample(shares, most)
        # 1.5 times the even share, which mostly saves a second round.
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
        """The streams to sample, and how many rows one row of each represents."""
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
        """`until`, but at most `max_time` after the first row of all streams."""
        longest = self.chosen.max_time // MICROSECOND
        if until - span.after <= longest:
            return until
        firsts = _first_times(self.chosen, self.table, span, span.streams, 1)
        return min(until, min((int(times[0]) for times in firsts.values()), default=until) + longest)


def _running_count(known: dict[bytes, Array], weights: dict[bytes, float], until: int) -> tuple[Array, Array]:
    """The times up to `until`, in order, and the estimated number of rows up to each."""
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
    times_of_streams: dict[bytes, list[Array]] = {}
    for query in span_queries(chosen, Span(tuple(streams), span.after, span.until)):
        for stream, times in _runs(chosen, text, (*query, limit)):
            times_of_streams.setdefault(stream, []).append(times)
    return {stream: np.concatenate(times) for stream, times in times_of_streams.items()}


def _runs(chosen: CdcSettings, text: str, values: tuple[object, ...]) -> Iterator[tuple[bytes, Array]]:
    """Yield each run of rows of one stream, page by page: the stream and its times."""
    for page in pages_of_log(chosen, text, values):
        if not page.rows:
            continue
        cells = id_cells(page, where=chosen.table)
        ids, times = cells[:, :16].copy().view("V16").ravel(), micros_of(cells.view(">u8")[:, 2].astype(np.uint64))
        ends = np.flatnonzero(np.append(ids[1:] != ids[:-1], True)) + 1
        for begin, end in zip([0, *ends[:-1]], ends, strict=True):
            yield ids[begin].tobytes(), times[begin:end]
