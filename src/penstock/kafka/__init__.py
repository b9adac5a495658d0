"""Kafka in pipelines: `read`, `read_table`, `sink`, `dead_letters`, and the formats of records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import lazy

if TYPE_CHECKING:
    from penstock.codec.formats import codec as codec
    from penstock.codec.registry import Registry as Registry
    from penstock.kafka.dead_letter_sink import DeadLetters as DeadLetters, dead_letters as dead_letters
    from penstock.kafka.kafka_read import read as read, read_table as read_table
    from penstock.kafka.kafka_sink import KafkaSink as KafkaSink, sink as sink
    from penstock.table.table import Table as Table
else:
    __all__, __getattr__, __dir__ = lazy.names(
        __name__,
        {
            "penstock.codec.formats": ("codec",),
            "penstock.codec.registry": ("Registry",),
            "penstock.kafka.dead_letter_sink": ("DeadLetters", "dead_letters"),
            "penstock.kafka.kafka_read": ("read", "read_table"),
            "penstock.kafka.kafka_sink": ("KafkaSink", "sink"),
            "penstock.table.table": ("Table",),
        },
    )
