"""Totals made by two Python functions, row by row: the one place where the order of additions and subtractions of a
group matters, and where what they do is not known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.stream.buckets import Step, with_gone
from penstock.stream.revisions import DELETED, SIGN, VERSION
from penstock.stream.totals import ROWS, of_groups

Row = dict[str, Any]


@dataclass(frozen=True)
class Fold:
    """The logic of a stage (see `buckets`)."""

    by: pa.Schema
    returns: pa.Schema
    initial: Row
    add: Callable[[Row, Row], Row]
    subtract: Callable[[Row, Row], Row]

    @cached_property
    def state(self) -> pa.Schema:
        return pa.schema([*self.by, *self.returns, pa.field(ROWS, pa.int64())])

    @property
    def state_key(self) -> tuple[str, ...]:
        return tuple(self.by.names)

    @property
    def made(self) -> Mapping[str, Sequence[str]]:
        return {}

    def before(self, rows: pa.Table) -> pa.Table:
        return rows

    def step(self, state: pa.Table, rows: pa.Table | None, watermark: int, number: int) -> Step:
        if rows is None:
            return Step()
        by = self.by.names
        totals = {tuple(row[name] for name in by): row for row in of_groups(state, rows, by).to_pylist()}
        for row in rows.to_pylist():
            sign = row.pop(SIGN)
            group = tuple(row[name] for name in by)
            before = totals.get(group) or {**deepcopy(self.initial), ROWS: 0}
            count = before[ROWS] + sign
            total = {name: before[name] for name in self.returns.names}
            made = self.add(total, row) if sign > 0 else self.subtract(total, row)
            totals[group] = {**dict(zip(by, group, strict=True)), **made, ROWS: count}
        summed = pa.Table.from_pylist(list(totals.values()), self.state)
        gone = summed[ROWS].to_numpy() <= 0
        about = {VERSION: pa.array(np.full(len(summed), number, np.int64)), DELETED: pa.array(gone)}
        columns = {name: summed[name] for name in (*by, *self.returns.names)}
        return Step(with_gone(summed, gone), pa.table({**columns, **about}))
