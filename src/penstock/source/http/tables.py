"""Events as the columns that our Kafka client takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.source.http.events import Events, Reading
from penstock.wire.texts import column


def table(lot: Sequence[Events], times: Sequence[int] | None = None) -> pa.RecordBatch:
    """The events of all, in order: `value`, `key` if any has one, and `timestamp` (ms) if each lot's time is given."""
    columns = {"value": column([events.values for events in lot])}
    if any(events.keys is not None for events in lot):
        columns["key"] = column([events.key_texts() for events in lot])
    if times is not None:
        columns["timestamp"] = pa.array(np.repeat(times, [events.count for events in lot]), pa.int64())
    return pa.record_batch(columns)


def warm() -> None:
    """Compile the loops from a body to columns, or load them from disk."""
    reading = Reading(None, ("k",), 100, 1)
    events, _ = reading.read(b'{"k":"v"}', lines=True, key=None)
    table([events])
    reading.examine(b'[{"k":"v"}]', lines=False, key=None)
