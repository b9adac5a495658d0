"""Delta Lake for pipelines: `delta.sink(...)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import lazy

if TYPE_CHECKING:
    from penstock.delta.delta_sink import DeltaSink as DeltaSink, sink as sink
else:
    __all__, __getattr__, __dir__ = lazy.names(
        __name__,
        {
            "penstock.delta.delta_sink": ("DeltaSink", "sink"),
        },
    )
