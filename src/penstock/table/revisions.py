"""A table's rows as additions and subtractions (the new row with sign 1, the replaced row with sign -1), and totals
of them by group."""

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
from penstock.keyed_state.arrow_keys import candidates, codes, concat, newest, numbers, positions
from penstock.keyed_state.buckets import BUCKET, BucketStep, with_gone
from penstock.keyed_state.exact_sums import grouped

SIGN, VERSION, DELETED = "_sign", "version", "deleted"
ROW_VERSION, ROW_DELETED = f"_{VERSION}", f"_{DELETED}"
ROWS = "_rows"
"""The number of rows in a group."""

Row = dict[str, Any]


@dataclass(frozen=True)
class LatestLogic:
    """Base of the logic of stages with tables (see `buckets`): the state is the newest row of each key."""

    columns: pa.Schema
    key: tuple[str, ...]

    @cached_property
    def state(self) -> pa.Schema:
        return pa.schema([*self.columns, pa.field(ROW_VERSION, pa.int64())])

    @property
    def state_key(self) -> tuple[str, ...]:
        return self.key

    @property
    def computed(self) -> Mapping[str, Sequence[str]]:
        return {}

    def before(self, rows: pa.Table) -> pa.Table:
        return newest(rows, [BUCKET, *self.state_key], ROW_VERSION)

    def step(self, state: pa.Table, rows: pa.Table | None, watermark: int, number: int) -> BucketStep:
        return BucketStep() if rows is None else self.changed(state, rows, number)

    def changed(self, state: pa.Table, rows: pa.Table, number: int) -> BucketStep:
        """Apply rows; time alone changes no table."""
        raise NotImplementedError


@dataclass(frozen=True)
class Revisions(LatestLogic):
    """The rows of a table as revisions; `sent` are the output columns."""

    sent: tuple[str, ...]

    def changed(self, state: pa.Table, rows: pa.Table, number: int) -> BucketStep:
        change = changes(state, rows, self.key)
        minus = self._signed(state.take(pa.array(change.places[change.places >= 0])), -1)
        plus = self._signed(change.rows.filter(pa.array(~change.gone)), 1)
        changed = with_gone(change.rows.select(self.state.names), change.gone)
        return BucketStep(changed, pa.concat_tables([minus, plus]).combine_chunks())

    def _signed(self, rows: pa.Table, sign: int) -> pa.Table:
        return rows.select(list(self.sent)).append_column(SIGN, pa.array(np.full(len(rows), sign, np.int64)))


@dataclass(frozen=True)
class NewerRows:
    """The rows that are newer than those of the state, their positions in the state (-1: none), and a mask of those
    that are deleted."""

    rows: pa.Table
    places: np.ndarray[tuple[int], np.dtype[np.int64]]
    gone: np.ndarray[tuple[int], np.dtype[np.bool_]]


def changes(state: pa.Table, rows: pa.Table, key: tuple[str, ...]) -> NewerRows:
    """What rows with `_version` and `_deleted` change in a state with `_version`.

    A deletion also removes the version: a row older than its deletion that comes later counts as new.
    """
    rows = newest(rows, key, ROW_VERSION)
    places = positions(state, rows, key)
    known = np.full(len(rows), np.iinfo(np.int64).min)
    known[places >= 0] = numbers(state[ROW_VERSION])[places[places >= 0]]
    gone = rows[ROW_DELETED].to_numpy().astype(bool)
    newer = (numbers(rows[ROW_VERSION]) >= known) & ~(gone & (places < 0))
    return NewerRows(rows.filter(pa.array(newer)), places[newer], gone[newer])


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
    def computed(self) -> Mapping[str, Sequence[str]]:
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
                    values = pc.if_else(source.is_valid(), source, pa.scalar(0, source.type)).cast(part.type)
                    columns[part.column] = pc.if_else(pc.less(sign, 0), pc.negate_checked(values), values)
        return _summed(pa.table({**columns, ROWS: sign}), [BUCKET, *self.by.names])

    def step(self, state: pa.Table, rows: pa.Table | None, watermark: int, number: int) -> BucketStep:
        if rows is None:
            return BucketStep()
        known = of_groups(state, rows, self.by.names)
        summed = concat([_summed(concat([known, rows], self.state), self.by.names)], self.state)
        gone = numbers(summed[ROWS]) <= 0
        columns = {name: summed[name] for name in self.by.names}
        columns |= {aggregate.column: aggregate.value(summed) for aggregate in self.aggregates}
        about = {VERSION: pa.array(np.full(len(summed), number, np.int64)), DELETED: pa.array(gone)}
        return BucketStep(with_gone(summed, gone), pa.table({**columns, **about}))


def _summed(rows: pa.Table, keys: list[str]) -> pa.Table:
    """One row for each key, with the sums of all other columns."""
    names = [name for name in rows.column_names if name not in keys]
    return grouped(rows, keys, {name: (name, "sum", rows.schema.field(name).type) for name in names})


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
    def computed(self) -> Mapping[str, Sequence[str]]:
        return {}

    def before(self, rows: pa.Table) -> pa.Table:
        return rows

    def step(self, state: pa.Table, rows: pa.Table | None, watermark: int, number: int) -> BucketStep:
        if rows is None:
            return BucketStep()
        by = self.by.names
        totals = {tuple(row[name] for name in by): row for row in of_groups(state, rows, by).to_pylist()}
        for row in rows.to_pylist():
            sign = row.pop(SIGN)
            group = tuple(row[name] for name in by)
            before = totals.get(group) or {**deepcopy(self.initial), ROWS: 0}
            count = before[ROWS] + sign
            total = {name: before[name] for name in self.returns.names}
            updated = self.add(total, row) if sign > 0 else self.subtract(total, row)
            totals[group] = {**dict(zip(by, group, strict=True)), **updated, ROWS: count}
        summed = pa.Table.from_pylist(list(totals.values()), self.state)
        gone = summed[ROWS].to_numpy() <= 0
        about = {VERSION: pa.array(np.full(len(summed), number, np.int64)), DELETED: pa.array(gone)}
        columns = {name: summed[name] for name in (*by, *self.returns.names)}
        return BucketStep(with_gone(summed, gone), pa.table({**columns, **about}))
