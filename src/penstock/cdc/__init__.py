"""Change data capture from ScyllaDB and Apache Cassandra: `read` gives changes as a frame, `events` encodes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import lazy

if TYPE_CHECKING:
    from penstock.cdc.cdc_source import read as read
    from penstock.codec.debezium import events as events
else:
    __all__, __getattr__, __dir__ = lazy.names(
        __name__,
        {
            "penstock.cdc.cdc_source": ("read",),
            "penstock.codec.debezium": ("events",),
        },
    )
