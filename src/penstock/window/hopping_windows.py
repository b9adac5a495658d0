"""Tumbling and hopping windows: rows are aggregated in panes of one step, and each pane goes to all of its windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.keyed_state.aggregates import Aggregate, merged, partial
from penstock.keyed_state.arrow_keys import numbers, positions
from penstock.window.window_state import END, START, Merge


@dataclass(frozen=True)
class Panes:
    """Windows of `size` that begin every `step` microseconds; `size` is a multiple of `step`."""

    size: int
    step: int

    def partial(self, rows: pa.Table, keys: Sequence[str], aggregates: Sequence[Aggregate]) -> pa.Table:
        times = numbers(rows[START])
        rows = rows.set_column(rows.column_names.index(START), START, pa.array(times - times % self.step))
        panes = partial(rows, [*keys, START], aggregates)
        if self.size > self.step:
            panes = merged(self._spread(panes), [*keys, START], aggregates)
        return panes.append_column(END, pa.array(numbers(panes[START]) + self.size))

    def merge(self, state: pa.Table, windows: pa.Table, keys: Sequence[str], aggregates: Sequence[Aggregate]) -> Merge:
        windows = merged(windows, [*keys, START, END], aggregates).select(state.column_names)
        places = positions(state, windows, [*keys, START])
        known = state.take(pa.array(places[places >= 0]))
        fresh = windows.filter(pa.array(places < 0))
        grown = merged(
            pa.concat_tables([known, windows.filter(pa.array(places >= 0))]), [*keys, START, END], aggregates
        ).select(state.column_names)
        flags = np.concatenate([np.zeros(len(grown), bool), np.ones(len(fresh), bool)])
        return Merge(pa.concat_tables([grown, fresh]).combine_chunks(), state.slice(0, 0), flags)

    def _spread(self, panes: pa.Table) -> pa.Table:
        count = self.size // self.step
        spread = panes.take(pa.array(np.repeat(np.arange(len(panes)), count)))
        back = np.tile(np.arange(count) * self.step, len(panes))
        return spread.set_column(spread.column_names.index(START), START, pa.array(numbers(spread[START]) - back))
