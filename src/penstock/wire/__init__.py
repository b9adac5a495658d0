"""A Kafka client on the wire protocol; of penstock it imports only `config`, `errors`, `lazy`, `native` and `waits`.

Its names are loaded when they are first used: a program that only reads offsets need not wait for the compiled loops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import lazy

if TYPE_CHECKING:
    from penstock.native.text_slices import Texts as Texts
    from penstock.wire import errors as errors
    from penstock.wire.coordinator import Committed as Committed
    from penstock.wire.producer.accumulator import RecordMetadata as RecordMetadata
    from penstock.wire.producer.blocking import BlockingProducer as BlockingProducer
    from penstock.wire.producer.producer import Producer as Producer
    from penstock.wire.producer.table_receipts import Receipt as Receipt, TableFailed as TableFailed
    from penstock.wire.topic_records import Reader as Reader
else:
    __all__, __getattr__, __dir__ = lazy.names(
        __name__,
        {
            "penstock.native.text_slices": ("Texts",),
            "penstock.wire.coordinator": ("Committed",),
            "penstock.wire.topic_records": ("Reader",),
            "penstock.wire.producer.blocking": ("BlockingProducer",),
            "penstock.wire.producer.accumulator": ("RecordMetadata",),
            "penstock.wire.producer.producer": ("Producer",),
            "penstock.wire.producer.table_receipts": ("Receipt", "TableFailed"),
        },
        modules=("errors",),
    )
