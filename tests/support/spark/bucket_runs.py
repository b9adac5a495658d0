"""A stage's logic run without Spark, as one bucket: batch after batch, each through both of its steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.keyed_state.buckets import BUCKET, Logic


class Run:
    """One bucket and its state."""

    def __init__(self, logic: Logic) -> None:
        self.logic, self._number = logic, 0
        self.state: pa.Table = logic.state.empty_table()

    def batch(self, rows: pa.Table | None, watermark: int = -1) -> list[dict[str, Any]]:
        """The rows that a batch sends on; None is a batch without rows for this bucket."""
        if rows is not None:
            rows = self.logic.before(rows.append_column(BUCKET, pa.array(np.zeros(len(rows), np.int32))))
            rows = rows.drop_columns([BUCKET])
        self._number += 1
        step = self.logic.step(self.state, rows, watermark, self._number)
        self.state = step.after(self.state, self.logic.state_key)
        return [] if step.output is None else list(step.output.to_pylist())
