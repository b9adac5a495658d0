"""A client for Kafka on its wire protocol, which imports nothing else of penstock."""

from penstock.wire.blocking import BlockingProducer
from penstock.wire.pending import RecordMetadata
from penstock.wire.producer import Producer
from penstock.wire.tables import Receipt, TableFailed

__all__ = ["BlockingProducer", "Producer", "Receipt", "RecordMetadata", "TableFailed"]
