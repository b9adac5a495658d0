"""Single message transforms of Kafka Connect, Debezium and ScyllaDB; `chain` makes them from properties."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import lazy

if TYPE_CHECKING:
    from penstock.connect.transforms.source_chain import chain as chain
else:
    __all__, __getattr__, __dir__ = lazy.names(
        __name__,
        {
            "penstock.connect.transforms.source_chain": ("chain",),
        },
    )
