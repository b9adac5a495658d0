"""Planning batches of rows that were written just now, in low latency.

A batch takes what is in the log up to now at once, though rows may yet turn up behind it. Each plan looks again a
little way back, where late rows mostly turn up; once a second one looks back two seconds, and at all that has become
`confidence` old, after which it is complete. What was sent since then is kept as a set of groups (`sent_groups`), so
nothing is sent twice; a batch's tasks are told which groups to send. After a restart the set is found again from the
digest in the checkpoint and the log. A source that lags reads complete time only, in order, until it has caught up.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from penstock.cdc.cdc_tables import log_name
from penstock.cdc.generations import Position, Span, token_of
from penstock.cdc.log_pages import IN_SPAN, STREAMS_PER_QUERY, fetch_pages, id_cells, span_queries
from penstock.cdc.planner import COUNT_FROM, Planner
from penstock.cdc.sent_groups import NONE, SentGroups, digest, groups_of, recover
from penstock.cdc.timeuuid import MICROSECOND, now_micros

SECOND = 1_000_000
NEAR, FAR = SECOND // 4, 2 * SECOND
"""How far a plan looks back: each one, and one a second."""
CONFIRM_EVERY = SECOND
GROUPS_PER_TASK = 2000
_IDLE = (0.005, 0.1)
"""Seconds between two looks into the log that find nothing, at first and after a while."""

Find = Callable[[int, int], SentGroups]
"""The groups that the log holds now of a time (after, until]."""


@dataclass(frozen=True)
class Progress:
    """All up to `time` was sent and is complete; of (time, fresh] the groups `sent`.

    Behind `seen` the log must be looked at again: `fresh`, or after a restart `time`.
    """

    time: int
    fresh: int
    sent: SentGroups = NONE
    seen: int = 0


def step(at: Progress, find: Find, complete: int, fresh: int, back: int) -> tuple[Progress, SentGroups]:
    """What is new in the log up to `fresh`, looking `back` so far; the time up to `complete` gets no rows any more."""
    fresh = max(at.fresh, fresh)
    complete = max(at.time, min(complete, fresh))
    look = max(complete, at.seen - back)
    found = find(at.time, fresh) if look == complete else find(look, fresh)
    if at.time < complete < look:
        found = find(at.time, complete).plus(found)
    new = found.minus(at.sent)
    sent = at.sent.plus(new).within(complete, fresh)
    return Progress(complete, fresh, sent, fresh), new


def again(begin: Position, until: Position, find: Find) -> tuple[Progress, SentGroups]:
    """What the batch from `begin` to `until` sent, if not more; and the progress it leaves."""
    found = find(begin.time, until.newest)
    before, _ = recover(begin.sent, found, begin.time, begin.newest)
    known, unsure = recover(until.sent, found, until.time, until.newest)
    new = found.within(begin.time, until.time).plus(known).plus(unsure).minus(before)
    sent = before.plus(new).within(until.time, until.newest)
    return Progress(until.time, until.newest, sent, until.time), new


class Fresh:
    """Plans the batches of one query in low latency; remembers what it sent."""

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        self.position = Position(0, 0)
        self.progress = Progress(0, 0)
        self.batch: tuple[Position, Position, list[list[Span]]] | None = None
        self.idle = _IDLE[0]

    def next(self, at: Position, target: int, most: int) -> Position:
        """Where the batch after `at` ends, reading up to `target`; `at` itself if there is nothing to send."""
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
        # After looking: by now a column is known that a row found here may hold. And before anything is remembered: a
        # plan that fails is made again.
        self.planner.check_schema()
        if not len(new) and generation == at.generation and not self._tell(at, progress, end):
            self.progress = progress
            return at
        until = _position(generation, progress)
        self.batch = at, until, self._spans(until, new, before.seen - NEAR)
        self.position, self.progress, self.idle = until, progress, _IDLE[0]
        return until

    def pause(self) -> None:
        """Wait before looking again where nothing was found: longer each time, so that an idle source costs little."""
        time.sleep(self.idle)
        self.idle = min(self.idle * 1.5, _IDLE[1])

    def spans(self, begin: Position, until: Position) -> list[list[Span]]:
        """What each task of a batch reads, in the order given."""
        if self.batch is None or self.batch[:2] != (begin, until):
            if begin.newest == begin.time and until.newest == until.time:
                return [[span] for span in self.planner.spans(begin, until)]
            progress, new = again(begin, until, lambda a, b: self._find(until.generation, a, b))
            self.batch = begin, until, self._spans(until, new, begin.newest - NEAR)
            self.position, self.progress = until, progress
        return self.batch[2]

    def _catch_up(self, at: Position, confident: int, most: int) -> Position:
        """A batch of complete time, as in safe mode: nothing is known of it yet."""
        begin = replace(at, time=self.progress.time, fresh=0, sent="")
        until = self.planner.next(begin, confident, most)
        self.batch = at, until, [[span] for span in self.planner.spans(begin, until)]
        return until

    def _progress(self, at: Position) -> Progress:
        found = self._find(at.generation, at.time, at.newest) if at.newest > at.time else NONE
        known, _ = recover(at.sent, found, at.time, at.newest)
        return Progress(at.time, at.newest, known, at.time)

    def _tell(self, at: Position, made: Progress, end: int) -> bool:
        """Whether the offset moves though nothing is sent: from time to time, and at a generation's end."""
        moved = made.time > at.time or made.fresh > at.newest
        return moved and (self.planner.moves(at, now_micros()) or made.time >= end)

    def _spans(self, until: Position, new: SentGroups, look: int) -> list[list[Span]]:
        """The new groups parted by stream into tasks; those up to `look` came late and are read apart."""
        tokens = np.unique(new.tokens)
        tasks = min(self.planner.tasks(until), -(-len(new) // GROUPS_PER_TASK), len(tokens))
        ids = {token_of(stream): stream for stream in self.planner.generations.streams(until.generation)}
        parts = (new.at(new.times <= look), new.at(new.times > look))
        made = []
        for share in np.array_split(tokens, tasks) if tasks else ():
            spans = []
            for part in parts:
                for chunk in (share[i : i + STREAMS_PER_QUERY] for i in range(0, len(share), STREAMS_PER_QUERY)):
                    groups = part.at(np.isin(part.tokens, chunk))
                    if len(groups):
                        streams = tuple(ids[int(token)] for token in np.unique(groups.tokens))
                        first, last = int(groups.times[0]) - 1, int(groups.times[-1])
                        spans.append(Span(streams, first, last, until.planned, np.sort(groups.ids)))
            made.append(spans)
        return made

    def _find(self, generation: int, after: int, until: int) -> SentGroups:
        text = f'SELECT "cdc$stream_id", "cdc$time" FROM {log_name(self.planner.table)} WHERE {IN_SPAN}'
        span = Span(self.planner.generations.streams(generation), after, until)
        found = []
        for query in span_queries(self.planner.settings, span):
            pages = fetch_pages(self.planner.settings, text, query)
            found += [id_cells(page, where=log_name(self.planner.table)) for page in pages]
        return groups_of(np.concatenate(found)) if found else NONE


def _position(generation: int, made: Progress) -> Position:
    if made.fresh == made.time:
        return Position(generation, made.time, now_micros())
    return Position(generation, made.time, now_micros(), made.fresh, digest(made.sent, made.time, made.fresh))
