"""Single message transforms of Kafka Connect, Debezium and ScyllaDB, on columns; `chain` makes them from properties."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import lazy

if TYPE_CHECKING:
    from penstock.connect.transforms.transform_chain import chain as chain
else:
    __all__, __getattr__, __dir__ = lazy.names(
        __name__,
        {
            "penstock.connect.transforms.transform_chain": ("chain",),
        },
    )
