"""Sums over signed rows by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.stream.aggregates import Aggregate, fields, parts_of
from penstock.stream.arrays import candidates, codes, concat, numbers
from penstock.stream.buckets import BUCKET, Step, with_gone
from penstock.stream.revisions import DELETED, SIGN, VERSION

ROWS = "_rows"
"""How many rows a group has."""


@dataclass(frozen=True)
class Totals:
    """The logic of a stage (see `buckets`)."""

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
    """The rows of the state in the groups of these rows."""
    likely = state.take(pa.array(candidates(state, rows, by)))
    there, here = codes([likely, rows], by)
    return likely.filter(pa.array(np.isin(there, here)))
