"""The state of windows: partial aggregates by key and start, closed when the watermark has passed their end.

Times are microseconds since 1970. Only the shape differs between kinds of windows: how rows become windows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.keyed_state.aggregates import Aggregate, fields, parts_of
from penstock.keyed_state.arrow_keys import concat, numbers
from penstock.keyed_state.buckets import BUCKET, Step, upserted, with_gone

START, END, FINAL, LATE = "window_start", "window_end", "final", "late"
TIME = pa.timestamp("us", "UTC")
Mask = npt.NDArray[np.bool_]


class Shape(Protocol):
    """How rows become windows."""

    def partial(self, rows: pa.Table, keys: Sequence[str], aggregates: Sequence[Aggregate]) -> pa.Table:
        """Rows, with their time in `window_start`, as partial windows: keys, start, end, partial results."""

    def merge(self, state: pa.Table, windows: pa.Table, keys: Sequence[str], aggregates: Sequence[Aggregate]) -> Merge:
        """Merge partial windows with the open windows."""


@dataclass(frozen=True)
class Merge:
    """Changed windows, including the windows merged into them; `gone` are the rows to remove from the state.

    `fresh` masks the windows that did not contain an open window.
    """

    windows: pa.Table
    gone: pa.Table
    fresh: Mask


@dataclass(frozen=True)
class Windows:
    """The logic of a stage with windows (see `buckets`)."""

    shape: Shape
    key_schema: pa.Schema
    aggregates: tuple[Aggregate, ...]
    changes: bool

    @cached_property
    def state(self) -> pa.Schema:
        times = [pa.field(START, pa.int64()), pa.field(END, pa.int64())]
        return pa.schema([*self.key_schema, *times, *fields(self.aggregates)])

    @property
    def keys(self) -> list[str]:
        return list(self.key_schema.names)

    @property
    def state_key(self) -> tuple[str, ...]:
        return (*self.keys, START)

    @property
    def made(self) -> Mapping[str, Sequence[str]]:
        return parts_of(self.aggregates)

    def before(self, rows: pa.Table) -> pa.Table:
        return self.shape.partial(rows, [BUCKET, *self.keys], self.aggregates)

    def step(self, state: pa.Table, rows: pa.Table | None, watermark: int, number: int) -> Step:
        now = watermark * 1000
        closing = numbers(state[END]) <= now
        closed, still_open = state.filter(pa.array(closing)), state.filter(pa.array(~closing))
        gone = [with_gone(closed, True)]
        output = [self._results(closed, final=True, late=False)]
        if rows is not None:
            merge = self.shape.merge(still_open, concat([rows], self.state), self.keys, self.aggregates)
            late = merge.fresh & (numbers(merge.windows[END]) <= now)
            changed = merge.windows.filter(pa.array(~late))
            output.append(self._results(merge.windows.filter(pa.array(late)), final=True, late=True))
            if self.changes:
                output.append(self._results(self._nothing(merge.gone), final=False, late=False))
                output.append(self._results(changed, final=False, late=False))
            gone += [with_gone(merge.gone, True), with_gone(changed, False)]
        change = pa.concat_tables(gone).combine_chunks()
        state = upserted(state, change, self.state_key) if len(change) else state
        # Rounded up to a millisecond: one earlier, the window is still open, and no timer would fire again.
        wake = -(-int(pc.min(state[END]).as_py()) // 1000) if len(state) else None
        return Step(change, pa.concat_tables(output).combine_chunks(), wake, state)

    def _nothing(self, gone: pa.Table) -> pa.Table:
        """Removed windows, with null aggregates."""
        columns = {name: gone[name] for name in (*self.keys, START, END)}
        parts = {field.name: pa.nulls(len(gone), field.type) for field in fields(self.aggregates)}
        return pa.table({**columns, **parts}, schema=self.state)

    def _results(self, windows: pa.Table, *, final: bool, late: bool) -> pa.Table:
        columns = {name: windows[name] for name in self.keys}
        columns |= {name: windows[name].cast(TIME) for name in (START, END)}
        columns |= {aggregate.column: aggregate.value(windows) for aggregate in self.aggregates}
        flags = {FINAL: pa.array(np.full(len(windows), final)), LATE: pa.array(np.full(len(windows), late))}
        return pa.table({**columns, **flags})
