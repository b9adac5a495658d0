"""A client for Kafka on its wire protocol, which imports nothing else of penstock.

Its names are loaded when they are first used: who only asks for offsets need not wait for the compiled loops.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.wire.blocking import BlockingProducer
    from penstock.wire.fetch import Reader
    from penstock.wire.pending import RecordMetadata
    from penstock.wire.producer import Producer
    from penstock.wire.tables import Receipt, TableFailed

__all__ = ["BlockingProducer", "Producer", "Reader", "Receipt", "RecordMetadata", "TableFailed"]

_MODULES = {
    "BlockingProducer": "blocking",
    "Producer": "producer",
    "Reader": "fetch",
    "Receipt": "tables",
    "RecordMetadata": "pending",
    "TableFailed": "tables",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
