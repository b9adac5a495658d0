"""Joins a stream's rows with a table, whose rows are state."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from penstock.join.table_join import RIGHT, SIDE
from penstock.keyed_state.arrow_keys import partners, taken
from penstock.keyed_state.buckets import Step, upserted, with_gone
from penstock.table.revisions import LatestLogic, changes


@dataclass(frozen=True)
class StreamTableLogic(LatestLogic):
    """The logic of a join of a stream (left) with a table (right)."""

    stream: tuple[str, ...]
    values: tuple[str, ...]
    how: str

    def before(self, rows: pa.Table) -> pa.Table:
        of_table = pc.equal(rows[SIDE], RIGHT)
        return pa.concat_tables([super().before(rows.filter(of_table)), rows.filter(pc.invert(of_table))])

    def changed(self, state: pa.Table, rows: pa.Table, number: int) -> Step:
        of_table = pc.equal(rows[SIDE], RIGHT)
        change = changes(state, rows.filter(of_table), self.key)
        changed = with_gone(change.rows.select(self.state.names), change.gone)
        if len(changed):
            state = upserted(state, changed, self.key)
        return Step(changed, self._joined(rows.filter(pc.invert(of_table)), state), state=state)

    def _joined(self, rows: pa.Table, state: pa.Table) -> pa.Table:
        places = partners(state, rows, self.key)
        if self.how == "inner":
            found = places >= 0
            rows, places = rows.filter(pa.array(found)), places[found]
        values = taken(state.select(list(self.values)), places)
        return pa.table({name: rows[name] for name in self.stream} | {name: values[name] for name in self.values})
