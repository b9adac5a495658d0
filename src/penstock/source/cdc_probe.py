"""Counting before reading: how far a batch may go to hold no more rows than it should.

A log has no counts. Asking each stream for its first few row times is cheap, and tells more with each round: a stream
that gave as many as were asked for goes on beyond its last one, all others are known whole. Streams that keep the
batch short are asked for twice as many, until the batch is full enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from penstock.schema import Table
from penstock.source.cdc_generations import Span
from penstock.source.cdc_options import Settings
from penstock.source.cdc_pages import IN_SPAN, fetch_pages
from penstock.source.cdc_tables import log_name
from penstock.source.cells import Array, index_cells
from penstock.source.log_groups import micros_of
from penstock.source.times import MICROSECOND


def last_time_within(chosen: Settings, table: Table, span: Span, most: int) -> int:
    """The point in time up to which the span holds `most` rows, or a half of it and more; its end if it has fewer.

    Rows of one instant are never parted, so the first instant with rows is always within.
    """
    share = max(most // len(span.streams), 1)
    known = _first_times(chosen, table, span, span.streams, share)
    while True:
        beyond = {stream: times for stream, times in known.items() if len(times) >= share}
        until = min((int(times[-1]) for times in beyond.values()), default=span.until)
        rows = np.sort(np.concatenate([np.empty(0, np.int64), *known.values()]))
        rows = rows[rows <= until]
        if len(rows) > most:
            until = int(rows[most - 1])
        if not beyond or share >= most or len(rows) >= most // 2:
            break
        share *= 2
        known |= _first_times(chosen, table, span, beyond, share)
    return min(until, int(rows[0]) + chosen.max_time // MICROSECOND) if len(rows) else until


def _first_times(
    chosen: Settings, table: Table, span: Span, streams: Iterable[bytes], limit: int
) -> dict[bytes, Array]:
    """The first `limit` times of each stream that has rows in the span, in order."""
    text = f'SELECT "cdc$stream_id", "cdc$time" FROM {log_name(table)} WHERE {IN_SPAN} PER PARTITION LIMIT ?'
    found: dict[bytes, list[Array]] = {}
    for query in Span(tuple(streams), span.after, span.until).queries():
        for stream, times in _runs(chosen, text, (*query, limit)):
            found.setdefault(stream, []).append(times)
    return {stream: np.concatenate(times) for stream, times in found.items()}


def _runs(chosen: Settings, text: str, values: tuple[object, ...]) -> Iterator[tuple[bytes, Array]]:
    """Neighbouring rows of one stream, page by page: the stream and its times."""
    for page in fetch_pages(chosen, text, values):
        if not page.rows:
            continue
        buffer = np.frombuffer(page.data, np.uint8)
        starts, lengths = np.empty((page.rows, 2), np.int64), np.empty((page.rows, 2), np.int32)
        index_cells(buffer, page.rows, 2, starts, lengths)
        ids = buffer[starts[:, :1] + np.arange(16)].view("V16").ravel()
        times = micros_of(buffer, starts)
        ends = np.flatnonzero(np.append(ids[1:] != ids[:-1], True)) + 1
        for begin, end in zip([0, *ends[:-1]], ends, strict=True):
            yield ids[begin].tobytes(), times[begin:end]
