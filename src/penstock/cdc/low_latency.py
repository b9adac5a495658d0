"""Plans batches of the newest rows, with low latency.

A batch takes all rows that are in the log now, although late rows may still appear before its end. Each plan reads the
log again from 250 ms back, where most late rows appear. Once a second a plan looks back two seconds, and at everything
that has become `confidence` old since; that time is then complete. The groups sent in time that is not complete are
kept as a set (`sent_groups`), so that nothing is sent twice, and each task gets the list of groups to send. After a
restart the set is rebuilt from the digest in the checkpoint and the log. A source that lags reads only complete time,
in order, until it has caught up.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from penstock.cdc.cdc_tables import log_name
from penstock.cdc.generations import MICROSECOND, Position, Span, now_micros, token_of
from penstock.cdc.log_pages import IN_SPAN, STREAMS_PER_QUERY, id_cells, pages_of_log, span_queries
from penstock.cdc.planner import COUNT_FROM, Planner
from penstock.cdc.sent_groups import NONE, SentGroups, digest, groups_of, recover

SECOND = 1_000_000
NEAR, FAR = SECOND // 4, 2 * SECOND
"""Microseconds that a plan looks back: `NEAR` each time, `FAR` once a second."""
CONFIRM_EVERY = SECOND
GROUPS_PER_TASK = 2000
_IDLE = (0.005, 0.1)
"""Seconds between two queries of the log that find nothing: the first pause and the longest."""

Find = Callable[[int, int], SentGroups]
"""Returns the groups that the log holds now in the time (after, until]."""


@dataclass(frozen=True)
class SentSoFar:
    """Everything up to `time` was sent and is complete; in (time, fresh] the groups `sent` were sent.

    The log was read up to `seen`: that is `fresh`, or `time` after a restart.
    """

    time: int
    fresh: int
    sent: SentGroups = NONE
    seen: int = 0


def step(at: SentSoFar, find: Find, complete: int, fresh: int, back: int) -> tuple[SentSoFar, SentGroups]:
    """Find the new groups up to `fresh`, looking `back` microseconds behind what was read.

    No more rows appear up to `complete`.
    """
    fresh = max(at.fresh, fresh)
    complete = max(at.time, min(complete, fresh))
    look = max(complete, at.seen - back)
    groups = find(at.time, fresh) if look == complete else find(look, fresh)
    if at.time < complete < look:
        groups = find(at.time, complete).plus(groups)
    new = groups.minus(at.sent)
    sent = at.sent.plus(new).within(complete, fresh)
    return SentSoFar(complete, fresh, sent, fresh), new


def again(begin: Position, until: Position, find: Find) -> tuple[SentSoFar, SentGroups]:
    """The progress after the batch from `begin` to `until`, and the groups that it sent, perhaps with a few more."""
    groups = find(begin.time, until.newest)
    before, _ = recover(begin.sent, groups, begin.time, begin.newest)
    known, unsure = recover(until.sent, groups, until.time, until.newest)
    new = groups.within(begin.time, until.time).plus(known).plus(unsure).minus(before)
    sent = before.plus(new).within(until.time, until.newest)
    return SentSoFar(until.time, until.newest, sent, until.time), new


class Fresh:
    """Plans the batches of one query with low latency; remembers what it sent."""

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        self.position = Position(0, 0)
        self.progress = SentSoFar(0, 0)
        self.batch: tuple[Position, Position, list[list[Span]]] | None = None
        self.idle = _IDLE[0]

    def next(self, at: Position, target: int, most: int) -> Position:
        """Return where the batch after `at` ends, at most at `target`; `at` itself if there is nothing to send."""
        if self.position != at:
            self.position, self.progress = at, self._progress(at)
        confident, before = min(target, self.planner.confident()), self.progress
        if before.fresh <= before.time and confident - before.time > COUNT_FROM // MICROSECOND:
            return self._catch_up(at, confident, most)
        generation, end = self.planner.generation(at)
        fresh = max(before.fresh, self.planner.cut(generation, before.fresh, min(target, end), most))
        confirm = confident - before.time >= CONFIRM_EVERY or confident >= fresh
        complete, back = (confident, FAR) if confirm else (before.time, NEAR)
        progress, new = step(before, lambda a, b: self._find(generation, a, b), complete, fresh, back)
        # After the query, so that columns of the rows found here are known; before the state changes, because a failed
        # plan is repeated.
        self.planner.check_schema()
        if not len(new) and generation == at.generation and not self._tell(at, progress, end):
            self.progress = progress
            return at
        until = _position(generation, progress)
        self.batch = at, until, self._spans(until, new, before.seen - NEAR)
        self.position, self.progress, self.idle = until, progress, _IDLE[0]
        return until

    def pause(self) -> None:
        """Wait before the next query of an idle log; each wait is longer, so that an idle source costs little."""
        time.sleep(self.idle)
        self.idle = min(self.idle * 1.5, _IDLE[1])

    def spans(self, begin: Position, until: Position) -> list[list[Span]]:
        """The spans that each task of a batch reads, in order."""
        if self.batch is None or self.batch[:2] != (begin, until):
            if begin.newest == begin.time and until.newest == until.time:
                return [[span] for span in self.planner.spans(begin, until)]
            progress, new = again(begin, until, lambda a, b: self._find(until.generation, a, b))
            self.batch = begin, until, self._spans(until, new, begin.newest - NEAR)
            self.position, self.progress = until, progress
        return self.batch[2]

    def _catch_up(self, at: Position, confident: int, most: int) -> Position:
        """Plan a batch of complete time, as in safe mode: none of its groups were read before."""
        begin = replace(at, time=self.progress.time, fresh=0, sent="")
        until = self.planner.next(begin, confident, most)
        self.batch = at, until, [[span] for span in self.planner.spans(begin, until)]
        return until

    def _progress(self, at: Position) -> SentSoFar:
        groups = self._find(at.generation, at.time, at.newest) if at.newest > at.time else NONE
        known, _ = recover(at.sent, groups, at.time, at.newest)
        return SentSoFar(at.time, at.newest, known, at.time)

    def _tell(self, at: Position, progress: SentSoFar, end: int) -> bool:
        """Whether the offset moves although nothing is sent: from time to time, and at the end of a generation."""
        moved = progress.time > at.time or progress.fresh > at.newest
        return moved and (self.planner.moves(at, now_micros()) or progress.time >= end)

    def _spans(self, until: Position, new: SentGroups, look: int) -> list[list[Span]]:
        """Split the new groups by stream into tasks; groups up to `look` came late and get their own spans."""
        tokens = np.unique(new.tokens)
        tasks = min(self.planner.tasks(until), -(-len(new) // GROUPS_PER_TASK), len(tokens))
        ids = {token_of(stream): stream for stream in self.planner.generations.streams(until.generation)}
        parts = (new.at(new.times <= look), new.at(new.times > look))
        spans_of_tasks = []
        for share in np.array_split(tokens, tasks) if tasks else ():
            spans = []
            for part in parts:
                for chunk in (share[i : i + STREAMS_PER_QUERY] for i in range(0, len(share), STREAMS_PER_QUERY)):
                    groups = part.at(np.isin(part.tokens, chunk))
                    if len(groups):
                        streams = tuple(ids[int(token)] for token in np.unique(groups.tokens))
                        first, last = int(groups.times[0]) - 1, int(groups.times[-1])
                        spans.append(Span(streams, first, last, until.planned, np.sort(groups.ids)))
            spans_of_tasks.append(spans)
        return spans_of_tasks

    def _find(self, generation: int, after: int, until: int) -> SentGroups:
        text = f'SELECT "cdc$stream_id", "cdc$time" FROM {log_name(self.planner.table)} WHERE {IN_SPAN}'
        span = Span(self.planner.generations.streams(generation), after, until)
        ids = []
        for query in span_queries(self.planner.settings, span):
            pages = pages_of_log(self.planner.settings, text, query)
            ids += [id_cells(page, where=log_name(self.planner.table)) for page in pages]
        return groups_of(np.concatenate(ids)) if ids else NONE


def _position(generation: int, progress: SentSoFar) -> Position:
    if progress.fresh == progress.time:
        return Position(generation, progress.time, now_micros())
    return Position(
        generation, progress.time, now_micros(), progress.fresh, digest(progress.sent, progress.time, progress.fresh)
    )
