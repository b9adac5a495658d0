"""A client for Kafka on its wire protocol, which imports nothing else of penstock."""

from penstock.wire.blocking import BlockingProducer
from penstock.wire.fetch import Reader
from penstock.wire.pending import RecordMetadata
from penstock.wire.producer import Producer
from penstock.wire.tables import Receipt, TableFailed

__all__ = ["BlockingProducer", "Producer", "Reader", "Receipt", "RecordMetadata", "TableFailed"]
