"""The cells of a batch of changes that cannot be read: an error that names the first, or the column `problem`.

Whether the batch has that column decides: its reader asked for it with `bad_values="problem"`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.codec.problem import PROBLEM
from penstock.database.bad_values import bad_rows, excerpt, key_text
from penstock.database.columns import BadValue, Cells, decode
from penstock.native import Array
from penstock.schema import CqlType

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from penstock.source.cdc_changes import View


class Problems:
    """The bad cells of one batch, whose changes stand in the rows `rows` of a page."""

    def __init__(self, view: View, rows: Array, schema: pa.Schema) -> None:
        self.view, self.rows = view, rows
        self.stop = PROBLEM not in schema.names
        self.found: dict[int, list[dict[str, Any]]] = {}

    def decode(
        self,
        part: str,
        column: str,
        cells: Cells,
        target: pa.DataType,
        kind: CqlType,
        read: Callable[[CqlType, Cells, pa.DataType], pa.Array] = decode,
    ) -> pa.Array:
        """The cells of the batch's changes, those that cannot be read as null.

        Raises BadValue for the first of these if the batch has no column `problem`.
        """
        try:
            return read(kind, cells, target)
        except BadValue:
            lengths = cells.lengths.copy()
            for row, reason in bad_rows(lambda some: read(kind, some, target), cells):
                value = cells.text(row)
                if self.stop:
                    raise self._error(row, part, column, reason, value) from None
                about = {"part": part, "column": column, "type": str(kind), "reason": reason, "value": value}
                self.found.setdefault(row, []).append(about)
                lengths[row] = -1
            return read(kind, Cells(cells.buffer, cells.starts, lengths), target)

    def column(self, target: pa.DataType) -> pa.Array:
        """The column `problem`, when all others were decoded."""
        if not self.found:
            return pa.nulls(len(self.rows), target)
        first = self._problem(min(self.found))
        log.warning(
            "%s: %d rows have a problem; the first, %s, %s", self._table, len(self.found), first["key"], first["reason"]
        )
        return pa.array([self._problem(row) if row in self.found else None for row in range(len(self.rows))], target)

    def _problem(self, row: int) -> dict[str, object]:
        cells = self.found[row]
        columns = ", ".join(dict.fromkeys(f"{cell['column']} in {cell['part']}" for cell in cells))
        place = self._place(row)
        about = {name: place.get(f"cdc${name}") for name in ("stream_id", "time", "batch_seq_no")}
        reason = f"cannot be read: {columns}: {cells[0]['reason']}"
        return about | {"reason": reason, "table": self._table, "key": self._key(row), "cells": cells}

    def _error(self, row: int, part: str, column: str, reason: str, value: bytes) -> BadValue:
        place = self._place(row)
        stream = place.get("cdc$stream_id")
        of_log = f"stream 0x{stream.hex()}, time {place.get('cdc$time')}, " if isinstance(stream, bytes) else ""
        return BadValue(
            f"column {column} of {self._table} has a value that cannot be read: {reason}",
            where=f"{of_log}key {self._key(row)}, {part}, cell {excerpt(value)}",
            next='give cdc.read(...) bad_values="problem": such a value is null then, its row goes to '
            "kafka.dead_letters(...) and the others on; or leave the row out with a start behind its time. A connector "
            "leaves such rows out with errors.tolerance=all",
        )

    @property
    def _table(self) -> str:
        return self.view.layout.table.full_name

    def _cells(self, name: str, row: int) -> Cells:
        return self.view.cells(self.view.layout.at(name), self.rows[row : row + 1])

    def _place(self, row: int) -> dict[str, Any]:
        """Where a change stands in the log; of a row that a snapshot read, nothing."""
        targets = {"cdc$stream_id": pa.binary(), "cdc$time": pa.string(), "cdc$batch_seq_no": pa.int32()}
        layout = self.view.layout
        return {
            name: decode(layout.kinds[layout.at(name)], self._cells(name, row), target)[0].as_py()
            for name, target in targets.items()
            if name in layout.names
        }

    def _key(self, row: int) -> str:
        table = self.view.layout.table
        key = (*table.partition_key, *table.clustering_key)
        return key_text({c.name: c.type for c in key}, {c.name: self._cells(c.name, row) for c in key}, row=0)
