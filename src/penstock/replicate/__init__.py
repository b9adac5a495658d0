"""Keeps a table of one cluster equal to a table of another, and proves it.

`replicate.sink(...)` applies changes with their own times, `replicate.verify(...)` compares two tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import lazy

if TYPE_CHECKING:
    from penstock.replicate.applied_changes import Progress as Progress, progress as progress
    from penstock.replicate.change_events import changes as changes, events as events
    from penstock.replicate.replicate_sink import ReplicateSink as ReplicateSink, sink as sink
    from penstock.replicate.row_differences import Difference as Difference
    from penstock.replicate.table_scan import Side as Side, side as side
    from penstock.replicate.verification import Report as Report, verify as verify
else:
    __all__, __getattr__, __dir__ = lazy.names(
        __name__,
        {
            "penstock.replicate.applied_changes": ("Progress", "progress"),
            "penstock.replicate.change_events": ("changes", "events"),
            "penstock.replicate.replicate_sink": ("ReplicateSink", "sink"),
            "penstock.replicate.row_differences": ("Difference",),
            "penstock.replicate.table_scan": ("Side", "side"),
            "penstock.replicate.verification": ("Report", "verify"),
        },
    )
