"""Sums over signed rows by group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.keyed_state.aggregates import Aggregate, fields, parts_of
from penstock.keyed_state.arrow_keys import candidates, codes, concat, numbers
from penstock.keyed_state.buckets import BUCKET, Step, with_gone
from penstock.table.revisions import DELETED, SIGN, VERSION

Row = dict[str, Any]
ROWS = "_rows"
"""The number of rows in a group."""


@dataclass(frozen=True)
class Totals:
    """The logic of a stage with aggregates (see `buckets`)."""

    by: pa.Schema
    aggregates: tuple[Aggregate, ...]

    @cached_property
    def state(self) -> pa.Schema:
        return pa.schema([*self.by, *fields(self.aggregates), pa.field(ROWS, pa.int64())])

    @property
    def state_key(self) -> tuple[str, ...]:
        return tuple(self.by.names)

    @property
    def made(self) -> Mapping[str, Sequence[str]]:
        return parts_of(self.aggregates)

    def before(self, rows: pa.Table) -> pa.Table:
        sign = rows[SIGN]
        columns = {name: rows[name] for name in (BUCKET, *self.by.names)}
        for aggregate in self.aggregates:
            for part in aggregate.parts:
                source = rows[part.source]
                if part.function == "count":
                    columns[part.column] = pc.multiply(pc.cast(source.is_valid(), pa.int64()), sign)
                else:
                    values = pc.fill_null(source.cast(part.type), 0)
                    columns[part.column] = pc.multiply(values, sign.cast(part.type))
        return self._summed(pa.table({**columns, ROWS: sign}), [BUCKET, *self.by.names])

    def step(self, state: pa.Table, rows: pa.Table | None, watermark: int, number: int) -> Step:
        if rows is None:
            return Step()
        known = of_groups(state, rows, self.by.names)
        summed = concat([self._summed(concat([known, rows], self.state), self.by.names)], self.state)
        gone = numbers(summed[ROWS]) <= 0
        columns = {name: summed[name] for name in self.by.names}
        columns |= {aggregate.column: aggregate.value(summed) for aggregate in self.aggregates}
        about = {VERSION: pa.array(np.full(len(summed), number, np.int64)), DELETED: pa.array(gone)}
        return Step(with_gone(summed, gone), pa.table({**columns, **about}))

    def _summed(self, rows: pa.Table, keys: list[str]) -> pa.Table:
        names = [name for name in rows.column_names if name not in keys]
        made = rows.group_by(keys, use_threads=False).aggregate([(name, "sum") for name in names])
        columns = {key: made[key] for key in keys} | {name: made[f"{name}_sum"] for name in names}
        return pa.table(columns)


def of_groups(state: pa.Table, rows: pa.Table, by: list[str]) -> pa.Table:
    """The rows of the state for the groups of these rows."""
    likely = state.take(pa.array(candidates(state, rows, by)))
    there, here = codes([likely, rows], by)
    return likely.filter(pa.array(np.isin(there, here)))


# Totals computed by two Python functions, row by row. Here the order of additions and subtractions of a group matters,
# since the functions can do anything.


@dataclass(frozen=True)
class Fold:
    """The logic of a stage with custom totals (see `buckets`)."""

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
